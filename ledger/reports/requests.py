"""Requests within their session: what each used and cost, and one residual row for the rest.

Invariant: the rows of a session sum to the session, in every figure. Cost is divided by largest remainder in
proportion to what each request's uses cost exactly in their segments; a request that a range cuts has the block and
compute time of its periods, and no figure that is known of it as a whole only.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ledger.core.money import apportion, round_half_up
from ledger.core.records import Outcome
from ledger.core.settlement import Kind
from ledger.reports.usage_rows import TOKENS, Figures, UsageRow
from ledger.store import book_reads, books, inputs, lost, terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ledger.core.records import Dimensions
    from ledger.core.settlement import Basis, SegmentTerms
    from ledger.reports.usage import Stretch
    from ledger.store.book_reads import RequestRow
    from ledger.store.books import Settlement
    from ledger.store.database import Connection
    from ledger.store.lost import LostRequest

WHOLE = ("unfilled_slot_us", *TOKENS)
"""Figures that a record has for the request as a whole only."""

Place = tuple[str, int, "Dimensions"]
"""(engine, start of the interval, dimension set)."""


@dataclass(slots=True)
class _Cell:
    """A session in one interval: what it was charged and used, to be divided among its requests."""

    nanos: dict[str, int] = field(default_factory=dict)
    active_block_us: int = 0
    compute_us: int = 0


def request_rows(
    snapshot: Connection,
    settled: Sequence[Stretch],
    unsettled: Sequence[tuple[Basis, Settlement]],
    sessions: Mapping[Dimensions, Figures],
    *,
    span: tuple[int, int],
    now_us: int,
) -> list[UsageRow]:
    """The ended requests of ``span``, those that are lost at ``now_us``, and each session's residual row, if any."""
    ledger = terms.read_terms(snapshot)
    reader = inputs.PeriodReader(snapshot)
    cells = _settled_cells(snapshot, reader, settled) | _open_cells(unsettled)
    segments = _Segments(snapshot, unsettled)
    rows = list(book_reads.ended_requests(snapshot, *span))
    dims = reader.dimensions(row.dims for row in rows)
    requests = [(row, dims[row.dims]) for row in rows if row.uses or span[0] <= row.arrived_us < span[1]]

    starts = sorted({at_us for _, at_us, _ in cells})
    by_cell: dict[Place, dict[int, list[tuple[int, int, int]]]] = {}
    for index, (row, of) in enumerate(requests):
        for use in row.uses:
            at_us = _interval_of(starts, use[0], ledger.interval_us)
            by_cell.setdefault((row.engine, at_us, of), {}).setdefault(index, []).append(use)
    costs: list[dict[str, int]] = [{} for _ in requests]
    for place, uses in by_cell.items():
        cell = cells.get(place)
        if cell is not None:
            _divide(cell, uses, segments.of(place[0], place[1]), costs)

    weight = ledger.terms(ledger.month(span[0])).active_weight_milli
    left = {of: _copy(figures) for of, figures in sessions.items()}
    found = []
    for index, (row, of) in enumerate(requests):
        figures = _figures(row, costs[index], span, weight)
        rest = left.setdefault(of, Figures())
        for name, value in figures.items():
            rest.subtract(name, value)
        found.append(
            UsageRow(
                tenant=of.tenant,
                session=of.session,
                request=row.request,
                outcome=row.outcome,
                model=of.model,
                engine=row.engine,
                **figures,
            )
        )
    unanswered = [_lost(each) for each in lost.lost_requests(snapshot, now_us, span=span)]
    return [*found, *unanswered, *_residuals(left)]


def _lost(request: LostRequest) -> UsageRow:
    """A request whose engine ended without a word of it: what it used is in its session's residual."""
    of = request.admission.dims
    return UsageRow(
        tenant=of.tenant,
        session=of.session,
        request=request.admission.request,
        outcome=Outcome.LOST.value,
        model=of.model,
        engine=request.engine,
    )


def _figures(row: RequestRow, costs: Mapping[str, int], span: tuple[int, int], weight: int) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "active_block_us": sum(use[1] for use in row.uses),
        "compute_us": sum(use[2] for use in row.uses),
        "active_nanos": costs.get(Kind.ACTIVE, 0),
        "compute_nanos": costs.get(Kind.COMPUTE, 0),
    }
    if span[0] <= row.arrived_us and row.ended_us <= span[1]:
        figures |= {name: row.values[name] for name in WHOLE}
        figures["weighted_milliunits"] = round_half_up(row.values["held_slot_us"] * weight, 1_000_000)
    return figures


def _residuals(left: Mapping[Dimensions, Figures]) -> list[UsageRow]:
    sums: dict[tuple[str, str], Figures] = {}
    for of, figures in left.items():
        sums.setdefault((of.tenant, of.session), Figures()).add(figures)
    return [
        figures.onto(UsageRow(tenant=tenant, session=session))
        for (tenant, session), figures in sorted(sums.items())
        if figures.any()
    ]


def _divide(
    cell: _Cell,
    uses: Mapping[int, Sequence[tuple[int, int, int]]],
    segments: Sequence[SegmentTerms],
    costs: list[dict[str, int]],
) -> None:
    """Give each request its part of the session's costs in the interval; the residual keeps the rest."""
    for kind, column, held_us in ((Kind.ACTIVE, 1, cell.active_block_us), (Kind.COMPUTE, 2, cell.compute_us)):
        nanos = cell.nanos.get(kind.value, 0)
        if not nanos:
            continue
        used = {index: sum(use[column] for use in found) for index, found in uses.items()}
        exact = {index: _exact(found, segments, kind) for index, found in uses.items()}
        rest_us = held_us - sum(used.values())
        if sum(exact.values()):
            parts = [*exact.values(), max(nanos - sum(exact.values()), Fraction(0)) if rest_us > 0 else Fraction(0)]
        else:
            parts = [*(Fraction(us) for us in used.values()), Fraction(max(rest_us, 0))]
        if not sum(parts):
            continue
        for index, part in zip(exact, apportion(nanos, parts, range(len(parts))), strict=False):
            costs[index][kind.value] = costs[index].get(kind.value, 0) + part


def _exact(uses: Iterable[tuple[int, int, int]], segments: Sequence[SegmentTerms], kind: Kind) -> Fraction:
    total = Fraction(0)
    for at_us, block_us, compute_us in uses:
        for segment in segments:
            if segment.start_us <= at_us < segment.end_us and segment.observed_us:
                if kind is Kind.ACTIVE and segment.blocks:
                    total += Fraction(segment.kv_nanos * block_us, segment.blocks * segment.observed_us)
                elif kind is Kind.COMPUTE:
                    total += Fraction(segment.compute_nanos * compute_us, max(segment.observed_us, segment.step_us))
    return total


class _Segments:
    """The segments of an engine's interval, settled or not."""

    def __init__(self, snapshot: Connection, unsettled: Sequence[tuple[Basis, Settlement]]) -> None:
        self._snapshot = snapshot
        self._known: dict[tuple[str, int], Sequence[SegmentTerms]] = {
            (made.engine, made.start_us): made.allocation.segments for _, made in unsettled if made.engine is not None
        }

    def of(self, engine: str, start_us: int) -> Sequence[SegmentTerms]:
        key = (engine, start_us)
        if key not in self._known:
            self._known[key] = books.segment_terms(self._snapshot, f"engine:{engine}", start_us)
        return self._known[key]


def _settled_cells(snapshot: Connection, reader: inputs.PeriodReader, settled: Sequence[Stretch]) -> dict[Place, _Cell]:
    cells: dict[Place, _Cell] = {}
    for stretch in settled:
        span = (stretch.start_us, stretch.end_us)
        used = book_reads.hour_usage(snapshot, *span)
        costs = book_reads.hour_costs(snapshot, *span, stretch.basis)
        dims = reader.dimensions([number for _, _, number in (*used, *costs)])
        for (engine, at_us, number), (block_us, compute_us) in used.items():
            cells[engine, at_us, dims[number]] = _Cell(active_block_us=block_us, compute_us=compute_us)
        for (group, at_us, number), nanos in costs.items():
            place = (group.removeprefix("engine:"), at_us, dims[number])
            cells.setdefault(place, _Cell()).nanos = nanos
    return cells


def _open_cells(unsettled: Sequence[tuple[Basis, Settlement]]) -> dict[Place, _Cell]:
    cells: dict[Place, _Cell] = {}
    for basis, made in unsettled:
        if made.engine is None:
            continue
        for pool in made.pools:
            for usage in pool.sessions if pool.paying else ():
                cell = cells.setdefault((made.engine, made.start_us, usage.dims), _Cell())
                cell.active_block_us += usage.row.holding.active_block_us
                cell.compute_us += usage.row.compute_us
        for of, cost in made.session_costs():
            if of is basis:
                cell = cells.setdefault((made.engine, made.start_us, cost.dims), _Cell())
                cell.nanos[cost.kind.value] = cell.nanos.get(cost.kind.value, 0) + cost.amount_nanos
    return cells


def _interval_of(starts: Sequence[int], at_us: int, length_us: int) -> int:
    """The start of the (perhaps cut) interval that holds ``at_us``."""
    first_us = at_us - at_us % length_us
    after = bisect_right(starts, at_us)
    return max(first_us, starts[after - 1]) if after else first_us


def _copy(figures: Figures) -> Figures:
    made = Figures()
    made.add(figures)
    return made
