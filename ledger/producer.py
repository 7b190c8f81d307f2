"""The engines' side of a replay, in a process of its own: engines run, their batches go up a pipe.

Invariants: a trace is read to its end before the first engine starts; what goes up is a function of the plan alone;
an event log is there whole or not at all; the process ends when nobody listens any more.
Imports no database: it starts in a fraction of a second.
"""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import current_process, get_context
from typing import TYPE_CHECKING, Any

import ledger
from ledger import wire
from ledger.errors import LedgerError, UsageError
from ledger.limits import BATCHES_AT_ONCE_MAX
from ledger.reference.latency import RTX_4090_LLAMA_8B
from ledger.reference.replay import ReplaySummary, replay
from ledger.reference.traces import open_trace
from ledger.reference.workload import mixed_day

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection as Pipe
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from ledger.core.records import Batch
    from ledger.reference.latency import LatencyModel
    from ledger.reference.request import TraceRequest

BLOCKS = 16_384
"""Usable blocks of a replayed engine: 262 144 tokens at 16 a block, what an 80 GB GPU keeps beside an 8 B model."""

HOUR_US = 3_600_000_000

LABEL_CHARS = 40
"""Of a file's name in the names of its engines."""

TOLD_NS = 100_000_000
"""Between two looks at the progress: as often as an eye sees."""

UNGUARDED = 87
"""Exit status of a child that found the replay outside ``if __name__ == "__main__"`` when it imported the script."""

PARCEL_US = 60_000_000
"""Batches of one simulated minute are delivered together: one transaction for them, and the same ones every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is replayed. ``trace`` None is the seeded mixed day of ``hours``; every field decides on the facts."""

    trace: Path | None = None
    format: str = "auto"
    limit: int | None = None
    seed: int = 1
    hours: int = 24
    engines: int = 1
    blocks: int | None = None
    block_size: int | None = None
    start_us: int
    until_us: int | None = None
    """When the engines close, whatever they have to do; None for once nothing is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan whose trace was read to its end; ``name`` goes before the engines' numbers."""

    plan: Plan
    name: str
    blocks: int
    block_size: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Encoded batches that are delivered together, and their virtual time of receipt."""

    raws: tuple[bytes, ...]
    received_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How far the engines are: requests that have ended, and the wall time of the simulation."""

    ended: int
    at_us: int


def prepare(plan: Plan) -> Prepared:
    """Read the whole trace once: what is wrong with it is said before anything is written."""
    _leave_unguarded()
    sha = hashlib.sha256(f"{ledger.__version__}/{wire.VERSION}".encode())
    if plan.trace is None:
        source = mixed_day(plan.seed)
        blocks, block_size, label, count = source.blocks, source.block_size, source.name, 0
    else:
        trace = open_trace(plan.trace, plan.format, limit=plan.limit)
        blocks, block_size, label = BLOCKS, trace.block_size, plan.trace.name.partition(".")[0] or "trace"
        sha.update(trace.format.encode())
        sha.update(_digest(plan.trace))
        count = sum(map(_count, trace.requests()))
        if not count:
            raise UsageError(f"{plan.trace}: there are no requests in it; nothing was replayed")
    made = Prepared(
        plan=plan,
        name=label[:LABEL_CHARS],
        blocks=plan.blocks or blocks,
        block_size=plan.block_size or block_size,
        requests=count,
    )
    facts = (plan.limit, plan.seed, plan.hours, plan.engines, made.blocks, made.block_size, plan.start_us)
    sha.update(repr(facts if plan.until_us is None else (*facts, plan.until_us)).encode())
    return replace(made, name=f"{made.name}-{sha.hexdigest()[:6]}")


@contextmanager
def producing(prepared: Prepared, events: Path | None) -> Iterator[Iterator[Sent | Told | ReplaySummary]]:
    """Run the engines in a child process for as long as the context lasts; its messages, the summary last.

    Raises LedgerError for what went wrong over there, in the place where the next message was waited for.
    """
    _leave_unguarded()
    context = get_context("spawn")  # forking would copy open database connections and the progress bar's thread
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_produce, args=(prepared, events, sender), daemon=True)
    child.start()
    sender.close()  # or the end of the child would not be the end of the pipe
    try:
        yield _messages(receiver, child)
    finally:
        receiver.close()
        child.terminate()
        child.join()
        if events is not None:
            _part(events).unlink(missing_ok=True)


def _leave_unguarded() -> None:
    """End this process if it is a child that is still importing its parent's script, which replays at once.

    The parent says so, and why: see :func:`_messages`.
    """
    # multiprocessing looks at the same attribute before it starts a process.
    if getattr(current_process(), "_inheriting", False):
        sys.exit(UNGUARDED)


def _messages(receiver: Pipe, child: BaseProcess) -> Iterator[Sent | Told | ReplaySummary]:
    while True:
        try:
            message: Any = receiver.recv()
        except EOFError:
            child.join()
            if child.exitcode == UNGUARDED:
                raise UsageError(
                    "a replay runs its engines in a second process, which imports the calling script again and met the "
                    'replay there; put what the script does under `if __name__ == "__main__":` (docs/library.md)'
                ) from None
            raise LedgerError(
                "the process of the replayed engines ended early (killed, or out of memory); run the same command "
                "again to go on where it was, with fewer --blocks if memory is short"
            ) from None
        if isinstance(message, LedgerError):
            raise message
        yield message
        if isinstance(message, ReplaySummary):
            return


def _produce(prepared: Prepared, events: Path | None, sender: Pipe) -> None:
    """The child: engines run, their batches go up the pipe. Ends quietly when nobody listens any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the parent decides
    try:
        try:
            summary = _produce_all(prepared, events, sender)
        except LedgerError as error:
            sender.send(error)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            where = error.filename or events
            sender.send(LedgerError(f"{where}: {error.strerror}; free some space or choose another place"))
        else:
            sender.send(summary)
    except BrokenPipeError:
        if events is not None:
            _part(events).unlink(missing_ok=True)


def _produce_all(prepared: Prepared, events: Path | None, sender: Pipe) -> ReplaySummary:
    previous: dict[str, bytes] = {}
    parcel: list[bytes] = []
    parcel_us = told = 0

    def emit(batch: Batch) -> None:
        nonlocal parcel_us
        engine = batch.source.engine
        raw = wire.encode(batch, previous.get(engine, b""))
        previous[engine] = wire.digest_of(raw)
        if batch.end_us // PARCEL_US != parcel_us // PARCEL_US or len(parcel) == BATCHES_AT_ONCE_MAX:
            send()
        parcel.append(raw)
        parcel_us = batch.end_us

    def send() -> None:
        if parcel:
            sender.send(Sent(raws=tuple(parcel), received_us=parcel_us))
            parcel.clear()

    def progress(ended: int, at_us: int) -> None:
        nonlocal told
        if time.monotonic_ns() - told >= TOLD_NS:
            told = time.monotonic_ns()
            sender.send(Told(ended=ended, at_us=at_us))

    requests, latency = _requests(prepared.plan)

    def engines(write: Callable[[str], object] | None) -> ReplaySummary:
        summary = replay(
            requests,
            name=prepared.name,
            engines=prepared.plan.engines,
            blocks=prepared.blocks,
            block_size=prepared.block_size,
            start_us=prepared.plan.start_us,
            until_us=prepared.plan.until_us,
            emit=emit,
            events=write,
            progress=progress,
            latency=latency,
            seed=prepared.plan.seed,
        )
        send()
        return summary

    if events is None:
        return engines(None)
    # Whole or not there: the name is given when the last line is written.
    with _part(events).open("w", encoding="utf-8") as stream:
        summary = engines(stream.write)
    _part(events).replace(events)
    return summary


def _part(events: Path) -> Path:
    return events.with_name(events.name + ".part")


def _requests(plan: Plan) -> tuple[Iterable[TraceRequest], LatencyModel]:
    if plan.trace is None:
        day = mixed_day(plan.seed, duration_us=plan.hours * HOUR_US)
        return day.requests(), day.latency
    return open_trace(plan.trace, plan.format, limit=plan.limit).requests(), RTX_4090_LLAMA_8B


def _count(request: TraceRequest) -> int:
    """A request and all that hang on it; walking them is what checks them."""
    waiting, count = [iter((request,))], 0
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        count += 1
        if found.then is not None:
            waiting.append(found.then)
    return count


def _digest(file: Path) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
