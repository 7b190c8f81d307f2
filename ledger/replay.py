"""A replay from end to end: requests through reference engines, their facts over the wire into the ledger, settled.

Invariants: the engines are called after a digest of everything that makes their facts, so the same replay into the
same ledger delivers the same batches and changes nothing, one that was killed goes on where it was, and another one
is other engines; a trace is read to its end before anything is written; assets, prices and assignments are written in
one transaction, when all facts are there; every clock is the replay's own, so two runs make equal ledgers.

The engines run in a child process and the books are kept in this one: two cores, one order of batches, whatever the
machine does.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import ledger
from ledger import ingest, wire
from ledger.core.periods import period_end, settle_interval
from ledger.core.records import Origin
from ledger.errors import LedgerError, UsageError
from ledger.ingest import Status
from ledger.pricebook import Asset, Assignment, Price
from ledger.reference.latency import RTX_4090_LLAMA_8B
from ledger.reference.replay import ReplaySummary, replay
from ledger.reference.traces import open_trace
from ledger.reference.workload import mixed_day
from ledger.settle import Settled, settle
from ledger.store import prices as registers
from ledger.store import receipt
from ledger.store.terms import LedgerTerms, ensure_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection as Pipe
    from pathlib import Path

    from sqlalchemy import Connection

    from ledger.config import Settings
    from ledger.core.records import Batch
    from ledger.reference.latency import LatencyModel
    from ledger.reference.request import TraceRequest
    from ledger.store.database import Database

BLOCKS = 16_384
"""Usable blocks of a replayed engine: 262 144 tokens at 16 a block, what an 80 GB GPU keeps beside an 8 B model."""

HOUR_US = 3_600_000_000

TOLD_S = 0.1
"""Seconds between two looks at the progress: as often as an eye sees."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan whose trace was read to its end; ``name`` goes before the engines' numbers."""

    plan: Plan
    name: str
    blocks: int
    block_size: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of a replay: of its batches, of the bill, and where the seconds went."""

    engines: tuple[str, ...]
    summary: ReplaySummary
    accepted: int
    duplicates: int
    settled: Settled
    end_us: int
    replay_s: float
    settle_s: float


def prepare(plan: Plan) -> Prepared:
    """Read the whole trace once: what is wrong with it is said before anything is written."""
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
        name=label,
        blocks=plan.blocks or blocks,
        block_size=plan.block_size or block_size,
        requests=count,
    )
    facts = (plan.limit, plan.seed, plan.hours, plan.engines, made.blocks, made.block_size, plan.start_us)
    sha.update(repr(facts).encode())
    return Prepared(
        plan=plan,
        name=f"{label[:40]}-{sha.hexdigest()[:6]}",
        blocks=made.blocks,
        block_size=made.block_size,
        requests=count,
    )


def run(
    prepared: Prepared,
    database: Database,
    settings: Settings,
    *,
    price_nanos: int,
    events: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    settling: Callable[[], None] | None = None,
) -> Replayed:
    """Replay, register and settle.

    ``progress`` gets (requests ended, wall time); ``settling`` is called when the replay is over and settling begins.
    Raises LedgerError for a batch that the ledger refuses; what was accepted before stays, and is completed by the
    same replay once the cause is gone.
    """
    _check_origin(database)
    began = time.monotonic()
    summary, counts = _deliver(prepared, database, events, progress or (lambda _ended, _at: None))
    replayed = time.monotonic()
    if settling is not None:
        settling()
    engines = tuple(f"{prepared.name}-{number}" for number in range(prepared.plan.engines))
    end_us = period_end(summary.closed_us)
    terms = database.write(
        lambda connection: _register(
            connection, engines, settings, start_us=summary.start_us, end_us=end_us, price_nanos=price_nanos
        )
    )
    until_us = settle_interval(end_us - 1, terms.interval_us).end_us
    settled = settle(database, until_us=until_us, now_us=until_us)
    return Replayed(
        engines=engines,
        summary=summary,
        accepted=counts[Status.ACCEPTED],
        duplicates=counts[Status.DUPLICATE],
        settled=settled,
        end_us=end_us,
        replay_s=replayed - began,
        settle_s=time.monotonic() - replayed,
    )


# --- facts ----------------------------------------------------------------------------------------------


def _deliver(
    prepared: Prepared, database: Database, events: Path | None, progress: Callable[[int, int], None]
) -> tuple[ReplaySummary, dict[Status, int]]:
    """Take what the child process sends, in its order."""
    counts = dict.fromkeys(Status, 0)
    context = get_context("spawn")  # forking would copy open database connections and the progress bar's thread
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_produce, args=(prepared, events, sender), daemon=True)
    child.start()
    sender.close()  # or the end of the child would not be the end of the pipe
    try:
        while True:
            kind, value = _next(receiver)
            if kind == "batch":
                raw, received_us = value
                outcome = ingest.accept(database, raw, received_us)
                counts[outcome.status] += 1
                if outcome.refusal is not None:
                    raise LedgerError(
                        f"a batch of the replay was refused, {outcome.refusal.reason}: {outcome.refusal.detail}; "
                        "`kvledger quarantine list` shows it; replay into a fresh --database"
                    )
            elif kind == "progress":
                progress(*value)
            elif kind == "failed":
                raise value
            else:
                return value, counts
    finally:
        receiver.close()
        child.terminate()
        child.join()


def _next(receiver: Pipe) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = receiver.recv()
    except EOFError:
        raise LedgerError(
            "the process of the replayed engines ended early (killed, or out of memory); run the same command again "
            "to go on where it was, with fewer --blocks if memory is short"
        ) from None
    return message


def _produce(prepared: Prepared, events: Path | None, sender: Pipe) -> None:
    """The child: engines run, their batches go up the pipe. Ends quietly when nobody listens any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the parent decides
    try:
        try:
            summary = _produce_all(prepared, events, sender)
        except LedgerError as error:
            sender.send(("failed", error))
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            where = error.filename or events
            sender.send(("failed", LedgerError(f"{where}: {error.strerror}; free some space or choose another place")))
        else:
            sender.send(("done", summary))
    except BrokenPipeError:
        return


def _produce_all(prepared: Prepared, events: Path | None, sender: Pipe) -> ReplaySummary:
    previous: dict[str, bytes] = {}
    told = 0.0

    def emit(batch: Batch) -> None:
        engine = batch.source.engine
        raw = wire.encode(batch, previous.get(engine, b""))
        previous[engine] = wire.digest_of(raw)
        sender.send(("batch", (raw, batch.end_us)))

    def progress(ended: int, at_us: int) -> None:
        nonlocal told
        if time.monotonic() - told >= TOLD_S:
            told = time.monotonic()
            sender.send(("progress", (ended, at_us)))

    requests, latency = _requests(prepared.plan)

    def engines(write: Callable[[str], object] | None) -> ReplaySummary:
        return replay(
            requests,
            name=prepared.name,
            engines=prepared.plan.engines,
            blocks=prepared.blocks,
            block_size=prepared.block_size,
            start_us=prepared.plan.start_us,
            emit=emit,
            events=write,
            progress=progress,
            latency=latency,
            seed=prepared.plan.seed,
        )

    if events is None:
        return engines(None)
    # Whole or not there: the name is given when the last line is written.
    part = events.with_name(events.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as stream:
            summary = engines(stream.write)
        os.replace(part, events)  # noqa: PTH105 (its error names both files)
    finally:
        part.unlink(missing_ok=True)
    return summary


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


# --- the registers --------------------------------------------------------------------------------------


def _check_origin(database: Database) -> None:
    with database.read() as connection:
        if receipt.origin_of(connection) is Origin.LIVE:
            raise UsageError("this ledger is live, and a replay is simulated; name another one with --database")


def _register(
    connection: Connection, engines: Iterable[str], settings: Settings, *, start_us: int, end_us: int, price_nanos: int
) -> LedgerTerms:
    """One GPU for each engine, paid from the start to the end of its last period."""
    terms = ensure_terms(
        connection,
        currency=settings.currency,
        zone_name=settings.billing_timezone,
        terms=settings.terms(),
        now_us=end_us,
    )
    for engine in engines:
        gpu = f"sim-{engine}"
        asset = Asset(asset_id=gpu, uuid=gpu, model="simulated", valid_from_us=start_us, valid_to_us=end_us)
        registers.add_asset(connection, asset, now_us=end_us)
        _set_price(connection, gpu, price_nanos, settings.currency, start_us=start_us, now_us=end_us)
        held = Assignment(asset_id=gpu, engine=engine, valid_from_us=start_us, valid_to_us=end_us)
        registers.assign(connection, held, now_us=end_us)
    return terms


def _set_price(
    connection: Connection, asset_id: str, price_nanos: int, currency: str, *, start_us: int, now_us: int
) -> None:
    """The asset's price; another one than before takes its place, and settling books the difference."""
    known = [price for price in registers.list_prices(connection) if price.asset_id == asset_id]
    if known and known[-1].nanos_per_hour == price_nanos:
        return
    registers.add_price(
        connection,
        Price(asset_id=asset_id, nanos_per_hour=price_nanos, valid_from_us=start_us),
        currency=currency,
        now_us=now_us,
        supersedes=known[-1].price_id if known else None,
    )
