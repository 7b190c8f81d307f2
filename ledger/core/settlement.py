"""What settling one interval of one asset group needs, and what comes out of it.

Frozen types only; the arithmetic is ledger.core.allocation's. An *asset group* is an engine with its parts of
assets, or an asset by itself for its unassigned rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

# Digests read the types of the fields, so the names must be there at run time.
from ledger.core.records import (  # noqa: TC001
    Boot,
    Dimensions,
    PoolClose,
    PoolOpen,
    PoolPeriod,
    SessionPeriod,
    StandingCount,
)


class Basis(StrEnum):
    CAPACITY = "capacity"
    FULL = "full"


class Account(StrEnum):
    TENANT = "tenant"
    IDLE = "idle"
    STARTING = "starting"
    VACANT = "vacant"
    UNOBSERVED = "unobserved"
    UNPRICED = "unpriced"
    OVER_ALLOCATION = "over_allocation"


class Kind(StrEnum):
    """Of a tenant's line; other accounts have ``NONE``."""

    ACTIVE = "active"
    CACHED = "cached"
    COMPUTE = "compute"
    NONE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is fixed for a month: the weights are the article's, in thousandths per slot-second."""

    active_weight_milli: int = 2500
    cached_weight_milli: int = 300
    kv_share_ppm: int = 1_000_000
    basis: Basis = Basis.CAPACITY


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSpan:
    """A price of one asset from ``valid_from_us`` until ``valid_to_us`` (None: open). ``None`` nanos: unpriced."""

    valid_from_us: int
    valid_to_us: int | None
    nanos_per_hour: int | None
    anchor_us: int | None = None
    """Where its cumulative bill counts from: the price's own start, even where another price or the asset's stay cuts
    the span later; None: ``valid_from_us``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSpan:
    """A part of one asset that an engine has, from ``valid_from_us`` to ``valid_to_us`` (None: open)."""

    engine: str
    share_ppm: int
    valid_from_us: int
    valid_to_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetTerms:
    """All that decides what an asset costs and who has it: spans sorted by start, prices not overlapping.

    An asset is paid for while a price span (priced or not) covers the time; outside there is no bill.
    """

    asset_id: str
    prices: tuple[PriceSpan, ...]
    shares: tuple[ShareSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodFacts:
    """What settlement needs of one valid batch: the paying pool's totals and rows, in (boot, seq) order.

    ``gap_before``: at least one batch between this and the one before it (same boot) is missing, refused or
    lost to an overlap. ``pool`` is None for a batch that has no period of a paying pool.
    """

    boot_id: str
    seq: int
    start_us: int
    end_us: int
    pool: PoolPeriod | None
    sessions: tuple[SessionPeriod, ...]
    standing: tuple[StandingCount, ...] | None
    gap_before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BootFacts:
    """One boot of the engine, with the opens and closes of its paying pool, in time order.

    ``last_end_us`` is the end of its last valid period (None: none): a crash is dated from there.
    """

    boot: Boot
    opens: tuple[PoolOpen, ...]
    closes: tuple[PoolClose, ...]
    last_end_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalInputs:
    """Everything that the settlement of ``[start_us, end_us)`` of one group depends on; its digest is stored.

    ``engine`` is None for the unassigned rest of a single asset. ``boots`` holds every boot that touches
    the interval or its 15 minutes before, sorted by start; ``periods`` only those within the interval.
    """

    engine: str | None
    start_us: int
    end_us: int
    assets: tuple[AssetTerms, ...]
    terms: Terms
    boots: tuple[BootFacts, ...] = ()
    periods: tuple[PeriodFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An amount on an account. ``asset_us`` is the GPU time behind it where the account is a state of time."""

    account: Account
    kind: Kind = Kind.NONE
    tenant: str = ""
    amount_nanos: int
    asset_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCost:
    """A session's part of its tenant's line of one kind; they sum to it."""

    dims: Dimensions
    kind: Kind
    amount_nanos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTerms:
    """What a block-second cost in a segment; memo lines are worked out from it.

    ``kv_nanos`` is the observed bill's part that is divided by blocks, ``compute_nanos`` the other part;
    ``weighted_block_us`` is the divisor of the full basis.
    """

    start_us: int
    end_us: int
    blocks: int
    bill_nanos: int
    observed_us: int
    kv_nanos: int
    compute_nanos: int
    step_us: int
    weighted_block_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUsage:
    """A session's usage of the paying pool over the interval: its rows' sums, quiet spans included."""

    dims: Dimensions
    row: SessionPeriod
    cached_charged_block_us: int
    weighted_milliunits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUsage:
    """The paying pool over the interval: the sums of its periods."""

    totals: PoolPeriod
    observed_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The settled interval: what goes to the journal, and what is kept beside it to drill down."""

    lines: tuple[Line, ...]
    asset_credits: tuple[tuple[str, int], ...]
    session_costs: tuple[SessionCost, ...]
    other_lines: tuple[Line, ...]
    """The same interval under the basis that is not booked."""
    other_session_costs: tuple[SessionCost, ...]
    segments: tuple[SegmentTerms, ...]
    usage: tuple[SessionUsage, ...]
    pool: PoolUsage | None
    findings: tuple[str, ...] = field(default=())
    scraped: tuple[PoolUsage, tuple[SessionUsage, ...]] | None = None
    """What was looked at from outside where no hook spoke: its time and whose it was."""
