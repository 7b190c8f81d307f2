"""The facts that travel from an engine to the books, as frozen records.

Invariants kept by everybody who makes or reads them (the laws themselves stand in docs/accounts.md):

* every quantity is an integer; block time is in block-microseconds (``_block_us``), slot time in
  slot-microseconds (``_slot_us``), wall time in microseconds since 1970-01-01 UTC (``_us``);
* intervals are half-open ``[start, end)``;
* absent is ``None``, never zero.

The words are vLLM's (block, group, preemption) and the issue of identity is settled before a record is
made: a :class:`Dimensions` is what the rest of the project calls a *session*.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

from ledger.limits import PRIORITY_ABS_MAX, TEXT_CHARS_MAX

PERIOD_US = 15_000_000
"""Length of a period: fine enough for the 15-second scan, coarse enough to be cheap."""

SYSTEM = "system"
"""The tenant of warm-up, health checks and pre-warming."""

UNATTRIBUTED = "unattributed"
"""The tenant of whatever came without an identity."""

NO_SESSION = "-"
"""The session of requests that name none."""

HOOK_OFF = "off"
"""The reason of a close with which the hook leaves and the engine does not."""


class Origin(StrEnum):
    """Whether facts come from a real engine; a ledger holds one kind only."""

    LIVE = "live"
    SIMULATED = "simulated"


class Outcome(StrEnum):
    """How a received request ended; every one ends in exactly one of these (law 4)."""

    FINISHED = "finished"
    ABORTED = "aborted"
    ABANDONED = "abandoned"
    FAILED = "failed"
    REFUSED = "refused"
    LOST = "lost"


class PreemptionReason(StrEnum):
    """Why a running request lost its blocks."""

    KV_FULL = "kv_full"
    PRIORITY = "priority"
    RESET = "reset"
    OTHER = "other"


class GroupKind(StrEnum):
    """What a group's blocks hold. Blocks of a ``STATE`` group have no slots to fill."""

    FULL = "full"
    SLIDING = "sliding"
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Dimensions:
    """Who and what a piece of usage belongs to; the whole set is one *session* in rows and counts."""

    tenant: str
    session: str = NO_SESSION
    model: str = ""
    adapter: str = ""
    scenario: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank of an engine and the GPU under it; ``gpu_uuid`` is empty where unknown."""

    dp: int = 0
    pp: int = 0
    tp: int = 0
    gpu_uuid: str = ""
    gpu_model: str = ""
    share_ppm: int | None = None
    """A part of the GPU (a MIG instance: its memory over the device's), in millionths; None: not stated."""
    pid: int | None = None
    """The rank's process, as the engine sees it (a container has process ids of its own); None: not stated."""
    kv_bytes: int | None = None
    """What this pool takes of this rank's GPU memory, in bytes; None: not stated."""
    weights_bytes: int | None = None
    """What the model's weights take of this rank's GPU memory, in bytes; None: not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The engine that reports. ``engine`` is stable across pods and restarts and is the key of its facts."""

    engine: str
    origin: Origin
    cluster: str = ""
    namespace: str = ""
    pod: str = ""
    host: str = ""
    software: str = ""
    """What the engine is, as ``name version``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One KV-cache group of a pool: ``block_size`` in tokens (slots)."""

    block_size: int
    kind: GroupKind = GroupKind.FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOpen:
    """A pool of ``blocks`` usable blocks came into being at ``at_us``."""

    pool: str
    at_us: int
    blocks: int
    groups: tuple[Group, ...]
    shards: tuple[Shard, ...] = ()
    model: str = ""
    paying: bool = True
    """Whether this pool carries the engine's money; at most one pool of an engine does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolClose:
    """A pool went away at ``at_us``; ``reason`` is ``shutdown``, ``sleep``, ``clock`` or ``off``."""

    pool: str
    at_us: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Token counts. The first five are the prompt's positions, each classified once, when first covered."""

    computed: int = 0
    cached_own: int = 0
    """Covered by a hit on a block that the same session computed."""
    cached_others: int = 0
    transferred: int = 0
    """Covered by content that was loaded from outside the engine."""
    unprocessed: int = 0
    """Never covered: the request ended before."""
    recomputed: int = 0
    """Positions (prompt and output) covered again by computation; beside the prompt's sum, in no sum with it."""
    output: int = 0
    """Accepted output tokens."""
    drafted: int = 0
    rejected: int = 0


NO_TOKENS = Tokens()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemptions:
    """Preemptions by reason."""

    kv_full: int = 0
    priority: int = 0
    reset: int = 0
    other: int = 0


NO_PREEMPTIONS = Preemptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What was held: shares of shared blocks are split among the holders (law 2)."""

    active_block_us: int = 0
    unfilled_slot_us: int = 0
    """Slots of held blocks not yet scheduled for a token, look-ahead slots apart."""
    lookahead_slot_us: int = 0
    held_slot_us: int = 0
    """Active block time weighted by each group's block size; 0 for state groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPeriod:
    """What one group of a pool held in a period."""

    group: int
    active_block_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPeriod:
    """The totals of a pool in a period. ``active + cached + free = blocks x length`` (law 1)."""

    pool: str
    blocks: int
    active_block_us: int
    cached_block_us: int
    free_block_us: int
    unfilled_slot_us: int = 0
    lookahead_slot_us: int = 0
    held_slot_us: int = 0
    active_blocks_end: int = 0
    cached_blocks_end: int = 0
    groups: tuple[GroupPeriod, ...] = ()
    steps: int = 0
    """Steps that ended in the period (counted on the paying pool; 0 on others)."""
    step_us: int = 0
    """Their time, never overlapping (law 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPeriod:
    """One session's row of a pool in a period.

    A session has a row if in the period it had an active block, a scheduled token, an ended request or a
    changed cached count. One without a row kept its cached count for the whole period.
    """

    pool: str
    dims: Dimensions
    holding: Holding = field(default_factory=Holding)
    cached_block_us: int = 0
    cached_blocks_end: int = 0
    compute_us: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    preemptions: Preemptions = field(default_factory=Preemptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingCount:
    """Cached blocks of a session at the end of the batch's period; sessions with none are left out."""

    pool: str
    dims: Dimensions
    cached_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A core request was received; it will be answered by one :class:`RequestRecord`, or is lost."""

    request: str
    dims: Dimensions
    prompt_tokens: int
    arrived_us: int
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodUse:
    """What a request used of the paying pool in the period that began at ``start_us``."""

    start_us: int
    active_block_us: int
    compute_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHolding:
    """What a request held in a pool that carries no money (host memory, say)."""

    pool: str
    holding: Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """The terminal record of a core request; every figure is the sum of its period figures.

    Milestones that never happened are ``None``. ``tokens.computed + cached_own + cached_others +
    transferred + unprocessed = prompt_tokens``.
    """

    request: str
    parent: str | None = None
    dims: Dimensions
    pool: str
    outcome: Outcome
    finish_reason: str = ""
    """The engine's own word: ``stop``, ``length`` and so on."""
    prompt_tokens: int
    tokens: Tokens = field(default_factory=Tokens)
    preemptions: Preemptions = field(default_factory=Preemptions)
    holding: Holding = field(default_factory=Holding)
    compute_us: int = 0
    peak_blocks: int = 0
    arrived_us: int
    scheduled_us: int | None = None
    first_token_us: int | None = None
    last_token_us: int | None = None
    ended_us: int
    uses: tuple[PeriodUse, ...] = ()
    other_holdings: tuple[PoolHolding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A mergeable histogram of a period: counts by bucket index of ``core.quantiles``.

    ``labels`` are sorted ``(name, value)`` pairs; ``buckets`` are ``(index, count)``, by index, none empty.
    """

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    buckets: tuple[tuple[int, int], ...] = ()
    count: int = 0
    total: int = 0
    """Sum of the values, in the unit that the name ends in (``_us``, ``_tokens``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """One life of an engine: its clock is fixed once, ``wall = anchor_us + monotonic``."""

    boot_id: str
    anchor_us: int
    started_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HookReport:
    """What a hook says of itself, counted since its process began: it goes along with every batch.

    Pairs of a reason and a count above 0, sorted: ``dropped`` are batches by the reasons of the outbox, ``faults``
    calls that made no sense by those of the meter. A clock that is set anew makes a new boot and sets nothing to 0.
    """

    dropped: tuple[tuple[str, int], ...] = ()
    faults: tuple[tuple[str, int], ...] = ()
    off: str = ""
    """Why the hook has switched itself off; empty: it has not."""


def one_line(text: str) -> str:
    """``text`` as it may travel: without control characters, shortened to what an identifier may have."""
    plain = "".join(c if c.isprintable() else " " for c in text[: 2 * TEXT_CHARS_MAX])
    return " ".join(plain.split())[:TEXT_CHARS_MAX]


def travelling(name: str) -> str:
    """``name`` itself, if it may travel; else its beginning made plain and a digest of all of it.

    Clients choose some names (of requests, say), and one that no receiver takes would cost a whole batch. Different
    names stay different.
    """
    if 0 < len(name) <= TEXT_CHARS_MAX and name.isprintable():
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{one_line(name)[: TEXT_CHARS_MAX - 33]}~{digest[:32]}"


def travelling_dimensions(dims: Dimensions) -> Dimensions:
    """``dims`` themselves, if they may travel; else with :func:`travelling` names and a priority within bounds."""
    texts = (dims.tenant, dims.session, dims.model, dims.adapter, dims.scenario)
    fit = all(len(text) <= TEXT_CHARS_MAX and text.isprintable() for text in texts)
    if fit and dims.tenant and dims.session and -PRIORITY_ABS_MAX <= dims.priority <= PRIORITY_ABS_MAX:
        return dims
    return Dimensions(
        tenant=travelling(dims.tenant),
        session=travelling(dims.session),
        model=dims.model and travelling(dims.model),
        adapter=dims.adapter and travelling(dims.adapter),
        scenario=dims.scenario and travelling(dims.scenario),
        priority=max(-PRIORITY_ABS_MAX, min(PRIORITY_ABS_MAX, dims.priority)),
    )


NO_REPORT = HookReport()
"""A hook with nothing to say, or one of before there was such a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All facts of one engine and one period, and the unit of delivery, keyed (engine, boot_id, seq).

    ``seq`` counts from 1 without a gap within a boot. ``pools`` is empty only in a batch that merely
    announces a boot (then ``start_us == end_us``). ``standing`` is ``None`` where no standing counts go
    along, and ``()`` where they do and nothing is cached; they go along with the first batch of a boot
    and of each UTC hour, and after a drop. ``skew_us`` is the engine's wall minus the system clock.
    """

    source: Source
    boot: Boot
    seq: int
    start_us: int
    end_us: int
    skew_us: int = 0
    opens: tuple[PoolOpen, ...] = ()
    closes: tuple[PoolClose, ...] = ()
    admissions: tuple[Admission, ...] = ()
    pools: tuple[PoolPeriod, ...] = ()
    sessions: tuple[SessionPeriod, ...] = ()
    standing: tuple[StandingCount, ...] | None = None
    requests: tuple[RequestRecord, ...] = ()
    histograms: tuple[Histogram, ...] = ()
    hook: HookReport = NO_REPORT
