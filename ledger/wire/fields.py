"""The fields of version 1 that are integers: the name, the default and the bounds of each, record by record.

Invariant: writing and reading go by the same tables, so what is written can be read, and a default is left
out in one and assumed in the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ledger import limits
from ledger.core.records import GroupKind, Holding, Origin, Outcome, Preemptions, Tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

ABSENT: Final = object()
"""The default of a field that has to be there."""

Ints = tuple[tuple[str, object, int, int], ...]


def _counts(names: Iterable[str], most: int) -> Ints:
    return tuple((name, 0, 0, most) for name in sorted(names))


TIME: Final = (limits.TIME_US_MIN, limits.TIME_US_MAX)
PRIORITY: Final = ("priority", 0, -limits.PRIORITY_ABS_MAX, limits.PRIORITY_ABS_MAX)
TOKENS: Final = _counts(Tokens.__slots__, limits.TOKENS_MAX)
PREEMPTIONS: Final = _counts(Preemptions.__slots__, limits.TOKENS_MAX)
HOLDING: Final = _counts(Holding.__slots__, limits.BLOCK_US_MAX)
BOOT: Final[Ints] = tuple((name, ABSENT, *TIME) for name in ("anchor_us", "started_us"))
OPEN: Final = (("at_us", ABSENT, *TIME), ("blocks", ABSENT, 1, limits.BLOCKS_MAX))
SHARD: Final = _counts(("dp", "pp", "tp"), limits.SHARDS_MAX)
SHARD_FACTS: Final = (
    ("kv_bytes", 0, limits.MEMORY_BYTES_MAX),
    ("pid", 1, limits.PID_MAX),
    ("share_ppm", 0, limits.PPM_MAX),
    ("weights_bytes", 0, limits.MEMORY_BYTES_MAX),
)
"""What a shard may leave unsaid: the name and the bounds."""
POOL: Final = (
    *_counts(
        (
            "active_block_us",
            "cached_block_us",
            "free_block_us",
            "held_slot_us",
            "lookahead_slot_us",
            "step_us",
            "steps",
            "unfilled_slot_us",
        ),
        limits.BLOCK_US_MAX,
    ),
    ("active_blocks_end", 0, 0, limits.BLOCKS_MAX),
    ("blocks", ABSENT, 1, limits.BLOCKS_MAX),
    ("cached_blocks_end", 0, 0, limits.BLOCKS_MAX),
)
SESSION: Final = (
    *_counts(("cached_block_us", "compute_us"), limits.BLOCK_US_MAX),
    ("cached_blocks_end", 0, 0, limits.BLOCKS_MAX),
)
GROUP: Final = (
    ("active_block_us", 0, 0, limits.BLOCK_US_MAX),
    ("group", 0, 0, limits.GROUPS_MAX - 1),
)
USE: Final = (("start_us", ABSENT, *TIME), *_counts(("active_block_us", "compute_us"), limits.BLOCK_US_MAX))
REQUEST: Final = (
    ("arrived_us", ABSENT, *TIME),
    ("compute_us", 0, 0, limits.BLOCK_US_MAX),
    ("ended_us", ABSENT, *TIME),
    ("peak_blocks", 0, 0, limits.BLOCKS_MAX),
    ("prompt_tokens", 0, 0, limits.TOKENS_MAX),
)
MILESTONES: Final = ("first_token_us", "last_token_us", "scheduled_us")
ADMISSION: Final = (("arrived_us", ABSENT, *TIME), ("prompt_tokens", 0, 0, limits.TOKENS_MAX))
HEAD: Final = (
    ("end_us", ABSENT, *TIME),
    ("seq", ABSENT, 1, limits.SEQ_MAX),
    ("skew_us", 0, -limits.SKEW_US_MAX, limits.SKEW_US_MAX),
    ("start_us", ABSENT, *TIME),
)
SOURCE_TEXTS: Final = ("cluster", "host", "namespace", "pod", "software")
DIMENSION_TEXTS: Final = ("adapter", "model", "scenario")

NO_TOKENS: Final = Tokens()
NO_PREEMPTIONS: Final = Preemptions()
NO_HOLDING: Final = Holding()
ORIGINS: Final = {word.value: word for word in Origin}
OUTCOMES: Final = {word.value: word for word in Outcome}
KINDS: Final = {word.value: word for word in GroupKind}
