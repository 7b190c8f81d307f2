"""A paged pool of KV blocks: reference counts, a prefix cache by chained hash, eviction in vLLM's order.

Invariants (tests/test_reference_pool.py): a block is in the free queue exactly if nobody references it; a block
with a hash and no reference is cached; ``free queue + referenced = N``. Usable block ids are 1..N: id 0 is the
null block of vLLM and is never handed out.

The order is that of vLLM's ``BlockPool``: one queue for blocks without content and cached ones; taken from its
head; blocks that a request lets go of join the tail, last block first, so that the end of a context goes before
its beginning, and whatever was used longest ago goes first; a hit takes a block out of the middle. The same
hash may have several physical blocks (two requests that computed it side by side): ownership is by block, and
the one that was registered first answers a lookup.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice, repeat, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class BlockPool:
    """``blocks`` usable blocks, all free and without content at first."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.references = [0] * (blocks + 1)
        self.hash_of: list[int | None] = [None] * (blocks + 1)
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks + 1))
        self._by_hash: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}

    @property
    def available(self) -> int:
        """Blocks that can be handed out: without content, or cached and evictable."""
        return len(self._queue)

    def lookup(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Blocks of the longest cached prefix of ``hashes``, at most ``limit`` of them."""
        return list(takewhile(bool, map(self._by_hash.get, islice(hashes, limit), repeat(0))))

    def idle_among(self, hits: Sequence[int]) -> int:
        """How many of ``hits`` nobody references: taking them uses up available blocks."""
        return list(map(self.references.__getitem__, hits)).count(0)

    def take_hits(self, hits: Sequence[int]) -> None:
        """One more reference to each of ``hits``."""
        references = self.references
        queue = self._queue
        for block in hits:
            if not references[block]:
                del queue[block]
            references[block] += 1

    def take_new(self, count: int) -> tuple[list[int], list[int]]:
        """``count`` blocks without content, one reference each, and those among them that were evicted for it.

        The caller has seen to it that so many are available.
        """
        references = self.references
        hash_of = self.hash_of
        queue = self._queue
        taken = list(islice(queue, count))
        for block in taken:
            del queue[block]
            references[block] = 1
        evicted = [block for block in taken if hash_of[block] is not None]
        if self._twins:
            for block in evicted:
                self._forget(block)
        else:
            by_hash = self._by_hash
            for block in evicted:
                # Not None: it was just looked at.
                del by_hash[hash_of[block]]  # type: ignore[arg-type]
                hash_of[block] = None
        return taken, evicted

    def release(self, table: Sequence[int]) -> tuple[list[int], list[int]]:
        """One reference less to each block of ``table``, last first: (cached, freed) of those nobody holds now."""
        references = self.references
        hash_of = self.hash_of
        queue = self._queue
        idle = []
        for block in reversed(table):
            left = references[block] - 1
            references[block] = left
            if not left:
                queue[block] = None
                idle.append(block)
        cached = [block for block in idle if hash_of[block] is not None]
        freed = [block for block in idle if hash_of[block] is None] if len(cached) < len(idle) else []
        return cached, freed

    def register(self, blocks: Sequence[int], hashes: Sequence[int]) -> None:
        """Full ``blocks`` (without a hash so far) can be hit by their ``hashes`` from now on."""
        by_hash = self._by_hash
        hash_of = self.hash_of
        for block, key in zip(blocks, hashes, strict=True):
            hash_of[block] = key
        if by_hash.keys().isdisjoint(hashes):
            by_hash.update(zip(hashes, blocks, strict=True))
            return
        for block, key in zip(blocks, hashes, strict=True):
            if by_hash.setdefault(key, block) != block:
                self._twins.setdefault(key, []).append(block)

    def unregister(self, blocks: Sequence[int]) -> None:
        """``blocks`` cannot be hit any more: their content was not computed after all."""
        for block in blocks:
            self._forget(block)

    def forget_all(self) -> list[int]:
        """Drop every hash; returns the blocks that were cached and are free now."""
        idle = [block for block in self._queue if self.hash_of[block] is not None]
        self.hash_of = [None] * (self.blocks + 1)
        self._by_hash.clear()
        self._twins.clear()
        return idle

    def cached_blocks(self) -> int:
        """Blocks that nobody holds and that still have content. Walks the queue: for tests."""
        return sum(self.hash_of[block] is not None for block in self._queue)

    def _forget(self, block: int) -> None:
        key = self.hash_of[block]
        assert key is not None
        self.hash_of[block] = None
        twins = self._twins.get(key)
        if self._by_hash[key] == block:
            if twins:
                self._by_hash[key] = twins.pop(0)
            else:
                del self._by_hash[key]
        elif twins:
            twins.remove(block)
        if twins is not None and not twins:
            del self._twins[key]
