"""Processes as the kernel shows them: a planted /proc for the corners, and this very process for the real thing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from ledger.collectors.procfs import PAGE, TICKS, Pool, Processes
from ledger.core.samples import ProcessPeriod, Watch

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 15_000_000


class Kernel:
    """A /proc in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        (root / "stat").write_text("cpu  1 2 3\nbtime 1700000000\nprocesses 9\n")

    def put(
        self, pid: int, name: str = "python3", *, parent: int = 1, group: int = 50, cpu: int = 0, start: int = 500,
        threads: dict[int, tuple[str, int, int]] | None = None, inner: int | None = None,
    ) -> None:  # fmt: skip
        """A process; ``threads`` are (name, ticks, times that it gave up its core) by id."""
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        number = len(threads or {1: None})
        (folder / "stat").write_text(self._line(pid, name, parent, group, cpu, number, start))
        (folder / "comm").write_text(f"{name}\n")
        (folder / "status").write_text(f"Name:\t{name}\nNSpid:\t{pid}" + (f"\t{inner}" if inner else "") + "\n")
        for tid, (thread, ticks, gave_up) in (threads or {}).items():
            task = folder / "task" / str(tid)
            task.mkdir(parents=True, exist_ok=True)
            (task / "stat").write_text(self._line(tid, thread, parent, group, ticks, number, start))
            (task / "status").write_text(f"Name:\t{thread}\nvoluntary_ctxt_switches:\t{gave_up}\nnonvoluntary:\t1\n")

    def _line(self, pid: int, name: str, parent: int, group: int, cpu: int, threads: int, start: int) -> str:
        times = [cpu // 3, cpu - cpu // 3, 0, 0]
        fields = [parent, group, 50, 0, -1, 0, 0, 0, 0, 0, *times, 20, 0, threads, 0, start, 9, 100]
        return f"{pid} ({name}) S {' '.join(map(str, fields))} 0 0\n"


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "proc")


def rows(processes: Processes, *pids: int, **more) -> dict[int, ProcessPeriod]:
    return {row.pid: row for row in processes.period(pids, LENGTH, **more)}


def test_a_process_on_a_gpu_is_what_its_line_says(kernel: Kernel) -> None:
    kernel.put(60, "VLLM::(Engine) 1", threads={60: ("a", 0, 0), 61: ("b", 0, 0)}, cpu=90, inner=7)
    processes = Processes(root=kernel.root)
    first = rows(processes, 60)[60]
    assert first == ProcessPeriod(
        pid=60, inner_pid=7, name="VLLM::(Engine) 1", watch=Watch.GPU, threads=2, rss_bytes=100 * PAGE,
        started_us=1_700_000_000_000_000 + 500 * 1_000_000 // TICKS, cpu_us=None,
    )  # fmt: skip
    kernel.put(60, "VLLM::(Engine) 1", threads={60: ("a", 0, 0), 61: ("b", 0, 0)}, cpu=90 + 3 * TICKS)
    assert rows(processes, 60)[60].cpu_us == 3_000_000


def test_one_that_has_ended_is_absent_and_its_id_used_again_is_another_process(kernel: Kernel) -> None:
    kernel.put(60, cpu=1000)
    processes = Processes(root=kernel.root)
    assert rows(processes, 60, 61).keys() == {60}
    kernel.put(60, cpu=2000, start=900)
    again = rows(processes, 60)[60]
    assert again.cpu_us is None, "what another process used is not its time"
    assert rows(processes) == {}


def test_the_front_of_an_engine_is_watched_and_the_shell_that_started_it_is_not(kernel: Kernel) -> None:
    kernel.put(30, "bash", group=30)
    kernel.put(50, "vllm", parent=30)
    kernel.put(55, "EngineCore", parent=50)
    kernel.put(60, "Worker", parent=55)
    found = rows(Processes(root=kernel.root), 60)
    assert {pid: row.watch for pid, row in found.items()} == {60: Watch.GPU, 55: Watch.PARENT, 50: Watch.PARENT}


def test_a_process_can_be_named_and_the_agent_watches_itself(kernel: Kernel) -> None:
    kernel.put(60, "llama-server")
    kernel.put(61, "other")
    kernel.put(62, "kvledger")
    found = rows(Processes(root=kernel.root, own=62, names=["llama-server"]), pools={62: Pool(workers=4, busy=3)})
    assert {pid: row.watch for pid, row in found.items()} == {60: Watch.NAMED, 62: Watch.OWN}
    assert (found[62].workers, found[62].workers_busy, found[62].queued) == (4, 3, None)


def test_threads_are_looked_at_where_a_process_uses_most_of_a_core_alone(kernel: Kernel) -> None:
    def at(second: int, busy: float, wakes: int) -> None:
        ticks = int(second * busy * TICKS)
        waits = ("waits", second, wakes * second)
        kernel.put(
            60, cpu=ticks, threads={60: ("main", 0, 5), 61: ("forward", ticks, 0), 62: waits, 63: ("sleeps", 0, 1)}
        )

    processes = Processes(root=kernel.root)
    found = []
    for number, (busy, wakes) in enumerate([(1.0, 200), (1.0, 200), (1.0, 200), (1.0, 10)]):
        at(15 * number, busy, wakes)
        found.append(rows(processes, 60)[60])
    assert [(row.busiest, row.busiest_us, row.waiting_threads) for row in found] == [
        ("", None, None),
        ("", None, None),
        ("forward", LENGTH, 1),
        ("forward", LENGTH, 0),
    ]
    kernel.put(60, cpu=45 * TICKS + 1)
    assert rows(processes, 60)[60].busiest_us is None, "it cannot have a thread at its limit"


def test_a_line_that_is_none_is_no_process(kernel: Kernel) -> None:
    (kernel.root / "60").mkdir()
    (kernel.root / "60" / "stat").write_text("60 (half a li")
    assert rows(Processes(root=kernel.root), 60) == {}


def test_the_real_kernel_says_the_same_of_this_process() -> None:
    processes = Processes(own=os.getpid())
    (first,) = processes.period((), LENGTH)
    assert first.threads is not None
    assert first.threads >= 1
    assert first.rss_bytes is not None
    assert first.rss_bytes > 10 * 1024**2
    assert first.started_us is not None
    assert abs(first.started_us / 1e6 - time.time()) < 7 * 86_400


BOUND = """
import threading, time
def wants():
    while True: time.sleep(0.0005)
for _ in range(3): threading.Thread(target=wants, daemon=True).start()
while True:
    for _ in range(5_000_000): pass
    print(flush=True)
"""


def test_a_thread_that_keeps_the_interpreters_lock_shows_with_those_that_wait_for_it() -> None:
    """Against the time that it got, since the machine may be busy with something else."""
    child = subprocess.Popen([sys.executable, "-c", BOUND], stdout=subprocess.PIPE)
    assert child.stdout is not None
    processes, before, found = Processes(), 0, []
    try:
        while len(found) < 40 and not (found and found[-1].waiting_threads == 3):
            child.stdout.readline()
            stat = processes._stat(child.pid)
            assert stat is not None
            length_us, before = (stat.cpu_ticks - before) * 1_000_000 // TICKS, stat.cpu_ticks
            found += processes.period([child.pid], length_us)[-1:]
        last = found[-1]
        assert last.waiting_threads == 3
        assert last.threads == 4
        assert last.busiest_us is not None
        assert last.cpu_us is not None
        assert abs(last.cpu_us - last.busiest_us) <= 0.1 * last.cpu_us + 2_000_000 / TICKS
    finally:
        child.kill()
        child.communicate()
