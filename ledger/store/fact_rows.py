"""A batch as rows of tables, and the rows as a batch again: the two directions side by side.

Invariant: ``batch_of(rows_of(batch)) == batch``; that is what lets an audit make a batch's digest again.
Rows are tuples in the order of their table's columns.
"""

from __future__ import annotations

import json
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ledger import limits
from ledger.core.records import (
    NO_PREEMPTIONS,
    NO_REPORT,
    NO_TOKENS,
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
from ledger.store import tables
from ledger.store.tables import HOLDING_COLUMNS, PREEMPTION_COLUMNS, TOKEN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Table

Row = tuple[Any, ...]

_holding: Final = attrgetter(*HOLDING_COLUMNS)
_tokens: Final = attrgetter(*TOKEN_COLUMNS)
_preemptions: Final = attrgetter(*PREEMPTION_COLUMNS)

_POOL_FIELDS: Final = (
    "pool",
    "blocks",
    "active_block_us",
    "cached_block_us",
    "free_block_us",
    "unfilled_slot_us",
    "lookahead_slot_us",
    "held_slot_us",
    "active_blocks_end",
    "cached_blocks_end",
    "steps",
    "step_us",
)
_pool: Final = attrgetter(*_POOL_FIELDS)
_SHARD_FIELDS: Final = ("dp", "pp", "tp", "gpu_uuid", "gpu_model", "share_ppm", "pid", "kv_bytes", "weights_bytes")
_shard: Final = attrgetter(*_SHARD_FIELDS)


def day_of(time_us: int) -> int:
    """Days since 1970-01-01 UTC."""
    return time_us // limits.DAY_US


def dimensions_in(batch: Batch) -> dict[int, Dimensions]:
    """The objects that rows name their dimension sets by, each once, by identity.

    Rows of a batch share these objects, and hashing one takes as long as making its row.
    """
    found = {id(row.dims): row.dims for row in batch.sessions}
    found.update((id(row.dims), row.dims) for row in batch.admissions)
    found.update((id(row.dims), row.dims) for row in batch.requests)
    found.update((id(row.dims), row.dims) for row in batch.standing or ())
    return found


def rows_of(batch: Batch, boot: int, ids: Mapping[int, int]) -> Iterator[tuple[Table, list[Row]]]:
    """The rows of ``batch`` by table, empty ones left out; those of boots first, then in the order of tables.

    ``ids`` are those of its dimension sets, by the identity of the objects of :func:`dimensions_in`.
    """
    key = (boot, batch.seq)
    yield from _boot_rows(batch, key)
    dated = (day_of(batch.start_us), *key)
    if batch.pools:
        yield tables.pool_periods, [(*dated, i, *_pool(pool)) for i, pool in enumerate(batch.pools)]
        groups = [
            (*dated, i, j, group.group, group.active_block_us)
            for i, pool in enumerate(batch.pools)
            for j, group in enumerate(pool.groups)
        ]
        if groups:
            yield tables.group_periods, groups
    if batch.sessions:
        yield tables.session_periods, _session_rows(batch, dated, ids)
    if batch.standing:
        yield (
            tables.standing_counts,
            [(*dated, i, row.pool, ids[id(row.dims)], row.cached_blocks) for i, row in enumerate(batch.standing)],
        )
    if batch.admissions:
        yield (
            tables.admissions,
            [
                (*dated, i, row.request, row.parent, ids[id(row.dims)], row.prompt_tokens, row.arrived_us)
                for i, row in enumerate(batch.admissions)
            ],
        )
    yield from _request_rows(batch, dated, ids)
    if batch.histograms:
        yield (
            tables.histograms,
            [
                (*dated, i, row.name, _pairs_text(row.labels), _pairs_text(row.buckets), row.count, row.total)
                for i, row in enumerate(batch.histograms)
            ],
        )


def _boot_rows(batch: Batch, key: tuple[int, int]) -> Iterator[tuple[Table, list[Row]]]:
    if batch.opens:
        opens, groups, shards = [], [], []
        for i, opened in enumerate(batch.opens):
            opens.append((*key, i, opened.pool, opened.at_us, opened.blocks, opened.model, int(opened.paying)))
            groups += [(*key, i, j, group.block_size, group.kind.value) for j, group in enumerate(opened.groups)]
            shards += [(*key, i, j, *_shard(s)) for j, s in enumerate(opened.shards)]
        yield tables.pool_opens, opens
        if groups:
            yield tables.pool_groups, groups
        if shards:
            yield tables.pool_shards, shards
    if batch.closes:
        yield tables.pool_closes, [(*key, i, c.pool, c.at_us, c.reason) for i, c in enumerate(batch.closes)]


def _session_rows(batch: Batch, dated: tuple[int, int, int], ids: Mapping[int, int]) -> list[Row]:
    """One for each session; most rows are these, and written out they take half as long as by attrgetters."""
    day, boot, seq = dated
    return [
        (
            day, boot, seq, i, row.pool, ids[id(row.dims)],
            held.active_block_us, held.unfilled_slot_us, held.lookahead_slot_us, held.held_slot_us,
            row.cached_block_us, row.cached_blocks_end, row.compute_us,
            tokens.computed, tokens.cached_own, tokens.cached_others, tokens.transferred, tokens.unprocessed,
            tokens.recomputed, tokens.output, tokens.drafted, tokens.rejected,
            preempted.kv_full, preempted.priority, preempted.reset, preempted.other,
        )
        for i, row in enumerate(batch.sessions)
        for held, tokens, preempted in ((row.holding, row.tokens, row.preemptions),)
    ]  # fmt: skip


def _request_rows(
    batch: Batch, dated: tuple[int, int, int], ids: Mapping[int, int]
) -> Iterator[tuple[Table, list[Row]]]:
    if not batch.requests:
        return
    records, uses, holdings = [], [], []
    for i, row in enumerate(batch.requests):
        records.append(
            (
                *dated,
                i,
                row.request,
                row.parent,
                ids[id(row.dims)],
                row.pool,
                row.outcome.value,
                row.finish_reason,
                row.prompt_tokens,
                *_tokens(row.tokens),
                *_preemptions(row.preemptions),
                *_holding(row.holding),
                row.compute_us,
                row.peak_blocks,
                row.arrived_us,
                row.scheduled_us,
                row.first_token_us,
                row.last_token_us,
                row.ended_us,
            )
        )
        uses += [(*dated, i, j, use.start_us, use.active_block_us, use.compute_us) for j, use in enumerate(row.uses)]
        holdings += [(*dated, i, j, other.pool, *_holding(other.holding)) for j, other in enumerate(row.other_holdings)]
    yield tables.request_records, records
    if uses:
        yield tables.request_uses, uses
    if holdings:
        yield tables.request_holdings, holdings


def hook_text(report: HookReport) -> str:
    """A hook's report as its batch's row has it; empty where there is nothing in it."""
    if report == NO_REPORT:
        return ""
    said = {"dropped": report.dropped, "faults": report.faults, "off": report.off}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


def _pairs_text(pairs: Iterable[tuple[Any, Any]]) -> str:
    return json.dumps([list(pair) for pair in pairs], ensure_ascii=False, separators=(",", ":"))


def _pairs(stored: str) -> tuple[Any, ...]:
    return tuple((first, second) for first, second in json.loads(stored))


# --- back ------------------------------------------------------------------------------------------------


def pool_of(row: Sequence[Any], groups: tuple[GroupPeriod, ...] = ()) -> PoolPeriod:
    """A pool's totals from a row of ``pool_periods`` without its key."""
    return PoolPeriod(**dict(zip(_POOL_FIELDS, row, strict=True)), groups=groups)


def session_of(row: Sequence[Any], dims: Mapping[int, Dimensions]) -> SessionPeriod:
    """A session's row from one of ``session_periods`` without its key.

    Written out, since an hour has millions of them; what is all nought, as preemptions mostly are, is shared.
    """
    tokens, preemptions = row[9:18], row[18:22]
    return SessionPeriod(
        pool=row[0],
        dims=dims[row[1]],
        holding=Holding(active_block_us=row[2], unfilled_slot_us=row[3], lookahead_slot_us=row[4], held_slot_us=row[5]),
        cached_block_us=row[6],
        cached_blocks_end=row[7],
        compute_us=row[8],
        tokens=_tokens_of(tokens) if any(tokens) else NO_TOKENS,
        preemptions=_preemptions_of(preemptions) if any(preemptions) else NO_PREEMPTIONS,
    )


def standing_of(row: Sequence[Any], dims: Mapping[int, Dimensions]) -> StandingCount:
    """A standing count from a row of ``standing_counts`` without its key."""
    return StandingCount(pool=row[0], dims=dims[row[1]], cached_blocks=row[2])


def admission_of(row: Sequence[Any], dims: Mapping[int, Dimensions]) -> Admission:
    """An admission from a row of ``admissions`` without its key."""
    return Admission(request=row[0], parent=row[1], dims=dims[row[2]], prompt_tokens=row[3], arrived_us=row[4])


def request_of(
    row: Sequence[Any],
    dims: Mapping[int, Dimensions],
    uses: tuple[PeriodUse, ...] = (),
    holdings: tuple[PoolHolding, ...] = (),
) -> RequestRecord:
    """A terminal record from a row of ``request_records`` without its key."""
    return RequestRecord(
        request=row[0],
        parent=row[1],
        dims=dims[row[2]],
        pool=row[3],
        outcome=Outcome(row[4]),
        finish_reason=row[5],
        prompt_tokens=row[6],
        tokens=_tokens_of(row[7:16]),
        preemptions=_preemptions_of(row[16:20]),
        holding=_holding_of(row[20:24]),
        compute_us=row[24],
        peak_blocks=row[25],
        arrived_us=row[26],
        scheduled_us=row[27],
        first_token_us=row[28],
        last_token_us=row[29],
        ended_us=row[30],
        uses=uses,
        other_holdings=holdings,
    )


def use_of(row: Sequence[Any]) -> PeriodUse:
    """A period's use from a row of ``request_uses`` without its key."""
    return PeriodUse(start_us=row[0], active_block_us=row[1], compute_us=row[2])


def other_holding_of(row: Sequence[Any]) -> PoolHolding:
    """A holding in another pool from a row of ``request_holdings`` without its key."""
    return PoolHolding(pool=row[0], holding=_holding_of(row[1:5]))


def open_of(row: Sequence[Any], groups: tuple[Group, ...], shards: tuple[Shard, ...]) -> PoolOpen:
    """An opening from a row of ``pool_opens`` without its key."""
    return PoolOpen(
        pool=row[0],
        at_us=row[1],
        blocks=row[2],
        model=row[3],
        paying=bool(row[4]),
        groups=groups,
        shards=shards,
    )


def group_of(row: Sequence[Any]) -> Group:
    """A group from a row of ``pool_groups`` without its key."""
    return Group(block_size=row[0], kind=GroupKind(row[1]))


def shard_of(row: Sequence[Any]) -> Shard:
    """A shard from a row of ``pool_shards`` without its key."""
    return Shard(**dict(zip(_SHARD_FIELDS, row, strict=True)))


def close_of(row: Sequence[Any]) -> PoolClose:
    """A closing from a row of ``pool_closes`` without its key."""
    return PoolClose(pool=row[0], at_us=row[1], reason=row[2])


def histogram_of(row: Sequence[Any]) -> Histogram:
    """A histogram from a row of ``histograms`` without its key."""
    return Histogram(name=row[0], labels=_pairs(row[1]), buckets=_pairs(row[2]), count=row[3], total=row[4])


def hook_of(stored: str) -> HookReport:
    """What :func:`hook_text` wrote."""
    if not stored:
        return NO_REPORT
    said = json.loads(stored)
    return HookReport(
        dropped=tuple((reason, count) for reason, count in said["dropped"]),
        faults=tuple((reason, count) for reason, count in said["faults"]),
        off=said["off"],
    )


def batch_of(
    *,
    source: Source,
    boot: Boot,
    seq: int,
    start_us: int,
    end_us: int,
    skew_us: int,
    has_standing: bool,
    hook: HookReport,
    rows: Mapping[Table, Sequence[Row]],
    dims: Mapping[int, Dimensions],
) -> Batch:
    """The batch whose rows are ``rows``: by table, without day, boot and seq, sorted by place."""

    def of(table: Table) -> Sequence[Row]:
        return rows.get(table, ())

    groups, shards = _below(of(tables.pool_groups), group_of), _below(of(tables.pool_shards), shard_of)
    group_periods = _below(of(tables.group_periods), lambda row: GroupPeriod(group=row[0], active_block_us=row[1]))
    uses = _below(of(tables.request_uses), use_of)
    holdings = _below(of(tables.request_holdings), other_holding_of)
    return Batch(
        source=source,
        boot=boot,
        seq=seq,
        start_us=start_us,
        end_us=end_us,
        skew_us=skew_us,
        opens=tuple(open_of(row[1:], groups[row[0]], shards[row[0]]) for row in of(tables.pool_opens)),
        closes=tuple(close_of(row[1:]) for row in of(tables.pool_closes)),
        admissions=tuple(admission_of(row[1:], dims) for row in of(tables.admissions)),
        pools=tuple(pool_of(row[1:], group_periods[row[0]]) for row in of(tables.pool_periods)),
        sessions=tuple(session_of(row[1:], dims) for row in of(tables.session_periods)),
        standing=tuple(standing_of(row[1:], dims) for row in of(tables.standing_counts)) if has_standing else None,
        requests=tuple(request_of(row[1:], dims, uses[row[0]], holdings[row[0]]) for row in of(tables.request_records)),
        histograms=tuple(histogram_of(row[1:]) for row in of(tables.histograms)),
        hook=hook,
    )


def _below(rows: Sequence[Row], make: Any) -> defaultdict[int, tuple[Any, ...]]:
    """Rows below a row, made into records, by the place of the row above; ``sub`` gives their order."""
    found: defaultdict[int, tuple[Any, ...]] = defaultdict(tuple)
    for row in rows:
        found[row[0]] += (make(row[2:]),)
    return found


def _holding_of(row: Sequence[int]) -> Holding:
    return Holding(active_block_us=row[0], unfilled_slot_us=row[1], lookahead_slot_us=row[2], held_slot_us=row[3])


def _tokens_of(row: Sequence[int]) -> Tokens:
    computed, own, others, transferred, unprocessed, recomputed, output, drafted, rejected = row
    return Tokens(
        computed=computed,
        cached_own=own,
        cached_others=others,
        transferred=transferred,
        unprocessed=unprocessed,
        recomputed=recomputed,
        output=output,
        drafted=drafted,
        rejected=rejected,
    )


def _preemptions_of(row: Sequence[int]) -> Preemptions:
    return Preemptions(kv_full=row[0], priority=row[1], reset=row[2], other=row[3])
