"""A replay from end to end: requests through reference engines, their facts over the wire into the ledger, settled.

Invariants: the engines are called after a digest of everything that makes their facts, so the same replay into the
same ledger delivers the same batches and changes nothing, one that was killed goes on where it was, and another one
is other engines; assets, prices and assignments are written in one transaction, when all facts are there; every clock
is the replay's own, so two runs make equal ledgers.

The engines run in a child process (:mod:`ledger.producer`) and the books are kept in this one: two cores, one order of
batches, whatever the machine does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger import ingest
from ledger.core.periods import period_end, settle_interval
from ledger.core.records import Origin
from ledger.errors import LedgerError, UsageError
from ledger.ingest import Status
from ledger.pricebook import Asset, Assignment, Price
from ledger.producer import Prepared, Sent, Told, producing
from ledger.settle import Settled, settle
from ledger.store import prices as registers
from ledger.store import receipt
from ledger.store.terms import LedgerTerms, ensure_terms, find_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ledger.config import Settings
    from ledger.reference.replay import ReplaySummary
    from ledger.store.database import Connection, Database


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
    # Before the first fact, so that whatever comes of this can be asked about.
    database.write(lambda connection: _open(connection, settings, start_us=prepared.plan.start_us))
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
    """Take what the engines send, in its order."""
    counts = dict.fromkeys(Status, 0)
    with producing(prepared, events) as messages:
        for message in messages:
            if isinstance(message, Sent):
                for outcome in ingest.accept_several(database, message.raws, message.received_us):
                    counts[outcome.status] += 1
                    if outcome.refusal is not None:
                        raise LedgerError(
                            f"a batch of the replay was refused, {outcome.refusal.reason}: {outcome.refusal.detail}; "
                            "`kvledger quarantine list` shows it; replay into a fresh --database"
                        )
            elif isinstance(message, Told):
                progress(message.ended, message.at_us)
            else:
                return message, counts
    raise AssertionError("the summary comes last, or an error")


# --- the registers --------------------------------------------------------------------------------------


def _check_origin(database: Database) -> None:
    with database.read() as connection:
        if receipt.origin_of(connection) is Origin.LIVE:
            raise UsageError("this ledger is live, and a replay is simulated; name another one with --database")


def _open(connection: Connection, settings: Settings, *, start_us: int) -> None:
    """Currency, zone and terms of a new ledger; another one keeps its own until it is settled."""
    if find_terms(connection) is None:
        _ensure(connection, settings, now_us=start_us)


def _ensure(connection: Connection, settings: Settings, *, now_us: int) -> LedgerTerms:
    return ensure_terms(
        connection,
        currency=settings.currency,
        zone_name=settings.billing_timezone,
        terms=settings.terms(),
        now_us=now_us,
    )


def _register(
    connection: Connection, engines: Iterable[str], settings: Settings, *, start_us: int, end_us: int, price_nanos: int
) -> LedgerTerms:
    """One GPU for each engine, paid from the start to the end of its last period."""
    terms = _ensure(connection, settings, now_us=end_us)
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
