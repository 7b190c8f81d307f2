"""Identity: nobody decides who pays but those who may, and nothing odd gets through."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import limits
from ledger.core.records import NO_SESSION, SYSTEM, UNATTRIBUTED
from ledger.hook.identity import (
    SCOPE_KEY,
    Caller,
    Identity,
    IdentityMiddleware,
    Ignored,
    Pseudonyms,
    Trust,
    pack,
    unpack,
)

GATEWAY, STRANGER = "10.1.2.3", "192.0.2.7"
KEYS = {hashlib.sha256(b"key-of-acme").digest(): "acme", hashlib.sha256(b"key-of-beta").digest(): "beta"}
NETWORKS = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "fd00::/8")))
HANDOVER = b"0123456789abcdef"

Header = tuple[bytes, bytes]


def made(**options: Any) -> Identity:
    return Identity(Trust(networks=NETWORKS, tenants_by_key=KEYS, **options))


def said(**values: str) -> list[Header]:
    names = {"tenant": b"x-tenant-id", "session": b"x-session-id", "scenario": b"x-scenario", "priority": b"x-priority"}
    found = [(names[name], value.encode("latin-1")) for name, value in values.items() if name in names]
    if "key" in values:
        found.append((b"authorization", b"Bearer " + values["key"].encode()))
    return found


def ignored(identity: Identity) -> dict[Ignored, int]:
    return dict(identity.ignored)


def test_a_trusted_peer_says_whose_request_it_is() -> None:
    identity = made()
    caller = identity.resolve(GATEWAY, said(tenant="acme", session="s-1", scenario="chat", priority="-3"))
    assert caller == Caller(tenant="acme", session="s-1", scenario="chat", priority=-3)
    assert identity.resolve(GATEWAY, []) == Caller(tenant=UNATTRIBUTED, session=NO_SESSION)
    assert identity.resolve(GATEWAY, said(tenant=SYSTEM)).tenant == SYSTEM
    assert ignored(identity) == {}


def test_a_spoofed_header_from_anybody_else_is_ignored_and_counted() -> None:
    identity = made()
    spoofed = said(tenant="acme", session="s", scenario="x", priority="9")
    for peer in (STRANGER, "::1", "not an address", "", "11.0.0.1", "::ffff:11.0.0.1", None):
        assert identity.resolve(peer, spoofed) == Caller()
    assert ignored(identity) == {Ignored.UNTRUSTED_PEER: 7}
    assert identity.resolve(STRANGER, []) == Caller()
    assert identity.ignored[Ignored.UNTRUSTED_PEER] == 7


@pytest.mark.parametrize("peer", ["10.255.255.255", "::ffff:10.0.0.1", "fd12::1", "fd12::1%eth0"])
def test_addresses_are_compared_as_networks_mapped_and_scoped_ones_too(peer: str) -> None:
    assert made().resolve(peer, said(tenant="acme")).tenant == "acme"


def test_callers_over_a_unix_socket_are_trusted_only_where_that_is_said() -> None:
    assert made().resolve(None, said(tenant="acme")).tenant == UNATTRIBUTED
    assert made(unix=True).resolve(None, said(tenant="acme")).tenant == "acme"


def test_an_api_key_names_its_tenant_from_any_address_and_lets_name_a_session_and_no_priority() -> None:
    identity = made()
    caller = identity.resolve(STRANGER, said(key="key-of-acme", session="s-1", scenario="rag", priority="9"))
    assert caller == Caller(tenant="acme", session="s-1", scenario="rag", priority=0)
    assert identity.resolve(STRANGER, [(b"X-API-Key", b"key-of-beta")]).tenant == "beta"
    assert ignored(identity) == {}


def test_the_key_holds_against_the_header_of_anybody() -> None:
    identity = made()
    assert identity.resolve(STRANGER, said(key="key-of-acme", tenant="beta")).tenant == "acme"
    assert identity.resolve(GATEWAY, said(key="key-of-acme", tenant="beta")).tenant == "acme"
    assert identity.resolve(GATEWAY, said(key="key-of-acme", tenant="acme")).tenant == "acme"
    assert ignored(identity) == {Ignored.UNTRUSTED_PEER: 1, Ignored.KEY_DISAGREES: 1}


def test_an_unknown_key_and_two_that_disagree_name_nobody() -> None:
    identity = made()
    assert identity.resolve(STRANGER, said(key="wrong")) == Caller()
    both = [*said(key="key-of-acme"), (b"x-api-key", b"key-of-beta")]
    assert identity.resolve(STRANGER, both) == Caller()
    # A gateway with a key of its own still speaks for others.
    assert identity.resolve(GATEWAY, said(key="of the gateway", tenant="acme")).tenant == "acme"
    assert ignored(identity) == {Ignored.UNKNOWN_KEY: 2, Ignored.REPEATED: 1}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", Ignored.EMPTY),
        ("  \t ", Ignored.EMPTY),
        ("a" * 129, Ignored.TOO_LONG),
        ("a\x00b", Ignored.BAD_CHARACTER),
        ("a\x1b[31m", Ignored.BAD_CHARACTER),
        ("a\x7f", Ignored.BAD_CHARACTER),
        ("caf\xe9", Ignored.BAD_CHARACTER),
        ("a\nX-Evil: 1", Ignored.BAD_CHARACTER),
        ("acme, beta", Ignored.REPEATED),
    ],
)
def test_a_value_that_cannot_be_taken_falls_back_whole_and_is_counted(value: str, why: Ignored) -> None:
    identity = made()
    assert identity.resolve(GATEWAY, said(tenant=value, session="s")) == Caller(session="s")
    assert identity.resolve(GATEWAY, said(tenant="acme", session=value)) == Caller(tenant="acme")
    assert identity.resolve(GATEWAY, said(tenant="acme", scenario=value)).scenario == ""
    assert ignored(identity) == {why: 3}


def test_lengths_at_the_limit_and_printable_ids_full_of_markup_are_taken() -> None:
    identity = made()
    longest, markup = "a" * limits.IDENTITY_CHARS_MAX, "<script>alert('1')</script>"
    caller = identity.resolve(GATEWAY, said(tenant=longest, session=markup, scenario="x" * limits.SCENARIO_CHARS_MAX))
    assert (caller.tenant, caller.session) == (longest, markup)
    assert identity.resolve(GATEWAY, said(tenant=f" {longest}\t")).tenant == longest
    assert ignored(identity) == {}


def test_a_header_that_is_there_twice_counts_for_neither_in_whatever_spelling() -> None:
    identity = made()
    twice = [(b"X-Tenant-ID", b"acme"), (b"x_tenant_id", b"beta")]
    assert identity.resolve(GATEWAY, twice) == Caller()
    assert ignored(identity) == {Ignored.REPEATED: 1}


@pytest.mark.parametrize("value", ["high", "1.5", "--1", "+1", "9999999999", "\xb2", "-"])
def test_a_priority_that_is_no_integer_of_32_bits_is_0(value: str) -> None:
    identity = made()
    assert identity.resolve(GATEWAY, said(tenant="acme", priority=value)).priority == 0
    assert sum(identity.ignored.values()) == 1


@given(
    st.none() | st.text(max_size=20) | st.ip_addresses().map(str),
    st.lists(
        st.tuples(
            st.sampled_from(
                [b"x-tenant-id", b"X_SESSION_ID", b"x-scenario", b"x-priority", b"authorization", b"x-api-key"]
            )
            | st.binary(max_size=12),
            st.binary(max_size=200),
        ),
        max_size=8,
    ),
)
def test_whatever_headers_come_a_caller_can_be_stored_and_strangers_have_no_name(
    peer: str | None, headers: list[Header]
) -> None:
    identity = made(unix=True)
    caller = identity.resolve(peer, headers)
    for text in (caller.tenant, caller.session, caller.scenario):
        assert text.isascii()
        assert text.isprintable() or not text
        assert len(text) <= limits.IDENTITY_CHARS_MAX
    assert abs(caller.priority) <= limits.PRIORITY_ABS_MAX
    stranger = Identity(Trust()).resolve(peer, headers)
    assert stranger == Caller()


def test_what_is_ignored_is_told_at_powers_of_ten(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    identity = made()
    for _ in range(250):
        identity.resolve(STRANGER, said(tenant="acme"))
    assert [record.message.split(";")[0] for record in caplog.records] == [
        "identity: untrusted_peer, 1 so far",
        "identity: untrusted_peer, 10 so far",
        "identity: untrusted_peer, 100 so far",
    ]


def test_pseudonyms_are_stable_tell_sessions_apart_and_leave_what_is_nobodys() -> None:
    key = b"a key of sixteen."
    sessions = made(pseudonyms=Pseudonyms.SESSIONS, pseudonym_key=key)
    both = made(pseudonyms=Pseudonyms.ALL, pseudonym_key=key)
    one = sessions.resolve(GATEWAY, said(tenant="acme", session="s"))
    assert one.tenant == "acme"
    assert one.session.startswith("p-")
    assert len(one.session) == 28
    assert sessions.resolve(GATEWAY, said(tenant="acme", session="s")) == one
    assert sessions.resolve(GATEWAY, said(tenant="beta", session="s")).session != one.session
    assert sessions.resolve(GATEWAY, said(tenant="acme", session="t")).session != one.session
    hidden = both.resolve(GATEWAY, said(tenant="acme", session="s"))
    assert hidden.session == one.session
    assert hidden.tenant.startswith("p-")
    other = made(pseudonyms=Pseudonyms.ALL, pseudonym_key=b"another key of 16")
    assert other.resolve(GATEWAY, said(tenant="acme", session="s")).session != one.session
    assert both.resolve(GATEWAY, said(tenant=SYSTEM)) == Caller(tenant=SYSTEM)
    assert both.resolve(GATEWAY, []) == Caller()


def through(headers: list[Header], peer: str | None = GATEWAY, kind: str = "http") -> dict[str, Any]:
    """The scope that the application sees."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    middleware = IdentityMiddleware(app, made(), HANDOVER)
    scope = {"type": kind, "headers": headers, "client": (peer, 1) if peer else None, "path": "/v1/completions"}
    asyncio.run(middleware(scope, None, None))
    (found,) = seen
    assert isinstance(found, dict)
    return found


def test_the_engine_gets_what_was_resolved_and_none_of_what_was_said() -> None:
    headers = [*said(tenant="acme", session="s/1 ü".replace(" ü", "%"), scenario="chat", priority="2"), (b"host", b"x")]
    scope = through(headers)
    caller = Caller(tenant="acme", session="s/1%", scenario="chat", priority=2)
    assert scope[SCOPE_KEY] == caller
    found = dict(scope["headers"])
    assert found[b"host"] == b"x"
    assert (found[b"x-tenant-id"], found[b"x-scenario"], found[b"x-priority"]) == (b"acme", b"chat", b"2")
    assert unpack(found[b"x-session-id"].decode(), HANDOVER) == caller
    assert len(scope["headers"]) == 5


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_spoofed_headers_do_not_reach_the_engine_in_any_spelling(kind: str) -> None:
    forged = pack(Caller(tenant="acme"), b"a guess of the key")
    headers = [
        (b"X-TENANT-ID", b"acme"),
        (b"x_tenant_id", b"acme"),
        (b"X_Session-Id", forged.encode()),
        (b"x-priority", b"9"),
    ]
    scope = through(headers, STRANGER, kind)
    assert scope[SCOPE_KEY] == Caller()
    values = [value for _, value in scope["headers"]]
    assert b"acme" not in values
    assert forged.encode() not in values
    assert [name for name, _ in scope["headers"]].count(b"x-tenant-id") == 1


def test_other_kinds_of_scope_pass_untouched() -> None:
    assert SCOPE_KEY not in through([], kind="lifespan")


CALLERS = st.builds(
    Caller,
    tenant=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128),
    session=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128),
    scenario=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=64),
    priority=st.integers(-(2**31), 2**31),
)


@given(CALLERS)
def test_a_hand_over_comes_back_with_the_same_key_alone(caller: Caller) -> None:
    text = pack(caller, HANDOVER)
    assert text.isascii()
    assert text.isprintable()
    assert unpack(text, HANDOVER) == caller
    assert unpack(text, b"another key") is None


@given(CALLERS, st.integers(0, 10**6), st.characters())
def test_a_hand_over_that_was_changed_anywhere_is_none(caller: Caller, at: int, character: str) -> None:
    text = pack(caller, HANDOVER)
    at %= len(text)
    changed = text[:at] + character + text[at + 1 :]
    assert changed == text or unpack(changed, HANDOVER) is None


@given(st.text(max_size=80))
def test_no_text_makes_the_hand_over_raise(text: str) -> None:
    assert unpack(text, HANDOVER) is None
    assert unpack(f"kvl1/{text}", HANDOVER) is None


@pytest.mark.parametrize(("peers", "tenant"), [("10.0.0.0/8", "acme"), ("everybody", UNATTRIBUTED)])
def test_as_an_engine_loads_it_the_environment_rules_and_a_bad_one_believes_nobody(
    monkeypatch: pytest.MonkeyPatch, peers: str, tenant: str
) -> None:
    monkeypatch.setenv("KVLEDGER_TRUSTED_PEERS", peers)
    monkeypatch.setenv("KVLEDGER_HANDOVER_KEY", "0123456789abcdef")
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    scope = {"type": "http", "headers": said(tenant="acme"), "client": (GATEWAY, 1)}
    asyncio.run(IdentityMiddleware(app)(scope, None, None))
    assert seen[0][SCOPE_KEY].tenant == tenant
    assert dict(seen[0]["headers"])[b"x-tenant-id"] == tenant.encode()
