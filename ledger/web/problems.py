"""What a caller is told when a request is not answered: RFC 9457 problem details, one shape for every error.

Invariant: a refusal says what was wrong, the limit it broke and the way out; a bug says nothing but that it was
one (and is logged); no text of the caller comes back but shortened, in JSON, so that nothing can be injected.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from ledger.errors import LedgerError, StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI, Request
    from fastapi.responses import Response

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

TITLES = {
    400: "the request cannot be read",
    401: "a token is needed",
    403: "this token may not",
    404: "there is nothing here",
    405: "not in this way",
    406: "no such format",
    408: "the body came too slowly",
    409: "not as things stand",
    413: "the body is too large",
    415: "no such encoding",
    422: "the request does not fit",
    429: "too many requests",
    500: "this is a bug",
    503: "not at the moment",
}


class ProblemDetails(BaseModel):
    """An error, in the shape of RFC 9457."""

    type: str = Field(description="what went wrong, for programs: `urn:kvledger:` and a short stable name")
    title: str = Field(description="the same for people")
    status: int = Field(description="the HTTP status")
    detail: str = Field(description="what was wrong with this request, and the way out")


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """Ends the handling of a request with an answer that is an error."""

    def __init__(
        self, status: int, name: str, detail: str, *, headers: Mapping[str, str] | None = None, more: Any = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.detail = detail
        self.headers = dict(headers or {})
        self.more: dict[str, Any] = more or {}

    def response(self) -> Response:
        content = {
            "type": f"urn:kvledger:{self.name}",
            "title": TITLES.get(self.status, "error"),
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }
        return JSONResponse(content, status_code=self.status, headers=self.headers, media_type=MEDIA_TYPE)


def later(status: int, name: str, detail: str, *, after_s: float) -> Problem:
    """A refusal that is over in ``after_s`` seconds (rounded up, at least 1)."""
    seconds = max(1, int(-(-after_s // 1)))
    return Problem(status, name, detail, headers={"Retry-After": str(seconds)})


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of an operation, for its OpenAPI description."""
    example = {"type": "urn:kvledger:…", "detail": "what was wrong, and the way out"}
    return {
        status: {
            "description": TITLES[status],
            "content": {
                MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/ProblemDetails"},
                    "example": {**example, "title": TITLES[status], "status": status},
                }
            },
        }
        for status in statuses
    }


def listed(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The answers of a list: rows as JSON or, where that is asked for, as CSV; and its errors."""
    fine = {"description": "The rows.", "content": {"text/csv": {"schema": {"type": "string"}}}}
    return {200: fine, **responses(*statuses)}


def install(app: FastAPI) -> None:
    """Let every error of ``app`` leave as problem details."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(StoreError, _store)
    app.add_exception_handler(UsageError, _usage)
    app.add_exception_handler(LedgerError, _ledger)
    app.add_exception_handler(Exception, _bug)


def _problem(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    return problem.response()


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(
        f"{'.'.join(str(part) for part in found['loc'])[:80]}: {found['msg'][:300]}" for found in error.errors()[:5]
    )
    return Problem(422, "invalid-parameter", said).response()


def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    names = {404: "not-found", 405: "method-not-allowed"}
    detail = {404: "no such path; /docs lists them", 405: "this path does not take that method; see /docs"}
    status = error.status_code
    return Problem(
        status,
        names.get(status, "http-error"),
        detail.get(status, str(error.detail)[:300]),
        headers=error.headers,
    ).response()


def _store(_request: Request, error: Exception) -> Response:
    # The sentence names the database and its folder, which are not the caller's business; the log has it.
    log.error("the database did not answer: %s", error)
    return later(
        503, "store", "the database did not answer; what was sent is not taken yet: send it again", after_s=5
    ).response()


def _usage(_request: Request, error: Exception) -> Response:
    return Problem(422, "invalid-parameter", str(error)[:500]).response()


def _ledger(_request: Request, error: Exception) -> Response:
    return Problem(409, "not-now", str(error)[:500]).response()


def _bug(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return Problem(500, "bug", "this should not have happened; the service's log has the rest").response()
