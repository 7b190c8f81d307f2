"""The pages: files as they are, and the login. They get every figure from the JSON interface.

Invariants: pages are the same for everybody and hold no data, so they need no token; what they ask for does. A token
arrives in a link's fragment, which browsers send to nobody, and leaves the address bar at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field, ValidationError

from ledger import limits
from ledger.store.tokens import Scope
from ledger.web.access import COOKIE
from ledger.web.bodies import received
from ledger.web.callers import ReaderOf, authenticated
from ledger.web.problems import Problem, responses
from ledger.web.service import Here

HERE: Final = Path(__file__).parent
PAGES: Final = HERE / "pages"
STATIC: Final = HERE / "static"

STATIC_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

router = APIRouter(include_in_schema=False)
api = APIRouter(tags=["service"])


class LoginForm(BaseModel):
    """What a page logs in with."""

    token: str = Field(max_length=200)


class Who(BaseModel):
    """Whom a token speaks for."""

    name: str
    scope: str
    tenant: str | None


def _page(name: str) -> FileResponse:
    return FileResponse(PAGES / f"{name}.html", media_type="text/html; charset=utf-8")


@router.get("/")
def overview() -> Response:
    return _page("overview")


@router.get("/login")
def login_page() -> Response:
    return _page("login")


@router.get("/docs")
def docs_page() -> Response:
    return _page("docs")


@router.get("/static/{name}")
def static(name: str) -> Response:
    # Compared with what is there, so that no name can lead out of the folder.
    found = next((file for file in STATIC.iterdir() if file.name == name and file.suffix in STATIC_TYPES), None)
    if found is None:
        raise Problem(404, "not-found", "no such file")
    headers = {"Cache-Control": "no-cache"}
    return FileResponse(found, media_type=f"{STATIC_TYPES[found.suffix]}; charset=utf-8", headers=headers)


async def _login_body(request: Request) -> bytes:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # A form of another site can send no JSON without being asked first.
        raise Problem(415, "content-type", "send application/json")
    return await received(request, bytes_max=limits.BODY_BYTES_MAX)


@router.post("/login")
def login(request: Request, service: Here, body: Annotated[bytes, Depends(_login_body)]) -> Response:
    """Exchange a token that may read for a cookie that is good for reading."""
    try:
        given = LoginForm.model_validate_json(body)
    except ValidationError:
        raise Problem(422, "invalid-parameter", 'send {"token": "kvl_…"}') from None
    token = authenticated(request, service, given.token.strip(), None)
    if not token.may(Scope.READ):
        raise Problem(403, "scope", f"this token is for {token.scope.value}; pages want one for read or admin")
    response = Response(status_code=204)
    response.set_cookie(
        COOKIE,
        service.gate.login(token),
        max_age=limits.SESSION_COOKIE_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
def logout() -> Response:
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


@api.get("/v1/whoami", summary="Whom the token speaks for", responses=responses(401, 403, 422, 429, 503))
def whoami(caller: ReaderOf) -> Who:
    """Its name, its scope, and the tenant it is for, if it is for one."""
    return Who(name=caller.token.name, scope=caller.token.scope.value, tenant=caller.tenant)
