"""How engines' processes were when they were warm, looked up once each and remembered.

Invariant: what is remembered never changes: it is of ten minutes that are over. One that could not be looked up yet,
since they are not, is asked for again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ledger.memory import WARM_US, Warm, warm_of
from ledger.store.shard_reads import held_levels, process_levels

if TYPE_CHECKING:
    from ledger.memory import Held
    from ledger.store.database import Connection
    from ledger.store.gpu_reads import AgentNow

KEPT_MAX: Final = 20_000
"""Processes that are remembered: ten times the GPUs of the largest fleet."""


class Warmth:
    """Levels by engine's boot, GPU and process."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, str, int], Warm | None] = {}

    def of(self, connection: Connection, agent: AgentNow, held: Held, *, now_us: int) -> Warm | None:
        """The level of an engine's process; None while its ten minutes are not over, or none of them was kept."""
        shard, process = held.shard, held.process
        assert shard is not None, held
        key = (shard.boot, agent.source.source_id, process.gpu, process.pid)
        if key in self._kept:
            return self._kept[key]
        if process.used_bytes is None or now_us < shard.opened_us + WARM_US:
            return None
        levels = process_levels(
            connection, agent.source.source_id, gpu=process.gpu, pid=process.pid, from_us=shard.opened_us,
            length_us=WARM_US,
        )  # fmt: skip
        if not levels or now_us < levels[0][0] + WARM_US:
            return None  # the agent came later than the engine
        kv = held_levels(connection, shard.boot, shard.pools, levels[0][0], levels[-1][0] + 1)
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        found = self._kept[key] = warm_of(shard, levels, kv)
        return found
