"""vLLM's block pool, watched: which request takes and lets go of which blocks, in the order in which it happens.

Invariants: the pool's own methods run as before, once, with their own result; only methods of the instances of one
engine are wrapped, and :meth:`BlockWatch.unwatch` takes the wrappers away. Nothing is called for a request that takes
no block: what a step costs does not depend on how many are running.

vLLM hands blocks out for a request in ``allocate_slots`` and lists them in the ``SchedulerOutput`` of the step, so
takings are told there (:mod:`ledger.hook.vllm.recorder`). Everything else is seen here, when it happens:

* ``KVCacheManager.free`` and ``pop_blocks_for_free``: a request lets all of its blocks go, at once or later;
* ``SingleTypeKVCacheManager._remove_blocks_in_range``: it lets go of what its attention window has left;
* ``BlockPool.free_blocks``: the blocks themselves, and what becomes of them;
* ``KVCacheCoordinator.allocate_new_computed_blocks``: the hits of a request that is admitted;
* ``BlockPool.evict_blocks`` and ``reset_prefix_cache``: content is dropped.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class Hits(NamedTuple):
    """What a request that is admitted finds: ids by vLLM's group, and the tokens that they cover."""

    blocks: tuple[list[int], ...]
    skipped: tuple[int, ...]
    """Blocks of each group that lie before its window: the table has the null block in their place."""
    local_tokens: int
    loaded_tokens: int


class Listener(Protocol):
    """Who is told. ``cached`` and ``freed`` are those of ``blocks`` that the engine has no reference to any more."""

    def releasing(self, request: str) -> None:
        """``request`` is about to let its blocks go."""

    def released(self, request: str | None, blocks: list[int], cached: list[int], freed: list[int]) -> None:
        """``request`` (None: the engine itself) let ``blocks`` go."""

    def dropped(self, blocks: list[int]) -> None:
        """Cached ``blocks`` lost their content."""

    def fault(self, where: str) -> None:
        """The wrapper around ``where`` went wrong, outside vLLM's own part; called while the exception is handled."""


_ENGINE: Final = None
"""The holder of references that the engine keeps for itself."""


class BlockWatch:
    """The wrappers around one scheduler's block pool. ``admitted`` has the hits since it was last emptied, in order."""

    def __init__(self, kv_cache_manager: Any, listener: Listener) -> None:
        self._manager = kv_cache_manager
        self._pool = kv_cache_manager.block_pool
        self._coordinator = kv_cache_manager.coordinator
        self._tell = listener
        self.admitted: dict[str, Hits] = {}
        self._holder: str | None = _ENGINE
        self._draining = False
        self._pending: deque[str | None] = deque()
        """Whose the entries of the scheduler's ``deferred_frees`` are, in their order."""
        self._wrapped: list[tuple[Any, str]] = []

    def watch(self) -> None:
        """Put the wrappers on."""
        self._wrap(self._manager, "free", self._freeing(self._manager.free))
        self._wrap(self._manager, "pop_blocks_for_free", self._popping(self._manager.pop_blocks_for_free))
        self._wrap(self._pool, "free_blocks", self._free_blocks(self._pool.free_blocks))
        self._wrap(self._pool, "evict_blocks", self._evict(self._pool.evict_blocks))
        self._wrap(self._pool, "reset_prefix_cache", self._reset(self._pool.reset_prefix_cache))
        self._wrap(
            self._coordinator,
            "allocate_new_computed_blocks",
            self._admit(self._coordinator.allocate_new_computed_blocks),
        )
        for manager in self._coordinator.single_type_managers:
            # Full attention keeps its blocks to the end; it would pay for a wrapper and never need it.
            if type(manager).__name__ != "FullAttentionManager":
                self._wrap(manager, "_remove_blocks_in_range", self._freeing(manager._remove_blocks_in_range))  # noqa: SLF001

    def unwatch(self) -> None:
        """Take the wrappers away: the methods of the classes are there again."""
        for owner, name in self._wrapped:
            owner.__dict__.pop(name, None)
        self._wrapped.clear()

    def table(self, request: str, group: int) -> list[int]:
        """The blocks in a request's table, in order, less the null block."""
        blocks = self._coordinator.single_type_managers[group].req_to_blocks.get(request, ())
        return [block.block_id for block in blocks if not block.is_null]

    def draining(self, do: Callable[[], Any]) -> Any:
        """Run the scheduler's ``_drain_deferred_frees``: what it frees belongs to whom it was popped from."""
        self._draining = True
        try:
            return do()
        finally:
            self._draining = False

    def retained(self, entries: int) -> None:
        """The scheduler put ``entries`` of its own references among the deferred frees."""
        self._pending.extend([_ENGINE] * entries)

    def _skipped(self, request: str) -> Iterator[int]:
        for manager in self._coordinator.single_type_managers:
            count = 0
            for block in manager.req_to_blocks.get(request, ()):
                if not block.is_null:
                    break
                count += 1
            yield count

    def _wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        setattr(owner, name, wrapper)
        self._wrapped.append((owner, name))

    # -- the wrappers ----------------------------------------------------------------------------------

    def _freeing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def free(request: Any, *args: Any, **kwargs: Any) -> Any:
            name = request if isinstance(request, str) else request.request_id
            self._about_to(name)
            self._holder = name
            try:
                return original(request, *args, **kwargs)
            finally:
                self._holder = _ENGINE

        return free

    def _popping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def pop_blocks_for_free(request: Any) -> Any:
            self._about_to(request.request_id)
            blocks = original(request)
            if blocks:
                self._pending.append(request.request_id)
            return blocks

        return pop_blocks_for_free

    def _about_to(self, request: str) -> None:
        try:
            self._tell.releasing(request)
        except Exception:  # noqa: BLE001 - a guest: whatever it is, it ends here, counted
            self._tell.fault("releasing")

    def _free_blocks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def free_blocks(ordered_blocks: Iterable[Any]) -> Any:
            blocks = ordered_blocks if isinstance(ordered_blocks, list) else list(ordered_blocks)
            result = original(blocks)
            try:
                self._freed(blocks)
            except Exception:  # noqa: BLE001 - as above
                self._tell.fault("free_blocks")
            return result

        return free_blocks

    def _freed(self, blocks: Sequence[Any]) -> None:
        holder = self._holder
        if self._draining:
            holder = self._pending.popleft()
        caching = self._pool.enable_caching
        let_go: list[int] = []
        cached: list[int] = []
        freed: list[int] = []
        for block in blocks:
            if block.is_null:
                continue
            number = block.block_id
            let_go.append(number)
            if not block.ref_cnt:
                # As the pool itself decides between the two ends of its queue.
                (cached if caching and block.block_hash is not None else freed).append(number)
        if let_go:
            self._tell.released(holder, let_go, cached, freed)

    def _evict(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def evict_blocks(block_ids: set[int]) -> Any:
            before = self._cached(block_ids)
            result = original(block_ids)
            self._dropped(before, "evict_blocks")
            return result

        return evict_blocks

    def _reset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reset_prefix_cache() -> Any:
            before = self._cached(range(len(self._pool.blocks)))
            done = original()
            if done:
                self._dropped(before, "reset_prefix_cache")
            return done

        return reset_prefix_cache

    def _cached(self, numbers: Iterable[int]) -> list[int]:
        try:
            blocks = self._pool.blocks
            return [
                number
                for number in numbers
                if blocks[number].block_hash is not None and not blocks[number].ref_cnt and not blocks[number].is_null
            ]
        except Exception:  # noqa: BLE001 - as above
            self._tell.fault("cached_blocks")
            return []

    def _dropped(self, blocks: list[int], where: str) -> None:
        try:
            if blocks:
                self._tell.dropped(blocks)
        except Exception:  # noqa: BLE001 - as above
            self._tell.fault(where)

    def _admit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def allocate_new_computed_blocks(
            request_id: str,
            new_computed_blocks: Any,
            num_local_computed_tokens: int,
            num_external_computed_tokens: int,
            **kwargs: Any,
        ) -> Any:
            result = original(
                request_id=request_id,
                new_computed_blocks=new_computed_blocks,
                num_local_computed_tokens=num_local_computed_tokens,
                num_external_computed_tokens=num_external_computed_tokens,
                **kwargs,
            )
            try:
                if num_external_computed_tokens or any(new_computed_blocks):
                    self.admitted[request_id] = Hits(
                        tuple(
                            [block.block_id for block in group if not block.is_null] for group in new_computed_blocks
                        ),
                        tuple(self._skipped(request_id)),
                        num_local_computed_tokens,
                        num_external_computed_tokens,
                    )
            except Exception:  # noqa: BLE001 - as above
                self._tell.fault("allocate_new_computed_blocks")
            return result

        return allocate_new_computed_blocks
