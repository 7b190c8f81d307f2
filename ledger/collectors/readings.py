"""What one scrape of an engine or an exporter says, in words that no engine owns.

Invariants: absent is absent, never zero; counts and times are integers, shares are millionths; a figure that several
ranks tell again is here once. What each figure means, and what the ledger does with it, stands in :data:`ABOUT`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Figure(StrEnum):
    """Our figures that can be had from outside an engine."""

    RUNNING = "running"
    WAITING = "waiting"
    KV_ACTIVE = "kv_active"
    KV_CACHED = "kv_cached"
    KV_CAPACITY = "kv_capacity"
    PROMPT = "prompt_tokens"
    COMPUTED = "computed_tokens"
    CACHED = "cached_tokens"
    TRANSFERRED = "transferred_tokens"
    OUTPUT = "output_tokens"
    PREEMPTIONS = "preemptions"
    FINISHED = "finished"
    PREFIX_QUERIES = "prefix_queries"
    PREFIX_HITS = "prefix_hits"
    QUEUE = "queue"
    FIRST_TOKEN = "first_token"  # noqa: S105 - of an answer
    INTER_TOKEN = "inter_token"  # noqa: S105
    END_TO_END = "end_to_end"
    STARTED = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """``unit`` of the figure, what it is, and what the ledger does with it (a clause, or nothing)."""

    unit: str
    what: str
    use: str = ""


ABOUT: Final[Mapping[Figure, About]] = {
    Figure.RUNNING: About(
        unit="requests", what="requests that the engine is working on",
        use="bills the engine's GPUs: time with running requests to `unattributed` / `compute`, the rest to `idle`",
    ),
    Figure.WAITING: About(unit="requests", what="requests that wait, those that were preempted included"),
    Figure.KV_ACTIVE: About(
        unit="share", what="KV memory that requests hold",
        use="shows how full the engine is (kvledger_kv_cache_utilization_ratio)",
    ),
    Figure.KV_CACHED: About(
        unit="share", what="KV memory that nobody holds and whose content can be used again",
        use="tells cached blocks from free ones",
    ),
    Figure.KV_CAPACITY: About(unit="tokens", what="tokens that the KV memory can hold", use="turns shares into blocks"),
    Figure.PROMPT: About(unit="tokens", what="prompt tokens, however they were covered"),
    Figure.COMPUTED: About(unit="tokens", what="prompt tokens that were computed"),
    Figure.CACHED: About(unit="tokens", what="prompt tokens that the prefix cache covered"),
    Figure.TRANSFERRED: About(unit="tokens", what="prompt tokens whose KV came from another engine"),
    Figure.OUTPUT: About(
        unit="tokens", what="accepted output tokens",
        use="counts tokens, and proves work where the running gauge is dead",
    ),
    Figure.PREEMPTIONS: About(unit="times", what="running requests that lost their blocks"),
    Figure.FINISHED: About(unit="requests", what="requests that ended, by the engine's own reasons"),
    Figure.PREFIX_QUERIES: About(unit="tokens", what="tokens that the prefix cache was asked for"),
    Figure.PREFIX_HITS: About(unit="tokens", what="tokens of those that it had"),
    Figure.QUEUE: About(unit="histogram", what="from arrival to the first schedule"),
    Figure.FIRST_TOKEN: About(unit="histogram", what="from arrival to the first output token"),
    Figure.INTER_TOKEN: About(unit="histogram", what="between two output tokens of a request"),
    Figure.END_TO_END: About(
        unit="histogram", what="from arrival to the end",
        use="says how many requests must have run, so that a dead gauge shows",
    ),
    Figure.STARTED: About(unit="time", what="start of the process", use="tells a restart from a fallen counter"),
}  # fmt: skip
"""Every figure, in the order of the tables."""

COUNTERS: Final = (
    Figure.PROMPT,
    Figure.COMPUTED,
    Figure.CACHED,
    Figure.TRANSFERRED,
    Figure.OUTPUT,
    Figure.PREEMPTIONS,
    Figure.PREFIX_QUERIES,
    Figure.PREFIX_HITS,
)
LATENCIES: Final = (Figure.QUEUE, Figure.FIRST_TOKEN, Figure.INTER_TOKEN, Figure.END_TO_END)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A histogram as the engine keeps it: ``buckets`` are (upper bound in µs, values up to it), without the last.

    ``count`` are all values, ``total_us`` is their sum; None where the engine does not give it.
    """

    buckets: tuple[tuple[int, int], ...]
    count: int
    total_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The KV memory of one logical engine (``rank`` is its data-parallel rank; empty: there is but one).

    Shares are millionths of the whole. ``capacity`` is in tokens, ``block_size`` in tokens (1: the engine has none).
    """

    rank: str = ""
    active_ppm: int | None = None
    cached_ppm: int | None = None
    capacity: int | None = None
    block_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as an exporter sees it, by its UUID; bytes, millionths, milliwatts. ``mig`` names an instance of it.

    ``owners`` are the pods that the exporter puts beside the device's figures: each of them has the device, none has
    these figures (they are the device's).
    """

    uuid: str
    mig: str = ""
    index: str = ""
    model: str = ""
    host: str = ""
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    utilization_ppm: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One scrape, read by the rules of ``kind``. Counters are since the engine's start (``started_us``, wall time).

    ``finished`` is by the engine's own word. ``origins`` says which name each figure was read from; ``copies`` counts
    series that merely told again what another rank had told; ``nonsense`` names values that cannot be, which are
    left out.
    """

    kind: str
    models: tuple[str, ...] = ()
    started_us: int | None = None
    running: int | None = None
    waiting: int | None = None
    pools: tuple[Pool, ...] = ()
    counters: Mapping[Figure, int] = field(default_factory=dict)
    finished: Mapping[str, int] | None = None
    latencies: Mapping[Figure, Latency] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    origins: Mapping[Figure, str] = field(default_factory=dict)
    copies: int = 0
    nonsense: tuple[str, ...] = ()

    @property
    def kv_active_ppm(self) -> int | None:
        """The share of all pools' KV memory that is held, larger pools counting for more; None if any is unknown."""
        return _mean(self.pools, [pool.active_ppm for pool in self.pools])

    @property
    def kv_cached_ppm(self) -> int | None:
        """The same of what is cached."""
        return _mean(self.pools, [pool.cached_ppm for pool in self.pools])

    @property
    def capacity(self) -> int | None:
        """Tokens that all pools can hold; None if any is unknown."""
        sizes = [pool.capacity for pool in self.pools if pool.capacity is not None]
        return sum(sizes) if sizes and len(sizes) == len(self.pools) else None


def _mean(pools: tuple[Pool, ...], shares: list[int | None]) -> int | None:
    known = [share for share in shares if share is not None]
    if not known or len(known) < len(shares):
        return None
    sizes = [pool.capacity for pool in pools]
    weights = [size or 0 for size in sizes] if all(sizes) else [1] * len(pools)
    return round(sum(share * weight for share, weight in zip(known, weights, strict=True)) / sum(weights))
