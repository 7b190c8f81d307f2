"""The fleet as it last reported: engines with their pools, who sends, the last batches, the sessions of now.

Invariants: every answer is bounded by the number of engines, never by the number of facts: the newest batch of a
boot is found by its key, and only its rows are read. An engine is shown by the boot that reports: mostly its newest;
an older one where that goes on beside it, with a pool open, and the books take its time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, func, select

from ledger.core.records import NO_REPORT
from ledger.store import tables as f
from ledger.store.fact_reads import dimensions_by_id
from ledger.store.fact_rows import hook_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ledger.core.records import Dimensions, HookReport
    from ledger.store.database import Connection

SILENT_US: Final = 60_000_000
"""An open engine that delivered nothing for so long (four periods) is silent."""

CLOSED_US: Final = 86_400_000_000
"""How long a closed engine is still listed."""

SESSIONS_MAX: Final = 50_000
"""Rows of the periods of now that are looked at: 200 engines with 250 sessions each."""

IDS_PER_QUERY: Final = 500


class State(StrEnum):
    """What an engine is doing, by what it said last."""

    STARTING = "starting"
    OPEN = "open"
    SILENT = "silent"
    CLOSED = "closed"
    OFF = "off"
    """Its hook has switched itself off and the engine goes on: nobody knows what it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """A pool and what was in it at the end of its engine's newest period; None before its first one."""

    pool: str
    model: str
    paying: bool
    is_open: bool
    blocks: int
    shards: tuple[str, ...]
    active_blocks: int | None
    cached_blocks: int | None
    active_block_us: int | None
    period_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """An engine by the boot that reports. ``missing``: batches which that lacks in the last 24 hours."""

    engine: str
    origin: str
    cluster: str
    namespace: str
    pod: str
    host: str
    software: str
    boot_number: int
    boot_id: str
    started_us: int
    last_seq: int
    last_end_us: int
    received_us: int
    skew_us: int
    missing: int
    hook: HookReport
    """What its hook said of itself with the newest batch."""
    lately: HookReport
    """The part of that which is of the last 24 hours."""
    state: State
    pools: tuple[PoolState, ...]

    @property
    def dropped(self) -> int:
        """Batches that its hook dropped in the last 24 hours, by its own count."""
        return sum(count for _, count in self.lately.dropped)

    @property
    def faults(self) -> int:
        """Calls that its meter could make no sense of in the last 24 hours."""
        return sum(count for _, count in self.lately.faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentBatch:
    """A batch as it was received; ``rows`` are its session rows, ``requests`` those that ended in it."""

    engine: str
    boot_id: str
    seq: int
    start_us: int
    end_us: int
    received_us: int
    missing_before: int
    lost: bool
    rows: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSession:
    """A session's row in the newest period of an engine's pool, which is ``length_us`` long and has ``blocks``."""

    engine: str
    pool: str
    dims: Dimensions
    end_us: int
    length_us: int
    blocks: int
    active_block_us: int
    cached_block_us: int
    cached_blocks_end: int
    unfilled_slot_us: int
    held_slot_us: int
    compute_us: int
    output_tokens: int
    recomputed_tokens: int


def engine_states(connection: Connection, now_us: int, *, all_of_them: bool = False) -> tuple[EngineState, ...]:
    """Every engine by name; those that went away more than a day ago only if ``all_of_them``."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in _newest_batches(connection):
        found.setdefault(row["engine"], []).append(row)
    if not all_of_them:
        found = {name: rows for name, rows in found.items() if any(r["end_us"] > now_us - CLOSED_US for r in rows)}
    # Mostly one: a boot that said nothing since the next one began has made room for it.
    beside = {name: [r for r in rows if r["end_us"] > rows[-1]["started_us"] or r is rows[-1]]
              for name, rows in found.items()}  # fmt: skip
    pools = _pools(connection, [row["number"] for rows in beside.values() for row in rows])
    chosen = {name: max(rows, key=lambda row: _reports(row, pools)) for name, rows in beside.items()}
    missing = _missing(connection, [row["number"] for row in chosen.values()], now_us - CLOSED_US)
    states = []
    for name, row in chosen.items():
        own = _with_periods(connection, row, pools.get(row["number"], []))
        hook = hook_of(row["hook"])
        states.append(
            EngineState(
                engine=name,
                origin=row["origin"],
                cluster=row["cluster"],
                namespace=row["namespace"],
                pod=row["pod"],
                host=row["host"],
                software=row["software"],
                boot_number=row["number"],
                boot_id=row["boot_id"],
                started_us=row["started_us"],
                last_seq=row["seq"],
                last_end_us=row["end_us"],
                received_us=row["received_us"],
                skew_us=row["skew_us"],
                missing=missing.get(row["number"], 0),
                hook=hook,
                lately=_since(connection, row["number"], hook, now_us - CLOSED_US),
                state=State.OFF if hook.off else _state(own, row["end_us"], now_us),
                pools=own,
            )
        )
    return tuple(states)


def _newest_batches(connection: Connection) -> list[Mapping[str, Any]]:
    """The newest batch of every boot, by engine and start; ``lost``: the books have its time from another boot."""
    o, b, s, lost = f.boots, f.batches, f.sources, f.lost_periods
    newest = select(func.max(b.c.seq)).where(b.c.boot == o.c.id).correlate(o).scalar_subquery()
    query = (
        select(
            *(o.c[name] for name in ("engine", "boot_id", "started_us")),
            o.c.id.label("number"),
            # Boots have a receipt time as well: their first.
            *(b.c[name] for name in ("day", "seq", "start_us", "end_us", "skew_us", "received_us", "hook")),
            *(s.c[name] for name in ("origin", "cluster", "namespace", "pod", "host", "software")),
            lost.c.seq.is_not(None).label("lost"),
        )
        .join(b, and_(b.c.boot == o.c.id, b.c.seq == newest))
        .join(s, s.c.id == b.c.source)
        .outerjoin(lost, and_(lost.c.boot == b.c.boot, lost.c.seq == b.c.seq))
        .order_by(o.c.engine, o.c.started_us, o.c.id)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def _reports(row: Mapping[str, Any], pools: Mapping[int, Sequence[PoolState]]) -> tuple[bool, bool, int, int]:
    """What decides which of an engine's boots is shown: the greatest is."""
    is_open = any(pool.is_open for pool in pools.get(row["number"], ()))
    return is_open, not row["lost"], row["started_us"], row["number"]


def recent_batches(
    connection: Connection, engines: Sequence[EngineState], *, most: int, each: int = 4
) -> tuple[RecentBatch, ...]:
    """The newest batches of the engines that were heard last, newest first."""
    b, lost = f.batches, f.lost_periods
    heard = sorted(engines, key=lambda engine: -engine.received_us)[:most]
    found = []
    for engine in heard:
        key = and_(lost.c.boot == b.c.boot, lost.c.seq == b.c.seq)
        query = (
            select(
                b,
                select(lost.c.seq).where(key).correlate(b).exists().label("lost"),
                _count(f.session_periods),
                _count(f.request_records),
            )
            .where(b.c.boot == engine.boot_number)
            .order_by(b.c.seq.desc())
            .limit(each)
        )
        found += [
            RecentBatch(
                engine=engine.engine,
                boot_id=engine.boot_id,
                seq=row.seq,
                start_us=row.start_us,
                end_us=row.end_us,
                received_us=row.received_us,
                missing_before=row.missing_before,
                lost=bool(row.lost),
                rows=row.session_periods,
                requests=row.request_records,
            )
            for row in connection.execute(query)
        ]
    return tuple(sorted(found, key=lambda batch: (-batch.received_us, batch.engine, -batch.seq))[:most])


def live_sessions(
    connection: Connection, engines: Sequence[EngineState], now_us: int, *, most: int = SESSIONS_MAX
) -> tuple[LiveSession, ...]:
    """The session rows of the newest period of every engine that is open and was heard of, without ``system``."""
    r, p, b = f.session_periods, f.pool_periods, f.batches
    found: list[LiveSession] = []
    for engine in engines:
        if engine.state is not State.OPEN or now_us - engine.last_end_us > SILENT_US or len(found) >= most:
            continue
        head = connection.execute(
            select(b.c.day, b.c.start_us, b.c.end_us).where(b.c.boot == engine.boot_number, b.c.seq == engine.last_seq)
        ).one()
        key = ("day", "boot", "seq")
        query = (
            select(r, p.c.blocks)
            .join(p, and_(*(p.c[name] == r.c[name] for name in (*key, "pool"))))
            .where(r.c.day == head.day, r.c.boot == engine.boot_number, r.c.seq == engine.last_seq)
            .order_by(r.c.pos)
            .limit(most - len(found))
        )
        rows = connection.execute(query).all()
        dims = dimensions_by_id(connection, (row.dims for row in rows))
        found += [
            LiveSession(
                engine=engine.engine,
                pool=row.pool,
                dims=dims[row.dims],
                end_us=head.end_us,
                length_us=head.end_us - head.start_us,
                blocks=row.blocks,
                active_block_us=row.active_block_us,
                cached_block_us=row.cached_block_us,
                cached_blocks_end=row.cached_blocks_end,
                unfilled_slot_us=row.unfilled_slot_us,
                held_slot_us=row.held_slot_us,
                compute_us=row.compute_us,
                output_tokens=row.output_tokens,
                recomputed_tokens=row.recomputed_tokens,
            )
            for row in rows
        ]
    return tuple(found)


def _count(table: Any) -> Any:
    keys = ("day", "boot", "seq")
    return (
        select(func.count())
        .select_from(table)
        .where(*(table.c[name] == f.batches.c[name] for name in keys))
        .correlate(f.batches)
        .scalar_subquery()
        .label(table.name)
    )


def _pools(connection: Connection, boots: Sequence[int]) -> dict[int, list[PoolState]]:
    """The pools that each boot opened last, by name; those without figures yet."""
    o, s, c = f.pool_opens, f.pool_shards, f.pool_closes
    found: dict[int, dict[str, PoolState]] = {}
    for chunk in _chunks(boots):
        shards: dict[tuple[int, int, int], list[str]] = {}
        for row in connection.execute(
            select(s).where(s.c.boot.in_(chunk)).order_by(s.c.boot, s.c.seq, s.c.pos, s.c.sub)
        ):
            name = f"dp{row.dp}pp{row.pp}tp{row.tp}" + (f" {row.gpu_uuid}" if row.gpu_uuid else "")
            shards.setdefault((row.boot, row.seq, row.pos), []).append(name)
        closed: dict[tuple[int, str], tuple[int, int]] = {}
        for row in connection.execute(select(c).where(c.c.boot.in_(chunk)).order_by(c.c.seq)):
            closed[row.boot, row.pool] = (row.seq, row.at_us)
        for row in connection.execute(select(o).where(o.c.boot.in_(chunk)).order_by(o.c.boot, o.c.seq, o.c.pos)):
            found.setdefault(row.boot, {})[row.pool] = PoolState(
                pool=row.pool,
                model=row.model,
                paying=bool(row.paying),
                is_open=closed.get((row.boot, row.pool), (-1, -1)) < (row.seq, row.at_us),
                blocks=row.blocks,
                shards=tuple(shards.get((row.boot, row.seq, row.pos), ())),
                active_blocks=None,
                cached_blocks=None,
                active_block_us=None,
                period_us=None,
            )
    return {boot: [pools[name] for name in sorted(pools)] for boot, pools in found.items()}


def _with_periods(connection: Connection, row: Any, pools: list[PoolState]) -> tuple[PoolState, ...]:
    p = f.pool_periods
    query = select(p).where(p.c.day == row["day"], p.c.boot == row["number"], p.c.seq == row["seq"])
    last = {period.pool: period for period in connection.execute(query)}
    return tuple(
        pool
        if (period := last.get(pool.pool)) is None
        else PoolState(
            pool=pool.pool,
            model=pool.model,
            paying=pool.paying,
            is_open=pool.is_open,
            blocks=period.blocks,
            shards=pool.shards,
            active_blocks=period.active_blocks_end,
            cached_blocks=period.cached_blocks_end,
            active_block_us=period.active_block_us,
            period_us=row["end_us"] - row["start_us"],
        )
        for pool in pools
    )


def _missing(connection: Connection, boots: Sequence[int], since_us: int) -> dict[int, int]:
    b = f.batches
    found: dict[int, int] = {}
    for chunk in _chunks(boots):
        query = (
            select(b.c.boot, (func.max(b.c.seq) - func.min(b.c.seq) + 1 - func.count()).label("missing"))
            .where(b.c.boot.in_(chunk), b.c.start_us >= since_us)
            .group_by(b.c.boot)
        )
        found |= {row.boot: int(row.missing) for row in connection.execute(query)}
    return found


def refused_missing(connection: Connection, engines: Sequence[EngineState], now_us: int) -> dict[str, int]:
    """How many of the batches that an engine lacks lie in quarantine: those need not be looked for in a spool."""
    q, b = f.quarantine.c, f.batches.c
    found: dict[str, int] = {}
    for engine in engines:
        if not engine.missing:
            continue
        mine = and_(q.engine == engine.engine, q.boot_id == engine.boot_id)
        query = select(q.seq).where(mine, q.seq < engine.last_seq, q.received_us > now_us - CLOSED_US)
        kept = set(connection.execute(query).scalars())
        for chunk in _chunks(sorted(kept)):
            kept -= set(
                connection.execute(select(b.seq).where(b.boot == engine.boot_number, b.seq.in_(chunk))).scalars()
            )
        if kept:
            found[engine.engine] = min(len(kept), engine.missing)
    return found


def _since(connection: Connection, boot: int, hook: HookReport, since_us: int) -> HookReport:
    """What a hook that now says ``hook`` has counted since ``since_us``."""
    if hook == NO_REPORT:
        return hook
    b = f.batches.c
    query = select(b.hook).where(b.boot == boot, b.start_us < since_us).order_by(b.start_us.desc()).limit(1)
    before = hook_of(connection.execute(query).scalar_one_or_none() or "")
    return replace(hook, dropped=_grown(before.dropped, hook.dropped), faults=_grown(before.faults, hook.faults))


def _grown(before: Sequence[tuple[str, int]], now: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    known = dict(before)
    return tuple((reason, count - known.get(reason, 0)) for reason, count in now if count > known.get(reason, 0))


def _state(pools: Sequence[PoolState], last_end_us: int, now_us: int) -> State:
    if not pools:
        return State.STARTING if now_us - last_end_us <= SILENT_US * 15 else State.SILENT
    if not any(pool.is_open for pool in pools):
        return State.CLOSED
    return State.OPEN if now_us - last_end_us <= SILENT_US else State.SILENT


def _chunks(ids: Sequence[int]) -> list[Sequence[int]]:
    return [ids[at : at + IDS_PER_QUERY] for at in range(0, len(ids), IDS_PER_QUERY)]
