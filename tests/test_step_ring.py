"""Step times between a worker process and the engine core: written and read as files, by processes that may die."""

from __future__ import annotations

import multiprocessing
import os
import struct
import time
from random import Random
from typing import TYPE_CHECKING

import pytest
from test_meter import SECOND, Engine
from test_phases import parts

from ledger.hook.vllm import ring
from ledger.hook.vllm.ring import RingReader, RingWriter, path_of
from ledger.hook.vllm.timing import Ranks
from ledger.limits import RANKS_WAIT_S, RING_AGE_S_MAX, RING_RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def writer(folder: Path, *, tp: int = 0, dp: int = 0) -> RingWriter:
    return RingWriter(path_of("abcde", dp, tp, folder), dp=dp, pp=0, tp=tp)


def reader(folder: Path, *, tp: int = 0) -> RingReader:
    return RingReader(path_of("abcde", 0, tp, folder))


def told(found: list[ring.StepTimes]) -> list[tuple[int, int, int | None, str]]:
    return [(one.number, one.execute_us, one.communication_us, one.method) for one in found]


def test_what_is_written_is_read_once_and_in_order(tmp_path: Path) -> None:
    one = writer(tmp_path, tp=1)
    other = reader(tmp_path, tp=1)
    assert other.shard == "dp0pp0tp1"
    assert other.read(10) == []
    one.write(1000, 300, "wall")
    one.write(2000, None, "cuda_events")
    assert told(other.read(10)) == [(1, 1000, 300, "wall"), (2, 2000, None, "cuda_events")]
    one.write(3000, 0, "sampled")
    assert told(other.read(10)) == [(3, 3000, 0, "sampled")]
    assert other.read(10) == []
    assert other.lost == 0


def test_a_reader_that_comes_late_finds_what_was_written_before(tmp_path: Path) -> None:
    one = writer(tmp_path)
    for number in range(RING_RECORDS):
        one.write(number, 0, "wall")
    other = reader(tmp_path)
    found = [times.execute_us for _ in range(RING_RECORDS // 16) for times in other.read(16)]
    assert found == list(range(RING_RECORDS))


@pytest.mark.parametrize("beyond", [1, 100, RING_RECORDS, 3 * RING_RECORDS + 5])
def test_what_was_overwritten_is_counted_as_lost(tmp_path: Path, beyond: int) -> None:
    one, other = writer(tmp_path), reader(tmp_path)
    for number in range(RING_RECORDS + beyond):
        one.write(number, 0, "wall")
    found: list[ring.StepTimes] = []
    for _ in range(RING_RECORDS):
        found += other.read(64)
    assert [times.number for times in found] == list(range(found[0].number, RING_RECORDS + beyond + 1))
    assert len(found) >= RING_RECORDS // 2
    assert other.lost + len(found) == RING_RECORDS + beyond


def test_a_record_that_is_not_whole_is_not_taken(tmp_path: Path) -> None:
    one = writer(tmp_path)
    other = reader(tmp_path)
    one.write(1000, 300, "wall")
    at = ring._HEAD.size + 8
    whole = os.pread(one._file, 8, at)
    os.pwrite(one._file, struct.pack("<q", 77), at)
    assert other.read(10) == []
    os.pwrite(one._file, whole, at)
    assert told(other.read(10)) == [(1, 1000, 300, "wall")]
    assert other.lost == 0


def test_a_record_that_never_becomes_whole_is_lost_and_those_behind_it_are_not(tmp_path: Path) -> None:
    one = writer(tmp_path)
    other = reader(tmp_path)
    one.write(1000, 300, "wall")
    os.pwrite(one._file, struct.pack("<q", 77), ring._HEAD.size + 8)
    one.write(2000, 300, "wall")
    found = [times.number for _ in range(4) for times in other.read(10)]
    assert found == [2]
    assert other.lost == 1


def test_the_file_is_gone_once_both_sides_have_it(tmp_path: Path) -> None:
    one = writer(tmp_path)
    assert list(tmp_path.iterdir())
    other = reader(tmp_path)
    assert not list(tmp_path.iterdir())
    one.write(5, 0, "wall")
    one.close()
    assert len(other.read(10)) == 1


def test_a_file_that_nobody_has_opened_goes_with_its_writer(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.close()
    one.close()
    assert not list(tmp_path.iterdir())


def test_what_workers_left_an_hour_ago_is_deleted_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = writer(tmp_path, tp=3)
    other = tmp_path / "somebody-elses"
    other.touch()
    now_s = time.time()
    monkeypatch.setattr(ring.time, "time", lambda: now_s + RING_AGE_S_MAX - 60)
    writer(tmp_path, tp=0)
    assert left.path.exists()
    monkeypatch.setattr(ring.time, "time", lambda: now_s + RING_AGE_S_MAX + 60)
    writer(tmp_path, tp=0)
    assert not left.path.exists()
    assert other.exists()


def test_names_of_engines_ranks_and_users_do_not_meet(tmp_path: Path) -> None:
    names = {path_of(instance, dp, rank, tmp_path).name for instance in "ab" for dp in (0, 1) for rank in (0, 11)}
    assert len(names) == 8
    assert all(name.startswith(f"kvledger-{os.getuid()}-") for name in names)
    assert path_of("../../etc/x", 0, 0, tmp_path).parent == tmp_path


def test_no_room_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ring.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        writer(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_just_being_made_is_not_there_yet(tmp_path: Path) -> None:
    path = path_of("abcde", 0, 0, tmp_path)
    path.touch()
    with pytest.raises(FileNotFoundError):
        RingReader(path)
    assert path.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"KVSTEPS1" + bytes(200_000))
    path = path_of("abcde", 0, 0, tmp_path)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        RingReader(path)
    assert (tmp_path / "elsewhere").exists()


def _write_and_die(folder: Path, steps: int) -> None:
    one = RingWriter(path_of("abcde", 0, 0, folder), dp=0, pp=0, tp=0)
    for number in range(steps):
        one.write(number, number // 2, "wall")
    os.kill(os.getpid(), 9)


def test_what_a_worker_wrote_before_it_was_killed_is_read(tmp_path: Path) -> None:
    worker = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(tmp_path, 1000))
    worker.start()
    worker.join(60)
    assert worker.exitcode == -9
    other = reader(tmp_path)
    assert [times.execute_us for _ in range(20) for times in other.read(64)] == list(range(1000))


def _write_at_full_speed(folder: Path, steps: int) -> None:
    one = RingWriter(path_of("abcde", 0, 0, folder), dp=0, pp=0, tp=0)
    for number in range(steps):
        one.write(7 * number, 3 * number, "wall")


def test_a_reader_beside_a_writer_at_full_speed_takes_only_what_was_written(tmp_path: Path) -> None:
    steps = 60_000
    worker = multiprocessing.get_context("spawn").Process(target=_write_at_full_speed, args=(tmp_path, steps))
    worker.start()
    random = Random(5)
    deadline = time.monotonic() + 60
    other = None
    taken = wrong = last = 0
    while last < steps and time.monotonic() < deadline:
        try:
            other = other or reader(tmp_path)
        except FileNotFoundError:
            continue
        for times in other.read(random.choice([1, 16, 500])):
            wrong += (times.execute_us, times.communication_us) != (7 * (times.number - 1), 3 * (times.number - 1))
            wrong += times.number <= last
            last = times.number
            taken += 1
    worker.join(60)
    assert other is not None
    assert (wrong, last) == (0, steps)
    assert taken + other.lost == steps


# -- what the core does with them ----------------------------------------------------------------------


def ranks(folder: Path, number: int = 2) -> Ranks:
    return Ranks("abcde", dp=0, ranks=number, folder=folder)


def test_every_step_of_every_rank_reaches_the_meter_once(tmp_path: Path) -> None:
    engine, core = Engine(), ranks(tmp_path)
    assert core.drain(engine.meter, SECOND) == 0
    one, two = writer(tmp_path, tp=0), writer(tmp_path, tp=1)
    for number in range(1000):
        one.write(1000, 300, "wall")
        two.write(1000, 700, "wall")
        if number % 100 == 0:
            core.drain(engine.meter, SECOND)
    core.drain(engine.meter, 2 * SECOND)
    engine.meter.close(3 * SECOND)
    found = parts(engine.last)
    assert {(phase, shard): (one.count, one.total) for (phase, shard, _), one in found.items()} == {
        ("execute", "dp0pp0tp0"): (1000, 1_000_000),
        ("communication", "dp0pp0tp0"): (1000, 300_000),
        ("compute", "dp0pp0tp0"): (1000, 700_000),
        ("execute", "dp0pp0tp1"): (1000, 1_000_000),
        ("communication", "dp0pp0tp1"): (1000, 700_000),
        ("compute", "dp0pp0tp1"): (1000, 300_000),
    }
    assert not engine.meter.faults


def test_a_rank_alone_has_no_communication(tmp_path: Path) -> None:
    engine, core, one = Engine(), ranks(tmp_path, 1), writer(tmp_path)
    one.write(1000, 0, "wall")
    core.drain(engine.meter, SECOND)
    engine.meter.close(2 * SECOND)
    assert {phase for phase, _, _ in parts(engine.last)} == {"execute", "compute"}


def test_a_rank_whose_communication_is_not_known_has_execution_alone(tmp_path: Path) -> None:
    engine, core, one = Engine(), ranks(tmp_path, 1), writer(tmp_path)
    one.write(1000, None, "cuda_events")
    core.drain(engine.meter, SECOND)
    engine.meter.close(2 * SECOND)
    assert list(parts(engine.last)) == [("execute", "dp0pp0tp0", "cuda_events")]


def test_communication_is_never_more_than_execution(tmp_path: Path) -> None:
    engine, core, one = Engine(), ranks(tmp_path, 1), writer(tmp_path)
    one.write(1000, 1001, "cuda_events")
    core.drain(engine.meter, SECOND)
    engine.meter.close(2 * SECOND)
    assert {phase: one.total for (phase, _, _), one in parts(engine.last).items()} == {
        "execute": 1000,
        "communication": 1000,
        "compute": 0,
    }


def test_the_drain_rests_between_slices_and_leaves_the_rest_for_the_next_time(tmp_path: Path) -> None:
    engine, core, one = Engine(), ranks(tmp_path, 1), writer(tmp_path)
    for _ in range(2000):
        one.write(10, 0, "wall")
    rests = []
    counts = [core.drain(engine.meter, SECOND, lambda: rests.append(1)) for _ in range(3)]
    assert counts == [1024, 976, 0]
    assert len(rests) == 64 + 61


def test_a_rank_that_cannot_be_read_is_told_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, core = Engine(), ranks(tmp_path)
    path_of("abcde", 0, 0, tmp_path).symlink_to(tmp_path)
    writer(tmp_path, tp=1).write(10, 0, "wall")
    assert core.drain(engine.meter, SECOND) == 1
    assert "rank 0" in caplog.text
    caplog.clear()
    assert core.drain(engine.meter, SECOND) == 0
    assert not caplog.text


def test_lost_steps_are_told_with_their_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine, core, one = Engine(), ranks(tmp_path, 1), writer(tmp_path)
    for _ in range(2 * RING_RECORDS):
        one.write(10, 0, "wall")
    while core.drain(engine.meter, SECOND):
        pass
    assert core.lost > 0
    assert f"{core.lost} steps" in caplog.text


def test_what_was_opened_in_time_is_read_although_the_rank_is_gone(tmp_path: Path) -> None:
    engine, core, one = Engine(), ranks(tmp_path, 1), writer(tmp_path)
    one.write(10, 0, "wall")
    core.look()
    one.close()
    assert core.drain(engine.meter, SECOND) == 1


class Clock:
    """Microseconds; each look at it lets 10 ms pass."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.us = SECOND
        self.then = then

    def __call__(self) -> int:
        self.us += 10_000
        self.then()
        return self.us


def test_at_the_end_the_last_steps_are_waited_for(tmp_path: Path) -> None:
    engine, core, one = Engine(), ranks(tmp_path, 1), writer(tmp_path)
    one.write(10, 0, "wall")

    def write_the_second() -> None:
        if clock.us == SECOND + 80_000:
            one.write(10, 0, "wall")

    clock = Clock(write_the_second)
    core.drain_last(engine.meter, clock, 2)
    engine.meter.close(2 * SECOND)
    assert parts(engine.last)["execute", "dp0pp0tp0", "wall"].count == 2
    assert clock.us < SECOND + 150_000


def test_at_the_end_nobody_waits_for_long(tmp_path: Path) -> None:
    engine, core, one = Engine(), ranks(tmp_path, 1), writer(tmp_path)
    one.write(10, 0, "wall")
    clock = Clock()
    core.drain_last(engine.meter, clock, 2)
    assert clock.us < SECOND + RANKS_WAIT_S * 1.5 * SECOND
    clock = Clock()
    ranks(tmp_path / "nowhere", 1).drain_last(engine.meter, clock, 2)
    assert clock.us < SECOND + 50_000, "a rank that never began is not waited for"


def test_closing_ends_it(tmp_path: Path) -> None:
    engine, core, one = Engine(), ranks(tmp_path, 1), writer(tmp_path)
    one.write(10, 0, "wall")
    core.drain(engine.meter, SECOND)
    core.close()
    one.write(10, 0, "wall")
    assert core.drain(engine.meter, SECOND) == 0
