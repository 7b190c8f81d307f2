"""The rows of the JSON interface, described for /docs. Times are microseconds since 1970-01-01 UTC.

Invariant: integers are exact; those of block time may pass 2^53, which a reader in JavaScript rounds.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Row = TypeVar("Row")


class Shape(BaseModel):
    """A row made of a frozen record of ours, with the same names."""

    model_config = ConfigDict(from_attributes=True)


class Page(BaseModel, Generic[Row]):
    """A page of rows."""

    rows: list[Row]
    next: str | None = Field(description="path of the next page; null on the last")


class Report(BaseModel, Generic[Row]):
    """A page of a report over `[from_us, to_us)`."""

    from_us: int
    to_us: int
    rows: list[Row]
    next: str | None = Field(description="path of the next page; null on the last")


class Figures(BaseModel):
    """What was used; null where it is not known."""

    active_block_us: int | None = Field(description="time of held blocks, shares of shared ones")
    cached_block_us: int | None = Field(description="time of blocks that nobody held and whose content was theirs")
    cached_charged_block_us: int | None = Field(description="the part of it that is charged: none on an idle engine")
    unfilled_slot_us: int | None
    compute_us: int | None
    weighted_milliunits: int | None = Field(description="weighted slot-seconds, in thousandths")
    active_nanos: int | None
    cached_nanos: int | None
    compute_nanos: int | None
    computed_tokens: int | None
    cached_own_tokens: int | None
    cached_others_tokens: int | None
    transferred_tokens: int | None
    unprocessed_tokens: int | None
    recomputed_tokens: int | None
    output_tokens: int | None
    drafted_tokens: int | None
    rejected_tokens: int | None


class Usage(Figures):
    """A row of usage; which of the names it has depends on `by`."""

    tenant: str | None = None
    session: str | None = None
    request: str | None = Field(None, description="null in a session's residual row")
    engine: str | None = None
    outcome: str | None = None
    model: str | None = None
    pool: str | None = None
    free_block_us: int | None = None
    capacity_block_us: int | None = None


class Session(Figures):
    """A session and what it was charged."""

    tenant: str
    session: str
    cost_nanos: int
    waste_nanos: int = Field(description="charged for blocks that nobody held")


class Cost(BaseModel):
    """An amount on an account in the time that begins at `start_us`."""

    start_us: int
    account: str = Field(description="tenant, idle, starting, vacant, unobserved, unpriced, over_allocation")
    kind: str = Field(description="of a tenant's: active, cached, compute")
    tenant: str
    amount_nanos: int


class Month(BaseModel):
    """A month with bookings."""

    month: str
    digest: str | None = Field(description="of the statement, once the month is closed")
    closed_us: int | None


class StatementLine(BaseModel):
    account: str
    kind: str
    tenant: str
    amount_nanos: int
    asset_us: int | None = Field(description="the GPU time behind an account that is a state of time")


class Memo(BaseModel):
    """Waste of one kind; overlaps with others."""

    memo: str
    tenant: str
    quantity: int
    unit: str
    amount_nanos: int | None
    base: str = Field(description="what it is a part of")


class Adjustment(BaseModel):
    """Booked in this month for another one, which was closed."""

    month: str
    account: str
    kind: str
    tenant: str
    amount_nanos: int


class EngineTime(BaseModel):
    engine: str
    method: str = Field(description="hook, or scraped: looked at from outside, its blocks are not known")
    observed_us: int
    step_us: int
    active_block_us: int
    cached_block_us: int
    free_block_us: int


class Statement(BaseModel):
    """A month's bill: `lines` sum to `bill_nanos`."""

    month: str
    timezone: str
    currency: str
    basis: str
    kv_share: float
    bill_nanos: int
    provisional_from: str | None
    tenant: str | None
    digest: str | None
    lines: list[StatementLine]
    memos: list[Memo]
    adjustments: list[Adjustment]
    engines: list[EngineTime]


class Pool(Shape):
    """A pool of an engine, at the end of its newest period."""

    pool: str
    model: str
    paying: bool = Field(description="whether it carries the engine's money")
    is_open: bool
    blocks: int
    shards: list[str]
    active_blocks: int | None = Field(description="held by somebody; null before the first period")
    cached_blocks: int | None = Field(description="held by nobody, content still usable")
    free_blocks: int | None
    utilization_ratio: float | None = Field(description="active block time over block time of the newest period")


class Scraped(BaseModel):
    """What an engine says when it is looked at from outside, over the newest part of a period that was watched."""

    url: str
    kind: str = Field(description="what it was read as; auto until it answered")
    model: str
    since_us: int = Field(description="when it was added")
    answers: bool
    awaited: bool = Field(description="added less than two minutes ago, and no attempt has failed: not known yet")
    last_us: int | None = Field(description="watched until then; null: not in the last hour")
    failing_us: int | None = Field(description="could not be read since then; null: it could, or nobody asked yet")
    why: str | None = Field(description="timeout, unreachable, status, ... as `outcome` of kvledger_scrapes_total")
    detail: str | None = Field(description="the same in a sentence")
    started_us: int | None = Field(description="start of its process; null where it is not told")
    busy_ratio: float | None = Field(description="part of the time with running requests")
    running: float | None = Field(description="requests, mean; null where not told or the gauge is dead")
    waiting: float | None
    kv_active_ratio: float | None = Field(description="KV memory that requests hold")
    kv_cached_ratio: float | None
    capacity_tokens: int | None
    output_tokens: int | None
    signs: list[str] = Field(description="what was odd (docs/collectors.md)")


class Engine(Shape):
    """An engine by the boot that reports: its newest, or an older one that goes on beside it; or by its `/metrics`.

    Of one that is only scraped, what a hook alone knows is null or empty.
    """

    engine: str
    method: str = Field(description="hook or scraped: whose word counts")
    state: str = Field(
        description=(
            "starting, open, silent (open, nothing heard for 60 s), closed, or off (its hook has given up); of one "
            "that is only scraped: open, silent (cannot be read), or awaited (just added, not known yet)"
        )
    )
    origin: str
    cluster: str
    namespace: str
    pod: str
    host: str
    software: str
    boot_id: str
    started_us: int | None
    last_seq: int | None
    last_end_us: int | None = Field(description="end of the newest period")
    received_us: int | None
    skew_us: int | None = Field(description="the engine's clock less its system clock")
    missing: int | None = Field(description="batches which that boot lacks in the last 24 hours")
    hook_off: str = Field(description="why its hook has switched itself off; empty where it has not")
    pools: list[Pool]
    scraped: Scraped | None = Field(description="null where it is not scraped")


class Source(Shape):
    """Who sends for an engine, and how regularly."""

    engine: str
    state: str
    origin: str
    cluster: str
    namespace: str
    pod: str
    host: str
    software: str
    boot_id: str
    last_seq: int
    last_end_us: int
    received_us: int
    lag_us: int = Field(description="receipt of the newest batch less the end of its period")
    skew_us: int
    missing: int
    dropped: int = Field(description="batches that its hook let go in the last 24 hours, by its own count")
    faults: int = Field(description="calls that its hook could make no sense of in the last 24 hours")
    hook_off: str = Field(description="why its hook has switched itself off; empty where it has not")


class Batch(Shape):
    """A batch as it was received."""

    engine: str
    boot_id: str
    seq: int
    start_us: int
    end_us: int
    received_us: int
    missing_before: int = Field(description="numbers missing before it when it came")
    lost: bool = Field(description="another boot of the engine claims its time, so it is not valid")
    rows: int = Field(description="session rows")
    requests: int = Field(description="requests that ended in it")


class Quarantined(Shape):
    """A refused batch; `engine`, `boot_id` and `seq` are what it claims to be of."""

    id: int
    received_us: int
    engine: str
    boot_id: str
    seq: int | None
    reason: str = Field(description="a reason of docs/wire.md")
    detail: str
    size_bytes: int


class Finding(Shape):
    """What somebody should look at."""

    code: str
    severity: str
    subject: str
    start_us: int
    end_us: int
    detail: str


class Trouble(BaseModel):
    """Something that is wrong now, in one sentence, and what to do."""

    severity: str = Field(description="critical, warning or info")
    what: str
    todo: str


class LiveSession(BaseModel):
    """A session in the newest period of an engine."""

    engine: str
    pool: str
    tenant: str
    session: str
    model: str
    adapter: str
    scenario: str
    priority: int
    end_us: int
    active_blocks: float = Field(description="mean of the period, shares of shared blocks")
    cached_blocks: int
    compute_ratio: float = Field(description="its part of the period's time")
    output_tokens: int
    recomputed_tokens: int
