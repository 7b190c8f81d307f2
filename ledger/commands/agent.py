"""`kvledger agent`: samples of this host's GPUs, delivered as an engine's batches are; `--once` prints what it sees.

Standard library and NVIDIA's binding only: this is the install for a GPU host.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import signal
import threading
import time
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ledger.collectors.agent import MEANINGS, AgentLoop
from ledger.collectors.nvml import Nvml
from ledger.collectors.procfs import Processes
from ledger.commands.agent_settings import DECLARED, load_agent
from ledger.errors import UsageError
from ledger.hook.settings import misspelt, outbox_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator, Sequence

    from ledger.collectors.gpu_readings import GpuReading, Look
    from ledger.core.samples import ProcessPeriod

CLOSE_S = 5.0
"""For the last batch to leave; what is not sent by then waits in the spool."""

ONCE_S = 1.0
"""Between the two looks of ``--once``: counters need two."""

ONCE_WITHIN_S = 5.0


def run(args: Namespace) -> int:
    """Until it is stopped; or once, to see."""
    if importlib.util.find_spec("pynvml") is None:
        raise UsageError("`kvledger agent` needs NVIDIA's binding, pynvml: pip install nvidia-ml-py")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for sentence in misspelt(os.environ, of="the agent", also=[each.name for each in DECLARED]):
        logging.getLogger("kvledger.agent").warning("%s", sentence)
    settings = load_agent()
    processes = Processes(own=os.getpid(), names=settings.watch)
    if args.once:
        return _once(processes, as_json=args.format == "json")
    if not settings.hook.urls:
        raise UsageError("KVLEDGER_URL and KVLEDGER_TOKEN say where to report; set both, or look with --once")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    outbox = outbox_of(settings.hook)
    loop = AgentLoop(settings.source, Nvml(), processes, outbox.emit)
    outbox.attach(loop)
    outbox.start()
    print(f"kvledger agent {settings.source.source_id} reports to {', '.join(settings.hook.urls)}", flush=True)
    loop.run(stopping)
    outbox.close(CLOSE_S)
    return 0


# --- once -----------------------------------------------------------------------------------------------


def _once(processes: Processes, *, as_json: bool) -> int:
    with closing(Nvml()) as driver:
        look = driver.look(ONCE_WITHIN_S)
        processes.period(_pids(look), 1)
        time.sleep(ONCE_S)
        look = driver.look(ONCE_WITHIN_S)
    health = processes.period(_pids(look), int(ONCE_S * 1e6))
    if as_json:
        print(json.dumps(_document(look, health), indent=2))
    else:
        print("\n".join(_lines(look, health)))
    return 0 if look.gpus and not look.troubles else 1


def _pids(look: Look) -> Iterable[int]:
    return {one.pid for reading in look.readings for one in reading.processes or ()}


def _document(look: Look, health: Sequence[ProcessPeriod]) -> dict[str, Any]:
    return {
        "driver": look.driver,
        "gpus": [asdict(reading) for reading in look.readings],
        "processes": [asdict(row) for row in health],
        "troubles": [{"reason": reason, "gpu": gpu} for reason, gpu in sorted(look.troubles)],
    }


def _lines(look: Look, health: Sequence[ProcessPeriod]) -> Iterator[str]:
    number = len(look.gpus)
    yield f"driver {look.driver or 'none'}, {number} GPU{'' if number == 1 else 's'} and instances"
    by_pid = {row.pid: row for row in health}
    cut = {gpu.parent for gpu in look.gpus}
    for reading in look.readings:
        yield from _gpu_lines(reading)
        if reading.gpu.uuid not in cut:
            yield from _process_lines(reading, by_pid)
    if health:
        yield "processes that are watched"
    for row in health:
        cpu = "?" if row.cpu_us is None else f"{row.cpu_us / 1e6 / ONCE_S:.0%}"
        yield (
            f"  pid {row.pid:>7}  {row.name:<15}  {row.watch.value:<6}  {row.threads} threads  {cpu} of a core  "
            f"{_bytes(row.rss_bytes)} resident"
        )
    for reason, gpu in sorted(look.troubles):
        yield f"trouble: {gpu or 'the GPU driver'}: {MEANINGS.get(reason, reason.replace('_', ' '))}"


def _gpu_lines(reading: GpuReading) -> Iterator[str]:
    gpu = reading.gpu
    part = f"instance {gpu.instance} of " if gpu.parent else ""
    yield f"{part}GPU {gpu.index}  {gpu.model}  {gpu.uuid}"
    yield (
        f"  used {_bytes(reading.used_bytes)} of {_bytes(reading.total_bytes)}, free {_bytes(reading.free_bytes)}, "
        f"kept by the driver {_bytes(reading.reserved_bytes)}"
    )
    busy = "?" if reading.busy_ppm is None else f"{reading.busy_ppm / 1e6:.0%}"
    watts = "?" if reading.power_mw is None else f"{reading.power_mw / 1000:.0f} W"
    throttled = ", ".join(reading.throttles or ()) or ("?" if reading.throttles is None else "no")
    yield f"  busy {busy}, power {watts}, clocks held down: {throttled}"


def _process_lines(reading: GpuReading, by_pid: dict[int, ProcessPeriod]) -> Iterator[str]:
    if reading.processes is None:
        yield "  the driver does not list processes"
    known = [one.used_bytes for one in reading.processes or ()]
    for one in reading.processes or ():
        row = by_pid.get(one.pid)
        yield f"  pid {one.pid:>7}  {row.name if row else '?':<15}  {_bytes(one.used_bytes):>10}"
    together = [used for used in known if used is not None]
    if reading.used_bytes is not None and reading.processes is not None and len(together) == len(known):
        yield f"  of no process    {'':<11}  {_bytes(reading.used_bytes - sum(together)):>10}"


def _bytes(value: int | None) -> str:
    return "?" if value is None else f"{value / 1024**3:.2f} GiB"
