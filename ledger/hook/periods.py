"""Periods: cut on the engine's thread, settled on another.

A cut copies what will change (a tuple for each table that holds or held blocks, each leaf, each request with
a change) and nothing else: it visits neither held blocks nor sessions that merely own cached ones. Settling
makes the period's facts of it. Law 2: shares are fixed point until here and are settled by largest remainder
top-down, pool, tenant, session, request; each child gets the floor of its own exact value, the parent's
remaining units go to the largest fractions, ties in the order of the names. Fractions that lie closer together than
fixed point can tell (``sharing.TIE``) count as equal.

The same thread settles all cuts of an engine, in order: what it notes on requests and tables (``done``, the
sums) is its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger.core.records import (
    NO_REPORT,
    NO_SESSION,
    SYSTEM,
    UNATTRIBUTED,
    Admission,
    Batch,
    Boot,
    Dimensions,
    GroupPeriod,
    Holding,
    HookReport,
    PeriodUse,
    PoolClose,
    PoolHolding,
    PoolOpen,
    PoolPeriod,
    Preemptions,
    RequestRecord,
    SessionPeriod,
    Source,
    StandingCount,
    Tokens,
    travelling,
)
from ledger.core.sharing import SHIFT, final
from ledger.hook.histograms import Log, Tally
from ledger.hook.requests import COUNTS, DRAFTED, REJECTED, Request
from ledger.hook.slices import Tree, in_order, in_slices, no_rest, sort_key
from ledger.limits import LIGHT_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ledger.core.holders import Account, Table
    from ledger.core.sharing import Node

SYSTEM_DIMS = Dimensions(tenant=SYSTEM, session=NO_SESSION)
STRAY_DIMS = Dimensions(tenant=UNATTRIBUTED, session=NO_SESSION)

Values = tuple[int, int, int]
"""Block time, unfilled and look-ahead slot time."""


@dataclass(slots=True)
class PoolCut:
    """A pool at the end of a period."""

    name: str
    blocks: int
    sizes: tuple[int, ...]
    active_us: int
    cached_us: int
    unfilled_us: int
    ahead_us: int
    group_us: list[int]
    active_end: int
    cached_end: int
    tables: list[tuple[Table, int, int, frozenset[Node], int, int, int, int, int, int, int, int, int]]
    nodes: dict[Node, Values]
    accounts: list[tuple[Account, int, int]]
    """Accounts that changed: cached blocks at the end, cached time in the period."""
    ticks: tuple[int, int]
    closes: bool = False


@dataclass(slots=True)
class Cut:
    """A period as the engine's thread left it."""

    source: Source
    boot: Boot
    seq: int
    start_t: int
    end_t: int
    lead: str
    """The pool that carries tokens, steps and requests."""
    skew_us: int = 0
    standing: bool = False
    pools: list[PoolCut] = field(default_factory=list)
    steady: list[tuple[Request, int, int]] = field(default_factory=list)
    weight: int = 0
    ended_steps: int = 0
    touched: list[tuple[Request, int, int, list[int] | None]] = field(default_factory=list)
    complete: list[Request] = field(default_factory=list)
    steps: int = 0
    step_us: int = 0
    system_compute: int = 0
    stray_compute: int = 0
    opens: list[PoolOpen] = field(default_factory=list)
    closes: list[PoolClose] = field(default_factory=list)
    admissions: list[Request] = field(default_factory=list)
    log: Log = field(default_factory=Log)
    hook: HookReport = NO_REPORT


@dataclass(slots=True)
class Row:
    """A session's row in the making."""

    holding: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    cached_us: int = 0
    cached_end: int = 0
    compute: int = 0
    output: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * COUNTS)

    def add_counts(self, counts: Sequence[int]) -> None:
        self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]


def tokens_of(counts: Sequence[int], output: int) -> Tokens:
    """Token counts from a list as :mod:`ledger.hook.requests` keeps it."""
    return Tokens(
        computed=counts[0],
        cached_own=counts[1],
        cached_others=counts[2],
        transferred=counts[3],
        unprocessed=counts[4],
        recomputed=counts[5],
        output=output,
        drafted=counts[DRAFTED],
        rejected=counts[REJECTED],
    )


def preemptions_of(counts: Sequence[int]) -> Preemptions:
    return Preemptions(kv_full=counts[8], priority=counts[9], reset=counts[10], other=counts[11])


def holding_of(values: Sequence[int]) -> Holding:
    return Holding(
        active_block_us=values[0],
        unfilled_slot_us=values[1],
        lookahead_slot_us=values[2],
        held_slot_us=values[3],
    )


def settled_nodes(leaves: dict[Node, Values], tables: Iterable[frozenset[Node]]) -> dict[Node, Values]:
    """Charges per holder at the cut of every node that a table points at: a split one adds its parts' charges.

    Whatever is not among the leaves of the cut was split before it, so its figures and parts stand still.
    """
    known = dict(leaves)
    for nodes in tables:
        for node in nodes:
            if node in known:
                continue
            stack = [node]
            while stack:
                top = stack[-1]
                assert top.parts is not None
                missing = [part for part in top.parts if part not in known]
                if missing:
                    stack.extend(missing)
                    continue
                one, two = known[top.parts[0]], known[top.parts[1]]
                own = final(top)
                known[top] = (own[0] + one[0] + two[0], own[1] + one[1] + two[1], own[2] + one[2] + two[2])
                stack.pop()
    return known


class Settler:
    """Makes a batch of each cut, in order. One thread at a time."""

    def __init__(self, emit: Callable[[Batch], None]) -> None:
        self.emit = emit
        self.rest: Callable[[], None] = no_rest
        self.tally = Tally()
        self.cached: dict[str, dict[Dimensions, int]] = {}
        """Cached blocks of every session of every pool at the last settled boundary."""

    def settle(self, cut: Cut) -> Batch:
        rows: dict[tuple[str, Dimensions], Row] = {}
        anchor = cut.boot.anchor_us
        uses: dict[Request, list[int]] = {}
        pools = [self._settle_pool(cut, pool, rows, uses) for pool in cut.pools]
        lead = cut.lead
        self._settle_requests(cut, rows if cut.pools else {}, uses)
        for request, use in uses.items():
            if use[0] or use[1]:
                request.sums.uses.append((anchor + cut.start_t, use[0], use[1]))
        length = cut.end_t - cut.start_t
        touched = {
            (pool.name, account.dims)
            for pool in cut.pools
            for account, _, _ in in_slices(pool.accounts, self.rest, LIGHT_ROWS)
        }
        sessions = []
        found = in_order(rows.items(), lambda entry: (entry[0][0], sort_key(entry[0][1])), self.rest)
        for (pool, dims), row in in_slices(found, self.rest):
            if (pool, dims) not in touched:
                row.cached_end = self.cached[pool].get(dims, 0)
                row.cached_us = row.cached_end * length
            sessions.append(
                SessionPeriod(
                    pool=pool,
                    dims=dims,
                    holding=holding_of(row.holding),
                    cached_block_us=row.cached_us,
                    cached_blocks_end=row.cached_end,
                    compute_us=row.compute,
                    tokens=tokens_of(row.counts, row.output),
                    preemptions=preemptions_of(row.counts),
                )
            )
        # A close at the very end of a period leaves none after it, and no totals to tell of.
        if not length and not sessions:
            pools = []
        standing = None
        if cut.standing and pools:
            standing = tuple(
                StandingCount(pool=pool.name, dims=dims, cached_blocks=blocks)
                for pool in sorted(cut.pools, key=lambda pool: pool.name)
                for dims, blocks in in_slices(
                    in_order(self.cached[pool.name].items(), lambda entry: sort_key(entry[0]), self.rest), self.rest
                )
            )
        for pool_cut in cut.pools:
            if pool_cut.closes:
                del self.cached[pool_cut.name]
        return Batch(
            source=cut.source,
            boot=cut.boot,
            seq=cut.seq,
            start_us=anchor + cut.start_t,
            end_us=anchor + cut.end_t,
            skew_us=cut.skew_us,
            opens=tuple(cut.opens),
            closes=tuple(cut.closes),
            admissions=tuple(
                Admission(
                    request=travelling(request.id),
                    dims=request.dims,
                    prompt_tokens=request.prompt,
                    arrived_us=anchor + request.arrived_t,
                    parent=travelling(request.parent) if request.parent is not None else None,
                )
                for request in cut.admissions
            ),
            pools=tuple(pools),
            sessions=tuple(sessions),
            standing=standing,
            requests=tuple(_record(request, anchor, lead) for request in in_slices(cut.complete, self.rest)),
            histograms=self.tally.histograms(cut.log, self.rest),
            hook=cut.hook,
        )

    def _settle_pool(
        self, cut: Cut, pool: PoolCut, rows: dict[tuple[str, Dimensions], Row], uses: dict[Request, list[int]]
    ) -> PoolPeriod:
        t = cut.end_t
        slots = sum(us * size for us, size in zip(pool.group_us, pool.sizes, strict=True))
        parts = _exact_shares(pool, t, self.rest)
        tree = Tree(parts, self.rest)
        for measure, total in enumerate((pool.active_us, pool.unfilled_us, pool.ahead_us, slots)):
            if not total and measure:
                continue
            sessions, units = tree.settle(total, [parts[member][measure] for member in tree.members])  # type: ignore[index]
            for dims, share in in_slices(sessions.items(), self.rest, LIGHT_ROWS):
                _row(rows, pool.name, dims).holding[measure] = share
            for member, share in in_slices(zip(tree.members, units, strict=True), self.rest, LIGHT_ROWS):
                assert isinstance(member, Request)
                sums = member.sums.holdings.setdefault(pool.name, [0, 0, 0, 0])
                sums[measure] += share
                if not measure and pool.name == cut.lead:
                    uses[member] = [share, 0]
        standing = self.cached.setdefault(pool.name, {})
        for account, blocks, cached_us in in_slices(pool.accounts, self.rest, LIGHT_ROWS):
            row = _row(rows, pool.name, account.dims)
            row.cached_end = blocks
            row.cached_us = cached_us
            if blocks:
                standing[account.dims] = blocks
            else:
                standing.pop(account.dims, None)
        leads = pool.name == cut.lead
        return PoolPeriod(
            pool=pool.name,
            blocks=pool.blocks,
            active_block_us=pool.active_us,
            cached_block_us=pool.cached_us,
            free_block_us=pool.blocks * (t - cut.start_t) - pool.active_us - pool.cached_us,
            unfilled_slot_us=pool.unfilled_us,
            lookahead_slot_us=pool.ahead_us,
            held_slot_us=slots,
            active_blocks_end=pool.active_end,
            cached_blocks_end=pool.cached_end,
            groups=tuple(GroupPeriod(group=i, active_block_us=us) for i, us in enumerate(pool.group_us)),
            steps=cut.steps if leads else 0,
            step_us=cut.step_us if leads else 0,
        )

    def _settle_requests(
        self, cut: Cut, rows: dict[tuple[str, Dimensions], Row], uses: dict[Request, list[int]]
    ) -> None:
        parts: dict[Request | Dimensions, int] = {}
        lead = cut.lead
        if cut.system_compute:
            parts[SYSTEM_DIMS] = cut.system_compute
        if cut.stray_compute:
            parts[STRAY_DIMS] = cut.stray_compute
        for request, compute, output in in_slices(cut.steady, self.rest, LIGHT_ROWS):
            parts[request] = _progress(
                request, _row(rows, lead, request.dims), compute + cut.weight, output + cut.ended_steps
            )
        for request, compute, output, counts in in_slices(cut.touched, self.rest):
            row = _row(rows, lead, request.dims)
            parts[request] = parts.get(request, 0) + _progress(request, row, compute, output)
            if counts is not None:
                row.add_counts(counts)
                sums = request.sums
                sums.counts = [old + more for old, more in zip(sums.counts, counts, strict=True)]
        for request in cut.complete:
            _row(rows, lead, request.dims)
        _settle_steps(cut, rows, uses, parts, self.rest)


def _settle_steps(
    cut: Cut,
    rows: dict[tuple[str, Dimensions], Row],
    uses: dict[Request, list[int]],
    parts: dict[Request | Dimensions, int],
    rest: Callable[[], None],
) -> None:
    """Law 3: the period's step time over those who computed, by largest remainder."""
    if not cut.step_us:
        return
    tree = Tree(parts, rest)
    sessions, units = tree.settle(cut.step_us, [parts[member] for member in tree.members])
    for dims, share in in_slices(sessions.items(), rest, LIGHT_ROWS):
        _row(rows, cut.lead, dims).compute = share
    for member, share in in_slices(zip(tree.members, units, strict=True), rest, LIGHT_ROWS):
        if isinstance(member, Request) and share:
            member.sums.compute += share
            uses.setdefault(member, [0, 0])[1] = share


def _exact_shares(pool: PoolCut, t: int, rest: Callable[[], None]) -> dict[Request, list[int]]:
    """Fixed-point shares of the period by request: block, unfilled, look-ahead and held slot time."""
    nodes = settled_nodes(pool.nodes, in_slices([table[3] for table in pool.tables], rest, LIGHT_ROWS))
    parts: dict[Request, list[int]] = {}
    fallen = pool.ticks[0] * t + pool.ticks[1]
    for (
        table,
        own,
        acc,
        leaves,
        shared,
        unfilled,
        u_acc,
        falls,
        ahead,
        a_acc,
        a_falls,
        s_unf,
        s_ahead,
    ) in in_slices(pool.tables, rest, LIGHT_ROWS):
        held = own * t + acc
        active = (held << SHIFT) + shared
        # What is stored is less all own slots.
        empty = ((held * table.size + unfilled * t + u_acc - falls * fallen) << SHIFT) + s_unf
        coming = ((ahead * t + a_acc - a_falls * fallen) << SHIFT) + s_ahead
        for leaf in leaves:
            more = nodes[leaf]
            active += more[0]
            empty += more[1]
            coming += more[2]
        done = table.done
        if not own and not leaves and done == (active, empty, coming):
            continue
        table.done = (active, empty, coming)
        request = table.holder
        assert isinstance(request, Request)
        active -= done[0]
        part = parts.get(request)
        if part is None:
            parts[request] = [active, empty - done[1], coming - done[2], active * table.size]
        else:
            part[0] += active
            part[1] += empty - done[1]
            part[2] += coming - done[2]
            part[3] += active * table.size
    return parts


def _progress(request: Request, row: Row, compute: int, output: int) -> int:
    """Book a request's output since the last boundary in its row; returns its computing time since then."""
    sums = request.sums
    row.output += output - sums.output_done
    sums.output += output - sums.output_done
    sums.output_done = output
    since = compute - sums.compute_done
    sums.compute_done = compute
    return since


def _row(rows: dict[tuple[str, Dimensions], Row], pool: str, dims: Dimensions) -> Row:
    row = rows.get((pool, dims))
    if row is None:
        row = rows[pool, dims] = Row()
    return row


def _record(request: Request, anchor: int, lead: str) -> RequestRecord:
    assert request.ended_t is not None
    assert request.outcome is not None
    # It is over, and without the cycle through its tables it goes at once, not when garbage is collected.
    request.tables = []
    settled = request.sums
    return RequestRecord(
        request=travelling(request.id),
        parent=travelling(request.parent) if request.parent is not None else None,
        dims=request.dims,
        pool=lead,
        outcome=request.outcome,
        finish_reason=request.finish_reason,
        prompt_tokens=request.prompt,
        tokens=tokens_of(settled.counts, settled.output),
        preemptions=preemptions_of(settled.counts),
        holding=holding_of(settled.holdings.get(lead, (0, 0, 0, 0))),
        compute_us=settled.compute,
        peak_blocks=request.peak_blocks,
        arrived_us=anchor + request.arrived_t,
        scheduled_us=_wall(anchor, request.scheduled_t),
        first_token_us=_wall(anchor, request.first_token_t),
        last_token_us=_wall(anchor, request.last_token_t),
        ended_us=anchor + request.ended_t,
        uses=tuple(
            PeriodUse(start_us=start, active_block_us=active, compute_us=compute)
            for start, active, compute in settled.uses
        ),
        other_holdings=tuple(
            PoolHolding(pool=pool, holding=holding_of(sums))
            for pool, sums in sorted(settled.holdings.items())
            if pool != lead
        ),
    )


def _wall(anchor: int, t: int | None) -> int | None:
    return None if t is None else anchor + t
