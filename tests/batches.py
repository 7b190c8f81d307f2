"""Batches for tests: lawful ones of a small engine, and arbitrary ones that only have valid fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from ledger import limits, wire
from ledger.core.records import (
    PERIOD_US,
    Admission,
    Batch,
    Boot,
    Dimensions,
    Group,
    GroupKind,
    GroupPeriod,
    Histogram,
    Holding,
    HookReport,
    Origin,
    Outcome,
    PeriodUse,
    PoolClose,
    PoolHolding,
    PoolOpen,
    PoolPeriod,
    Preemptions,
    RequestRecord,
    SessionPeriod,
    Shard,
    Source,
    StandingCount,
    Tokens,
)

T0 = 1_793_664_000_000_000  # 2026-11-03T00:00:00Z
BLOCKS = 1_000
ALICE = Dimensions(tenant="alice", session="s1", model="m", scenario="chat", priority=-1)
BOB = Dimensions(tenant="bob", session="s2", model="m", adapter="lora-1")
UNKNOWN = Dimensions(tenant="unattributed")

Held = Mapping[Dimensions, tuple[int, int]]


@dataclass
class Life:
    """One boot of an engine that delivers a batch for each period, chained as its sender would."""

    engine: str = "engine-a"
    boot_id: str = "boot-1"
    start_us: int = T0
    origin: Origin = Origin.SIMULATED
    seq: int = 0
    prev: bytes = b""
    now_us: int = field(init=False)

    def __post_init__(self) -> None:
        self.now_us = self.start_us

    @property
    def source(self) -> Source:
        return Source(engine=self.engine, origin=self.origin, host="h1", software="reference 1")

    @property
    def boot(self) -> Boot:
        return Boot(boot_id=self.boot_id, anchor_us=self.start_us - 5, started_us=self.start_us)

    def send(self, batch: Batch) -> bytes:
        raw = wire.encode(batch, self.prev)
        self.prev = wire.digest_of(raw)
        return raw

    def announce(self) -> Batch:
        self.seq += 1
        return Batch(source=self.source, boot=self.boot, seq=self.seq, start_us=self.now_us, end_us=self.now_us)

    def period(
        self,
        held: Held,
        *,
        length_us: int = PERIOD_US,
        quiet: Held | None = None,
        standing: bool = False,
        opens: bool = False,
        closes: bool = False,
        admits: Sequence[str] = (),
        ends: Sequence[str] = (),
    ) -> Batch:
        """A period in which every session of ``held`` keeps (active, cached) blocks; requests are ALICE's."""
        self.seq += 1
        start, end = self.now_us, self.now_us + length_us
        self.now_us = end
        cached_all = {dims: cached for dims, (_, cached) in {**(quiet or {}), **held}.items() if cached}
        active, cached = sum(a for a, _ in held.values()), sum(cached_all.values())
        compute = {dims: 1_000 * a for dims, (a, _) in held.items()}
        rows = tuple(
            SessionPeriod(
                pool="gpu",
                dims=dims,
                holding=Holding(
                    active_block_us=a * length_us, unfilled_slot_us=3 * a * length_us, held_slot_us=16 * a * length_us
                ),
                cached_block_us=c * length_us,
                cached_blocks_end=c,
                compute_us=compute[dims],
                tokens=Tokens(computed=a, output=7),
                preemptions=Preemptions(kv_full=1),
            )
            for dims, (a, c) in held.items()
        )
        pool = PoolPeriod(
            pool="gpu",
            blocks=BLOCKS,
            active_block_us=active * length_us,
            cached_block_us=cached * length_us,
            free_block_us=(BLOCKS - active - cached) * length_us,
            unfilled_slot_us=3 * active * length_us,
            held_slot_us=16 * active * length_us,
            active_blocks_end=active,
            cached_blocks_end=cached,
            groups=(GroupPeriod(group=0, active_block_us=active * length_us),),
            steps=10,
            step_us=sum(compute.values()),
        )
        return Batch(
            source=self.source,
            boot=self.boot,
            seq=self.seq,
            start_us=start,
            end_us=end,
            skew_us=-12,
            opens=(pool_open(start),) if opens else (),
            closes=(PoolClose(pool="gpu", at_us=end, reason="shutdown"),) if closes else (),
            admissions=tuple(
                Admission(request=name, dims=ALICE, prompt_tokens=100, arrived_us=start + 1) for name in admits
            ),
            pools=(pool,),
            sessions=rows,
            standing=tuple(StandingCount(pool="gpu", dims=d, cached_blocks=c) for d, c in cached_all.items())
            if standing
            else None,
            requests=tuple(record(name, start, end) for name in ends),
            histograms=(Histogram(name="step_us", labels=(("a", "b"),), buckets=((3, 2), (9, 1)), count=3, total=50),),
        )


def pool_open(at_us: int, pool: str = "gpu", *, paying: bool = True) -> PoolOpen:
    return PoolOpen(
        pool=pool,
        at_us=at_us,
        blocks=BLOCKS,
        groups=(Group(block_size=16), Group(block_size=32, kind=GroupKind.STATE)),
        shards=(Shard(gpu_uuid="GPU-1", gpu_model="A100", share_ppm=500_000), Shard(tp=1)),
        model="m",
        paying=paying,
    )


def record(name: str, start_us: int, end_us: int, dims: Dimensions = ALICE) -> RequestRecord:
    return RequestRecord(
        request=name,
        parent="p",
        dims=dims,
        pool="gpu",
        outcome=Outcome.FINISHED,
        finish_reason="stop",
        prompt_tokens=100,
        tokens=Tokens(computed=60, cached_own=10, cached_others=20, transferred=5, unprocessed=5, output=9),
        preemptions=Preemptions(priority=2),
        holding=Holding(active_block_us=70, unfilled_slot_us=3),
        compute_us=11,
        peak_blocks=8,
        arrived_us=start_us + 1,
        scheduled_us=start_us + 2,
        first_token_us=start_us + 3,
        last_token_us=start_us + 4,
        ended_us=end_us - 1,
        uses=(
            PeriodUse(start_us=start_us - PERIOD_US, active_block_us=40, compute_us=5),
            PeriodUse(start_us=start_us, active_block_us=30, compute_us=6),
        ),
        other_holdings=(PoolHolding(pool="host", holding=Holding(active_block_us=5)),),
    )


def lawful() -> Batch:
    """A batch that has something of everything, and keeps every law."""
    life = Life()
    life.announce()
    return life.period(
        {ALICE: (400, 10), BOB: (100, 0)}, quiet={UNKNOWN: (0, 50)}, standing=True, opens=True, admits=["r1", "r2"],
        ends=["r1"],
    )  # fmt: skip


# --- arbitrary batches ----------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
maybe = st.one_of(st.just(""), names)
counts = st.one_of(st.just(0), st.integers(0, 9), st.integers(0, limits.TOKENS_MAX))
block_us = st.one_of(st.just(0), st.integers(0, limits.BLOCK_US_MAX))
blocks = st.integers(1, limits.BLOCKS_MAX)
some_blocks = st.integers(0, limits.BLOCKS_MAX)
times = st.integers(limits.TIME_US_MIN, limits.TIME_US_MAX)
priorities = st.integers(-limits.PRIORITY_ABS_MAX, limits.PRIORITY_ABS_MAX)
dimensions = st.builds(
    Dimensions, tenant=names, session=names, model=maybe, adapter=maybe, scenario=maybe, priority=priorities
)
tokens = st.one_of(st.just(Tokens()), st.builds(Tokens, **dict.fromkeys(Tokens.__slots__, counts)))
preemptions = st.one_of(st.just(Preemptions()), st.builds(Preemptions, **dict.fromkeys(Preemptions.__slots__, counts)))
holdings = st.one_of(st.just(Holding()), st.builds(Holding, **dict.fromkeys(Holding.__slots__, block_us)))


def few(strategy: st.SearchStrategy, most: int = 3) -> st.SearchStrategy:
    return st.lists(strategy, max_size=most).map(tuple)


groups = st.builds(Group, block_size=st.integers(1, limits.BLOCK_SIZE_MAX), kind=st.sampled_from(GroupKind))
ranks = st.integers(0, limits.SHARDS_MAX)
shards = st.builds(
    Shard, dp=ranks, pp=ranks, tp=ranks, gpu_uuid=maybe, gpu_model=maybe,
    share_ppm=st.one_of(st.none(), st.integers(0, limits.PPM_MAX)),
    pid=st.one_of(st.none(), st.integers(1, limits.PID_MAX)),
    kv_bytes=st.one_of(st.none(), st.integers(0, limits.MEMORY_BYTES_MAX)),
    weights_bytes=st.one_of(st.none(), st.integers(0, limits.MEMORY_BYTES_MAX)),
)  # fmt: skip
opens = st.builds(
    PoolOpen, pool=names, at_us=times, blocks=blocks, groups=few(groups), shards=few(shards), model=maybe,
    paying=st.booleans(),
)  # fmt: skip
group_periods = st.builds(GroupPeriod, group=st.integers(0, limits.GROUPS_MAX - 1), active_block_us=block_us)
pools = st.builds(
    PoolPeriod, pool=names, blocks=blocks, active_block_us=block_us, cached_block_us=block_us, free_block_us=block_us,
    unfilled_slot_us=block_us, lookahead_slot_us=block_us, held_slot_us=block_us, active_blocks_end=some_blocks,
    cached_blocks_end=some_blocks, groups=few(group_periods), steps=counts, step_us=block_us,
)  # fmt: skip
sessions = st.builds(
    SessionPeriod, pool=names, dims=dimensions, holding=holdings, cached_block_us=block_us,
    cached_blocks_end=some_blocks, compute_us=block_us, tokens=tokens, preemptions=preemptions,
)  # fmt: skip
stamps = st.one_of(st.none(), times)
requests = st.builds(
    RequestRecord, request=names, parent=st.one_of(st.none(), names), dims=dimensions, pool=maybe,
    outcome=st.sampled_from(Outcome), finish_reason=maybe, prompt_tokens=counts, tokens=tokens, preemptions=preemptions,
    holding=holdings, compute_us=block_us, peak_blocks=some_blocks, arrived_us=times, scheduled_us=stamps,
    first_token_us=stamps, last_token_us=stamps, ended_us=times,
    uses=few(st.builds(PeriodUse, start_us=times, active_block_us=block_us, compute_us=block_us)),
    other_holdings=few(st.builds(PoolHolding, pool=names, holding=holdings)),
)  # fmt: skip
histograms = st.builds(
    Histogram, name=names, labels=st.dictionaries(names, maybe, max_size=2).map(lambda d: tuple(sorted(d.items()))),
    buckets=st.dictionaries(st.integers(-50, 2000), st.integers(1, 10**9), max_size=4)
    .map(lambda d: tuple(sorted(d.items()))),
    count=counts, total=block_us,
)  # fmt: skip
reasons = st.dictionaries(names, st.integers(1, limits.TOKENS_MAX), max_size=3).map(lambda d: tuple(sorted(d.items())))
hooks = st.builds(HookReport, dropped=reasons, faults=reasons, off=maybe)
arbitrary = st.builds(
    Batch,
    source=st.builds(
        Source, engine=names, origin=st.sampled_from(Origin), cluster=maybe, namespace=maybe, pod=maybe, host=maybe,
        software=maybe,
    ),
    boot=st.builds(Boot, boot_id=names, anchor_us=times, started_us=times),
    seq=st.integers(1, limits.SEQ_MAX), start_us=times, end_us=times,
    skew_us=st.integers(-limits.SKEW_US_MAX, limits.SKEW_US_MAX),
    opens=few(opens), closes=few(st.builds(PoolClose, pool=names, at_us=times, reason=maybe)),
    admissions=few(
        st.builds(
            Admission, request=names, dims=dimensions, prompt_tokens=counts, arrived_us=times,
            parent=st.one_of(st.none(), names),
        )
    ),
    pools=few(pools), sessions=few(sessions),
    standing=st.one_of(
        st.none(), few(st.builds(StandingCount, pool=names, dims=dimensions, cached_blocks=some_blocks))
    ),
    requests=few(requests), histograms=few(histograms), hook=hooks,
)  # fmt: skip
"""Any batch whose fields are valid by themselves; hardly any keeps the laws."""


def changed(batch: Batch, path: str, by: int) -> Batch:
    """``batch`` with the integer at ``path`` (``sessions.0.holding.active_block_us``) raised by ``by``."""

    def walk(value: object, parts: list[str]) -> object:
        if not parts:
            assert isinstance(value, int)
            return value + by
        head, rest = parts[0], parts[1:]
        if isinstance(value, tuple):
            at = int(head)
            return (*value[:at], walk(value[at], rest), *value[at + 1 :])
        return replace(value, **{head: walk(getattr(value, head), rest)})  # type: ignore[type-var]

    result = walk(batch, path.split("."))
    assert isinstance(result, Batch)
    return result
