"""GET /v1/usage, costs, statements, sessions: the reports of the books, filtered and paged.

Invariants: figures come from the same functions as the command line's; a caller of one tenant gets rows of that
tenant alone; time that is not settled is in every figure, up to the last boundary that every open pool delivered.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from ledger import limits
from ledger.core.periods import from_datetime, period_end, period_start, to_datetime
from ledger.core.settlement import Basis
from ledger.reports import monthly
from ledger.reports import statement as statements_of
from ledger.reports.usage import By, columns, usage
from ledger.settle import Provisional, first_us, provisional, still_open
from ledger.store import books, costs, terms
from ledger.web import shapes
from ledger.web.answers import (
    CSV_TYPE,
    Form,
    Format,
    Limit,
    Offset,
    Since,
    Tenant,
    Until,
    instant,
    month,
    page,
)
from ledger.web.callers import ReaderOf
from ledger.web.problems import Problem, listed, responses
from ledger.web.service import Here, Service

router = APIRouter(tags=["figures"])

LISTED = listed(401, 403, 422, 429, 503)

RANGE_US_MAX = 400 * limits.DAY_US
"""Of a report: a year and what lies about it; a longer one is asked for in parts."""

REQUESTS_RANGE_US_MAX = limits.DAY_US
"""Of a report by request, which reads facts."""

SLOW_KEPT_S = 30.0
"""How old a report over a range may be: it sums a month of hours."""

BasisOf = Annotated[Basis | None, Query(description="the booked one where none is given (docs/accounts.md)")]


class Sort(StrEnum):
    COST = "cost"
    WASTE = "waste"


class Bucket(StrEnum):
    HOUR = "hour"
    DAY = "day"
    ALL = "all"


@router.get("/v1/usage", summary="Who used what", responses=LISTED)
def usage_report(
    *,
    request: Request,
    service: Here,
    caller: ReaderOf,
    since: Since = None,
    until: Until = None,
    by: Annotated[By, Query(description="what a row is about; `request` takes a day at most")] = By.TENANT,
    tenant: Tenant = None,
    basis: BasisOf = None,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002 - the name that callers write
) -> shapes.Report[shapes.Usage]:
    """Block time, tokens and cost of a range of time (this month where none is given), dearest first."""
    of = caller.narrowed(tenant)
    if of is not None and by in (By.MODEL, By.POOL):
        raise Problem(422, "invalid-parameter", f"tenant: rows by {by.value} are of all tenants together")
    span = _range(service, since, until, most_us=REQUESTS_RANGE_US_MAX if by is By.REQUEST else RANGE_US_MAX)
    rows = _usage(service, span, by, basis)
    if of is not None:
        rows = [row for row in rows if row["tenant"] == of]
    more = {"from_us": span[0], "to_us": span[1]}
    return page(request, rows, limit=limit, offset=offset, form=format, columns=columns(by), more=more)  # type: ignore[return-value]


@router.get("/v1/sessions", summary="Sessions by cost or by waste", responses=LISTED)
def sessions(
    *,
    request: Request,
    service: Here,
    caller: ReaderOf,
    since: Since = None,
    until: Until = None,
    tenant: Tenant = None,
    session: Annotated[str | None, Query(max_length=limits.TEXT_CHARS_MAX, description="this session only")] = None,
    sort: Annotated[Sort, Query(description="`waste`: what was charged for blocks that nobody held")] = Sort.COST,
    basis: BasisOf = None,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Report[shapes.Session]:
    """What sessions cost in a range of time (this month where none is given), and what of it was wasted."""
    of = caller.narrowed(tenant)
    span = _range(service, since, until)
    rows = [
        {
            **row,
            "cost_nanos": (row["active_nanos"] or 0) + (row["cached_nanos"] or 0) + (row["compute_nanos"] or 0),
            "waste_nanos": row["cached_nanos"] or 0,
        }
        for row in _usage(service, span, By.SESSION, basis)
        if of in (None, row["tenant"]) and session in (None, row["session"])
    ]
    if sort is Sort.WASTE:
        rows.sort(key=lambda row: (-row["waste_nanos"], -row["cost_nanos"], row["tenant"], row["session"]))
    names = (*columns(By.SESSION), "cost_nanos", "waste_nanos")
    more = {"from_us": span[0], "to_us": span[1]}
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names, more=more)  # type: ignore[return-value]


@router.get("/v1/costs", summary="The bill over time, by account", responses=LISTED)
def cost_report(
    *,
    request: Request,
    service: Here,
    caller: ReaderOf,
    since: Since = None,
    until: Until = None,
    by: Annotated[Bucket, Query(description="length of a row's time; days are of the billing zone")] = Bucket.DAY,
    tenant: Tenant = None,
    basis: BasisOf = None,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Report[shapes.Cost]:
    """Amounts by time, account, kind and tenant, whole settle intervals; the rows of a time sum to its bill."""
    of = caller.narrowed(tenant)
    span = _range(service, since, until)
    rows = service.kept.get(("costs", span, by, basis), lambda: _costs(service, span, by, basis), seconds=SLOW_KEPT_S)
    if of is not None:
        rows = [row for row in rows if row["account"] == "tenant" and row["tenant"] == of]
    names = tuple(shapes.Cost.model_fields)
    more = {"from_us": span[0], "to_us": span[1]}
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names, more=more)  # type: ignore[return-value]


@router.get("/v1/statements", summary="Months, open and closed", responses=LISTED)
def statements(
    *,
    request: Request,
    service: Here,
    _caller: ReaderOf,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Page[shapes.Month]:
    """Newest first. A closed month has a digest, chained to the one before."""
    with service.database.read() as connection:
        rows = [asdict(found) for found in costs.booked_months(connection)]
    names = tuple(shapes.Month.model_fields)
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names)  # type: ignore[return-value]


@router.get(
    "/v1/statements/{of_month}",
    summary="The statement of a month",
    responses={
        200: {"description": "The statement.", "content": {"text/csv": {"schema": {"type": "string"}}}},
        **responses(401, 403, 422, 429, 503),
    },
)
def statement(
    *,
    service: Here,
    caller: ReaderOf,
    of_month: Annotated[str, Path(max_length=7, examples=["2026-11"], description="`YYYY-MM`, or `current`")],
    tenant: Tenant = None,
    basis: BasisOf = None,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Statement:
    """The whole bill on accounts; `lines` sum to `bill_nanos` exactly. Memo lines overlap and are in no sum.

    Of an open month the part that is not settled is in it, from `provisional_from` on.
    """
    wanted = None if of_month == "current" else month(of_month)
    found = read_statement(service, wanted, basis)
    of = caller.narrowed(tenant)
    if of is not None:
        found = statements_of.of_tenant(found, of)
    if format is Form.CSV:
        from ledger.reports.bill import csv_of  # noqa: PLC0415

        return Response(csv_of(found), media_type=CSV_TYPE)  # type: ignore[return-value]
    return shapes.Statement.model_validate(statements_of.as_value(found))


def read_statement(service: Service, of_month: str | None, basis: Basis | None = None) -> statements_of.Statement:
    """The statement of a month (None: the running one), some seconds old at most."""

    def made() -> statements_of.Statement:
        now_us = service.clock_us()
        wanted = of_month
        if wanted is None:
            with service.database.read() as connection:
                wanted = terms.read_terms(connection).month(now_us)
        return monthly.read_statement(service.database, wanted, now_us=now_us, basis=basis, known=open_time(service))

    found: statements_of.Statement = service.kept.get(("statement", of_month, basis), made)
    return found


def _usage(service: Service, span: tuple[int, int], by: By, basis: Basis | None) -> list[dict[str, Any]]:
    """The rows of a usage report as objects, dearest first."""
    names = columns(by)

    def made() -> list[dict[str, Any]]:
        if span[0] == span[1]:
            return []
        known = open_time(service)
        found = usage(service.database, start_us=span[0], end_us=span[1], by=by, basis=basis, known=known)
        return [{name: getattr(row, name) for name in names} for row in found]

    rows: list[dict[str, Any]] = service.kept.get(("usage", span, by, basis), made, seconds=SLOW_KEPT_S)
    return rows


def _range(service: Service, since: str | None, until: str | None, *, most_us: int = RANGE_US_MAX) -> tuple[int, int]:
    """The range asked for, on the 15-second grid and within the ledger's time; empty where they do not meet.

    Without an end it is the last boundary that everybody has delivered; without a start, the month of the end.
    """
    start_us, end_us = instant(since, "from"), instant(until, "to")
    first, delivered_us = bounds_of(service)
    if end_us is None:
        end_us = delivered_us
    if start_us is None:
        with service.database.read() as connection:
            ledger = terms.read_terms(connection)
        start_us = min(ledger.month_bounds(ledger.month(max(end_us - 1, 0)))[0], end_us)
    if start_us > end_us or (start_us == end_us and since is not None and until is not None):
        raise Problem(422, "invalid-parameter", "from, to: the range ends before it begins; give a later `to`")
    low, high = max(period_start(start_us), first), min(period_end(end_us), delivered_us)
    if high - low > most_us:
        detail = f"from, to: {(high - low) // limits.DAY_US} days; at most {most_us // limits.DAY_US}: ask in parts"
        raise Problem(422, "invalid-parameter", detail)
    if low >= high:
        low = high = min(low, end_us)  # the ledger's time may lie after the range asked, or before it
    return low, high


def open_time(service: Service) -> tuple[Provisional, ...]:
    """What is not settled yet, as it was a while ago; all figures of it that are shown are made of this."""
    with service.database.read() as connection:
        settled_us = books.settled_until(connection)

    def made() -> tuple[Provisional, ...]:
        return provisional(service.database, now_us=service.clock_us())

    found: tuple[Provisional, ...] = service.kept.get(("open", settled_us), made)
    return found


def bounds_of(service: Service) -> tuple[int, int]:
    """Where the ledger's time begins, and the boundary up to which it is known; as old as :func:`open_time`."""
    parts = open_time(service)
    with service.database.read() as connection:
        first = first_us(connection)
        settled = books.settled_until(connection)
    end_us = max([part.until_us for part in parts] + ([settled] if settled is not None else []), default=0)
    return (period_start(first) if first is not None else end_us), end_us


def _costs(service: Service, span: tuple[int, int], by: Bucket, basis: Basis | None) -> list[dict[str, Any]]:
    with service.database.read() as connection:
        ledger = terms.read_terms(connection)
        booked_us = books.settled_until(connection)
        settled = booked_us or 0
        chosen = basis or ledger.terms(ledger.month(max(span[1] - 1, span[0]))).basis
        found = costs.cost_lines(connection, span[0] - span[0] % ledger.interval_us, span[1], chosen)
    sums: dict[tuple[int, str, str, str], int] = {}

    def add(at_us: int, account: str, kind: str, tenant: str, nanos: int) -> None:
        key = (_start(at_us, by, ledger, span[0]), account, kind, tenant)
        sums[key] = sums.get(key, 0) + nanos

    for line in found:
        add(line.start_us, line.account, line.kind, line.tenant, line.amount_nanos)
    for part in still_open(open_time(service), booked_us) if span[1] > settled else ():
        for made in part.settlements:
            if span[0] <= made.start_us < span[1]:
                for of, each in made.lines():
                    if of is chosen:
                        add(made.start_us, each.account.value, each.kind.value, each.tenant, each.amount_nanos)
    return [
        {"start_us": key[0], "account": key[1], "kind": key[2], "tenant": key[3], "amount_nanos": nanos}
        for key, nanos in sorted(sums.items())
        if nanos
    ]


def _start(at_us: int, by: Bucket, ledger: terms.LedgerTerms, first: int) -> int:
    """Where the row begins that an interval belongs to."""
    if by is Bucket.ALL:
        return first
    if by is Bucket.HOUR:
        return at_us - at_us % ledger.interval_us
    local = to_datetime(at_us).astimezone(ledger.zone)
    return from_datetime(datetime(local.year, local.month, local.day, tzinfo=ledger.zone))
