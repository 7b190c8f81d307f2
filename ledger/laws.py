"""The laws of docs/accounts.md, as far as one batch shows them by itself; the rest is audited on what is stored.

Pure: a batch in, the first breach out. Nothing is repaired here: a batch that breaks a law is refused whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ledger.core.records import PERIOD_US, Batch, Dimensions, Outcome, PoolPeriod, RequestRecord
from ledger.errors import Refusal
from ledger.refusals import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator


def breach(batch: Batch) -> Refusal | None:
    """The first law that ``batch`` breaks, with the figures that show it; None where it keeps them all."""
    return next(_breaches(batch), None)


def _breaches(batch: Batch) -> Iterator[Refusal]:
    yield from _period(batch)
    yield from _duplicates(batch)
    yield from _events(batch)
    pools = {pool.pool: pool for pool in batch.pools}
    for pool in batch.pools:
        yield from _pool(batch, pool)
    yield from _sessions(batch, pools)
    if batch.standing is not None:
        yield from _standing(batch, pools)
    for admission in batch.admissions:
        if admission.arrived_us > batch.end_us:
            yield _refusal(Reason.BAD_ORDER, f"request {admission.request!r} arrived after the batch's end")
    for record in batch.requests:
        yield from _request(batch, record)
    for histogram in batch.histograms:
        if (held := sum(count for _, count in histogram.buckets)) > histogram.count:
            detail = f"histogram {histogram.name!r} holds {held} values in buckets and counts {histogram.count}"
            yield _refusal(Reason.HISTOGRAM_SUM, detail)


def _refusal(reason: Reason, detail: str) -> Refusal:
    return Refusal(reason=reason, detail=detail)


def _period(batch: Batch) -> Iterator[Refusal]:
    """A period has a length, lies within one cell of the 15-second grid, and after its boot."""
    start, end = batch.start_us, batch.end_us
    if end < start or (end == start and (batch.pools or batch.sessions)):
        yield _refusal(Reason.BAD_PERIOD, f"ends at {end}, which is not after its start {start}")
    elif end > (start // PERIOD_US + 1) * PERIOD_US:
        yield _refusal(Reason.BAD_PERIOD, f"[{start}, {end}) crosses a multiple of {PERIOD_US} µs")


def _duplicates(batch: Batch) -> Iterator[Refusal]:
    checked: tuple[tuple[str, list[object]], ...] = (
        ("pool", [row.pool for row in batch.pools]),
        ("session row", [(row.pool, row.dims) for row in batch.sessions]),
        ("standing count", [(row.pool, row.dims) for row in batch.standing or ()]),
        ("admission", [row.request for row in batch.admissions]),
        ("request record", [row.request for row in batch.requests]),
        ("histogram", [(row.name, row.labels) for row in batch.histograms]),
    )
    for kind, keys in checked:
        if len(set(keys)) == len(keys):
            continue
        for key, times in Counter(keys).items():
            if times > 1:
                yield _refusal(Reason.DUPLICATE_ROW, f"{kind} {key} stands {times} times in the batch")


def _events(batch: Batch) -> Iterator[Refusal]:
    for pool, at_us in [(event.pool, event.at_us) for event in batch.opens] + [
        (event.pool, event.at_us) for event in batch.closes
    ]:
        if not batch.start_us <= at_us <= batch.end_us:
            yield _refusal(Reason.BAD_ORDER, f"pool {pool!r} opens or closes at {at_us}, outside the batch")
    for opened in batch.opens:
        if not opened.groups:
            yield _refusal(Reason.MISSING_FIELD, f"pool {opened.pool!r} opens without a group")
    # A close goes first at an instant: one pool may hand over to the next.
    changes = [(opened.at_us, 1, opened.pool) for opened in batch.opens if opened.paying]
    changes += [(closed.at_us, 0, closed.pool) for closed in batch.closes]
    paying: set[str] = set()
    for _, opens, pool in sorted(changes):
        if opens:
            paying.add(pool)
        else:
            paying.discard(pool)
        if len(paying) > 1:
            yield _refusal(Reason.TWO_PAYING, f"pools {sorted(paying)} carry money at once; one of an engine may")


def _pool(batch: Batch, pool: PoolPeriod) -> Iterator[Refusal]:
    """Law 1, over the time in which the pool was open within the batch."""
    total = pool.active_block_us + pool.cached_block_us + pool.free_block_us
    capacity = _capacity_block_us(batch, pool, total)
    if total != capacity:
        detail = f"pool {pool.pool!r}: active + cached + free = {total}, blocks x length = {capacity} block-µs"
        yield _refusal(Reason.POOL_SUM, detail)
    opened = [(event.at_us, event.blocks) for event in batch.opens if event.pool == pool.pool]
    if opened and max(opened)[1] != pool.blocks:
        detail = f"pool {pool.pool!r} opens with {max(opened)[1]} blocks, its totals say {pool.blocks}"
        yield _refusal(Reason.POOL_SUM, detail)
    if pool.active_blocks_end + pool.cached_blocks_end > pool.blocks:
        detail = f"pool {pool.pool!r} ends with {pool.active_blocks_end} + {pool.cached_blocks_end} of {pool.blocks}"
        yield _refusal(Reason.POOL_SUM, f"{detail} blocks")
    if pool.groups:
        held = sum(group.active_block_us for group in pool.groups)
        if held != pool.active_block_us:
            detail = f"pool {pool.pool!r}: its groups held {held}, the pool {pool.active_block_us} block-µs"
            yield _refusal(Reason.GROUP_SUM, detail)
    if pool.step_us > batch.end_us - batch.boot.started_us:
        detail = f"pool {pool.pool!r}: steps of {pool.step_us} µs, longer than the boot has lasted"
        yield _refusal(Reason.STEP_SUM, detail)


def _capacity_block_us(batch: Batch, pool: PoolPeriod, total: int) -> int:
    """``blocks * length``: a pool counts from its opening to its closing within the batch."""
    events = [(opened.at_us, 1, opened.blocks) for opened in batch.opens if opened.pool == pool.pool]
    events += [(closed.at_us, 0, 0) for closed in batch.closes if closed.pool == pool.pool]
    events.sort()
    is_open, since, blocks, capacity, carried_us = True, batch.start_us, pool.blocks, 0, 0
    if events and events[0][1]:
        is_open = False
    elif len(events) > 1:
        # It was open before, closes and opens again: with how many blocks it came in is not in this batch.
        carried_us = events[0][0] - since
        is_open, since = False, events.pop(0)[0]
    for at, opens, count in events:
        capacity += (at - since) * blocks if is_open else 0
        is_open, since, blocks = bool(opens), at, count or blocks
    capacity += (batch.end_us - since) * blocks if is_open else 0
    rest = total - capacity
    return total if carried_us and rest >= 0 and rest % carried_us == 0 else capacity + carried_us * pool.blocks


def _sessions(batch: Batch, pools: dict[str, PoolPeriod]) -> Iterator[Refusal]:
    """Laws 2 and 3: what sessions have sums to what the pool has."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    for row in batch.sessions:
        found = sums[row.pool]
        found[0] += row.holding.active_block_us
        found[1] += row.holding.unfilled_slot_us
        found[2] += row.compute_us
        found[3] += row.cached_block_us
        found[4] += row.cached_blocks_end
    for name in sums.keys() - pools.keys():
        yield _refusal(Reason.UNKNOWN_POOL, f"a session has a row of pool {name!r}, which has no totals here")
    for name, pool in pools.items():
        active, unfilled, compute, cached, cached_end = sums[name]
        for what, have, total in (
            ("active block-µs", active, pool.active_block_us),
            ("unfilled slot-µs", unfilled, pool.unfilled_slot_us),
        ):
            if have != total:
                yield _refusal(Reason.SESSION_SUM, f"pool {name!r}: sessions have {have} {what}, the pool {total}")
        # The cached time of sessions without a row is the receiver's to work out, so the sum may fall short.
        for what, have, most in (
            ("cached block-µs", cached, pool.cached_block_us),
            ("cached blocks at the end", cached_end, pool.cached_blocks_end),
        ):
            if have > most:
                yield _refusal(Reason.SESSION_SUM, f"pool {name!r}: sessions have {have} {what}, the pool {most}")
        if compute != pool.step_us:
            detail = f"pool {name!r}: sessions have {compute} µs of compute, its steps {pool.step_us}"
            yield _refusal(Reason.STEP_SUM, detail)


def _standing(batch: Batch, pools: dict[str, PoolPeriod]) -> Iterator[Refusal]:
    counts: defaultdict[str, dict[Dimensions, int]] = defaultdict(dict)
    for row in batch.standing or ():
        counts[row.pool][row.dims] = row.cached_blocks
    for name in counts.keys() - pools.keys():
        yield _refusal(Reason.UNKNOWN_POOL, f"standing counts of pool {name!r}, which has no totals here")
    for name, pool in pools.items():
        total = sum(counts[name].values())
        if total != pool.cached_blocks_end:
            detail = f"pool {name!r}: standing counts sum to {total}, {pool.cached_blocks_end} blocks are cached"
            yield _refusal(Reason.STANDING_SUM, detail)
    for session in batch.sessions:
        standing = counts[session.pool].get(session.dims, 0)
        if standing != session.cached_blocks_end:
            detail = f"a session of tenant {session.dims.tenant!r} ends with {session.cached_blocks_end} cached blocks"
            yield _refusal(Reason.STANDING_SUM, f"{detail} in its row and {standing} in its standing count")


def _request(batch: Batch, record: RequestRecord) -> Iterator[Refusal]:
    """Law 4, and that a record is the sum of its periods."""
    name, tokens = record.request, record.tokens
    if record.outcome is Outcome.LOST:
        yield _refusal(Reason.DERIVED_OUTCOME, f"request {name!r} is said to be lost; that is derived, never sent")
    classified = tokens.computed + tokens.cached_own + tokens.cached_others + tokens.transferred + tokens.unprocessed
    if classified != record.prompt_tokens:
        detail = f"request {name!r}: its prompt has {record.prompt_tokens} tokens, {classified} are classified"
        yield _refusal(Reason.PROMPT_SUM, detail)
    if tokens.rejected > tokens.drafted:
        detail = f"request {name!r}: {tokens.rejected} drafts rejected of {tokens.drafted}"
        yield _refusal(Reason.BAD_TOKENS, detail)
    stamps = (record.scheduled_us, record.first_token_us, record.last_token_us)
    order = [record.arrived_us, *(stamp for stamp in stamps if stamp is not None), record.ended_us, batch.end_us]
    if order != sorted(order):
        yield _refusal(Reason.BAD_ORDER, f"request {name!r}: arrival, milestones, end and batch's end are not in order")
    starts = [use.start_us for use in record.uses]
    if starts != sorted(set(starts)):
        yield _refusal(Reason.BAD_ORDER, f"request {name!r}: its periods are not in order, each once")
    active = sum(use.active_block_us for use in record.uses)
    compute = sum(use.compute_us for use in record.uses)
    if (active, compute) != (record.holding.active_block_us, record.compute_us):
        detail = f"request {name!r}: periods sum to {active} block-µs and {compute} µs of compute, the record says"
        yield _refusal(Reason.USE_SUM, f"{detail} {record.holding.active_block_us} and {record.compute_us}")
