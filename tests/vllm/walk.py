"""The naive way: after every step, walk vLLM's own block pool and compare it with what the meter says.

Nothing here uses the meter's figures to make its own: holders come from vLLM's block tables, states from its reference
counts and hashes, last holders from the walk before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

from ledger.core.holders import Account, Table
from ledger.core.sharing import Cell, Node
from ledger.hook.vllm.recorder import Recorder

Session = tuple[str, str]


class Walker:
    """Compares one recorder's meter with its scheduler's pool; ``differences`` says where they differ."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.steps = 0
        self.walks = 0
        self.differences: list[str] = []
        self.engine_references = 0
        """Blocks seen that only the engine itself refers to."""
        self.peak_shared = self.deferred = 0
        self._last: dict[int, set[Session]] = {}
        """Who may have held a block last: those of the latest walk in which somebody held it."""

    def walk(self, where: str) -> None:
        """Compare everything at this moment."""
        self.walks += 1
        recorder = self.recorder
        scheduler = recorder._scheduler
        held = self._held(scheduler)
        owners = recorder.pool._pool.accounts.owner
        requests = recorder.meter._boot.steps.requests
        ours = _holders(requests.values(), owners)
        session_of = {name: (found.dims.tenant, found.dims.session) for name, found in requests.items()}
        cached: Counter[Session] = Counter()
        for block in scheduler.kv_cache_manager.block_pool.blocks:
            if block.is_null:
                continue
            self._compare(where, block, held.get(block.block_id, set()), ours, owners[block.block_id], session_of)
            if isinstance(owner := owners[block.block_id], Account):
                cached[owner.dims.tenant, owner.dims.session] += 1
        self._sums(where, held, session_of, cached)
        self._last.update({block: {session_of[name] for name in names} for block, names in held.items()})

    def _held(self, scheduler: Any) -> dict[int, set[str]]:
        """Who holds each block: those whose table has it, and those whose release is put off."""
        held: dict[int, set[str]] = defaultdict(set)
        for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
            for name, blocks in manager.req_to_blocks.items():
                for block in blocks:
                    if not block.is_null:
                        held[block.block_id].add(name)
        for (_, blocks), name in zip(scheduler.deferred_frees, self.recorder.watch._pending, strict=True):
            self.deferred += 1
            for block in blocks if name else ():
                held[block.block_id].add(name)
        for block, name in self.recorder._pinned.items():
            held[block].add(name)
        return held

    def _compare(
        self,
        where: str,
        block: Any,
        theirs: set[str],
        ours: dict[int, set[str]],
        owner: Any,
        session_of: dict[str, Session],
    ) -> None:
        number = block.block_id
        mine = ours.get(number, set())
        if mine != theirs:
            self._differ(f"{where}: block {number} is held by {sorted(mine)} here, by {sorted(theirs)} in vLLM")
        self.peak_shared = max(self.peak_shared, len(theirs))
        if theirs:
            return
        if block.ref_cnt:
            # A reference of the engine's own (a copy under way): the content is whose it was.
            self.engine_references += 1
            return
        is_cached = block.block_hash is not None and self.recorder._scheduler.kv_cache_manager.enable_caching
        if is_cached != isinstance(owner, Account):
            self._differ(f"{where}: block {number} is {'cached' if is_cached else 'free'} in vLLM, {owner!r} here")
        elif isinstance(owner, Account):
            last = self._last.get(number)
            if last is not None and (owner.dims.tenant, owner.dims.session) not in last:
                self._differ(f"{where}: cached block {number} is {owner.dims}'s, was held last by {sorted(last)}")

    def _sums(
        self, where: str, held: dict[int, set[str]], session_of: dict[str, Session], cached: Counter[Session]
    ) -> None:
        theirs: dict[Session, Fraction] = defaultdict(Fraction)
        for names in held.values():
            for name in names:
                theirs[session_of[name]] += Fraction(1, len(names))
        ours: dict[Session, Fraction] = defaultdict(Fraction)
        for request in self.recorder.meter._boot.steps.requests.values():
            for table in request.tables:
                share = Fraction(table.own) + sum(
                    (Fraction(leaf.blocks, leaf.holders) for leaf in _leaves(table)), Fraction(0)
                )
                if share:
                    ours[request.dims.tenant, request.dims.session] += share
        if ours != theirs:
            self._differ(f"{where}: sessions hold {dict(ours)} here, {dict(theirs)} in vLLM")
        active, kept, free = self.recorder.pool.counts
        total = len(self.recorder._scheduler.kv_cache_manager.block_pool.blocks) - 1
        if (active, kept, free) != (len(held), cached.total(), total - len(held) - cached.total()):
            self._differ(f"{where}: {active} active, {kept} cached, {free} free here; {len(held)} held in vLLM")

    def _differ(self, what: str) -> None:
        if len(self.differences) < 50:
            self.differences.append(f"step {self.steps}, {what}")


def _leaves(table: Table) -> list[Node]:
    found, stack = [], list(table.nodes)
    while stack:
        node = stack.pop()
        if node.parts is None:
            found.append(node)
        else:
            stack.extend(node.parts)
    return found


def _holders(requests: Any, owners: list[Any]) -> dict[int, set[str]]:
    """Block to holders, of the meter's own structures."""
    by_leaf: dict[int, set[str]] = defaultdict(set)
    for request in requests:
        for table in request.tables:
            for leaf in _leaves(table):
                by_leaf[id(leaf)].add(request.id)
    found: dict[int, set[str]] = {}
    for number, owner in enumerate(owners):
        if isinstance(owner, Table) and owner.group >= 0:
            found[number] = {owner.holder.id}  # type: ignore[attr-defined]  # the meter's holders are requests
        elif isinstance(owner, Cell):
            found[number] = by_leaf[id(owner.node)]
    return found


def install(walkers: list[Walker]) -> None:
    """From now on each recorder gets a walker, called after every ``schedule`` and ``update_from_output``."""
    scheduled, updated, received = Recorder.scheduled, Recorder.updated, Recorder.received
    by_recorder: dict[int, Walker] = {}

    def walker_of(recorder: Any) -> Walker:
        if id(recorder) not in by_recorder:
            by_recorder[id(recorder)] = Walker(recorder)
            walkers.append(by_recorder[id(recorder)])
        return by_recorder[id(recorder)]

    def after_scheduled(self: Any, output: Any) -> None:
        scheduled(self, output)
        walker_of(self).walk("schedule")

    def after_updated(self: Any, tokens: Any, output: Any) -> None:
        updated(self, tokens, output)
        walker = walker_of(self)
        walker.steps += 1
        walker.walk("update")

    def after_received(self: Any, request: Any) -> None:
        received(self, request)
        walker_of(self)

    Recorder.scheduled, Recorder.updated, Recorder.received = after_scheduled, after_updated, after_received


__all__ = ["Walker", "install"]
