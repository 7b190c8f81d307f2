"""What agents see now: each agent by its newest boot, its GPUs with their newest rows, and the watched processes.

Invariant: every answer is bounded by the number of agents and GPUs, never by how long they have been watched: the
newest batch of a boot is found by its key, and the rows that still hold lie in its last six periods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, func, select

from ledger.core.records import PERIOD_US
from ledger.core.samples import KEPT_US, Agent, Gpu, GpuPeriod, GpuProcess, GpuRest, ProcessPeriod
from ledger.store import sample_tables as t
from ledger.store.sample_reads import agent_of, uuids_by_id
from ledger.store.sample_rows import gpu_of, gpu_period_of, health_of, process_of, rest_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Table

    from ledger.store.database import Connection

QUIET_US: Final = 90_000_000
"""An agent that delivered nothing for so long (six periods) is quiet: what it said last holds no more."""

KEPT_PERIODS: Final = KEPT_US // PERIOD_US + 2
"""Periods in which the newest rows of a GPU lie: it has some once a minute, and the first one may be cut."""

LISTED_US: Final = 86_400_000_000
"""How long an agent that is quiet is still listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNow:
    """A GPU or instance that an agent lists. ``end_us`` is the end of the period of its rows; None: it says nothing."""

    gpu: Gpu
    end_us: int | None = None
    sample: GpuPeriod | None = None
    processes: tuple[GpuProcess, ...] = ()
    rest: GpuRest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthNow:
    """A watched process as it was in the newest period of which a row was kept, which is ``length_us`` long."""

    row: ProcessPeriod
    length_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentNow:
    """An agent by its newest boot; without GPUs and processes where it is quiet."""

    source: Agent
    boot: int
    boot_id: str
    started_us: int
    last_seq: int
    last_end_us: int
    received_us: int
    quiet: bool
    gpus: tuple[GpuNow, ...] = ()
    health: tuple[HealthNow, ...] = ()


def agents_now(connection: Connection, now_us: int) -> tuple[AgentNow, ...]:
    """The agents that were heard in the last day, by name."""
    o, b, a = t.agent_boots, t.agent_batches, t.agents
    newest = select(func.max(o.c.id)).group_by(o.c.source_id)
    last = select(func.max(b.c.seq)).where(b.c.boot == o.c.id).correlate(o).scalar_subquery()
    query = (
        select(
            *(o.c[name] for name in ("boot_id", "started_us")),
            o.c.id.label("boot"),
            *(b.c[name] for name in ("day", "seq", "end_us", "received_us")),
            *(a.c[name] for name in Agent.__slots__),
        )
        .join(b, and_(b.c.boot == o.c.id, b.c.seq == last))
        .join(a, a.c.id == b.c.source)
        .where(o.c.id.in_(newest), b.c.end_us > now_us - LISTED_US)
        .order_by(o.c.source_id)
    )
    return tuple(_agent(connection, row, now_us) for row in connection.execute(query).all())


def _agent(connection: Connection, row: Any, now_us: int) -> AgentNow:
    quiet = now_us - row.end_us > QUIET_US
    gpus: tuple[GpuNow, ...] = ()
    health: tuple[HealthNow, ...] = ()
    if not quiet:
        spans = _spans(connection, row)
        gpus = _gpus(connection, row, spans)
        rows = _newest(_recent(connection, t.process_periods, row), lambda found: found[0])
        health = tuple(
            HealthNow(row=health_of(many[0]), length_us=spans[seq][1] - spans[seq][0])
            for _, (seq, many) in sorted(rows.items())
        )
    return AgentNow(
        source=agent_of(row),
        boot=row.boot,
        boot_id=row.boot_id,
        started_us=row.started_us,
        last_seq=row.seq,
        last_end_us=row.end_us,
        received_us=row.received_us,
        quiet=quiet,
        gpus=gpus,
        health=health,
    )


def _gpus(connection: Connection, row: Any, spans: Mapping[int, tuple[int, int]]) -> tuple[GpuNow, ...]:
    listed = _listed(connection, row)
    samples = _newest(_recent(connection, t.gpu_periods, row), lambda found: found[0])
    processes = _newest(_recent(connection, t.gpu_processes, row), lambda found: found[0])
    rests = _newest(_recent(connection, t.gpu_rests, row), lambda found: found[0])
    uuids = uuids_by_id(connection, {found[0] for found in listed} | samples.keys())
    found = []
    for each in listed:
        number, gpu = each[0], gpu_of(each, uuids)
        seq, rows = samples.get(number, (0, []))
        if not rows:
            found.append(GpuNow(gpu=gpu))
            continue
        # Rows of a GPU go together, so those of its processes are of the same batch, or it has none.
        own = [one for at, many in [processes.get(number, (0, []))] if at == seq for one in many]
        rest = [one for at, many in [rests.get(number, (0, []))] if at == seq for one in many]
        found.append(
            GpuNow(
                gpu=gpu,
                end_us=spans[seq][1],
                sample=gpu_period_of(rows[0], uuids),
                processes=tuple(process_of(one, uuids) for one in own),
                rest=rest_of(rest[0], uuids) if rest else None,
            )
        )
    return tuple(found)


def _listed(connection: Connection, row: Any) -> list[tuple[Any, ...]]:
    """The rows of the newest list of GPUs, without their keys."""
    b, g = t.agent_batches, t.gpu_lists
    # Every day begins with a list, so the newest is of today or, before today's first batch, of yesterday.
    last = connection.execute(
        select(b.c.seq)
        .where(b.c.has_gpus == 1, b.c.day.between(row.day - 1, row.day), b.c.boot == row.boot)
        .order_by(b.c.seq.desc())
        .limit(1)
    ).scalar_one_or_none()
    if last is None:
        return []
    query = (
        select(*g.c[4:])
        .where(g.c.day.between(row.day - 1, row.day), g.c.boot == row.boot, g.c.seq == last)
        .order_by(g.c.pos)
    )
    return [tuple(found) for found in connection.execute(query)]


def _recent(connection: Connection, table: Table, row: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """(seq, row without its key) of the boot's last periods, the newest first."""
    query = (
        select(table.c.seq, *table.c[4:])
        .where(
            table.c.day.between(row.day - 1, row.day),
            table.c.boot == row.boot,
            table.c.seq > row.seq - KEPT_PERIODS,
        )
        .order_by(table.c.seq.desc(), table.c.pos)
    )
    for found in connection.execute(query):
        yield found[0], tuple(found)[1:]


def _newest(rows: Iterator[tuple[int, tuple[Any, ...]]], key: Any) -> dict[Any, tuple[int, list[tuple[Any, ...]]]]:
    """The rows of each key that are of its newest batch, with that batch's seq."""
    found: dict[Any, tuple[int, list[tuple[Any, ...]]]] = {}
    for seq, row in rows:
        at, many = found.setdefault(key(row), (seq, []))
        if at == seq:
            many.append(row)
    return found


def _spans(connection: Connection, row: Any) -> dict[int, tuple[int, int]]:
    """Start and end of the boot's last periods by seq."""
    b = t.agent_batches
    query = select(b.c.seq, b.c.start_us, b.c.end_us).where(b.c.boot == row.boot, b.c.seq > row.seq - KEPT_PERIODS)
    return {found.seq: (found.start_us, found.end_us) for found in connection.execute(query)}
