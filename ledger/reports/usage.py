"""Who used what in a range of time: block time, tokens, compute and cost, by tenant, session, request, model or pool.

Invariants: settled intervals come from the roll-ups, the rest from facts by the functions that settle; sessions sum
to their tenant and requests to their session in every figure; what cannot be said of a request alone (its part in a
range that cuts it, the cache, requests that have not ended) is in its session's residual row, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ledger.core.periods import format_time, months_between, on_grid, period_end, period_start
from ledger.core.scraped_time import SCRAPED_POOL, SCRAPED_SESSION
from ledger.errors import UsageError
from ledger.intervals import Desk
from ledger.reports.requests import request_rows
from ledger.reports.usage_rows import CHARGES, TOKENS, Figures, UsageRow
from ledger.settle import Provisional, prepare, still_open
from ledger.store import book_reads, books, inputs, rollups, terms
from ledger.store.book_reads import POOL_COLUMNS, USAGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ledger.core.records import Dimensions
    from ledger.core.settlement import Basis
    from ledger.store.books import Settlement
    from ledger.store.database import Connection, Database


class By(StrEnum):
    """What a row is about."""

    TENANT = "tenant"
    SESSION = "session"
    REQUEST = "request"
    MODEL = "model"
    POOL = "pool"


KEYS: dict[By, tuple[str, ...]] = {
    By.TENANT: ("tenant",),
    By.SESSION: ("tenant", "session"),
    By.REQUEST: ("tenant", "session", "request", "engine", "outcome"),
    By.MODEL: ("model",),
    By.POOL: ("engine", "pool"),
}
"""The attributes of a row that name it."""

FIGURES = (
    "active_block_us",
    "cached_block_us",
    "cached_charged_block_us",
    "unfilled_slot_us",
    "compute_us",
    "weighted_milliunits",
    "active_nanos",
    "cached_nanos",
    "compute_nanos",
    *TOKENS,
)
"""The attributes of a row that are figures; of a request they are None where its part is not known."""

POOL_FIGURES = ("free_block_us", "capacity_block_us")
"""Further figures of a pool's row."""


def columns(by: By) -> tuple[str, ...]:
    """The attributes of the rows of a report, in the order of their JSON keys."""
    return (*KEYS[by], *FIGURES, *(POOL_FIGURES if by is By.POOL else ()))


def usage(
    db: Database,
    *,
    start_us: int,
    end_us: int,
    by: By = By.TENANT,
    basis: Basis | None = None,
    now_us: int | None = None,
    known: Sequence[Provisional] = (),
) -> tuple[UsageRow, ...]:
    """Usage over ``[start_us, end_us)``, dearest first. Ranges that lie end to end sum to their whole.

    Costs are those of each month's booked basis where none is given. Block figures are of pools that carry money,
    save by pool. By request, those that no engine answered for are ``lost`` once their boot has ended at ``now_us``
    (None: ``end_us``). ``known`` is not worked out again where it is just what is open of the range, and nothing is
    settled since. Raises UsageError for an end off the 15-second grid: within a period nothing is known of when.
    """
    for end in (start_us, end_us):
        if not on_grid(end):
            raise UsageError(
                f"{format_time(end)} is off the 15-second grid of the facts; "
                f"{format_time(period_start(end))} and {format_time(period_end(end))} are on it"
            )
    if start_us >= end_us:
        raise UsageError(f"the range [{start_us}, {end_us}) has no length; give a later end")
    with db.read() as snapshot:
        reading = _Reading(snapshot, start_us, end_us, basis, known)
        reading.read()
        if by is By.POOL:
            rows = reading.pool_rows()
        elif by is By.REQUEST:
            rows = request_rows(
                snapshot,
                reading.settled,
                reading.open,
                reading.session_figures(),
                span=(start_us, end_us),
                now_us=end_us if now_us is None else now_us,
            )
        else:
            rows = reading.rows(by)
    return tuple(sorted(rows, key=lambda row: (-row.cost_nanos, row.key(KEYS[by]))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Whole settled intervals ``[start_us, end_us)`` of one month, and the basis that is asked for."""

    start_us: int
    end_us: int
    basis: Basis


class _Reading:
    """Sums over a range, by engine, pool and dimension set."""

    def __init__(
        self, snapshot: Connection, start_us: int, end_us: int, basis: Basis | None, known: Sequence[Provisional]
    ) -> None:
        self._snapshot = snapshot
        self._known = known
        self._range = (start_us, end_us)
        self._basis = basis
        self._reader = inputs.PeriodReader(snapshot)
        self.settled: list[Stretch] = []
        self.open: list[tuple[Basis, Settlement]] = []
        self._sessions: dict[tuple[str, str, Dimensions], Figures] = {}
        self._pools: dict[tuple[str, str], list[int]] = {}
        self._paying: dict[tuple[str, str], bool] = {}
        self._costs: dict[tuple[str, Dimensions], Figures] = {}

    def read(self) -> None:
        ledger = terms.read_terms(self._snapshot)
        length_us = ledger.interval_us
        booked_us = books.settled_until(self._snapshot)
        settled_us = booked_us or 0
        known = still_open(self._known, booked_us)
        made_before = {(part.from_us, part.until_us): part.settlements for part in known}
        for month in months_between(*self._range, ledger.zone):
            first_us, last_us = ledger.month_bounds(str(month))
            start_us, end_us = max(first_us, self._range[0]), min(last_us, self._range[1])
            basis = self._basis or ledger.terms(str(month)).basis
            whole_us = -(-start_us // length_us) * length_us
            until_us = min(end_us, settled_us) // length_us * length_us
            if whole_us < until_us:
                self._add_stretch(Stretch(start_us=whole_us, end_us=until_us, basis=basis))
                cuts = [(start_us, whole_us), (until_us, end_us)]
            else:
                cuts = [(start_us, end_us)]
            for from_us, to_us in cuts:
                if from_us < to_us:
                    for made in made_before.get((from_us, to_us)) or self._prepared(str(month), from_us, to_us):
                        self._add_open(basis, made)

    def _prepared(self, month: str, from_us: int, to_us: int) -> Iterator[Settlement]:
        return prepare(self._snapshot, Desk(self._snapshot, month, to_us), from_us, to_us)

    def rows(self, by: By) -> list[UsageRow]:
        keys: dict[By, Callable[[Dimensions], UsageRow]] = {
            By.TENANT: lambda dims: UsageRow(tenant=dims.tenant),
            By.SESSION: lambda dims: UsageRow(tenant=dims.tenant, session=dims.session),
            By.MODEL: lambda dims: UsageRow(model=dims.model),
        }
        sums: dict[UsageRow, Figures] = {}
        for dims, figures in self.session_figures().items():
            sums.setdefault(keys[by](dims), Figures()).add(figures)
        return [figures.onto(row) for row, figures in sums.items()]

    def session_figures(self) -> dict[Dimensions, Figures]:
        """Figures of each dimension set in pools that carry money, with its costs."""
        found: dict[Dimensions, Figures] = {}
        for (engine, pool, dims), figures in self._sessions.items():
            if self._paying.get((engine, pool), False):
                found.setdefault(dims, Figures()).add(figures)
        for (_, dims), figures in self._costs.items():
            found.setdefault(dims, Figures()).add(figures)
        return found

    def pool_rows(self) -> list[UsageRow]:
        rows = []
        for (engine, pool), values in sorted(self._pools.items()):
            totals = dict(zip(POOL_COLUMNS, values, strict=True))
            figures = Figures()
            for (of_engine, of_pool, _), used in self._sessions.items():
                if (of_engine, of_pool) == (engine, pool):
                    figures.add(used)
            if self._paying[engine, pool]:
                for (of_engine, dims), costs in self._costs.items():
                    # An engine may have been known in both ways in the range: each has the costs of its own time.
                    if of_engine == engine and (dims.session == SCRAPED_SESSION) == (pool == SCRAPED_POOL):
                        figures.add(costs)
            # The pool's own totals are what its sessions sum to (law 2), and stand even where sessions are unknown.
            for name in ("active_block_us", "cached_block_us", "unfilled_slot_us"):
                figures.set(name, totals[name])
            capacity = totals["active_block_us"] + totals["cached_block_us"] + totals["free_block_us"]
            row = UsageRow(engine=engine, pool=pool if pool != SCRAPED_POOL else SCRAPED_SESSION)
            rows.append(figures.onto(row, free_block_us=totals["free_block_us"], capacity_block_us=capacity))
        return rows

    def _add_stretch(self, stretch: Stretch) -> None:
        self.settled.append(stretch)
        span = (stretch.start_us, stretch.end_us)
        used = book_reads.usage_sums(self._snapshot, *span)
        costs = book_reads.cost_sums(self._snapshot, *span, stretch.basis)
        dims = self._reader.dimensions([row.dims for row in used] + [cost[1] for cost in costs])
        for row in used:
            self._session(row.engine, row.pool, dims[row.dims]).add_columns(USAGE_COLUMNS, row.values)
        for pool in book_reads.pool_sums(self._snapshot, *span):
            self._pool(pool.engine, pool.pool, pool.values, paying=pool.paying)
        for group, number, kind, nanos in costs:
            self._cost(group.removeprefix("engine:"), dims[number]).add_named(CHARGES[kind], nanos)

    def _add_open(self, basis: Basis, made: Settlement) -> None:
        self.open.append((basis, made))
        if made.engine is None:
            return
        for pool in made.pools:
            self._pool(made.engine, pool.pool, pool.values(), paying=pool.paying)
            for session in pool.sessions:
                row = rollups.usage_hour(made.engine, pool.pool, made.start_us, 0, session)
                named = dict(zip(rollups.USAGE_HOUR, row, strict=True))
                values = tuple(named[name] for name in USAGE_COLUMNS)
                self._session(made.engine, pool.pool, session.dims).add_columns(USAGE_COLUMNS, values)
        for of, cost in made.session_costs():
            if of is basis:
                self._cost(made.engine, cost.dims).add_named(CHARGES[cost.kind.value], cost.amount_nanos)

    def _session(self, engine: str, pool: str, dims: Dimensions) -> Figures:
        return self._sessions.setdefault((engine, pool, dims), Figures())

    def _cost(self, engine: str, dims: Dimensions) -> Figures:
        return self._costs.setdefault((engine, dims), Figures())

    def _pool(self, engine: str, pool: str, values: tuple[int, ...], *, paying: bool) -> None:
        key = (engine, pool)
        known = self._pools.get(key)
        self._pools[key] = list(values) if known is None else [a + b for a, b in zip(known, values, strict=True)]
        self._paying[key] = self._paying.get(key, False) or paying
