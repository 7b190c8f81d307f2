"""Where engines are looked at from outside, and what they said there: rounds written, and read again.

Invariants: a target is configuration, so rows are added and never changed; a round is written whole in one
transaction, with a digest over its rows; of two collectors that claim the same time of an engine, the one that was
first known counts, wherever rows are read.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, and_, func, select, text

from ledger.core.records import HOOK_OFF, PERIOD_US, Origin
from ledger.core.scraped import ScrapedLatency, ScrapedPeriod
from ledger.errors import UsageError
from ledger.limits import SCRAPE_TARGETS_MAX
from ledger.store import book_tables as t
from ledger.store import facts, receipt
from ledger.store import scrape_tables as s
from ledger.store import tables as f
from ledger.store.database import lock
from ledger.store.fact_rows import day_of
from ledger.store.rows import append, canonical, row_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ledger.store.database import Database

QUARTER_US: Final = 900_000_000
"""The shortest interval that is settled."""

HEARD_US: Final = 3_600_000_000
"""How far back the newest record of an engine is looked for."""

_figures: Final = attrgetter(*s.GAUGE_COLUMNS, *s.COUNT_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An address that is scraped for an engine; ``number`` is its row."""

    number: int
    engine: str
    url: str
    kind: str
    since_us: int


# --- where ----------------------------------------------------------------------------------------------


def add_target(connection: Connection, *, engine: str, url: str, kind: str, now_us: int) -> bool:
    """Have an engine scraped at ``url`` from now on, in place of where it was; False where that is so already.

    UsageError in a simulated ledger, and where :data:`~ledger.limits.SCRAPE_TARGETS_MAX` are in force.
    """
    lock(connection, "config")
    if receipt.origin_of(connection) is Origin.SIMULATED:
        raise UsageError("this ledger is simulated, and what is scraped is live; use another database")
    known = {target.engine: target for target in list_targets(connection)}
    had = known.get(engine)
    if had is not None and (had.url, had.kind) == (url, kind):
        return False
    if had is None and len(known) >= SCRAPE_TARGETS_MAX:
        raise UsageError(f"{len(known)} targets are scraped, and {SCRAPE_TARGETS_MAX} may be: remove some first")
    append(
        connection,
        t.scrape_targets,
        {"engine": engine, "url": url, "kind": kind, "active": 1, "created_us": now_us},
    )
    return True


def remove_target(connection: Connection, engine: str, *, now_us: int) -> bool:
    """Stop scraping an engine; False where it is not scraped."""
    lock(connection, "config")
    had = next((target for target in list_targets(connection) if target.engine == engine), None)
    if had is None:
        return False
    append(
        connection,
        t.scrape_targets,
        {"engine": engine, "url": had.url, "kind": had.kind, "active": 0, "created_us": now_us},
    )
    return True


def list_targets(connection: Connection) -> tuple[Target, ...]:
    """The targets in force, by engine."""
    c = t.scrape_targets.c
    newest = {row.engine: row for row in connection.execute(select(t.scrape_targets).order_by(c.id))}
    return tuple(
        Target(number=row.id, engine=engine, url=row.url, kind=row.kind, since_us=row.created_us)
        for engine, row in sorted(newest.items())
        if row.active
    )


# --- what could not be read ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A target that could not be read when it was asked last: ``why`` in a word, ``detail`` in a sentence."""

    since_us: int
    why: str
    detail: str


def note_failures(connection: Connection, failing: Mapping[int, Failing]) -> None:
    """Keep which targets (by number) cannot be read, in place of what was kept before."""
    table = s.scrape_failures
    connection.execute(table.delete())
    rows = [
        {"target": number, "since_us": one.since_us, "why": one.why, "detail": one.detail}
        for number, one in sorted(failing.items())
    ]
    if rows:
        connection.execute(table.insert(), rows)


def failures(connection: Connection) -> dict[int, Failing]:
    """Which targets, by number, could not be read when whoever scrapes asked them last."""
    return {
        row.target: Failing(since_us=row.since_us, why=row.why, detail=row.detail)
        for row in connection.execute(select(s.scrape_failures))
    }


# --- what was said --------------------------------------------------------------------------------------


def start_collector(connection: Connection, *, collector: str, host: str) -> int:
    """The id of a process that begins to scrape; its name is its own."""
    c = s.collectors
    added = c.insert().values(collector=collector, host=host).returning(c.c.id)
    return int(connection.execute(added).scalar_one())


def write_round(
    db: Database,
    *,
    collector: int,
    start_us: int,
    targets: int,
    records: Sequence[tuple[int, ScrapedPeriod]],
    now_us: int,
) -> None:
    """Write what the targets (by number) said in the period that begins at ``start_us``."""
    facts.ensure_day(db, start_us)
    key = (day_of(start_us), collector, start_us // PERIOD_US)
    rows = [(*key, pos, *_row(number, record)) for pos, (number, record) in enumerate(records)]
    head: dict[str, Any] = {
        "boot": collector,
        "seq": key[2],
        "day": key[0],
        "start_us": start_us,
        "targets": targets,
        "written_us": now_us,
    }

    def work(connection: Connection) -> None:
        if receipt.fix_origin(connection, Origin.LIVE, now_us) is not Origin.LIVE:
            raise UsageError("this ledger is simulated, and what is scraped is live; use another database")
        connection.execute(
            s.scrape_rounds.insert().values(**head, digest=row_digest(s.scrape_rounds, head, below=rows))
        )
        if rows:
            facts.write_rows(connection, s.scraped_periods, rows)
            _count_records(connection, records)

    db.write(work)


def scraped_between(connection: Connection, start_us: int, end_us: int) -> dict[str, tuple[ScrapedPeriod, ...]]:
    """What each engine said in the periods that begin in ``[start_us, end_us)``, in order, none overlapping."""
    engines = _engines(connection)
    found: dict[str, list[ScrapedPeriod]] = {}
    p = s.scraped_periods
    for row in connection.execute(_between(start_us, end_us, p).order_by(p.c.boot, p.c.seq, p.c.pos)):
        record = record_of(row, engines.get(row.target, ""))
        found.setdefault(record.engine, []).append(record)
    return {engine: _apart(records) for engine, records in found.items()}


def heard_before(connection: Connection, at_us: int, within_us: int) -> dict[str, int]:
    """When each engine was last watched before ``at_us``, if that is less than ``within_us`` ago."""
    engines = _engines(connection)
    found: dict[str, int] = {}
    newest = _between(at_us - within_us, at_us, s.scraped_periods.c.target, func.max(s.scraped_periods.c.end_us))
    for target, end_us in connection.execute(newest.group_by(s.scraped_periods.c.target)):
        engine = engines.get(target, "")
        found[engine] = max(found.get(engine, 0), end_us)
    return {engine: heard_us for engine, heard_us in found.items() if heard_us > at_us - within_us}


def last_records(connection: Connection, now_us: int, within_us: int = HEARD_US) -> dict[str, ScrapedPeriod]:
    """The newest record of each engine that has one that is younger than ``within_us``."""
    engines = _engines(connection)
    p = s.scraped_periods
    newest = _between(now_us - within_us, now_us, p.c.target, func.max(p.c.seq).label("seq")).group_by(p.c.target)
    last = newest.subquery()
    query = _between(now_us - within_us, now_us, p).join(last, and_(last.c.target == p.c.target, last.c.seq == p.c.seq))
    found: dict[str, ScrapedPeriod] = {}
    for row in connection.execute(query.order_by(p.c.end_us, p.c.target)):
        record = record_of(row, engines.get(row.target, ""))
        found[record.engine] = record
    return found


def count_records(connection: Connection, start_us: int, end_us: int, length_us: int) -> dict[tuple[str, int], int]:
    """Records by engine and interval: numbers that scraping only raises. All three are multiples of 15 minutes."""
    c = s.scraped_hours.c
    engines = _engines(connection)
    found: dict[tuple[str, int], int] = {}
    for row in connection.execute(select(s.scraped_hours).where(c.start_us >= start_us, c.start_us < end_us)):
        key = engines.get(row.target, ""), row.start_us - row.start_us % length_us
        found[key] = found.get(key, 0) + row.records
    return found


def clean_closes(connection: Connection) -> dict[str, tuple[int, ...]]:
    """When hooks closed pools of engines that were ever scraped, in order; one that switched itself off closed none."""
    c, b = f.pool_closes, f.boots
    engines = sorted(targeted(connection))
    query = select(b.c.engine, c.c.at_us).join(b, b.c.id == c.c.boot)
    found: dict[str, set[int]] = {}
    for row in connection.execute(query.where(b.c.engine.in_(engines), c.c.reason != HOOK_OFF)):
        found.setdefault(row.engine, set()).add(row.at_us)
    return {engine: tuple(sorted(times)) for engine, times in found.items()}


def targeted(connection: Connection) -> frozenset[str]:
    """Every engine that was ever scraped."""
    return frozenset(_engines(connection).values())


def first_round_us(connection: Connection) -> int | None:
    """The start of the earliest round; None where nothing was ever scraped."""
    found = connection.execute(select(func.min(s.scrape_rounds.c.start_us))).scalar_one()
    return None if found is None else int(found)


def last_round_us(connection: Connection) -> int | None:
    """The end of the latest round's period."""
    found = connection.execute(select(func.max(s.scrape_rounds.c.start_us))).scalar_one()
    return None if found is None else int(found) + PERIOD_US


def round_breaches(connection: Connection) -> Iterator[tuple[str, str]]:
    """(where, what is wrong) of rounds whose rows do not fit their digest, and of rows without a round."""
    r, p = s.scrape_rounds, s.scraped_periods
    for head in connection.execute(select(r).order_by(r.c.boot, r.c.seq)).mappings():
        mine = and_(p.c.day == head["day"], p.c.boot == head["boot"], p.c.seq == head["seq"])
        rows = [tuple(row) for row in connection.execute(select(p).where(mine).order_by(p.c.pos))]
        if row_digest(r, head, below=rows) != head["digest"]:
            yield f"scrape round {head['boot']}/{head['seq']}", "does not fit its digest"
    counted = {(row.target, row.start_us): row.records for row in connection.execute(select(s.scraped_hours))}
    quarter = (p.c.start_us - p.c.start_us % QUARTER_US).label("quarter")
    there = select(p.c.target, quarter, func.count().label("records")).group_by(p.c.target, quarter)
    if counted != {(row.target, row.quarter): row.records for row in connection.execute(there)}:
        yield "scraped_hours", "are not the numbers of records"
    lives = set(connection.execute(select(s.collectors.c.id)).scalars())
    for boot in sorted(set(connection.execute(select(r.c.boot).distinct()).scalars()) - lives):
        yield f"scrape rounds of {boot}", "belong to no collector"
    stray = select(p.c.boot, p.c.seq).where(
        ~select(r.c.seq).where(r.c.boot == p.c.boot, r.c.seq == p.c.seq).correlate(p).exists()
    )
    for row in connection.execute(stray.distinct()):
        yield f"scraped_periods {row.boot}/{row.seq}", "has rows and no such round"


# --- rows and records -----------------------------------------------------------------------------------


def record_of(row: Any, engine: str) -> ScrapedPeriod:
    """A row of ``scraped_periods`` as the record it was."""
    return ScrapedPeriod(
        engine=engine,
        **{name: getattr(row, name) for name in ("start_us", "end_us", "busy_us", "kind", "model", "scrapes")},
        **{name: getattr(row, name) for name in ("failures", "gap_us", *s.GAUGE_COLUMNS, *s.COUNT_COLUMNS)},
        finished=None if row.finished is None else _pairs(row.finished),
        latencies=tuple(
            ScrapedLatency(name=name, buckets=tuple((b, n) for b, n in buckets), over=over, total_us=total_us)
            for name, buckets, over, total_us in json.loads(row.latencies)
        ),
        signs=_pairs(row.signs),
    )


def _row(number: int, record: ScrapedPeriod) -> tuple[Any, ...]:
    latencies = [[one.name, [list(pair) for pair in one.buckets], one.over, one.total_us] for one in record.latencies]
    return (
        number,
        record.start_us,
        record.end_us,
        record.busy_us,
        record.kind,
        record.model,
        record.scrapes,
        record.failures,
        record.gap_us,
        *_figures(record),
        None if record.finished is None else canonical([list(pair) for pair in record.finished]),
        canonical(latencies),
        canonical([list(pair) for pair in record.signs]),
    )


def _count_records(connection: Connection, records: Sequence[tuple[int, ScrapedPeriod]]) -> None:
    numbers = Counter((number, record.start_us - record.start_us % QUARTER_US) for number, record in records)
    connection.execute(
        text(
            "INSERT INTO scraped_hours (target, start_us, records) VALUES (:target, :start_us, :records) "
            "ON CONFLICT (target, start_us) DO UPDATE SET records = scraped_hours.records + excluded.records"
        ),
        [{"target": target, "start_us": at_us, "records": n} for (target, at_us), n in sorted(numbers.items())],
    )


def _pairs(written: str) -> tuple[tuple[str, int], ...]:
    return tuple((word, number) for word, number in json.loads(written))


def _between(start_us: int, end_us: int, *columns: Any) -> Any:
    """A query over the rows of the periods that begin in ``[start_us, end_us)``."""
    p = s.scraped_periods.c
    return select(*columns).where(
        p.day.between(day_of(start_us), day_of(max(start_us, end_us - 1))),
        p.seq >= -(-start_us // PERIOD_US),
        p.seq < -(-end_us // PERIOD_US),
    )


def _engines(connection: Connection) -> dict[int, str]:
    c = t.scrape_targets.c
    return {row.id: row.engine for row in connection.execute(select(c.id, c.engine))}


def _apart(records: Sequence[ScrapedPeriod]) -> tuple[ScrapedPeriod, ...]:
    """The records (those of the collector that was known first come first) without those that claim taken time."""
    ordered = tuple(sorted(records, key=lambda record: record.start_us))
    if all(one.end_us <= other.start_us for one, other in pairwise(ordered)):
        return ordered
    kept: list[ScrapedPeriod] = []
    for record in records:
        if not any(record.start_us < other.end_us and other.start_us < record.end_us for other in kept):
            kept.append(record)
    return tuple(sorted(kept, key=lambda record: record.start_us))
