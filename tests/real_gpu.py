"""The agent's checks on a real GPU, in a minute: `make test-gpu`. Says which GPU and driver, and what each check found.

``ok``, ``absent`` (the device or the driver does not give it, which is no fault), ``not run`` (with the reason) or
``FAIL``; exit 1 if anything failed, 3 where there is no GPU. Memory is taken and given back through the CUDA driver
(libcuda.so.1), so nothing but the driver has to be installed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ledger import ingest, wire
from ledger.collectors.agent import AgentLoop
from ledger.collectors.nvml import Nvml
from ledger.collectors.procfs import Processes
from ledger.core.records import Origin
from ledger.core.samples import Agent, SampleBatch
from ledger.memory import budgets
from ledger.store import fact_audit, migrate
from ledger.store.database import connect
from ledger.store.gpu_reads import agents_now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.collectors.gpu_readings import Look

MIB = 1024**2
TAKEN = 512 * MIB
STEPS, STEP = 5, 10 * MIB
WITHIN_S = 5.0
LOOKS = 20
PAUSE_S = float(os.environ.get("LOOK_PAUSE_S", "1"))
"""Between two looks of what goes into a ledger; the test of these checks waits for nothing."""

WHO = "nvidia-smi"


class Checks:
    """Prints each finding, and remembers whether one was a failure."""

    def __init__(self) -> None:
        self.failed = 0

    def say(self, verdict: str, what: str, detail: str = "") -> None:
        self.failed += verdict == "FAIL"
        print(f"{verdict:<8} {what}{': ' + detail if detail else ''}", flush=True)

    def must(self, holds: bool, what: str, detail: str = "") -> None:
        self.say("ok" if holds else "FAIL", what, detail)

    def given(self, value: object, what: str) -> None:
        self.say("absent" if value is None else "ok", what, "" if value is None else f"{value}")


def main() -> int:
    driver = Nvml()
    try:
        first = driver.look(WITHIN_S)
        if not first.gpus:
            reasons = ", ".join(sorted(reason for reason, _ in first.troubles)) or "it lists none"
            print(f"no NVIDIA GPU here ({reasons}); nothing was checked")
            return 3
        checks = Checks()
        print(f"driver {first.driver}")
        for gpu in first.gpus:
            print(f"GPU {gpu.index} {gpu.model} {gpu.uuid}{f', instance {gpu.instance}' if gpu.parent else ''}")
        figures(checks, driver.look(WITHIN_S))
        beside_the_tool(checks, driver)
        memory_comes_and_goes(checks, driver)
        time_of_looks(checks, driver)
        begin_anew(checks, driver)
    finally:
        driver.close()
    into_a_ledger(checks)
    print("all that was run holds" if not checks.failed else f"{checks.failed} failed")
    return 1 if checks.failed else 0


def figures(checks: Checks, look: Look) -> None:
    """What each GPU says, and that its memory adds up."""
    checks.must(not look.troubles, "nothing is wrong", ", ".join(f"{r} {g}" for r, g in look.troubles))
    for reading in look.readings:
        name = f"GPU {reading.gpu.index}" + (f"/{reading.gpu.instance}" if reading.gpu.parent else "")
        parts = (reading.used_bytes, reading.free_bytes, reading.reserved_bytes)
        if reading.total_bytes is None or None in parts[:2]:
            checks.say("absent", f"{name} memory")
        else:
            whole = sum(part or 0 for part in parts)
            checks.must(
                abs(whole - reading.total_bytes) <= MIB,
                f"{name} used + free + reserved = total",
                f"{whole // MIB} of {reading.total_bytes // MIB} MiB",
            )
        for what in ("reserved_bytes", "busy_ppm", "occupancy_ppm", "power_mw", "throttles", "processes"):
            checks.given(getattr(reading, what), f"{name} {what}")


def beside_the_tool(checks: Checks, driver: Nvml) -> None:
    """Used memory as nvidia-smi says it, within what moves between two looks."""
    tool = shutil.which(WHO)
    if tool is None:
        checks.say("not run", "the same as nvidia-smi", "it is not on the path")
        return
    asked = [tool, "--query-gpu=uuid,memory.used,memory.total", "--format=csv,noheader,nounits"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    readings = {reading.gpu.uuid: reading for reading in driver.look(WITHIN_S).readings}
    for line in said:
        uuid, used, total = (field.strip() for field in line.split(","))
        reading = readings.get(uuid)
        if reading is None or reading.used_bytes is None or not used.isdecimal():
            checks.say("absent", "the same as nvidia-smi", line)
            continue
        apart = abs(reading.used_bytes // MIB - int(used)), abs((reading.total_bytes or 0) // MIB - int(total))
        near = apart[0] <= 64 and apart[1] <= 1
        checks.must(near, "the same as nvidia-smi", f"{reading.used_bytes // MIB} and {used} MiB used")


def memory_comes_and_goes(checks: Checks, driver: Nvml) -> None:
    """A process appears with what it takes, grows by steps as a leak does, and is gone afterwards."""
    try:
        with cuda() as memory:
            memory.take(TAKEN)
            held = own(driver)
            if held is None:
                checks.say("absent", "this process on a GPU", "the driver does not list it, or not its memory")
                return
            checks.must(held >= TAKEN, "this process has what it took", f"{held // MIB} MiB")
            for _ in range(STEPS):
                memory.take(STEP)
            grown = (own(driver) or 0) - held
            checks.must(
                STEPS * STEP <= grown <= STEPS * STEP + 64 * MIB, "it grows by what it takes", f"{grown // MIB} MiB"
            )
    except OSError as error:
        checks.say("not run", "memory that comes and goes", str(error))
        return
    checks.must(own(driver) is None, "it is gone when it has given all back")


def own(driver: Nvml) -> int | None:
    """What this process has on GPUs, by its id here or in the host's namespace; None where nobody says."""
    ids = {os.getpid()}
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            ids |= {int(word) for word in line.split()[1:]}
    readings = driver.look(WITHIN_S).readings
    found = [one.used_bytes for reading in readings for one in reading.processes or () if one.pid in ids]
    known = [used for used in found if used is not None]
    return sum(known) if known else None


class Cuda:
    """A context on the first device, and memory taken in it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.taken: list[ctypes.c_uint64] = []

    def call(self, name: str, *args: object) -> None:
        code = getattr(self._library, name)(*args)
        if code:
            raise OSError(f"{name} of libcuda.so.1 answers {code}")

    def take(self, size: int) -> None:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self.taken.append(pointer)


@contextmanager
def cuda() -> Iterator[Cuda]:
    """The CUDA driver with a context; OSError where it cannot be had."""
    made = Cuda(ctypes.CDLL("libcuda.so.1"))
    device = ctypes.c_int()
    made.call("cuInit", 0)
    made.call("cuDeviceGet", ctypes.byref(device), 0)
    context = ctypes.c_void_p()
    made.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    made.call("cuCtxSetCurrent", context)
    try:
        yield made
    finally:
        for pointer in made.taken:
            made.call("cuMemFree_v2", pointer)
        made.call("cuCtxSetCurrent", None)
        made.call("cuDevicePrimaryCtxRelease_v2", device)


def time_of_looks(checks: Checks, driver: Nvml) -> None:
    """How long looks take, and what they cost."""
    spent_s, took_s = time.process_time(), []
    for _ in range(LOOKS):
        began_s = time.monotonic()
        look = driver.look(WITHIN_S)
        took_s.append(time.monotonic() - began_s)
        checks.failed += any(reason == "hanging" for reason, _ in look.troubles)
    spent_s = (time.process_time() - spent_s) / LOOKS
    middle, most = 1000 * sorted(took_s)[LOOKS // 2], 1000 * max(took_s)
    detail = f"{middle:.1f} ms, at most {most:.1f}; {1000 * spent_s:.2f} ms of CPU"
    checks.must(max(took_s) < 0.8, "a look is over within 0.8 s", detail)


def begin_anew(checks: Checks, driver: Nvml) -> None:
    """The library is shut beneath the agent, as when a driver is restarted; it begins anew within some seconds."""
    import pynvml  # noqa: PLC0415 - of this check alone

    pynvml.nvmlShutdown()
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        look = driver.look(WITHIN_S)
        if look.readings and not look.troubles:
            break
        time.sleep(0.2)
    checks.must(bool(look.readings), "after a restart of the library it reads again")


def into_a_ledger(checks: Checks) -> None:
    """Twenty seconds of samples, booked, audited, and their memory in parts that sum to the whole."""
    sent: list[SampleBatch] = []
    loop = AgentLoop(
        Agent(source_id="test-gpu", origin=Origin.LIVE, host="here"), Nvml(), Processes(own=os.getpid()), sent.append
    )
    for _ in range(LOOKS):
        loop.step()
        time.sleep(PAUSE_S)
    loop.finish()
    with tempfile.TemporaryDirectory() as folder:
        database = connect(f"sqlite:///{folder}/books.db", durable=False)
        migrate.upgrade(database)
        chain, now_us = b"", time.time_ns() // 1000
        for batch in sent:
            raw = wire.encode(batch, chain)
            chain = wire.digest_of(raw)
            outcome = ingest.accept(database, raw, now_us)
            checks.must(outcome.refusal is None, f"batch {batch.seq} is booked", str(outcome.refusal or ""))
        with database.read() as connection:
            checks.must(not list(fact_audit.fact_breaches(connection)), "what is stored is what was sent")
            for budget in budgets(agents_now(connection, now_us), (), lambda *_: None):
                if budget.total_bytes is None:
                    checks.say("absent", f"the memory of {budget.gpu.uuid} in parts")
                    continue
                parts = ", ".join(f"{piece.part.value} {piece.bytes // MIB} MiB" for piece in budget.pieces)
                closes = sum(piece.bytes for piece in budget.pieces) == budget.total_bytes
                checks.must(closes, f"the memory of GPU {budget.gpu.index} closes", parts)
        database.close()


if __name__ == "__main__":
    sys.exit(main())
