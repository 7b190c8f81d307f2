"""How rows leave: a page of JSON with the path of the next one, or CSV.

Invariants: what a caller asks for beyond a bound is refused, never cut in silence; a cell of CSV that a spreadsheet
would take for a formula is written with a quote before it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.responses import JSONResponse

from ledger import limits
from ledger.core.periods import parse_month, parse_time
from ledger.errors import Refusal
from ledger.reports.separated import write_csv
from ledger.web.problems import Problem

CSV_TYPE = "text/csv; charset=utf-8"


class Form(StrEnum):
    JSON = "json"
    CSV = "csv"


Limit = Annotated[
    int, Query(ge=1, le=limits.CSV_ROWS_MAX, description=f"rows at most; JSON has up to {limits.PAGE_ROWS_MAX}")
]
Offset = Annotated[int, Query(ge=0, le=1_000_000, description="rows to leave out before the first; see `next`")]
Format = Annotated[Form, Query(description="`csv` has the same columns, exact integers and no pages")]
Since = Annotated[
    str | None,
    Query(alias="from", max_length=40, description="ISO 8601 with an offset", examples=["2026-11-03T00:00:00Z"]),
]
Until = Annotated[
    str | None,
    Query(alias="to", max_length=40, description="ISO 8601 with an offset", examples=["2026-11-04T00:00:00Z"]),
]
Tenant = Annotated[
    str | None, Query(max_length=limits.TEXT_CHARS_MAX, description="this tenant only", examples=["acme"])
]


def instant(text: str | None, name: str) -> int | None:
    """Microseconds of a parameter that is a time. Problem 422 where it is none."""
    if text is None:
        return None
    # A plus that nobody escaped arrives as a space.
    parsed = parse_time(text.replace(" ", "+"))
    if isinstance(parsed, Refusal):
        raise Problem(422, "invalid-parameter", f"{name}: {parsed.detail}")
    return parsed


def month(text: str | None) -> str | None:
    """A parameter that is a month, checked."""
    if text is None:
        return None
    parsed = parse_month(text)
    if isinstance(parsed, Refusal):
        raise Problem(422, "invalid-parameter", f"month: {parsed.detail}")
    return str(parsed)


def page(
    request: Request,
    rows: Sequence[Mapping[str, Any]],
    *,
    limit: int,
    offset: int,
    form: Form = Form.JSON,
    columns: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> Response:
    """The rows from ``offset`` on. ``columns`` are those of CSV where there may be no row; ``more`` stands beside."""
    if form is Form.CSV:
        return csv_response(rows[offset : offset + limit], columns)
    if limit > limits.PAGE_ROWS_MAX:
        detail = f"limit: {limit} rows; JSON has pages of at most {limits.PAGE_ROWS_MAX}, follow `next` or ask for CSV"
        raise Problem(422, "invalid-parameter", detail)
    following = None
    if offset + limit < len(rows):
        url = request.url.include_query_params(limit=limit, offset=offset + limit)
        following = f"{url.path}?{url.query}"
    content = {**(more or {}), "rows": rows[offset : offset + limit], "next": following}
    headers = {"Link": f'<{following}>; rel="next"'} if following else {}
    return JSONResponse(content, headers=headers)


def csv_response(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> Response:
    """Rows as CSV; lists and objects within a row are left out."""
    names = list(columns) or [k for k, v in (rows[0] if rows else {}).items() if not isinstance(v, list | dict)]
    out = io.StringIO()
    write_csv([names, *([row.get(name) for name in names] for row in rows)], out)
    return Response(out.getvalue(), media_type=CSV_TYPE)
