"""The ranks of open engines, with what their hooks said of GPU memory, and the memory that a process had over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import and_, func, select

from ledger.limits import DAY_US
from ledger.store import sample_tables as g
from ledger.store import tables as f

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ledger.store.database import Connection
    from ledger.store.fleet import EngineState

IDS_PER_QUERY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardNow:
    """One rank of an open engine on one GPU, its pools there put together.

    ``kv_held_bytes`` is the part of ``kv_bytes`` whose blocks are active or cached, at the end of the newest period.
    """

    engine: str
    boot: int
    opened_us: int
    dp: int
    pp: int
    tp: int
    gpu_uuid: str
    pid: int | None
    weights_bytes: int | None
    kv_bytes: int | None
    kv_held_bytes: int | None
    pools: tuple[tuple[str, int, int], ...]
    """Name, blocks and bytes of each pool that says what it takes."""

    @property
    def name(self) -> str:
        """As in metrics, without the GPU."""
        return f"dp{self.dp}pp{self.pp}tp{self.tp}"


def open_shards(connection: Connection, engines: Sequence[EngineState]) -> tuple[ShardNow, ...]:
    """The shards of every open pool that name a GPU."""
    open_pools = {
        (engine.boot_number, pool.pool): (engine.engine, pool)
        for engine in engines
        for pool in engine.pools
        if pool.is_open
    }
    boots = sorted({boot for boot, _ in open_pools})
    found: dict[tuple[str, int, int, int, int, str], ShardNow] = {}
    for start in range(0, len(boots), IDS_PER_QUERY):
        o, s = f.pool_opens, f.pool_shards
        query = (
            select(o.c.pool, o.c.at_us, o.c.blocks, s)
            .join(o, and_(*(o.c[name] == s.c[name] for name in ("boot", "seq", "pos"))))
            .where(s.c.boot.in_(boots[start : start + IDS_PER_QUERY]), s.c.gpu_uuid != "")
            .order_by(s.c.boot, s.c.seq, s.c.pos, s.c.sub)
        )
        newest: dict[tuple[int, str], dict[int, ShardNow]] = {}
        for row in connection.execute(query):
            named = open_pools.get((row.boot, row.pool))
            if named is None:
                continue
            engine, pool = named
            held = None
            if row.kv_bytes is not None and pool.active_blocks is not None and pool.cached_blocks is not None:
                held = row.kv_bytes * (pool.active_blocks + pool.cached_blocks) // row.blocks
            shard = ShardNow(
                engine=engine,
                boot=row.boot,
                opened_us=row.at_us,
                dp=row.dp,
                pp=row.pp,
                tp=row.tp,
                gpu_uuid=row.gpu_uuid,
                pid=row.pid,
                weights_bytes=row.weights_bytes,
                kv_bytes=row.kv_bytes,
                kv_held_bytes=held,
                pools=() if row.kv_bytes is None else ((row.pool, row.blocks, row.kv_bytes),),
            )
            of_pool = newest.setdefault((row.boot, row.pool), {})
            if any(known.opened_us < row.at_us for known in of_pool.values()):
                of_pool.clear()  # it was opened again since
            of_pool[row.sub] = shard
        for of_pool in newest.values():
            for shard in of_pool.values():
                key = (shard.engine, shard.boot, shard.dp, shard.pp, shard.tp, shard.gpu_uuid)
                found[key] = _together(found.get(key), shard)
    return tuple(found[key] for key in sorted(found))


def _together(one: ShardNow | None, other: ShardNow) -> ShardNow:
    """Two pools of one rank: their memory added up, what only one of them says taken from it."""
    if one is None:
        return other
    return ShardNow(
        engine=one.engine,
        boot=one.boot,
        opened_us=max(one.opened_us, other.opened_us),
        dp=one.dp,
        pp=one.pp,
        tp=one.tp,
        gpu_uuid=one.gpu_uuid,
        pid=one.pid if one.pid is not None else other.pid,
        weights_bytes=one.weights_bytes if one.weights_bytes is not None else other.weights_bytes,
        kv_bytes=_sum(one.kv_bytes, other.kv_bytes),
        kv_held_bytes=_sum(one.kv_held_bytes, other.kv_held_bytes),
        pools=one.pools + other.pools,
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


# --- memory over time -----------------------------------------------------------------------------------


def process_levels(
    connection: Connection, source_id: str, *, gpu: str, pid: int, from_us: int, length_us: int
) -> list[tuple[int, int]]:
    """(start, mean bytes) of a process on a GPU in the first ``length_us`` that its agent saw from ``from_us`` on."""
    o, b, p = g.agent_boots, g.agent_batches, g.gpu_processes
    number = connection.execute(select(g.gpus.c.id).where(g.gpus.c.uuid == gpu)).scalar_one_or_none()
    boots = select(o.c.id).where(o.c.source_id == source_id)
    first = connection.execute(
        select(func.min(b.c.start_us)).where(b.c.boot.in_(boots), b.c.start_us >= from_us)
    ).scalar_one()
    if number is None or first is None:
        return []
    query = (
        select(b.c.start_us, p.c.used_bytes_mean)
        .join(p, and_(p.c.boot == b.c.boot, p.c.seq == b.c.seq, p.c.day == b.c.day))
        .where(b.c.boot.in_(boots), b.c.start_us >= first, b.c.start_us < first + length_us)
        .where(p.c.day.between(first // DAY_US, (first + length_us) // DAY_US))
        .where(p.c.gpu == number, p.c.pid == pid, p.c.used_bytes_mean.is_not(None))
        .order_by(b.c.start_us)
    )
    return [(row.start_us, int(row.used_bytes_mean)) for row in connection.execute(query)]


def held_levels(
    connection: Connection, boot: int, pools: Sequence[tuple[str, int, int]], from_us: int, to_us: int
) -> Mapping[int, int]:
    """Bytes of the pools' blocks that were active or cached, on average, by the start of each period of an engine."""
    b, p = f.batches, f.pool_periods
    sizes = {name: size for name, _, size in pools}
    query = (
        select(b.c.start_us, b.c.end_us, p.c.pool, p.c.blocks, p.c.active_block_us, p.c.cached_block_us)
        .join(p, and_(p.c.boot == b.c.boot, p.c.seq == b.c.seq, p.c.day == b.c.day))
        .where(b.c.boot == boot, b.c.start_us >= from_us, b.c.start_us < to_us, b.c.end_us > b.c.start_us)
        .where(p.c.day.between(from_us // DAY_US, to_us // DAY_US), p.c.pool.in_(sorted(sizes)))
    )
    found: dict[int, int] = {}
    for row in connection.execute(query):
        whole = row.blocks * (row.end_us - row.start_us)
        held = sizes[row.pool] * (row.active_block_us + row.cached_block_us) // whole
        found[row.start_us] = found.get(row.start_us, 0) + held
    return found
