"""The dependencies that let a caller through: a handler that asks for one cannot be reached without it.

Invariants: what a caller may see is decided here, once: a token of one tenant is given to handlers as a
:class:`Reader` that names it, and a handler that has nothing for single tenants asks for :class:`Overseer`; whoever
may read is answered only where every parameter was understood.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param

from ledger.store.tokens import Scope, Token
from ledger.web.access import COOKIE
from ledger.web.problems import Problem, later
from ledger.web.service import Here, Service

BEARER = HTTPBearer(
    auto_error=False, scheme_name="token", description="`Authorization: Bearer kvl_…`, from `kvledger tokens add`"
)
LOGIN = APIKeyCookie(
    name=COOKIE, auto_error=False, scheme_name="login", description="the cookie of a page; it is good for reading only"
)

PARAMETER_CHARS_SHOWN = 40
"""Of a parameter's name that comes back: ours are shorter."""

Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]
Login = Annotated[str | None, Depends(LOGIN)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Somebody who may read. ``tenant``: this tenant's figures alone; None: all."""

    token: Token
    tenant: str | None

    def narrowed(self, asked: str | None) -> str | None:
        """The tenant to answer for. Problem 403 where another one is asked for."""
        if self.tenant is None or asked in (None, self.tenant):
            return self.tenant or asked
        raise Problem(403, "other-tenant", "this token reads one tenant's figures, and another's were asked for")


def peer(request: Request) -> str:
    """The address that a request came from."""
    return request.client.host if request.client is not None else ""


def authenticated(request: Request, service: Service, bearer: str | None, login: str | None) -> Token:
    """The caller's token. Problem 401 where there is none, 429 where somebody keeps trying without."""
    token = None
    if bearer is not None:
        token = service.gate.bearer(bearer)
    elif login is not None:
        token = service.gate.session(login)
    if token is not None:
        return token
    wait_s = service.refusals.take(peer(request))
    if wait_s:
        raise later(
            429, "too-many-refusals", "too many requests without a valid token from this address", after_s=wait_s
        )
    what = "the token is not known, or no longer in force" if bearer or login else "no token came along"
    detail = f"{what}; send `Authorization: Bearer …`, or log in; `kvledger tokens add` makes one"
    raise Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="kvledger"'})


def reader(
    request: Request, service: Service, bearer: HTTPAuthorizationCredentials | None, login: str | None
) -> Reader:
    """Somebody who may read. Problem 401, 403 or 429 where the caller may not, or not now."""
    token = authenticated(request, service, bearer.credentials if bearer else None, login)
    if not token.may(Scope.READ):
        raise Problem(403, "scope", f"this token is for {token.scope.value}; reading wants one for read or admin")
    wait_s = service.reads.take(str(token.number))
    if wait_s:
        raise later(429, "rate", "this token asks too often", after_s=wait_s)
    return Reader(token=token, tenant=token.tenant)


def _reader(request: Request, service: Here, bearer: Bearer, login: Login) -> Reader:
    found = reader(request, service, bearer, login)
    _no_other_parameters(request)
    return found


def _no_other_parameters(request: Request) -> None:
    """Problem 422 for a parameter that the operation has not, or that is there twice.

    An answer would be one to another question than was asked.
    """
    route = request.scope["route"]
    known = sorted(field.alias for field in route.dependant.query_params)
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            shown = name[:PARAMETER_CHARS_SHOWN]
            close = difflib.get_close_matches(shown, known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            there = f"those that {route.path} has are {', '.join(known)}" if known else "there are none here"
            raise Problem(422, "unknown-parameter", f"{shown}: there is no such parameter; {hint}{there}")
        if names.count(name) > 1:
            raise Problem(422, "invalid-parameter", f"{name}: it is there {names.count(name)} times; give it once")


def _overseer(reader: Annotated[Reader, Depends(_reader)]) -> Reader:
    if reader.tenant is not None:
        raise Problem(403, "one-tenant", "this token reads one tenant's figures; this is about the whole ledger")
    return reader


def _admin(reader: Annotated[Reader, Depends(_reader)]) -> Reader:
    if not reader.token.may(Scope.ADMIN):
        raise Problem(403, "scope", "this wants a token for admin: a refused batch may hold anything")
    return reader


async def sender(request: Request, service: Service) -> Token:
    """The token of somebody who may deliver. Problem 401, 403 or 429 where the caller may not, or not now.

    No dependency, since batches come far oftener than anything else and FastAPI takes its time with those.
    """
    # No cookie here: whatever changes something wants a header that no other site can make a browser send.
    scheme, presented = get_authorization_scheme_param(request.headers.get("authorization"))
    bearer = presented if scheme.lower() == "bearer" and presented else None
    token = service.gate.at_once(bearer) if bearer is not None else None
    if token is None:
        token = await run_in_threadpool(authenticated, request, service, bearer, None)
    if not token.may(Scope.INGEST):
        raise Problem(403, "scope", f"this token is for {token.scope.value}; sending wants one for ingest")
    return token


ReaderOf = Annotated[Reader, Depends(_reader)]
Overseer = Annotated[Reader, Depends(_overseer)]
Admin = Annotated[Reader, Depends(_admin)]
