"""Builders of settlement inputs for tests: an engine with one pool, its hours in whole or cut periods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ledger.core.allocation import (
    Allocation,
    AssetTerms,
    BootFacts,
    IntervalInputs,
    Kind,
    PeriodFacts,
    PriceSpan,
    ShareSpan,
    Terms,
)
from ledger.core.records import (
    PERIOD_US,
    Boot,
    Dimensions,
    Group,
    Holding,
    PoolClose,
    PoolOpen,
    PoolPeriod,
    SessionPeriod,
    StandingCount,
)

HOUR = 3_600_000_000
MINUTE = 60_000_000
T0 = 1_793_664_000_000_000  # 2026-11-03T00:00:00Z
USD = 1_000_000_000
BLOCK_SIZE = 16

Held = Mapping[Dimensions, tuple[int, int]]
"""Blocks of each session, active and cached, held all through a period."""


def tenant(name: str, session: str = "-") -> Dimensions:
    return Dimensions(tenant=name, session=session)


def period(
    seq: int,
    start_us: int,
    blocks: int,
    held: Held,
    *,
    end_us: int | None = None,
    compute: Mapping[Dimensions, int] | None = None,
    quiet: Held | None = None,
    standing: bool = False,
    gap: bool = False,
    boot_id: str = "boot-a",
) -> PeriodFacts:
    """A period in which ``held`` have rows and ``quiet`` merely own cached blocks; ``compute`` in µs."""
    end = start_us + PERIOD_US if end_us is None else end_us
    length = end - start_us
    compute = compute or {}
    quiet = quiet or {}
    active = sum(a for a, _ in held.values())
    cached = sum(c for _, c in held.values()) + sum(c for _, c in quiet.values())
    rows = tuple(
        SessionPeriod(
            pool="kv",
            dims=dims,
            holding=Holding(active_block_us=a * length, held_slot_us=a * length * BLOCK_SIZE),
            cached_block_us=c * length,
            cached_blocks_end=c,
            compute_us=compute.get(dims, 0),
        )
        for dims, (a, c) in held.items()
    )
    counts = [(dims, c) for dims, (_, c) in (*held.items(), *quiet.items()) if c]
    return PeriodFacts(
        boot_id=boot_id,
        seq=seq,
        start_us=start_us,
        end_us=end,
        pool=PoolPeriod(
            pool="kv",
            blocks=blocks,
            active_block_us=active * length,
            cached_block_us=cached * length,
            free_block_us=(blocks - active - cached) * length,
            active_blocks_end=active,
            cached_blocks_end=cached,
            steps=sum(1 for us in compute.values() if us),
            step_us=sum(compute.values()),
        ),
        sessions=rows,
        standing=tuple(StandingCount(pool="kv", dims=d, cached_blocks=c) for d, c in sorted(counts))
        if standing
        else None,
        gap_before=gap,
    )


def stretch(start_us: int, end_us: int, blocks: int, held: Held, *, seq: int = 1, **more: object) -> list[PeriodFacts]:
    """Periods of constant holdings on the grid over ``[start_us, end_us)``; the first and last may be cut."""
    found: list[PeriodFacts] = []
    while start_us < end_us:
        stop = min(end_us, start_us - start_us % PERIOD_US + PERIOD_US)
        found.append(period(seq + len(found), start_us, blocks, held, end_us=stop, **more))  # type: ignore[arg-type]
        start_us = stop
    return found


def boot(
    opened_us: int | None,
    blocks: int,
    *,
    started_us: int | None = None,
    closed_us: int | None = None,
    last_end_us: int | None = None,
    reason: str = "shutdown",
    boot_id: str = "boot-a",
) -> BootFacts:
    started = started_us if started_us is not None else opened_us
    assert started is not None
    opens = ()
    if opened_us is not None:
        opens = (PoolOpen(pool="kv", at_us=opened_us, blocks=blocks, groups=(Group(block_size=BLOCK_SIZE),)),)
    return BootFacts(
        boot=Boot(boot_id=boot_id, anchor_us=started, started_us=started),
        opens=opens,
        closes=() if closed_us is None else (PoolClose(pool="kv", at_us=closed_us, reason=reason),),
        last_end_us=last_end_us if last_end_us is not None else closed_us,
    )


def asset(
    name: str,
    *prices: tuple[int, int | None],
    shares: Iterable[tuple[str, int, int, int | None]] = (("e", 1_000_000, T0 - HOUR, None),),
) -> AssetTerms:
    """``prices``: (from, nanos an hour), each until the next; ``shares``: (engine, ppm, from, to)."""
    ends = [start for start, _ in prices[1:]]
    return AssetTerms(
        asset_id=name,
        prices=tuple(
            PriceSpan(valid_from_us=start, valid_to_us=end, nanos_per_hour=nanos)
            for (start, nanos), end in zip(prices, [*ends, None], strict=True)
        ),
        shares=tuple(ShareSpan(engine=e, share_ppm=ppm, valid_from_us=a, valid_to_us=b) for e, ppm, a, b in shares),
    )


def inputs(
    assets: Sequence[AssetTerms],
    boots: Sequence[BootFacts] = (),
    periods: Sequence[PeriodFacts] = (),
    *,
    engine: str | None = "e",
    start_us: int = T0,
    end_us: int = T0 + HOUR,
    terms: Terms | None = None,
) -> IntervalInputs:
    return IntervalInputs(
        engine=engine,
        start_us=start_us,
        end_us=end_us,
        assets=tuple(assets),
        terms=terms or Terms(),
        boots=tuple(boots),
        periods=tuple(periods),
    )


def amounts(allocation: Allocation, *, other: bool = False) -> dict[str, int]:
    """Lines as ``account`` or ``tenant/kind`` to nanos."""
    lines = allocation.other_lines if other else allocation.lines
    return {
        f"{line.tenant}/{line.kind.value}" if line.kind is not Kind.NONE else line.account.value: line.amount_nanos
        for line in lines
    }
