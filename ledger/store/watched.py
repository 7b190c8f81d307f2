"""What the hooks of some engines reported of a stretch of time, in the figures that scraping knows as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, func, select

from ledger.core.scraped import Watched
from ledger.store import tables as f
from ledger.store.fact_rows import day_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.store.database import Connection

_PROMPT = ("computed", "cached_own", "cached_others", "transferred")


def hook_watched(connection: Connection, engines: Collection[str], start_us: int, end_us: int) -> dict[str, Watched]:
    """Each engine's batches that begin in ``[start_us, end_us)``, put together; bounded by engines and time."""
    b, o = f.batches, f.boots
    heads = connection.execute(
        select(o.c.engine, b.c.boot, b.c.day, func.min(b.c.seq).label("low"), func.max(b.c.seq).label("high"))
        .join(o, o.c.id == b.c.boot)
        .where(b.c.start_us >= start_us, b.c.start_us < end_us, b.c.end_us > b.c.start_us)
        .where(b.c.day.between(day_of(start_us), day_of(end_us)), o.c.engine.in_(sorted(engines)))
        .group_by(o.c.engine, b.c.boot, b.c.day)
    ).all()
    sums: dict[str, list[int]] = {}
    for head in heads:
        mine = sums.setdefault(head.engine, [0] * 7)
        for place, value in enumerate(_of_boot(connection, head)):
            mine[place] += value
    return {engine: _put_together(values) for engine, values in sums.items()}


def _of_boot(connection: Connection, head: Any) -> tuple[int, ...]:
    p, r, h, b = f.pool_periods, f.session_periods, f.histograms, f.batches

    def within(table: Any) -> Any:
        keys = table.c
        return and_(keys.day == head.day, keys.boot == head.boot, keys.seq.between(head.low, head.high))

    # The pool that counts steps is the one that carries money; on others they are 0.
    pools = connection.execute(
        select(
            p.c.pool,
            func.sum(p.c.steps).label("steps"),
            func.sum(p.c.active_block_us).label("held"),
            func.sum(p.c.active_block_us + p.c.cached_block_us + p.c.free_block_us).label("whole"),
        )
        .where(within(p))
        .group_by(p.c.pool)
    ).all()
    pool = max(pools, key=lambda row: (int(row.steps), row.pool), default=None)
    if pool is None:
        return (0,) * 7
    length = select(func.sum(b.c.end_us - b.c.start_us)).where(
        b.c.boot == head.boot, b.c.seq.between(head.low, head.high)
    )
    prompt = sum(r.c[f"{name}_tokens"] for name in _PROMPT)
    tokens = connection.execute(
        select(func.sum(r.c.output_tokens), func.sum(prompt)).where(within(r), r.c.pool == pool.pool)
    ).one()
    steps = connection.execute(
        select(func.sum(h.c["count"]), func.sum(h.c.total)).where(within(h), h.c.name == "step_batch_requests")
    ).one()
    found = (connection.execute(length).scalar_one(), *tokens, pool.held, pool.whole, *steps)
    return tuple(int(value or 0) for value in found)


def _put_together(sums: list[int]) -> Watched:
    covered_us, output, prompt, held, whole, steps, scheduled = sums
    return Watched(
        covered_us=covered_us,
        output_tokens=output,
        prompt_tokens=prompt,
        kv_active_ppm=held * 1_000_000 // whole if whole else None,
        running_milli=scheduled * 1000 // steps if steps else None,
    )
