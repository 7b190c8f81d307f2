"""Where a GPU's memory is: what an agent saw and what a hook knows put together, into parts that sum to the whole.

Invariants: the parts of a GPU sum to its total, byte for byte, where the device says its total and what is free; a
figure that nobody gave is no part, and never taken from another's; ``unexplained`` is what is left when every process
is accounted for, and what an engine's process has grown by since it was warm, so it grows when something leaks.

What an engine's process has beside its weights and its KV pool (activations, graphs, the runtime) is taken to be at
its level once the engine has been open for ten minutes: the largest in that time. A pool that takes its memory as it
fills (its process has less than weights and pool together while it is warming) counts with the blocks that are held.

Pure: states in, budgets out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ledger.core.samples import Gpu, GpuProcess, ProcessPeriod
    from ledger.store.gpu_reads import AgentNow, GpuNow
    from ledger.store.shard_reads import ShardNow

WARM_US: Final = 600_000_000
"""Ten minutes: graphs are captured, and the largest batches have been seen once."""


class Part(StrEnum):
    """What memory of a GPU is used for."""

    WEIGHTS = "weights"
    KV_POOL = "kv_pool"
    ACTIVATIONS = "activations"
    """Of an engine's process: what is neither weights nor KV, up to its level when it was warm; graphs as well."""
    ENGINE = "engine"
    """Of an engine's process whose hook does not say what its weights and its pool take."""
    OTHER_PROCESSES = "other_processes"
    INSTANCES = "instances"
    """Of a device that is cut: used on its instances, which have budgets of their own."""
    UNEXPLAINED = "unexplained"
    """Used, and by no process; or by an engine's, since it was warm."""
    UNDIVIDED = "undivided"
    """Used, and nobody says by whom: no list of processes, or one without figures."""
    RESERVED = "reserved"
    """Kept by the driver for itself."""
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a GPU's memory; ``engine`` and ``shard`` where it is one's."""

    part: Part
    bytes: int
    engine: str = ""
    shard: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A process on a GPU with what is known of it: its health, and the shard that it is."""

    process: GpuProcess
    health: ProcessPeriod | None
    shard: ShardNow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A GPU's memory. ``pieces`` sum to ``total_bytes``; with None there they are what is known."""

    gpu: Gpu
    agent: AgentNow
    now: GpuNow
    held: tuple[Held, ...]
    total_bytes: int | None
    pieces: tuple[Piece, ...]

    def sum_of(self, part: Part) -> int | None:
        """The bytes of a part; None where there is no such part."""
        found = [piece.bytes for piece in self.pieces if piece.part is part]
        return sum(found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """What an engine's process had beside weights and KV when it was warm, and whether its pool fills as it goes."""

    level_bytes: int
    grows: bool


def warm_of(shard: ShardNow, levels: Sequence[tuple[int, int]], held: Mapping[int, int]) -> Warm | None:
    """How a process was when it was warm: ``levels`` are its (start, bytes), ``held`` the KV bytes by start."""
    if not levels:
        return None
    weights, pool = shard.weights_bytes or 0, shard.kv_bytes or 0
    grows = any(used < weights + pool for _, used in levels)
    return Warm(
        level_bytes=max(used - weights - (held.get(at_us, 0) if grows else pool) for at_us, used in levels), grows=grows
    )


def budgets(
    agents: Sequence[AgentNow], shards: Sequence[ShardNow], warm: Callable[[AgentNow, Held], Warm | None]
) -> tuple[Budget, ...]:
    """The memory of every GPU and instance that agents see now, by host, device and instance; each GPU once.

    ``warm`` looks up how a process was when it was warm; None while it is not, or where nothing is kept of that time.
    """
    found = []
    on: dict[str, list[ShardNow]] = {}
    for shard in shards:
        on.setdefault(shard.gpu_uuid, []).append(shard)
    for agent, now in _seen_once(agents):
        health = {each.row.pid: each.row for each in agent.health}
        candidates = [*on.get(now.gpu.uuid, ()), *(on.get(now.gpu.parent, ()) if now.gpu.parent else ())]
        held = _joined(now, health, candidates)
        total, pieces = _pieces(agent, now, held, warm)
        found.append(Budget(gpu=now.gpu, agent=agent, now=now, held=held, total_bytes=total, pieces=pieces))
    order = sorted(
        found, key=lambda b: (b.agent.source.host, b.agent.source.source_id, b.gpu.index, b.gpu.instance or -1)
    )
    return tuple(order)


def _seen_once(agents: Sequence[AgentNow]) -> Iterable[tuple[AgentNow, GpuNow]]:
    """Each GPU of the one who says most of it: an exporter beside an agent knows no processes."""
    best: dict[str, tuple[tuple[bool, bool, int], AgentNow, GpuNow]] = {}
    for agent in agents:
        for now in agent.gpus:
            rank = (now.rest is not None, now.sample is not None, now.end_us or 0)
            known = best.get(now.gpu.uuid)
            if known is None or rank > known[0]:
                best[now.gpu.uuid] = (rank, agent, now)
    return [(agent, now) for _, agent, now in best.values()]


def _joined(now: GpuNow, health: Mapping[int, ProcessPeriod], shards: Sequence[ShardNow]) -> tuple[Held, ...]:
    """Each process with its shard: by its id, in the host's namespace or its own; a lone process with a lone shard."""
    found = []
    for process in now.processes:
        row = health.get(process.pid)
        pids = {process.pid, row.inner_pid if row is not None else None}
        matching = [shard for shard in shards if shard.pid is not None and shard.pid in pids]
        if not matching and len(now.processes) == 1 and len(shards) == 1 and shards[0].pid is None:
            matching = list(shards)
        # Two containers may both have a process 7 on this GPU: then neither id says whose it is.
        found.append(Held(process=process, health=row, shard=matching[0] if len(matching) == 1 else None))
    taken = [one.shard for one in found if one.shard is not None]
    return tuple(
        replace(one, shard=None) if one.shard is not None and taken.count(one.shard) > 1 else one for one in found
    )


def _pieces(
    agent: AgentNow, now: GpuNow, held: Sequence[Held], warm: Callable[[AgentNow, Held], Warm | None]
) -> tuple[int | None, tuple[Piece, ...]]:
    sample = now.sample
    if sample is None:
        return None, ()
    pieces, grown = _of_processes(agent, held, warm)
    if sample.total_bytes is None or sample.free_bytes is None:
        # The device says nothing of itself (unified memory): only what processes have is known.
        return None, (*pieces, *([Piece(part=Part.UNEXPLAINED, bytes=grown)] if grown else []))
    total, free = sample.total_bytes.mean, sample.free_bytes.mean
    reserved = sample.reserved_bytes.mean if sample.reserved_bytes is not None else None
    rest = total - free - (reserved or 0) - grown - sum(piece.bytes for piece in pieces)
    nobodys = now.rest.rest_bytes if now.rest is not None else None
    if now.gpu.uuid in {each.gpu.parent for each in agent.gpus}:
        alone = nobodys.mean if nobodys is not None else 0
        pieces.append(Piece(part=Part.INSTANCES, bytes=rest - alone))
        rest = alone
    elif nobodys is None:
        pieces.append(Piece(part=Part.UNDIVIDED, bytes=rest))
        rest = 0
    pieces.append(Piece(part=Part.UNEXPLAINED, bytes=grown + rest))
    if reserved is not None:
        pieces.append(Piece(part=Part.RESERVED, bytes=reserved))
    return total, (*pieces, Piece(part=Part.FREE, bytes=free))


def _of_processes(
    agent: AgentNow, held: Sequence[Held], warm: Callable[[AgentNow, Held], Warm | None]
) -> tuple[list[Piece], int]:
    """The parts of engines and of other processes, and by how much engines have grown since they were warm."""
    pieces: list[Piece] = []
    others, grown = 0, 0
    for one in held:
        used = one.process.used_bytes
        if used is None:
            continue
        if one.shard is None:
            others += used.mean
            continue
        mine, more = _of_engine(one.shard, used.mean, warm(agent, one))
        pieces += mine
        grown += more
    if any(one.shard is None and one.process.used_bytes is not None for one in held):
        pieces.append(Piece(part=Part.OTHER_PROCESSES, bytes=others))
    return pieces, grown


def _of_engine(shard: ShardNow, used: int, warm: Warm | None) -> tuple[list[Piece], int]:
    """What an engine's process has, and by how much it has grown since it was warm."""
    weights, pool = shard.weights_bytes, shard.kv_bytes
    grows = used < (weights or 0) + (pool or 0) if warm is None else warm.grows
    if grows and pool is not None:
        pool = shard.kv_held_bytes or 0
    beside = used - (weights or 0) - (pool or 0)
    steady = beside if warm is None else min(beside, warm.level_bytes)
    made = [(Part.WEIGHTS, weights), (Part.KV_POOL, pool)]
    made.append((Part.ACTIVATIONS if weights is not None and pool is not None else Part.ENGINE, steady))
    pieces = [
        Piece(part=part, bytes=size, engine=shard.engine, shard=shard.name) for part, size in made if size is not None
    ]
    return pieces, beside - steady
