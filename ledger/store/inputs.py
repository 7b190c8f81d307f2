"""What settlement reads: boots, what covers an interval, and the periods in it, straight from the fact tables.

Invariant: an interval depends on the facts of its own UTC hour and on boots alone, so that a fact that arrives
elsewhere never makes a settled interval look changed. A session's cached count is known from the standing counts
that go along with each hour's first batch; an interval that begins later in the hour gets the periods before it, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, exists, func, select

from ledger.core.periods import HOUR_US, SILENCE_US, period_end, period_start
from ledger.core.records import (
    Boot,
    Dimensions,
    Group,
    GroupKind,
    PoolClose,
    PoolOpen,
    Shard,
)
from ledger.core.settlement import BootFacts, PeriodFacts
from ledger.pricebook import Sight
from ledger.store import fact_rows, scrapes
from ledger.store import tables as f
from ledger.store.fact_reads import dimensions_by_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DAY_US = 86_400_000_000
PROOF_BATCHES = 20
"""Batches in which a pool that carries money will have had a step: five minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBoot:
    """A boot with what its batches said of its pools; ``number`` is its id in the store."""

    number: int
    engine: str
    cluster: str
    boot: Boot
    opens: tuple[PoolOpen, ...]
    closes: tuple[PoolClose, ...]
    last_end_us: int | None
    proven: str = ""
    """The paying pool where the batch that opened it is missing: its periods prove that there is one."""

    @property
    def heard_us(self) -> int:
        """The last instant at which the engine is known to have lived."""
        return max(self.boot.started_us, self.last_end_us or 0, *(c.at_us for c in self.closes), 0)

    def pools(self) -> dict[str, bool]:
        """The pools that the boot ever had, and whether each carries money."""
        known = {o.pool: o.paying for o in self.opens}
        return known | {self.proven: True} if self.proven else known

    def facts(self, pool: str) -> BootFacts:
        """The boot as the settlement of ``pool`` sees it."""
        return BootFacts(
            boot=self.boot,
            opens=tuple(o for o in self.opens if o.pool == pool),
            closes=tuple(c for c in self.closes if c.pool == pool),
            last_end_us=self.last_end_us,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A batch without its rows. ``lost``: another boot has its time, so it is not valid."""

    boot: int
    seq: int
    start_us: int
    end_us: int
    digest: str
    has_standing: bool
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BadEnd:
    """What an aborted or abandoned request used in the period that began at ``start_us``."""

    dims: Dimensions
    outcome: str
    start_us: int
    active_block_us: int


# --- boots ----------------------------------------------------------------------------------------------


def load_boots(connection: Connection, start_us: int, end_us: int) -> tuple[EngineBoot, ...]:
    """Every boot that touches ``[start_us, end_us)`` or the 15 minutes before, by engine and start."""
    b, h = f.boots, f.batches
    lost = exists().where(f.lost_periods.c.boot == h.c.boot, f.lost_periods.c.seq == h.c.seq)
    last = (
        select(h.c.end_us)
        .where(h.c.boot == b.c.id, h.c.start_us < end_us, h.c.end_us > h.c.start_us, ~lost)
        .order_by(h.c.start_us.desc())
        .limit(1)
        .correlate(b)
        .scalar_subquery()
    )
    cluster = (
        select(f.sources.c.cluster)
        .where(f.sources.c.id == h.c.source, h.c.boot == b.c.id)
        .order_by(h.c.seq)
        .limit(1)
        .correlate(b)
        .scalar_subquery()
    )
    rows = connection.execute(
        select(b, last.label("last_end_us"), cluster.label("cluster")).where(b.c.started_us < end_us)
    ).all()
    opens = _opens(connection)
    closes: dict[int, list[PoolClose]] = {}
    for row in connection.execute(select(f.pool_closes).order_by(f.pool_closes.c.at_us)):
        closes.setdefault(row.boot, []).append(PoolClose(pool=row.pool, at_us=row.at_us, reason=row.reason))
    found = [
        EngineBoot(
            number=row.id,
            engine=row.engine,
            cluster=row.cluster or "",
            boot=Boot(boot_id=row.boot_id, anchor_us=row.anchor_us, started_us=row.started_us),
            opens=tuple(opens.get(row.id, ())),
            closes=tuple(closes.get(row.id, ())),
            last_end_us=row.last_end_us,
        )
        for row in rows
    ]
    touching = (
        boot if any(o.paying for o in boot.opens) else replace(boot, proven=_proven_pool(connection, boot))
        for boot in found
        if boot.heard_us > start_us - SILENCE_US
    )
    return tuple(sorted(touching, key=lambda boot: (boot.engine, boot.boot.started_us, boot.number)))


def _proven_pool(connection: Connection, boot: EngineBoot) -> str:
    """The pool of the boot's first periods that has steps, which only a paying one counts; else the first by name."""
    p, h = f.pool_periods.c, f.batches.c
    first = connection.execute(
        select(func.min(h.seq), func.min(h.day)).where(h.boot == boot.number, h.end_us > h.start_us)
    ).one()
    if first[0] is None:
        return ""
    query = (
        select(p.pool, func.sum(p.steps).label("steps"))
        .where(p.day.between(first[1], first[1] + 1), p.boot == boot.number)
        .where(p.seq.between(first[0], first[0] + PROOF_BATCHES))
        .group_by(p.pool)
    )
    others = {o.pool for o in boot.opens if not o.paying}
    pools = [(-int(row.steps), row.pool) for row in connection.execute(query) if row.pool not in others]
    return min(pools)[1] if pools else ""


def _opens(connection: Connection) -> dict[int, list[PoolOpen]]:
    groups: dict[tuple[int, int, int], list[Group]] = {}
    g, s = f.pool_groups.c, f.pool_shards.c
    for row in connection.execute(select(f.pool_groups).order_by(g.boot, g.seq, g.pos, g.sub)):
        group = Group(block_size=row.block_size, kind=GroupKind(row.kind))
        groups.setdefault((row.boot, row.seq, row.pos), []).append(group)
    shards: dict[tuple[int, int, int], list[Shard]] = {}
    for row in connection.execute(select(f.pool_shards).order_by(s.boot, s.seq, s.pos, s.sub)):
        shard = Shard(
            dp=row.dp,
            pp=row.pp,
            tp=row.tp,
            gpu_uuid=row.gpu_uuid,
            gpu_model=row.gpu_model,
            share_ppm=row.share_ppm,
        )
        shards.setdefault((row.boot, row.seq, row.pos), []).append(shard)
    opens: dict[int, list[PoolOpen]] = {}
    for row in connection.execute(select(f.pool_opens).order_by(f.pool_opens.c.at_us, f.pool_opens.c.seq)):
        key = (row.boot, row.seq, row.pos)
        opens.setdefault(row.boot, []).append(
            PoolOpen(
                pool=row.pool,
                at_us=row.at_us,
                blocks=row.blocks,
                groups=tuple(groups.get(key, ())),
                shards=tuple(shards.get(key, ())),
                model=row.model,
                paying=bool(row.paying),
            )
        )
    return opens


def sights(connection: Connection, boots: Iterable[EngineBoot], start_us: int, end_us: int) -> tuple[Sight, ...]:
    """Which engine saw which GPU when, from ``start_us`` on, widened to the 15-second grid.

    A boot sees its GPUs from its start to its last batch; a silence of more than 15 minutes in between parts two
    sights. An engine that went without a close has them for 15 minutes more.
    """
    found = []
    for boot in boots:
        seen = {(s.gpu_uuid, s.gpu_model, s.share_ppm) for o in boot.opens for s in o.shards if s.gpu_uuid}
        if not seen:
            continue
        edges = [boot.boot.started_us]
        for silence_start, silence_end in _silences(connection, boot.number, start_us, end_us):
            edges += [silence_start, silence_end]
        edges.append(boot.heard_us)
        closed = bool(boot.closes) and boot.closes[-1].at_us >= (boot.last_end_us or 0)
        for index in range(0, len(edges), 2):
            from_us, to_us = max(period_start(edges[index]), start_us), period_end(edges[index + 1])
            tail_us = 0 if closed and index + 2 == len(edges) else SILENCE_US
            if from_us < to_us + tail_us:
                found += [
                    Sight(
                        engine=boot.engine,
                        cluster=boot.cluster,
                        gpu_uuid=uuid,
                        gpu_model=model,
                        share_ppm=share,
                        start_us=from_us,
                        end_us=max(from_us, to_us),
                        tail_us=tail_us,
                    )
                    for uuid, model, share in sorted(seen, key=str)
                ]
    return tuple(found)


def _silences(connection: Connection, boot: int, start_us: int, end_us: int) -> list[tuple[int, int]]:
    h = f.batches
    ordered = (
        select(h.c.start_us, func.lag(h.c.end_us).over(order_by=h.c.seq).label("heard_us"))
        .where(h.c.boot == boot, h.c.start_us >= start_us - SILENCE_US, h.c.start_us < end_us)
        .subquery()
    )
    query = select(ordered.c.heard_us, ordered.c.start_us).where(ordered.c.start_us - ordered.c.heard_us > SILENCE_US)
    return [(row.heard_us, row.start_us) for row in connection.execute(query.order_by(ordered.c.start_us))]


# --- batches of an interval -----------------------------------------------------------------------------


def count_facts(connection: Connection, start_us: int, end_us: int, length_us: int) -> dict[tuple[str, int], int]:
    """Facts by engine and interval, a number that only rises: batches (twice if they lost their time), and records."""
    h, b, p = f.batches, f.boots, f.lost_periods
    bucket = (h.c.start_us - h.c.start_us % length_us).label("bucket")
    of_lost = and_(p.c.boot == h.c.boot, p.c.seq == h.c.seq)
    query = (
        select(h.c.boot, bucket, (func.count() + func.count(p.c.seq)).label("facts"))
        .select_from(h.outerjoin(p, of_lost))
        .where(h.c.start_us >= start_us, h.c.start_us < end_us)
        .group_by(h.c.boot, bucket)
    )
    engines = {row.id: row.engine for row in connection.execute(select(b.c.id, b.c.engine))}
    counts: dict[tuple[str, int], int] = {}
    for row in connection.execute(query):
        key = (engines.get(row.boot, ""), row.bucket)  # a batch without a boot is for the audit to name
        counts[key] = counts.get(key, 0) + row.facts
    for key, records in scrapes.count_records(connection, start_us, end_us, length_us).items():
        counts[key] = counts.get(key, 0) + records
    return counts


def first_fact_us(connection: Connection) -> int | None:
    """The start of the earliest boot or scrape that is known; None for a ledger without facts."""
    boot_us = connection.execute(select(func.min(f.boots.c.started_us))).scalar_one()
    starts = [at_us for at_us in (boot_us, scrapes.first_round_us(connection)) if at_us is not None]
    return min(starts, default=None)


def last_fact_us(connection: Connection) -> int | None:
    """The end of the latest batch or scraped period; None for a ledger without facts."""
    h = f.batches
    ends = [
        row.end_us
        for (boot,) in connection.execute(select(f.boots.c.id)).all()
        for row in connection.execute(select(h.c.end_us).where(h.c.boot == boot).order_by(h.c.start_us.desc()).limit(1))
    ]
    scraped_us = scrapes.last_round_us(connection)
    return max([*ends, *([] if scraped_us is None else [scraped_us])], default=None)


def load_headers(connection: Connection, boots: Sequence[EngineBoot], start_us: int, end_us: int) -> tuple[Header, ...]:
    """The batches of ``boots`` that begin in ``[start_us, end_us)``, in (boot, seq) order."""
    if not boots:
        return ()
    h, p = f.batches, f.lost_periods
    rank = {boot.number: index for index, boot in enumerate(boots)}
    query = (
        select(h.c.boot, h.c.seq, h.c.start_us, h.c.end_us, h.c.digest, h.c.has_standing, p.c.seq.label("lost"))
        .select_from(h.outerjoin(p, and_(p.c.boot == h.c.boot, p.c.seq == h.c.seq)))
        .where(h.c.boot.in_(list(rank)), h.c.start_us >= start_us, h.c.start_us < end_us)
    )
    found = (
        Header(
            boot=row.boot,
            seq=row.seq,
            start_us=row.start_us,
            end_us=row.end_us,
            digest=row.digest.hex(),
            has_standing=bool(row.has_standing),
            lost=row.lost is not None,
        )
        for row in connection.execute(query)
    )
    return tuple(sorted(found, key=lambda header: (rank[header.boot], header.seq)))


class PeriodReader:
    """Reads the periods of one pool; remembers the dimension sets that it has met."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dims: dict[int, Dimensions] = {}

    def periods(
        self, boots: Sequence[EngineBoot], pools: Mapping[int, str], start_us: int, end_us: int
    ) -> tuple[PeriodFacts, ...]:
        """The valid periods of one pool of each boot, in (boot, seq) order, from the UTC hour of ``start_us`` on.

        ``pools`` names the pool by the boot's number; an empty name leaves the boot out.
        """
        headers = load_headers(self._connection, boots, start_us - start_us % HOUR_US, end_us)
        periods: list[PeriodFacts] = []
        for boot in boots:
            own = [header for header in headers if header.boot == boot.number and not header.lost]
            if own and pools[boot.number]:
                periods += self._of_boot(boot, pools[boot.number], own)
        return tuple(periods)

    def dimensions(self, numbers: Iterable[int]) -> dict[int, Dimensions]:
        """The dimension sets with these ids."""
        self._dims |= dimensions_by_id(self._connection, set(numbers) - self._dims.keys())
        return self._dims

    def bad_ends(self, boots: Sequence[EngineBoot], start_us: int, end_us: int) -> list[BadEnd]:
        """What the requests used that ended aborted or abandoned in batches of ``[start_us, end_us)``."""
        found = []
        records, uses = f.request_records, f.request_uses
        for low, high, number, headers in self._ranges(boots, start_us, end_us):
            query = (
                select(records.c.seq, records.c.dims, records.c.outcome, uses.c.start_us, uses.c.active_block_us)
                .join(uses, and_(*(uses.c[key] == records.c[key] for key in ("day", "boot", "seq", "pos"))))
                .where(_within(records, headers, number, low, high), _within(uses, headers, number, low, high))
                .where(records.c.outcome.in_(("aborted", "abandoned")))
            )
            valid = {header.seq for header in headers}
            rows = [row for row in self._connection.execute(query) if row.seq in valid]
            dims = self.dimensions(row.dims for row in rows)
            found += [
                BadEnd(
                    dims=dims[row.dims],
                    outcome=row.outcome,
                    start_us=row.start_us,
                    active_block_us=row.active_block_us,
                )
                for row in rows
            ]
        return found

    def _ranges(
        self, boots: Sequence[EngineBoot], start_us: int, end_us: int
    ) -> Iterator[tuple[int, int, int, list[Header]]]:
        headers = load_headers(self._connection, boots, start_us, end_us)
        for boot in boots:
            own = [header for header in headers if header.boot == boot.number and not header.lost]
            if own:
                yield own[0].seq, own[-1].seq, boot.number, own

    def _of_boot(self, boot: EngineBoot, pool: str, headers: Sequence[Header]) -> list[PeriodFacts]:
        low, high = headers[0].seq, headers[-1].seq

        def rows(table: Any) -> dict[int, list[Any]]:
            """Rows of the pool by seq, without their keys."""
            by_seq: dict[int, list[Any]] = {}
            query = (
                select(table)
                .where(_within(table, headers, boot.number, low, high), table.c.pool == pool)
                .order_by(table.c.seq, table.c.pos)
            )
            for _, _, seq, _, *row in self._connection.execute(query).all():
                by_seq.setdefault(seq, []).append(row)
            return by_seq

        pools, sessions, standing = rows(f.pool_periods), rows(f.session_periods), rows(f.standing_counts)
        self.dimensions(row[1] for kind in (sessions, standing) for found in kind.values() for row in found)
        periods = []
        previous: int | None = None
        for header in headers:
            # The counts before the hour's first batch are not looked up: without standing they are unknown.
            known = header.seq == 1 or header.has_standing if previous is None else header.seq == previous + 1
            previous = header.seq
            periods.append(
                PeriodFacts(
                    boot_id=boot.boot.boot_id,
                    seq=header.seq,
                    start_us=header.start_us,
                    end_us=header.end_us,
                    pool=next((fact_rows.pool_of(row) for row in pools.get(header.seq, ())), None),
                    sessions=tuple(fact_rows.session_of(row, self._dims) for row in sessions.get(header.seq, ())),
                    standing=tuple(fact_rows.standing_of(row, self._dims) for row in standing.get(header.seq, ()))
                    if header.has_standing
                    else None,
                    gap_before=not known,
                )
            )
        return periods


def _within(table: Any, headers: Sequence[Header], boot: int, low: int, high: int) -> Any:
    days = sorted({header.start_us // DAY_US for header in headers})
    return and_(table.c.day.in_(days), table.c.boot == boot, table.c.seq.between(low, high))
