"""The outbox beside an engine: what is emitted arrives once, through faults, kills and full disks; nothing blocks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_service import FakeService
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import limits, wire
from ledger.core.records import Batch, Boot, Dimensions, Group, Origin, Outcome, SessionPeriod, Source
from ledger.errors import Refusal
from ledger.hook.meter import Meter
from ledger.outbox import spool as spools
from ledger.outbox.drain import Outbox
from ledger.outbox.post import HttpPost
from ledger.outbox.segment import Segment
from ledger.outbox.spool import Spool
from ledger.outbox.tally import Loss, Tally

ROOT = Path(__file__).parents[1]
T0 = 1_793_664_000_000_000
PERIOD_US = 15_000_000


def batch(seq: int, rows: int = 3, boot: str = "boot-1", name: str = "engine-a") -> Batch:
    return Batch(
        source=Source(engine=name, origin=Origin.SIMULATED),
        boot=Boot(boot_id=boot, anchor_us=T0, started_us=T0),
        seq=seq,
        start_us=T0 + seq * PERIOD_US,
        end_us=T0 + (seq + 1) * PERIOD_US,
        sessions=tuple(
            SessionPeriod(pool="gpu", dims=Dimensions(tenant=f"t{n}", session="s"), compute_us=seq) for n in range(rows)
        ),
    )


def opened(root: Path | None, *urls: str, **options: Any) -> Outbox:
    def spool_of(tally: Tally) -> Spool:
        assert root is not None
        return Spool(root, tally=tally, fsync=False)

    posts = [HttpPost(url, token=lambda: "t", timeout_s=options.pop("timeout_s", 10.0)) for url in urls]
    return Outbox(posts, spool_of if root is not None else None, **options)


def lost(outbox: Outbox) -> dict[Loss, int]:
    return {loss: count for loss, count in outbox.tally.counts.items() if count}


def chain_holds(service: FakeService) -> bool:
    digests: dict[tuple[str, int], tuple[bytes, bytes]] = {}
    for _, raw in service.requests:
        found = wire.decode(raw)
        assert not isinstance(found, Refusal)
        digests[found.batch.boot.boot_id, found.batch.seq] = (found.digest, found.prev)
    return all(
        prev == (digests[boot, seq - 1][0] if seq > 1 else b"")
        for (boot, seq), (_, prev) in digests.items()
        if seq == 1 or (boot, seq - 1) in digests
    )


def test_what_is_emitted_arrives_in_order_once_and_chained(tmp_path: Path) -> None:
    with FakeService() as service:
        outbox = opened(tmp_path, service.url)
        outbox.start()
        for seq in range(1, 21):
            outbox.emit(batch(seq))
        service.wait(lambda: len(service.order) == 20)
        outbox.close()
        assert service.order == list(range(1, 21))
        assert service.repeats == 0
        assert chain_holds(service)
        assert list(service.batches.values()) == [batch(seq) for seq in range(1, 21)]
        assert lost(outbox) == {}
        assert list(tmp_path.iterdir()) == []


@given(st.lists(st.sampled_from(["ok", "reset", "booked:reset", "half", "junk", "500", "503:0", "429:0", "close",
                                 "chunked", "408", "401", "413", "204"]), max_size=6))  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_through_every_fault_of_a_network_all_arrive_and_each_is_booked_once(
    tmp_path_factory: pytest.TempPathFactory, moods: list[str]
) -> None:
    # The pauses are the sender's; here a second address, which is the same service, is tried at once.
    with FakeService(*moods) as service:
        outbox = opened(tmp_path_factory.mktemp("spool"), *[service.url] * limits.SEND_ENDPOINTS_MAX)
        outbox.start()
        for seq in range(1, 6):
            outbox.emit(batch(seq))
        service.wait(lambda: len(service.batches) == 5)
        outbox.close()
        assert sorted(seq for _, _, seq in service.batches) == [1, 2, 3, 4, 5]
        assert list(dict.fromkeys(service.order)) == [1, 2, 3, 4, 5]
        assert chain_holds(service)
        assert lost(outbox) == {}


def prevs(service: FakeService) -> dict[tuple[str, int], tuple[bytes, bytes]]:
    found = [wire.decode(raw) for _, raw in service.requests]
    assert all(isinstance(one, wire.Decoded) for one in found)
    return {(d.batch.source.engine, d.batch.seq): (d.prev, d.digest) for d in found if isinstance(d, wire.Decoded)}


def test_a_batch_behind_one_that_never_had_a_digest_still_names_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 5_000)
    with FakeService() as service:
        outbox = opened(tmp_path, service.url)
        outbox.start()
        for seq, rows in ((1, 500), (2, 1), (3, 500), (4, 1)):
            outbox.emit(batch(seq, rows))
        service.wait(lambda: service.order == [2, 4])
        outbox.close()
        found = prevs(service)
        assert found["engine-a", 2][0] == bytes(32)
        assert found["engine-a", 4][0] == found["engine-a", 2][1]


def test_engines_that_share_an_outbox_have_a_chain_each(tmp_path: Path) -> None:
    with FakeService() as service:
        outbox = opened(tmp_path, service.url)
        outbox.start()
        for seq in (1, 2, 3):
            for name in ("a", "b"):
                outbox.emit(batch(seq, name=name))
        service.wait(lambda: len(service.batches) == 6)
        outbox.close()
        found = prevs(service)
        for name in ("a", "b"):
            assert [found[name, seq][0] for seq in (1, 2, 3)] == [b"", found[name, 1][1], found[name, 2][1]]


def test_what_a_service_that_is_down_did_not_get_the_next_process_sends_on_the_same_chain(tmp_path: Path) -> None:
    first = opened(tmp_path, "http://127.0.0.1:9")
    first.start()
    for seq in (1, 2, 3):
        first.emit(batch(seq))
    first.close(0.5)
    assert first.status.delivery.failures["unreachable"] >= 1
    with FakeService() as service:
        second = opened(tmp_path, service.url)
        second.start()
        second.emit(batch(1, boot="boot-2"))
        service.wait(lambda: len(service.batches) == 4)
        second.close()
        assert service.order == [1, 2, 3, 1]
        assert [boot for _, boot, _ in service.batches] == ["boot-1"] * 3 + ["boot-2"]
    assert lost(first) == lost(second) == {}


ENGINE = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from test_outbox import batch, opened
outbox = opened(Path(sys.argv[1]), sys.argv[2])
outbox.start()
for seq in range(1, int(sys.argv[3]) + 1):
    while outbox.status.queued > 40:
        pass
    outbox.emit(batch(seq))
if sys.argv[4] == "wait":
    print("emitted", flush=True)
    sys.stdin.read()
"""


def engine(root: Path, url: str, count: int, then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(root), url, str(count), then],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("after", [1, 17])
def test_killed_in_mid_drain_what_is_on_the_disk_goes_on_at_the_same_place(tmp_path: Path, after: int) -> None:
    with FakeService() as service:
        with engine(tmp_path, service.url, 60, "wait") as process:
            service.wait(lambda: len(service.order) >= after)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        heir = opened(tmp_path, service.url)
        heir.start()
        heir.emit(batch(1, boot="boot-2"))
        service.wait(lambda: ("engine-a", "boot-2", 1) in service.batches)
        heir.close()
        got = [seq for _, boot, seq in service.batches if boot == "boot-1"]
        # No gap: only the end, which was in memory still, may be missing. At most one was sent twice.
        assert got == list(range(1, len(got) + 1))
        assert len(got) >= after
        assert service.repeats <= 1
        assert chain_holds(service)
        assert heir.tally.counts[Loss.DAMAGED] <= 1


def test_an_engine_that_ends_without_a_word_is_flushed_at_its_exit(tmp_path: Path) -> None:
    with FakeService() as service, engine(tmp_path, service.url, 10, "exit") as process:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert service.order == list(range(1, 11))
    assert list(tmp_path.iterdir()) == []


def test_closing_beside_a_service_that_hangs_takes_its_time_and_no_more(tmp_path: Path) -> None:
    with FakeService("hang") as service:
        outbox = opened(tmp_path, service.url, timeout_s=60.0)
        outbox.start()
        outbox.emit(batch(1))
        service.wait(lambda: bool(service.requests))
        started_s = time.monotonic()
        outbox.close(0.3)
        assert time.monotonic() - started_s < 5
    with spools.read(tmp_path) as reading:
        assert len(list(reading)) == 1


class Jammed:
    """A pause that lasts until it is told otherwise: the drain thread stands still."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.go.wait(30)


class Wishes:
    """A meter that is only asked for standing counts."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def settle(self, limit: int | None = None, *, rest: object) -> int:
        return 0

    def resend_standing(self) -> None:
        self.asked.set()


def test_emitting_into_a_full_queue_drops_counts_and_asks_for_standing_counts(tmp_path: Path) -> None:
    jam, meter = Jammed(), Wishes()
    outbox = opened(tmp_path, pause=jam)
    outbox.attach(meter)
    outbox.start()
    outbox.emit(batch(1))
    assert jam.reached.wait(10)
    for seq in range(2, limits.OUTBOX_QUEUE_MAX + 12):
        outbox.emit(batch(seq))
    assert lost(outbox) == {Loss.QUEUE_FULL: 10}
    assert outbox.status.queued == limits.OUTBOX_QUEUE_MAX
    jam.go.set()
    assert meter.asked.wait(20)
    outbox.close()
    with spools.read(tmp_path) as reading:
        assert len(list(reading)) == limits.OUTBOX_QUEUE_MAX + 1


def test_the_queue_is_bounded_in_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTBOX_QUEUE_ROWS_MAX", 100)
    outbox = opened(None)
    for seq in range(1, 12):
        outbox.emit(batch(seq, rows=30))
    assert outbox.status.queued == 3
    assert lost(outbox) == {Loss.QUEUE_FULL: 8}


def test_a_refusal_for_good_asks_for_standing_counts(tmp_path: Path) -> None:
    meter = Wishes()
    with FakeService("422") as service:
        outbox = opened(tmp_path, service.url)
        outbox.attach(meter)
        outbox.start()
        outbox.emit(batch(1))
        outbox.emit(batch(2))
        service.wait(lambda: service.order == [2])
        assert meter.asked.wait(20)
        outbox.close()
        assert lost(outbox) == {Loss.REFUSED: 1}


def test_without_a_disk_batches_are_kept_in_memory_and_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with FakeService("503:0") as service:
        outbox = opened(tmp_path / "file" / "spool", service.url)
        outbox.start()
        for seq in (1, 2, 3):
            outbox.emit(batch(seq))
        service.wait(lambda: len(service.batches) == 3)
        outbox.close()
        assert service.order == [1, 2, 3]
    assert "the spool cannot be used" in caplog.text
    assert lost(outbox) == {}


def test_a_disk_that_fills_up_and_is_freed_again_costs_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = threading.Event()
    write = Segment.append

    def append(self: Segment, payload: bytes, *, stamp_us: int) -> int:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, payload, stamp_us=stamp_us)

    monkeypatch.setattr(Segment, "append", append)
    with FakeService() as service:
        outbox = opened(tmp_path, service.url)
        outbox.start()
        for seq in range(1, 10):
            (full.set if 4 <= seq <= 6 else full.clear)()
            outbox.emit(batch(seq))
            service.wait(lambda count=seq: len(service.batches) == count)  # type: ignore[misc]
        outbox.close()
        assert service.order == list(range(1, 10))
        assert chain_holds(service)
    assert caplog.text.count("takes no batch: No space left on device") == 1
    assert lost(outbox) == {}


def test_memory_beside_a_full_disk_is_bounded_and_what_ends_there_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(wire.encode(batch(1, rows=50)))
    monkeypatch.setattr(limits, "OUTBOX_HOLD_BYTES_MAX", size)  # compressed, a few fit
    outbox = opened(None, "http://127.0.0.1:9")
    outbox.start()
    for seq in range(1, 41):
        outbox.emit(batch(seq, rows=50))
    outbox.close(0.5)
    counts = lost(outbox)
    assert counts[Loss.HOLD_FULL] > 0
    assert counts[Loss.CLOSED] > 0
    assert sum(counts.values()) == 40


def test_a_batch_that_no_service_would_take_is_dropped_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 5_000)
    with FakeService() as service:
        outbox = opened(tmp_path, service.url)
        outbox.start()
        outbox.emit(batch(1, rows=1))
        outbox.emit(batch(2, rows=500))
        outbox.emit(batch(3, rows=1))
        service.wait(lambda: len(service.order) == 2)
        outbox.close()
        assert service.order == [1, 3]
        assert lost(outbox) == {Loss.TOO_LARGE: 1}


def test_after_faults_in_a_row_it_switches_itself_off_and_the_engine_hears_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox = opened(None)
    outbox.start()
    switch_off(outbox)
    outbox.emit(batch(9))
    outbox.close()
    # What says that it is off had nowhere to go, either.
    assert lost(outbox) == {Loss.FAULT: limits.OUTBOX_FAULTS_MAX, Loss.OFF: 1, Loss.CLOSED: 1}
    assert "switches itself off after 8 faults" in caplog.text
    assert caplog.text.count("a fault of kvledger's own") == 1, "once for its place"


def test_what_was_dropped_is_told_with_the_batches_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 5_000)
    with FakeService() as service:
        outbox = opened(tmp_path, service.url)
        outbox.start()
        for seq, rows in ((1, 1), (2, 500), (3, 1), (4, 500), (5, 1)):
            outbox.emit(batch(seq, rows))
        service.wait(lambda: service.order == [1, 3, 5])
        outbox.close()
        said = [found.hook.dropped for found in service.batches.values()]
        assert said == [(), (("too_large", 1),), (("too_large", 2),)]


def test_an_outbox_that_switched_itself_off_says_so_with_the_bare_head_of_what_it_drops_once_a_boot() -> None:
    with FakeService() as service:
        outbox = opened(None, service.url)
        outbox.start()
        switch_off(outbox)
        for seq in (9, 10, 11):
            outbox.emit(batch(seq))
        service.wait(lambda: service.order == [9])
        outbox.emit(batch(1, boot="boot-2"))
        service.wait(lambda: service.order == [9, 1])
        outbox.close()
        (first, second) = service.batches.values()
    assert (first.sessions, first.start_us, first.end_us) == ((), batch(9).start_us, batch(9).start_us)
    assert first.hook.dropped[0] == ("fault", limits.OUTBOX_FAULTS_MAX)
    assert first.hook.off == second.hook.off == outbox.status.off
    assert first.hook.off.startswith("the outbox met 8 faults in a row, the last: AttributeError at writing.py:")
    assert lost(outbox)[Loss.OFF] == 4


def switch_off(outbox: Outbox) -> None:
    """Hand over batches that cannot be encoded, until it has had enough."""
    for seq in range(1, limits.OUTBOX_FAULTS_MAX + 1):
        outbox.emit(Batch(**{**_fields(batch(seq)), "sessions": (object(),)}))
    until_s = time.monotonic() + 20
    while not outbox.status.off:
        assert time.monotonic() < until_s, lost(outbox)
        time.sleep(0.005)


def _fields(whole: Batch) -> dict[str, Any]:
    return {name: getattr(whole, name) for name in Batch.__slots__}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12 warns, and so it is tested
def test_the_child_of_a_fork_has_no_outbox(tmp_path: Path) -> None:
    with FakeService() as service:
        outbox = opened(tmp_path, service.url)
        outbox.start()
        outbox.emit(batch(1))
        service.wait(lambda: service.order == [1])
        child = os.fork()
        if child == 0:
            outbox.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        outbox.emit(batch(2))
        service.wait(lambda: service.order == [1, 2])
        outbox.close()


def lived(emit: Any, *, later: bool) -> Meter:
    """A meter with a life behind it: arrivals, shared blocks, steps, finishes, several periods."""
    boot = Boot(boot_id="boot-1", anchor_us=T0, started_us=T0)
    meter = Meter(Source(engine="engine-a", origin=Origin.SIMULATED), boot, emit, settle_later=later)
    pool = meter.open(0, "gpu", blocks=4000, groups=[Group(block_size=16)], model="m")
    names = [f"r{n}" for n in range(200)]
    for n, name in enumerate(names):
        meter.request(n + 1, name, Dimensions(tenant=f"t{n % 7}", session=f"s{n % 90}"), prompt_tokens=100)
        shared = list(range(3))
        own = list(range(3 + n * 10, 13 + n * 10))
        pool.acquire(n + 1, name, 0, hit=shared if n else (), new=own if n else [*shared, *own])
    at = 1_000
    for period in range(4):
        for _ in range(3):
            at += 1_000_000
            meter.scheduled(at, dict.fromkeys(names, 1), len(names))
            meter.stepped(at + 20_000)
        for name in names[:20]:
            n = int(name[1:])
            blocks = [*range(3), *range(3 + n * 10, 13 + n * 10)]
            meter.finish(at + 30_000, name, Outcome.FINISHED, "stop")
            pool.release(at + 30_000, name, blocks, cached=blocks[3:])
        names = names[20:]
        at = (period + 1) * PERIOD_US
    meter.close(at + 5_000)
    return meter


def test_settling_in_slices_gives_the_same_batches_and_pauses_often() -> None:
    at_once: list[Batch] = []
    lived(at_once.append, later=False)
    sliced: list[Batch] = []
    meter = lived(sliced.append, later=True)
    pauses = [0]

    def pause() -> None:
        pauses[0] += 1

    while meter.settle(1, rest=pause):
        pass
    assert sliced == at_once
    rows = sum(len(found.sessions) for found in sliced)
    assert pauses[0] > rows / 16


def test_a_meter_that_settles_later_is_drained_and_its_last_periods_at_the_close(tmp_path: Path) -> None:
    at_once: list[Batch] = []
    lived(at_once.append, later=False)
    with FakeService() as service:
        outbox = opened(tmp_path, service.url)
        outbox.attach(lived(outbox.emit, later=True))
        outbox.start()
        service.wait(lambda: len(service.batches) == len(at_once))
        outbox.close()
        assert list(service.batches.values()) == at_once
        assert chain_holds(service)
        assert lost(outbox) == {}


def test_a_heartbeat_behind_the_engines_last_event_is_no_fault() -> None:
    found: list[Batch] = []
    boot = Boot(boot_id="b", anchor_us=T0, started_us=T0)
    meter = Meter(Source(engine="e", origin=Origin.SIMULATED), boot, found.append)
    meter.open(5_000_000, "gpu", blocks=10, groups=[Group(block_size=16)])
    meter.advance(4_000_000)
    assert not meter.faults
    meter.advance(PERIOD_US)
    assert found[-1].end_us == T0 + PERIOD_US


def test_the_service_is_told_what_was_dropped(tmp_path: Path) -> None:
    with FakeService("422", "ok") as service:
        outbox = opened(tmp_path, service.url)
        outbox.start()
        outbox.emit(batch(1))
        outbox.emit(batch(2))
        service.wait(lambda: service.order == [2])
        outbox.close()
        assert "dropped_refused=1" in service.requests[1][0]["kvledger-outbox"]
