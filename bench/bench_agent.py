"""What an agent costs beside eight busy GPUs, whether it grows, and how many rows a GPU makes a day.

* **Share.** The real `kvledger agent`, a process of its own, looks once a second at 8 GPUs with 20 processes each (a
  stub of NVML behind NVIDIA's binding; real processes, asleep) and delivers to a service on loopback that books
  nothing. Its processor time over the time that passed is its share of one core, limit 1 %. What is spent in the
  stub and in the call of it is stated apart: calls a look, times the time of one.
* **Memory.** Its resident memory over 24 hours on a clock of their own, every look of them, from the end of the first
  hour to the end, limit 2 MiB, and in the last half of it, where it must be flat: 0.25 MiB.
* **Rows.** Rows a GPU makes in a day with its 20 processes, where nothing moves and where everything does, and what
  they take in SQLite.

    python -m bench.bench_agent [--quick] [--json FILE]

Quick: 20 s in place of 120, 2 hours in place of 24. Needs a C compiler and the header of nvidia-nvml-dev.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
from nvml.stub import GIB, Stub, build

from bench.bench_outbox import SERVICE
from bench.figures import Figure, main
from ledger import ingest, wire
from ledger.collectors.agent import AgentLoop
from ledger.collectors.nvml import Nvml
from ledger.collectors.procfs import Processes
from ledger.core.records import Origin
from ledger.core.samples import Agent, SampleBatch
from ledger.store import migrate
from ledger.store.database import connect

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE_PER_CENT_MAX = 1.0
GROWTH_MIB_MAX = 2.0
LATE_GROWTH_MIB_MAX = 0.25
GPUS, PROCESSES = 8, 20
T0 = 1_793_664_000_000_000
SECOND, HOUR = 1_000_000, 3_600
ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def measure(quick: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build(folder)
        asleep = [subprocess.Popen(["sleep", "86400"]) for _ in range(GPUS * PROCESSES)]
        try:
            stub = host(folder / "nvml.stub", [process.pid for process in asleep])
            found = share(folder, library, stub, seconds=20 if quick else 120)
        finally:
            for process in asleep:
                process.kill()
                process.wait()
        os.environ["NVML_STUB"] = str(stub.path)
        pynvml.nvmlLib = ctypes.CDLL(str(library))
        found += call_time(stub)
        found += growth(folder, hours=2 if quick else 24)
        found += rows(folder, stub)
    return found


def host(path: Path, pids: list[int]) -> Stub:
    """Eight GPUs, each with its processes."""
    stub = Stub(path, devices=GPUS)
    for number in range(GPUS):
        own = pids[number * PROCESSES : (number + 1) * PROCESSES]
        stub[number].put(dict.fromkeys(own, 2 * GIB), rest=GIB)
        stub[number].busy = 90
    return stub


def share(folder: Path, library: Path, stub: Stub, *, seconds: int) -> list[Figure]:
    """The agent's processor time over wall time, and its calls of NVML, once it is under way."""
    service = subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert service.stdout is not None
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KVLEDGER_")}
    environ |= {
        "KVLEDGER_URL": f"http://127.0.0.1:{int(service.stdout.readline())}", "KVLEDGER_TOKEN": "kvl_bench",
        "KVLEDGER_SPOOL": str(folder / "spool"), "LD_LIBRARY_PATH": str(library.parent), "NVML_STUB": str(stub.path),
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    agent = subprocess.Popen([sys.executable, "-m", "ledger", "agent"], env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        assert agent.stdout.readline(), "the agent ended before it said that it runs"
        time.sleep(5)
        began_s, spent_s, calls = time.monotonic(), cpu_s(agent.pid), stub.control.calls
        time.sleep(seconds)
        passed_s = time.monotonic() - began_s
        spent_s, calls = cpu_s(agent.pid) - spent_s, stub.control.calls - calls
        assert calls > seconds * GPUS, f"{calls} calls of NVML in {seconds} s: it does not look"
        resident = int(Path(f"/proc/{agent.pid}/statm").read_text().split()[1]) * PAGE / 1024**2
    finally:
        agent.terminate()
        agent.wait(30)
        service.kill()
        service.wait()
    about = f"{GPUS} GPUs x {PROCESSES} processes"
    return [
        Figure(
            name=f"agent, {about}: share of one core", value=100 * spent_s / passed_s, unit="%",
            limit=SHARE_PER_CENT_MAX,
        ),
        Figure(name="calls of NVML a second", value=calls / passed_s, unit="calls"),
        Figure(name="its resident memory", value=resident, unit="MiB"),
    ]  # fmt: skip


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def call_time(stub: Stub) -> list[Figure]:
    """One call of the stub as ctypes makes it, without the binding around it."""
    pynvml.nvmlInit()
    handle, power = pynvml.nvmlDeviceGetHandleByIndex(0), ctypes.c_uint()
    call, times = pynvml.nvmlLib.nvmlDeviceGetPowerUsage, 200_000
    before = stub.control.calls
    began_s = time.process_time()
    for _ in range(times):
        call(handle, ctypes.byref(power))
    spent_s = time.process_time() - began_s
    assert stub.control.calls - before == times
    pynvml.nvmlShutdown()
    return [Figure(name="one call of the stub, ctypes included", value=1e6 * spent_s / times, unit="µs")]


class Simulated:
    """An agent's loop on a clock of its own; processes are those of the stub, and none of them is real."""

    def __init__(self, folder: Path, emit: Callable[[SampleBatch], None]) -> None:
        self.now_us = T0
        self.driver = Nvml(proc_gpus=folder / "gpus", relist_s=1e9)
        self._loop = AgentLoop(
            Agent(source_id="agent:bench", origin=Origin.SIMULATED),
            self.driver,
            Processes(root=folder / "no-proc"),
            emit,
            wall_us=lambda: self.now_us,
            mono_us=lambda: self.now_us - T0,
        )

    def run(self, looks: int) -> None:
        for _ in range(looks):
            self._loop.step()
            self.now_us += SECOND


def growth(folder: Path, *, hours: int) -> list[Figure]:
    """Resident memory from the end of the first hour on, and in the last half; each batch is encoded and let go.

    The allocator takes an arena once in the first hours; what leaks would go on to the end.
    """
    simulated = Simulated(folder, lambda batch: len(wire.encode(batch)) and None)
    at = []
    for looks in (HOUR, (hours // 2 - 1) * HOUR, (hours - hours // 2) * HOUR):
        simulated.run(looks)
        at.append(resident_mib())
    simulated.driver.close()
    return [
        Figure(
            name=f"growth of resident memory in {hours - 1} more simulated hours", value=at[2] - at[0], unit="MiB",
            limit=GROWTH_MIB_MAX,
        ),
        Figure(
            name=f"  of that in the last {hours - hours // 2}", value=at[2] - at[1], unit="MiB",
            limit=LATE_GROWTH_MIB_MAX,
        ),
    ]  # fmt: skip


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1024**2


def rows(folder: Path, stub: Stub) -> list[Figure]:
    """Rows and bytes of half an hour, as a day of one GPU."""
    found = []
    for name, moves in (("nothing moves", False), ("all moves", True)):
        sent: list[SampleBatch] = []
        simulated = Simulated(folder, sent.append)
        for minute in range(31):
            for number in range(GPUS):
                unit = stub[number]
                pids = [unit.process[place].pid for place in range(PROCESSES)]
                unit.put(dict.fromkeys(pids, 2 * GIB + (minute * 8 * 1024**2 if moves else 0)), rest=GIB)
            for _ in range(4):
                simulated.run(14)
                if moves:
                    for number in range(GPUS):
                        stub[number].process[0].used += 2 * 1024**2
                        stub[number].used += 2 * 1024**2
                simulated.run(1)
        simulated.driver.close()
        whole = sent[4:]  # a GPU's rows of the first minute are those of its beginning
        count = sum(len(batch.samples) + len(batch.processes) + len(batch.rests) for batch in whole)
        a_day = 5760 / len(whole) / GPUS
        found.append(Figure(name=f"rows a GPU-day, {PROCESSES} processes, {name}", value=count * a_day, unit="rows"))
        size = stored_bytes(folder / f"{name}.db", sent)
        found.append(Figure(name=f"  in SQLite, {name}", value=size / len(sent) * 5760 / GPUS / 1024**2, unit="MiB"))
    return found


def stored_bytes(path: Path, sent: list[SampleBatch]) -> int:
    database = connect(f"sqlite:///{path}", durable=False)
    migrate.upgrade(database)
    database.close()
    empty = path.stat().st_size
    database, chain = connect(f"sqlite:///{path}", durable=False), b""
    for batch in sent:
        raw = wire.encode(batch, chain)
        chain = wire.digest_of(raw)
        assert ingest.accept(database, raw, batch.end_us).refusal is None
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return path.stat().st_size - empty


if __name__ == "__main__":
    sys.exit(main("bench_agent", __doc__, measure))
