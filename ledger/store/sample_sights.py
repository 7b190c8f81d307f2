"""Which GPUs agents saw when: what is paid for although no engine may be on it.

Invariants: a GPU is seen from a list that has it to the next one that has it not, or to the agent's last batch; a
silence of more than 15 minutes in between parts two sights, for an agent tells its list again after it (or the time in
between is known to nobody). Instances are parts of their device, which is what is paid for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, exists, func, select

from ledger.core.periods import SILENCE_US, period_end, period_start
from ledger.limits import DAY_US
from ledger.pricebook import Sight
from ledger.store import sample_tables as t

if TYPE_CHECKING:
    from ledger.store.database import Connection

_Seen = dict[str, tuple[str, int]]
"""The model of each GPU by its uuid, and since when it is seen."""


def agent_sights(connection: Connection, start_us: int, end_us: int) -> tuple[Sight, ...]:
    """What agents saw in ``[start_us, end_us)``, on the 15-second grid, by agent's boot and time."""
    found: list[Sight] = []
    gpus = _listed(connection, start_us, end_us)
    for boot, cluster, lists in _lists(connection, start_us, end_us):
        seen: _Seen = {}
        heard_us = None
        for seq, at_us, before_us in lists:
            if before_us is not None and at_us - before_us > SILENCE_US:
                found += _ended(seen, cluster, before_us, start_us)
                seen = {}
            now = gpus.get((boot, seq), {})
            gone = {uuid: since for uuid, since in seen.items() if uuid not in now}
            found += _ended(gone, cluster, at_us, start_us)
            seen = {uuid: seen.get(uuid, (model, at_us)) for uuid, model in now.items()}
            heard_us = at_us
        if heard_us is not None:
            found += _ended(seen, cluster, max(heard_us, _last_end_us(connection, boot, end_us)), start_us)
    return tuple(found)


def first_seen_us(connection: Connection) -> int | None:
    """When the first agent began that saw a GPU, of those whose lists are still kept; None where there is none."""
    b = t.agent_boots.c
    found = connection.execute(
        select(func.min(b.started_us)).where(exists().where(t.gpu_lists.c.boot == b.id))
    ).scalar_one()
    return None if found is None else int(found)


def _ended(seen: _Seen, cluster: str, until_us: int, start_us: int) -> list[Sight]:
    sights = []
    for uuid, (model, since_us) in sorted(seen.items()):
        from_us, to_us = max(period_start(since_us), start_us), period_end(until_us)
        if from_us < to_us:
            sight = Sight(engine="", cluster=cluster, gpu_uuid=uuid, gpu_model=model, start_us=from_us, end_us=to_us)
            sights.append(sight)
    return sights


def _lists(
    connection: Connection, start_us: int, end_us: int
) -> list[tuple[int, str, list[tuple[int, int, int | None]]]]:
    """Boots with their cluster and the batches that list GPUs: seq, start, and the end of the batch before."""
    b, a = t.agent_batches, t.agents
    earlier = b.alias("earlier")
    before = (
        select(earlier.c.end_us)
        .where(earlier.c.boot == b.c.boot, earlier.c.seq < b.c.seq)
        .order_by(earlier.c.seq.desc())
        .limit(1)
        .correlate(b)
        .scalar_subquery()
    )
    query = (
        select(b.c.boot, b.c.seq, b.c.start_us, before.label("before_us"), a.c.cluster)
        .join(a, a.c.id == b.c.source)
        .where(b.c.has_gpus == 1, b.c.day.between(start_us // DAY_US, end_us // DAY_US), b.c.start_us < end_us)
        .order_by(b.c.boot, b.c.seq)
    )
    found: dict[int, tuple[int, str, list[tuple[int, int, int | None]]]] = {}
    for row in connection.execute(query):
        found.setdefault(row.boot, (row.boot, row.cluster, []))[2].append((row.seq, row.start_us, row.before_us))
    return list(found.values())


def _listed(connection: Connection, start_us: int, end_us: int) -> dict[tuple[int, int], dict[str, str]]:
    """The devices of each list by boot and seq: model by uuid."""
    g, u = t.gpu_lists, t.gpus
    query = (
        select(g.c.boot, g.c.seq, u.c.uuid, g.c.model)
        .join(u, u.c.id == g.c.gpu)
        .where(g.c.day.between(start_us // DAY_US, end_us // DAY_US), g.c.parent == "")
    )
    found: dict[tuple[int, int], dict[str, str]] = {}
    for row in connection.execute(query):
        found.setdefault((row.boot, row.seq), {})[row.uuid] = row.model
    return found


def _last_end_us(connection: Connection, boot: int, end_us: int) -> int:
    b = t.agent_batches.c
    query = select(b.end_us).where(and_(b.boot == boot, b.start_us < end_us)).order_by(b.start_us.desc()).limit(1)
    return int(connection.execute(query).scalar_one())
