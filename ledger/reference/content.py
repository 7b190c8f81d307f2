"""From the content ids of a trace to the block hashes of the engine: chained, deterministic, of any block size.

The hash of a block covers everything up to its end, as vLLM's does, so equal hashes mean equal prefixes. Hashes
are CPython's 64-bit hash of a tuple of integers, which depends on no seed: two runs agree.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.reference.request import TraceRequest


def stable_hash(text: str) -> int:
    """64 bits of ``text``, the same in every process and on every machine."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def extend_unique(hashes: list[int], count: int, unique: int, salt: str) -> None:
    """Make ``hashes`` ``count`` long with content that nobody else has (``unique`` is the owner's number)."""
    last = hashes[-1] if hashes else stable_hash(salt)
    for _ in range(count - len(hashes)):
        # Negative: ids of content are not, so the two kinds cannot meet.
        last = hash((last, -unique))
        hashes.append(last)


def block_hashes(request: TraceRequest, block_size: int, earlier: Sequence[int] = ()) -> list[int]:
    """Hashes of the blocks (from position 0) that ``request.content`` covers whole.

    ``earlier`` are those of the request it follows; of these as many are taken over as ``shared_ids`` allows.
    """
    per_id = request.content_tokens
    ids = request.content
    count = min(request.content_covers, per_id * len(ids)) // block_size
    hashes = list(earlier[: min(count, request.shared_ids * per_id // block_size)])
    last = hashes[-1] if hashes else stable_hash(request.cache_salt)
    append = hashes.append
    done = len(hashes)
    if per_id == block_size:
        for content in ids[done:count]:
            last = hash((last, content))
            append(last)
    elif block_size % per_id == 0:
        ratio = block_size // per_id
        for first in range(done * ratio, count * ratio, ratio):
            last = hash((last, *ids[first : first + ratio]))
            append(last)
    else:
        for block in range(done, count):
            # Ids that only overlap the block count too: the chain fixes where they begin.
            first = block * block_size // per_id
            end = -(-(block + 1) * block_size // per_id)
            last = hash((last, *ids[first:end]))
            append(last)
    return hashes
