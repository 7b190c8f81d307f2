"""The spool: what was appended comes out, in order, through crashes, flips, full disks and other owners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger import limits
from ledger.errors import LedgerError
from ledger.outbox import spool as spools
from ledger.outbox.segment import RECORD_HEAD_BYTES, RECORDS_AT, Foreign, Segment
from ledger.outbox.spool import Spool
from ledger.outbox.tally import Loss, Tally

ROOT = Path(__file__).parents[1]


class Clock:
    def __init__(self) -> None:
        self.wall, self.mono = 1_800_000_000_000_000, 1000.0

    def wall_us(self) -> int:
        return self.wall

    def mono_s(self) -> float:
        return self.mono


def make(root: Path, clock: Clock | None = None, **options: object) -> tuple[Spool, Tally]:
    clock, tally = clock or Clock(), Tally()
    made = Spool(root, tally=tally, fsync=False, wall_us=clock.wall_us, mono_s=clock.mono_s, **options)  # type: ignore[arg-type]
    return made, tally


def drain(spool: Spool) -> list[bytes]:
    found = []
    while (entry := spool.peek()) is not None:
        found.append(entry.payload)
        spool.acknowledge(entry)
    return found


def crash(spool: Spool) -> None:
    """What a SIGKILL leaves: the lock is free, and nothing was tidied."""
    spool.forget()


def lost(tally: Tally) -> dict[Loss, int]:
    return {loss: count for loss, count in tally.counts.items() if count}


def test_what_was_appended_comes_out_in_order_and_stays_until_it_is_acknowledged(tmp_path: Path) -> None:
    spool, tally = make(tmp_path)
    assert [spool.append(b"%d" % n) for n in range(5)] == [True] * 5
    first = spool.peek()
    assert first is not None
    assert first == spool.peek()
    assert drain(spool) == [b"0", b"1", b"2", b"3", b"4"]
    assert spool.peek() is None
    spool.append(b"5")
    assert drain(spool) == [b"5"]
    spool.close()
    assert lost(tally) == {}
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(0, 12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_a_crash_the_next_owner_goes_on_behind_the_last_acknowledgement(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], acknowledged: int
) -> None:
    root = tmp_path_factory.mktemp("spool")
    spool, _ = make(root)
    for payload in payloads:
        assert spool.append(payload)
    for _ in range(min(acknowledged, len(payloads))):
        entry = spool.peek()
        assert entry is not None
        spool.acknowledge(entry)
    crash(spool)
    heir, tally = make(root)
    heir.append(b"new")
    assert drain(heir) == [*payloads[acknowledged:], b"new"]
    assert lost(tally) == {}
    heir.close()
    assert list(root.iterdir()) == []


def written(root: Path, payloads: list[bytes], acknowledged: int = 0) -> tuple[Path, list[int]]:
    """A spool that crashed; the one segment of it, and where its records end."""
    spool, _ = make(root)
    for payload in payloads:
        spool.append(payload)
    for _ in range(acknowledged):
        entry = spool.peek()
        assert entry is not None
        spool.acknowledge(entry)
    crash(spool)
    (path,) = root.glob("*/*.seg")
    ends, at = [], RECORDS_AT
    for payload in payloads:
        at += RECORD_HEAD_BYTES + len(payload)
        ends.append(at)
    return path, ends


PAYLOADS = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=6)


@given(PAYLOADS, st.data())
@settings(max_examples=300, deadline=None)
def test_a_flipped_byte_costs_the_record_it_lies_in_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("spool")
    acknowledged = data.draw(st.integers(0, len(payloads)))
    path, ends = written(root, payloads, acknowledged)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    heir, tally = make(root)
    found = drain(heir)
    hit = next((n for n, end in enumerate(ends) if at < end), len(ends)) if at >= RECORDS_AT else None
    rest = [payload for n, payload in enumerate(payloads) if n >= acknowledged and n != hit]
    # In the acknowledgement itself a flip costs a repeat of what the older slot leaves open.
    assert found == rest or (hit is None and found[-len(rest) or len(found) :] == rest)
    assert all(payload in payloads for payload in found)
    assert lost(tally) == ({Loss.DAMAGED: 1} if hit is not None and hit >= acknowledged else {})


@given(PAYLOADS, st.data())
@settings(max_examples=200, deadline=None)
def test_a_file_cut_anywhere_gives_every_record_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("spool")
    path, ends = written(root, payloads)
    cut = data.draw(st.integers(0, ends[-1]))
    os.truncate(path, cut)
    heir, tally = make(root)
    assert drain(heir) == [payload for payload, end in zip(payloads, ends, strict=True) if end <= cut]
    torn = cut > RECORDS_AT and cut not in ends
    assert lost(tally) == ({Loss.DAMAGED: 1} if torn else {})
    heir.close()
    assert list(root.iterdir()) == []


@given(PAYLOADS, st.binary(min_size=1, max_size=80), st.data())
@settings(max_examples=200, deadline=None)
def test_bytes_put_in_anywhere_between_records_are_stepped_over(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], junk: bytes, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("spool")
    path, ends = written(root, payloads)
    at = data.draw(st.sampled_from([RECORDS_AT, *ends]))
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + junk + raw[at:])
    heir, tally = make(root)
    assert drain(heir) == payloads
    assert tally.counts[Loss.DAMAGED] == 1
    assert tally.damaged_bytes == len(junk)


def test_records_of_another_file_do_not_pass_for_this_ones(tmp_path: Path) -> None:
    path, ends = written(tmp_path / "a", [b"alien"])
    record = path.read_bytes()[RECORDS_AT : ends[0]]
    path, _ = written(tmp_path / "b", [b"own"])
    with path.open("ab") as stream:
        stream.write(record)
    heir, tally = make(tmp_path / "b")
    assert drain(heir) == [b"own"]
    assert tally.damaged_bytes == len(record)


def test_owners_that_live_are_left_alone_and_dead_ones_are_adopted(tmp_path: Path) -> None:
    one, _ = make(tmp_path)
    one.append(b"one")
    two, _ = make(tmp_path)
    two.append(b"two")
    assert two.adopt() == 0
    assert drain(two) == [b"two"]
    crash(one)
    assert two.adopt() == 1
    assert drain(two) == [b"one"]
    two.append(b"more")
    assert drain(two) == [b"more"]


def test_what_is_adopted_while_a_batch_is_under_way_goes_next(tmp_path: Path) -> None:
    old, _ = make(tmp_path)
    new, _ = make(tmp_path)
    old.append(b"old")
    new.append(b"new 1")
    new.append(b"new 2")
    under_way = new.peek()
    crash(old)
    new.adopt()
    assert new.peek() == under_way
    assert drain(new) == [b"new 1", b"old", b"new 2"]


def test_a_full_spool_gives_up_its_oldest_and_counts_each(tmp_path: Path) -> None:
    spool, tally = make(tmp_path, bytes_max=80_000)
    for n in range(200):
        assert spool.append(b"%04d" % n + bytes(996))
        assert spool.size <= 80_000
    kept = [int(payload[:4]) for payload in drain(spool)]
    assert kept == list(range(200 - len(kept), 200))
    assert len(kept) >= 60
    assert lost(tally) == {Loss.SPOOL_BYTES: 200 - len(kept)}


def test_a_record_larger_than_the_spool_is_not_taken_and_costs_no_other(tmp_path: Path) -> None:
    spool, tally = make(tmp_path, bytes_max=80_000)
    spool.append(b"small")
    assert not spool.append(bytes(80_000))
    assert drain(spool) == [b"small"]
    assert lost(tally) == {}


def test_age_goes_by_the_monotonic_clock_so_that_a_stepped_clock_drops_nothing(tmp_path: Path) -> None:
    clock = Clock()
    spool, tally = make(tmp_path, clock, age_s_max=800.0)
    spool.append(b"old")
    clock.wall += 10 * limits.DAY_US
    clock.mono += 500
    spool.append(b"mid")
    clock.wall -= 20 * limits.DAY_US
    spool.append(b"young")
    assert spool.segments == 2
    clock.mono += 400
    assert drain(spool) == [b"mid", b"young"]
    assert lost(tally) == {Loss.SPOOL_AGE: 1}


def test_what_a_dead_process_left_ages_by_the_wall_clock(tmp_path: Path) -> None:
    clock = Clock()
    spool, _ = make(tmp_path, clock)
    spool.append(b"a")
    crash(spool)
    clock.wall += 801_000_000
    heir, tally = make(tmp_path, clock, age_s_max=800.0)
    assert drain(heir) == []
    assert lost(tally) == {Loss.SPOOL_AGE: 1}


def test_a_clock_before_1970_and_one_that_runs_backwards_still_keep_order(tmp_path: Path) -> None:
    clock = Clock()
    clock.wall = -5
    spool, _ = make(tmp_path, clock, bytes_max=8_000)
    for n in range(5):
        clock.wall -= limits.DAY_US
        spool.append(b"%d" % n + bytes(600))
    crash(spool)
    heir, _ = make(tmp_path, clock)
    assert [payload[:1] for payload in drain(heir)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_later_version_of_the_format_stays_where_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, _ = written(tmp_path, [b"x"])
    with Segment.open(path).path.open("r+b") as stream:
        head = bytearray(stream.read(48))
        head[6] = 2
        head[32:48] = spools.Segment.create(tmp_path / "probe", now_us=0) and _resum(bytes(head[:32]))
        stream.seek(0)
        stream.write(bytes(head) * 2)
    (tmp_path / "probe").unlink()
    with pytest.raises(Foreign):
        Segment.open(path)
    heir, tally = make(tmp_path)
    assert heir.peek() is None
    assert "later version" in caplog.text
    heir.close()
    assert len(list(tmp_path.glob("*/*.seg"))) == 1
    assert lost(tally) == {}


def _resum(stated: bytes) -> bytes:
    from hashlib import blake2b  # noqa: PLC0415

    return blake2b(stated, digest_size=16).digest()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12 warns, and so it is tested
def test_a_child_of_a_fork_neither_writes_nor_frees_the_parents_spool(tmp_path: Path) -> None:
    spool, _ = make(tmp_path)
    spool.append(b"parent")
    child = os.fork()
    if child == 0:
        try:
            taken = spool.append(b"child")
            seen = spool.peek()
            spool.close()
            os._exit(0 if not taken and seen is None else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other, _ = make(tmp_path)
    assert other.peek() is None  # the lock is still held
    assert drain(spool) == [b"parent"]


KILLED = """
import sys
from pathlib import Path
from ledger.outbox.spool import Spool
from ledger.outbox.tally import Tally
spool = Spool(Path(sys.argv[1]), tally=Tally(), fsync=False)
for n in range(1_000_000):
    spool.append(b"%09d" % n + bytes(n * 37 % 3000))
    if n % 3 == 0:
        entry = spool.peek()
        spool.acknowledge(entry)
        print(n, int(entry.payload[:9]), flush=True)
"""


@pytest.mark.parametrize("after", [2, 40, 400])
def test_killed_in_the_midst_of_appending_and_draining_loses_nothing_that_was_taken(tmp_path: Path, after: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(after):
            line = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        line = (process.stdout.read().strip().split("\n") or [""])[-1] or line
    appended, acknowledged = map(int, line.split())
    heir = Spool(tmp_path, tally=Tally())
    numbers = [int(payload[:9]) for payload in drain(heir)]
    # One acknowledgement may have been made and not printed.
    assert numbers[0] in {acknowledged + 1, acknowledged + 2}
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert numbers[-1] >= appended


FULL = """
import resource, signal, sys
from pathlib import Path
from ledger.outbox.spool import Spool
from ledger.outbox.tally import Tally
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
spool = Spool(Path(sys.argv[1]), tally=Tally())
took = [spool.append(bytes([65 + n]) * 1000) for n in range(9)]
found = []
while (entry := spool.peek()) is not None:
    found.append(chr(entry.payload[0]))
    spool.acknowledge(entry)
print("".join("+-"[not t] for t in took), "".join(found))
"""


def test_a_file_that_may_not_grow_is_left_whole_and_a_new_one_is_begun(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), "3500"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["+++-+++-+", "ABCEFGI"]
    assert "takes no batch: File too large" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small tmpfs; RLIMIT_FSIZE is tested above")
def test_a_full_disk_takes_nothing_loses_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], check=False).returncode:
        pytest.skip("this container may not mount a tmpfs; RLIMIT_FSIZE is tested above")
    try:
        spool, tally = make(tmp_path)
        took = [spool.append(b"%03d" % n + bytes(3000)) for n in range(40)]
        assert took.count(True) >= 10
        assert not took[-1]
        first = spool.peek()
        assert first is not None
        kept = [int(payload[:3]) for payload in drain(spool)]
        assert kept == [n for n, taken in enumerate(took) if taken]
        assert spool.append(b"again")
        assert drain(spool) == [b"again"]
        assert lost(tally) == {}
        spool.close()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_the_reader_without_a_sender_gives_each_batch_once_and_tidies(tmp_path: Path) -> None:
    clock = Clock()
    for name in (b"a", b"b"):
        clock.wall += 1
        spool, _ = make(tmp_path, clock)
        for n in range(3):
            spool.append(zlib.compress(name + b"%d" % n, wbits=31))
        crash(spool)
    with spools.read(tmp_path) as reading:
        first = next(iter(reading))
        assert first.raw == b"a0"
        reading.acknowledge(first)
    with spools.read(tmp_path) as reading:
        assert [entry.raw for entry in reading] == [b"a1", b"a2", b"b0", b"b1", b"b2"]
    with spools.read(tmp_path) as reading:
        for entry in reading:
            reading.acknowledge(entry)
    assert list(tmp_path.iterdir()) == []


def test_the_reader_leaves_out_an_owner_that_lives_and_names_it(tmp_path: Path) -> None:
    spool, _ = make(tmp_path)
    spool.append(b"x")
    with spools.read(tmp_path) as reading:
        assert list(reading) == []
        assert [path.name for path in reading.busy] == [path.name for path in tmp_path.iterdir()]
    assert drain(spool) == [b"x"]


def test_the_reader_takes_one_owners_directory_and_counts_damage(tmp_path: Path) -> None:
    path, ends = written(tmp_path, [b"one", b"two", b"three"])
    raw = bytearray(path.read_bytes())
    raw[ends[0] + 3] ^= 1
    path.write_bytes(raw)
    with spools.read(path.parent) as reading:
        assert [entry.raw for entry in reading] == [b"one", b"three"]
        assert reading.tally.counts[Loss.DAMAGED] == 1


def test_where_there_is_no_spool_the_reader_says_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no spool is in it; name the directory that KVLEDGER_SPOOL names"):
        spools.read(tmp_path)
    with pytest.raises(LedgerError, match="no such directory"):
        spools.read(tmp_path / "absent")


def test_a_bomb_in_the_spool_is_cut_one_byte_above_the_limit(tmp_path: Path) -> None:
    spool, _ = make(tmp_path)
    spool.append(zlib.compress(bytes(limits.BATCH_BYTES_MAX + 1000), wbits=31))
    entry = spool.peek()
    assert entry is not None
    assert len(entry.raw) == limits.BATCH_BYTES_MAX + 1


def test_a_root_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        make(tmp_path / "file" / "spool")


def test_the_spool_is_nobody_elses_to_read(tmp_path: Path) -> None:
    spool, _ = make(tmp_path / "root")
    spool.append(b"x")
    modes = {path.stat().st_mode & 0o077 for path in [tmp_path / "root", *(tmp_path / "root").rglob("*")]}
    assert modes == {0}
