"""The statement of a month as data: the whole bill, on exactly one account each nano-unit.

Invariants: the lines sum to ``bill_nanos``; with a tenant both are the tenant's; memo lines may overlap and are in no
sum; what was booked for other months stands apart as adjustments. Pure: rows in, a record out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ledger.core.periods import format_time, parse_time
from ledger.core.scraped_time import SCRAPED_POOL
from ledger.core.settlement import Basis
from ledger.store.book_reads import POOL_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.store.book_reads import BookedLine, MemoSum, PoolSum
    from ledger.store.books import Settlement

MEMO_UNITS = {
    "cached": "block_us",
    "unfilled": "slot_us",
    "aborted": "block_us",
    "abandoned": "block_us",
    "recomputed": "tokens",
    "rejected": "tokens",
}
"""Waste by kind, in the order it is shown, with the unit of its quantity."""

MEMO_BASES = {
    "cached": "the tenant's cached lines",
    "unfilled": "active cost x unfilled / held slots, by interval",
    "aborted": "active cost of requests that were aborted, where it arose",
    "abandoned": "active cost of requests that were aborted after their patience, where it arose",
    "recomputed": "compute cost x recomputed / scheduled tokens, by interval; no money where kv_share is 1",
    "rejected": "compute cost x rejected / scheduled tokens, by interval; no money where kv_share is 1",
}
"""What each memo line's amount is a part of."""


HOOK, SCRAPED = "hook", "scraped"
"""How an engine's time is known."""

ENGINE_TIME = ("observed_us", "step_us", "active_block_us", "cached_block_us", "free_block_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """A sum on one account; ``asset_us`` is the GPU time behind a state of time (None for tenants)."""

    account: str
    kind: str
    tenant: str
    amount_nanos: int
    asset_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoLine:
    """Waste of one kind; overlaps with others and is summed with none."""

    memo: str
    tenant: str
    quantity: int
    amount_nanos: int | None

    @property
    def unit(self) -> str:
        return MEMO_UNITS[self.memo]

    @property
    def base(self) -> str:
        return MEMO_BASES[self.memo]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """Booked in this month for ``month``, which was closed before."""

    month: str
    account: str
    kind: str
    tenant: str
    amount_nanos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTime:
    """How busy an engine was beside how full: ``step_us`` of ``observed_us``, block time of the paying pool.

    ``method`` is ``hook``, or ``scraped`` where it was looked at from outside: then nothing is known of its blocks, and
    what was busy had running requests.
    """

    engine: str
    method: str = HOOK
    observed_us: int
    step_us: int
    active_block_us: int
    cached_block_us: int
    free_block_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A month's statement. ``provisional_from_us`` is None where all of it is booked; ``digest`` once it is closed."""

    month: str
    timezone: str
    currency: str
    basis: Basis
    kv_share_ppm: int
    bill_nanos: int
    provisional_from_us: int | None
    tenant: str | None
    digest: str
    lines: tuple[StatementLine, ...]
    memos: tuple[MemoLine, ...]
    adjustments: tuple[Adjustment, ...]
    engines: tuple[EngineTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What a statement says of itself before any figure."""

    month: str
    timezone: str
    currency: str
    basis: Basis
    kv_share_ppm: int
    provisional_from_us: int | None = None


def make_statement(
    heading: Heading,
    *,
    booked: Iterable[BookedLine],
    memos: Iterable[MemoSum],
    pools: Iterable[PoolSum],
    provisional: Iterable[Settlement] = (),
) -> Statement:
    """Put a month's figures together, booked and provisional ones."""
    figures = _Figures(month=heading.month)
    for row in booked:
        figures.add_booked(row)
    for memo in memos:
        figures.add_memo(memo.memo, memo.tenant, memo.quantity, memo.amount_nanos)
    for pool in pools:
        if pool.paying:
            figures.add_time(pool.engine, pool.pool, pool.values)
    for made in provisional:
        figures.add_settlement(made, heading.basis)
    lines, waste, times, adjustments = figures.lines, figures.waste, figures.times, figures.adjustments
    order = list(MEMO_UNITS)
    return Statement(
        month=heading.month,
        timezone=heading.timezone,
        currency=heading.currency,
        basis=heading.basis,
        kv_share_ppm=heading.kv_share_ppm,
        bill_nanos=sum(amount for amount, _ in lines.values()),
        provisional_from_us=heading.provisional_from_us,
        tenant=None,
        digest="",
        lines=tuple(
            StatementLine(account=account, kind=kind, tenant=tenant, amount_nanos=amount, asset_us=time)
            for (account, kind, tenant), (amount, time) in sorted(lines.items(), key=lambda item: _line_order(item[0]))
            if amount or time
        ),
        memos=tuple(
            MemoLine(memo=memo, tenant=tenant, quantity=quantity, amount_nanos=amount)
            for (memo, tenant), (quantity, amount) in sorted(
                waste.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
            )
            if quantity or amount
        ),
        adjustments=tuple(adjustments),
        engines=tuple(
            EngineTime(
                engine=engine,
                method=method,
                **{name: sums[POOL_COLUMNS.index(name)] for name in ENGINE_TIME},
            )
            for (engine, method), sums in sorted(times.items())
        ),
    )


@dataclass(slots=True)
class _Figures:
    """Running sums of a statement."""

    month: str
    lines: dict[tuple[str, str, str], tuple[int, int | None]] = field(default_factory=dict)
    waste: dict[tuple[str, str], tuple[int, int | None]] = field(default_factory=dict)
    times: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    adjustments: list[Adjustment] = field(default_factory=list)

    def add_line(self, key: tuple[str, str, str], amount_nanos: int, asset_us: int | None) -> None:
        amount, time = self.lines.get(key, (0, None))
        self.lines[key] = (amount + amount_nanos, time if asset_us is None else (time or 0) + asset_us)

    def add_booked(self, row: BookedLine) -> None:
        if row.month == self.month:
            self.add_line((row.account, row.kind, row.tenant), row.amount_nanos, row.asset_us)
        elif row.amount_nanos:
            self.adjustments.append(
                Adjustment(
                    month=row.month,
                    account=row.account,
                    kind=row.kind,
                    tenant=row.tenant,
                    amount_nanos=row.amount_nanos,
                )
            )

    def add_memo(self, memo: str, tenant: str, quantity: int, amount_nanos: int | None) -> None:
        had, amount = self.waste.get((memo, tenant), (0, None))
        self.waste[memo, tenant] = (had + quantity, amount if amount_nanos is None else (amount or 0) + amount_nanos)

    def add_time(self, engine: str, pool: str, values: Iterable[int]) -> None:
        key = (engine, SCRAPED if pool == SCRAPED_POOL else HOOK)
        known = self.times.get(key)
        self.times[key] = list(values) if known is None else [a + b for a, b in zip(known, values, strict=True)]

    def add_settlement(self, made: Settlement, basis: Basis) -> None:
        for of, line in made.lines():
            if of is basis:
                self.add_line((line.account.value, line.kind.value, line.tenant), line.amount_nanos, line.asset_us)
        for memo in made.memos:
            if memo.basis is basis:
                self.add_memo(memo.memo, memo.tenant, memo.quantity, memo.amount_nanos)
        for rollup in made.pools:
            if rollup.paying and made.engine is not None:
                self.add_time(made.engine, rollup.pool, rollup.values())


def of_tenant(statement: Statement, tenant: str) -> Statement:
    """The tenant's lines only, and their sum as the bill."""
    lines = tuple(line for line in statement.lines if line.account == "tenant" and line.tenant == tenant)
    return replace(
        statement,
        tenant=tenant,
        lines=lines,
        bill_nanos=sum(line.amount_nanos for line in lines),
        memos=tuple(memo for memo in statement.memos if memo.tenant == tenant),
        adjustments=tuple(a for a in statement.adjustments if a.account == "tenant" and a.tenant == tenant),
        engines=(),
    )


def as_value(statement: Statement) -> dict[str, Any]:
    """The statement as JSON has it; the keys are documented in docs/cli.md and stable."""
    at_us = statement.provisional_from_us
    return {
        "month": statement.month,
        "timezone": statement.timezone,
        "currency": statement.currency,
        "basis": statement.basis.value,
        "kv_share": statement.kv_share_ppm / 1_000_000,
        "bill_nanos": statement.bill_nanos,
        "provisional_from": None if at_us is None else format_time(at_us),
        "tenant": statement.tenant,
        "digest": statement.digest or None,
        "lines": [
            {
                "account": line.account,
                "kind": line.kind,
                "tenant": line.tenant,
                "amount_nanos": line.amount_nanos,
                "asset_us": line.asset_us,
            }
            for line in statement.lines
        ],
        "memos": [
            {
                "memo": memo.memo,
                "tenant": memo.tenant,
                "quantity": memo.quantity,
                "unit": memo.unit,
                "amount_nanos": memo.amount_nanos,
                "base": memo.base,
            }
            for memo in statement.memos
        ],
        "adjustments": [
            {
                "month": a.month,
                "account": a.account,
                "kind": a.kind,
                "tenant": a.tenant,
                "amount_nanos": a.amount_nanos,
            }
            for a in statement.adjustments
        ],
        "engines": [
            {
                "engine": e.engine,
                "method": e.method,
                "observed_us": e.observed_us,
                "step_us": e.step_us,
                "active_block_us": e.active_block_us,
                "cached_block_us": e.cached_block_us,
                "free_block_us": e.free_block_us,
            }
            for e in statement.engines
        ],
    }


def from_value(value: dict[str, Any], *, digest: str) -> Statement:
    """The statement that :func:`as_value` wrote, with the digest under which it was closed."""
    at = value["provisional_from"]
    parsed = None if at is None else parse_time(at)
    assert parsed is None or isinstance(parsed, int), at
    return Statement(
        month=value["month"],
        timezone=value["timezone"],
        currency=value["currency"],
        basis=Basis(value["basis"]),
        kv_share_ppm=round(value["kv_share"] * 1_000_000),
        bill_nanos=value["bill_nanos"],
        provisional_from_us=parsed,
        tenant=value["tenant"],
        digest=digest,
        lines=tuple(StatementLine(**line) for line in value["lines"]),
        memos=tuple(
            MemoLine(memo=m["memo"], tenant=m["tenant"], quantity=m["quantity"], amount_nanos=m["amount_nanos"])
            for m in value["memos"]
        ),
        adjustments=tuple(Adjustment(**a) for a in value["adjustments"]),
        engines=tuple(EngineTime(**e) for e in value["engines"]),
    )


def _line_order(key: tuple[str, str, str]) -> tuple[bool, str, str, str]:
    """Tenants first, by name; then the other accounts."""
    account, kind, tenant = key
    return account != "tenant", tenant, account, kind
