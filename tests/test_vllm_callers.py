"""The hand-over from vLLM's API server to its core: who called, signed, and nothing of vLLM's own changed."""

from __future__ import annotations

import asyncio
import ipaddress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from ledger.core.records import UNATTRIBUTED
from ledger.hook.identity import SCOPE_KEY, Caller, Identity, IdentityMiddleware, Ignored, Trust, pack
from ledger.hook.vllm.callers import CallerMiddleware, Carrier, caller_of

if TYPE_CHECKING:
    import pytest

KEY = b"0123456789abcdef"
ACME = Caller(tenant="acme", session="s/1", scenario="chat", priority=4)
HEADERS = [(b"x-tenant-id", b"acme"), (b"x-session-id", b"s/1"), (b"x-scenario", b"chat"), (b"x-priority", b"4")]


def identity() -> Identity:
    return Identity(Trust(networks=[ipaddress.ip_network("127.0.0.0/8")]))


def request(session_id: str | None = None, priority: int = 0) -> SimpleNamespace:
    return SimpleNamespace(session_id=session_id, priority=priority)


def served(app: Any, headers: list[tuple[bytes, bytes]], kind: str = "http", **scope: Any) -> None:
    asyncio.run(app({"type": kind, "client": ("127.0.0.1", 1), "headers": headers} | scope, None, None))


def through(carrier: Carrier, sent: SimpleNamespace, headers: list[tuple[bytes, bytes]], **scope: Any) -> Any:
    """``sent`` as it is after an application behind the middleware has sent it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        # As an endpoint does that starts a task for each prompt.
        await asyncio.create_task(one(scope))

    async def one(scope: Any) -> None:
        carrier.send(sent)
        seen.update(scope)

    seen: dict[str, Any] = {}
    served(CallerMiddleware(app, identity()), headers, **scope)
    return seen


def test_the_caller_arrives_and_the_session_id_is_as_it_was() -> None:
    for own in (None, "", "s/1", "two\nlines", "kvl1/forged/s/-/0/00"):
        carrier, sent = Carrier(KEY, identity()), request(own)
        through(carrier, sent, HEADERS)
        assert sent.session_id != own
        carrier.receive(sent)
        assert sent.session_id == own
        assert caller_of(sent, KEY) == ACME


@given(own=st.none() | st.text(), tenant=st.text(min_size=1), session=st.text(min_size=1))
def test_any_caller_and_any_session_id_are_told_apart_again(own: str | None, tenant: str, session: str) -> None:
    caller = Caller(tenant=tenant, session=session)
    signed = pack(caller, KEY)
    sent = request(signed if own is None else f"{signed}\n{own}")
    Carrier(KEY, identity()).receive(sent)
    assert (sent.session_id, caller_of(sent, KEY)) == (own, caller)


def test_the_application_finds_the_caller_and_the_headers_as_they_came() -> None:
    seen = through(Carrier(KEY, identity()), request(), HEADERS)
    assert seen[SCOPE_KEY] == ACME
    assert seen["headers"] == HEADERS


def test_a_web_socket_has_a_caller_and_a_lifespan_has_none() -> None:
    for kind, expected in (("websocket", ACME), ("lifespan", Caller())):
        carrier, sent = Carrier(KEY, identity()), request()
        through(carrier, sent, HEADERS, kind=kind)
        carrier.receive(sent)
        assert caller_of(sent, KEY) == expected


def test_one_request_does_not_inherit_the_caller_of_another() -> None:
    carrier = Carrier(KEY, identity())
    through(carrier, request(), HEADERS)
    sent = request()
    carrier.send(sent)
    assert sent.session_id is None
    through(carrier, sent, [])
    carrier.receive(sent)
    assert caller_of(sent, KEY).tenant == UNATTRIBUTED


def test_a_forged_hand_over_names_nobody_and_is_counted() -> None:
    who = identity()
    carrier = Carrier(KEY, who)
    forged = request(pack(ACME, b"another key, same length"))
    carrier.receive(forged)
    assert caller_of(forged, KEY) == Caller()
    assert who.ignored == {Ignored.BAD_HANDOVER: 1}


def test_identity_middleware_outside_of_ours_has_the_last_word() -> None:
    carrier, sent = Carrier(KEY, identity()), request()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        carrier.send(sent)

    served(IdentityMiddleware(CallerMiddleware(app, identity()), identity(), KEY), HEADERS)
    carrier.receive(sent)
    assert caller_of(sent, KEY) == ACME


def test_identity_middleware_alone_is_understood_by_the_core() -> None:
    assert caller_of(request(pack(ACME, KEY)), KEY) == ACME


def test_a_request_that_nobody_handed_over_is_unattributed() -> None:
    for own in (None, "", "s-1", "kvl1/", "kvl1/acme/s/chat/4/00"):
        assert caller_of(request(own), KEY) == Caller()


def test_the_engines_own_priority_goes_before_the_label() -> None:
    assert caller_of(request(pack(ACME, KEY), priority=-2), KEY).priority == -2
    assert caller_of(request(pack(ACME, KEY), priority=0), KEY).priority == 4
    assert caller_of(request(priority=3), KEY) == Caller(priority=3)


class Broken(Identity):
    def resolve(self, peer: Any, headers: Any) -> Caller:
        raise RuntimeError("on purpose")


def test_a_fault_of_the_middleware_serves_the_request_as_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    answered = 0
    sent = request("own")
    carrier = Carrier(KEY, identity())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal answered
        carrier.send(sent)
        answered += 1

    middleware = CallerMiddleware(app, Broken(Trust()))
    for _ in range(20):
        served(middleware, HEADERS)
    assert answered == 20
    assert sent.session_id == "own"
    assert middleware.off
    assert sum("_resolve" in record.message for record in caplog.records) == 1


def test_a_fault_of_the_hand_over_leaves_the_request_as_it_was() -> None:
    carrier = Carrier(KEY, identity())
    carrier.receive(SimpleNamespace())  # no session_id at all: another vLLM
    assert carrier.faults.total() == 1
