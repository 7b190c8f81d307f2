"""Who a request belongs to: headers and API keys to tenant and session, before the engine sees the request.

Invariants: no header of a caller decides who pays unless the caller's address may set identity, or its API key names
its tenant; whatever is not taken is counted under one reason and falls back (``unattributed``, session ``-``), never
refused: this middleware bills, it does not guard the door. The rules and the headers are docs/hook-settings.md.

It is plain ASGI and the standard library. On vLLM :mod:`ledger.hook.vllm.callers` puts these rules in by itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import logging
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from ledger import limits
from ledger.core.records import NO_SESSION, SYSTEM, UNATTRIBUTED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence

    Scope = MutableMapping[str, Any]
    App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
    Network = ipaddress.IPv4Network | ipaddress.IPv6Network

log: Final = logging.getLogger("kvledger.identity")

TENANT, SESSION, SCENARIO, PRIORITY = b"x-tenant-id", b"x-session-id", b"x-scenario", b"x-priority"
_OURS: Final = frozenset({TENANT, SESSION, SCENARIO, PRIORITY})
UNIX: Final = "unix"
"""Among the trusted peers: callers over a Unix socket, which have no address."""

SCOPE_KEY: Final = "kvledger.caller"
"""Where applications find the :class:`Caller` in the ASGI scope."""

_FORMAT: Final = "kvl1"


class Ignored(StrEnum):
    """Why something that a request said about its identity was not taken."""

    UNTRUSTED_PEER = "untrusted_peer"
    """Identity headers from an address that may not set them, without a key that is known."""
    KEY_DISAGREES = "key_disagrees"
    """The tenant header names another tenant than the API key does; the key holds."""
    UNKNOWN_KEY = "unknown_key"
    """An API key that the map does not have, where there is a map."""
    REPEATED = "repeated"
    """A header that is there twice, or has the comma that a proxy makes of two."""
    EMPTY = "empty"
    TOO_LONG = "too_long"
    BAD_CHARACTER = "bad_character"
    """Something else than printable ASCII."""
    BAD_PRIORITY = "bad_priority"
    """Not an integer, or beyond 32 bits."""
    BAD_HANDOVER = "bad_handover"
    """The engine got a session id that this middleware has not signed."""


class Pseudonyms(StrEnum):
    """What is replaced by a keyed pseudonym before it leaves the machine."""

    NONE = "none"
    SESSIONS = "sessions"
    ALL = "all"
    """Tenants and sessions. The map from tenants to pseudonyms is the key's holder's affair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whom a request belongs to."""

    tenant: str = UNATTRIBUTED
    session: str = NO_SESSION
    scenario: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Who may say who pays. ``tenants_by_key`` maps the SHA-256 of an API key to its tenant."""

    networks: Sequence[Network] = ()
    unix: bool = False
    tenants_by_key: Mapping[bytes, str] = field(default_factory=dict)
    pseudonyms: Pseudonyms = Pseudonyms.NONE
    pseudonym_key: bytes = b""


class Identity:
    """Resolves the headers of requests to callers, and counts what it does not take."""

    def __init__(self, trust: Trust) -> None:
        assert len(trust.networks) <= limits.IDENTITY_NETWORKS_MAX
        assert trust.pseudonyms is Pseudonyms.NONE or trust.pseudonym_key
        self.ignored: Counter[Ignored] = Counter()
        self._trust = trust
        self._is_trusted = lru_cache(maxsize=1024)(self._looked_up)

    def resolve(self, peer: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """The caller of a request from ``peer`` (its address; None over a Unix socket). Never raises.

        ``headers`` are pairs of name and value as ASGI has them; names in any case.
        """
        said: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            said.setdefault(_plain(name), []).append(value)
        trusted = self._is_trusted(peer)
        by_key = self._tenant_of_key(said)
        present = not _OURS.isdisjoint(said)
        if not trusted and by_key is None:
            if present:
                self.ignore(Ignored.UNTRUSTED_PEER)
            return Caller()
        tenant = by_key
        if TENANT in said:
            if not trusted:
                self.ignore(Ignored.UNTRUSTED_PEER)
            else:
                named = self._text(said[TENANT], limits.IDENTITY_CHARS_MAX)
                if by_key is None:
                    tenant = named
                elif named is not None and named != by_key:
                    self.ignore(Ignored.KEY_DISAGREES)
        tenant = tenant or UNATTRIBUTED
        session = self._text(said.get(SESSION), limits.IDENTITY_CHARS_MAX) or NO_SESSION
        return Caller(
            # The session goes first: its pseudonym is keyed with the tenant's true name.
            session=self._session(tenant, session),
            tenant=self._tenant(tenant),
            scenario=self._text(said.get(SCENARIO), limits.SCENARIO_CHARS_MAX) or "",
            priority=self._priority(said.get(PRIORITY)) if trusted else 0,
        )

    def ignore(self, why: Ignored) -> None:
        """Count that something was not taken; tell it at 1, 10, 100 …."""
        self.ignored[why] += 1
        count = self.ignored[why]
        if count == 10 ** (len(str(count)) - 1):
            log.warning("identity: %s, %d so far; see docs/hook-settings.md", why.value, count)

    def _looked_up(self, peer: str | None) -> bool:
        if peer is None:
            return self._trust.unix
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._trust.networks)

    def _tenant_of_key(self, said: Mapping[bytes, Sequence[bytes]]) -> str | None:
        if not self._trust.tenants_by_key:
            return None
        keys = [value.strip() for value in said.get(b"x-api-key", ())]
        for value in said.get(b"authorization", ()):
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(key.strip())
        if not keys:
            return None
        tenants = {self._trust.tenants_by_key.get(hashlib.sha256(key).digest()) for key in keys}
        if len(tenants) == 1 and None not in tenants:
            return tenants.pop()
        self.ignore(Ignored.UNKNOWN_KEY if None in tenants else Ignored.REPEATED)
        return None

    def _text(self, values: Sequence[bytes] | None, most: int) -> str | None:
        """The header's text; None where there is none that can be taken, counted."""
        if values is None:
            return None
        if len(values) > 1 or b"," in values[0]:
            self.ignore(Ignored.REPEATED)
            return None
        value = values[0].strip(b" \t")
        if not value:
            self.ignore(Ignored.EMPTY)
        elif len(value) > most:
            self.ignore(Ignored.TOO_LONG)
        elif any(not 0x20 <= byte <= 0x7E for byte in value):
            self.ignore(Ignored.BAD_CHARACTER)
        else:
            return value.decode("ascii")
        return None

    def _priority(self, values: Sequence[bytes] | None) -> int:
        text = self._text(values, 16)
        if text is None:
            return 0
        digits = text.removeprefix("-")
        if digits.isdigit() and int(digits) <= limits.PRIORITY_ABS_MAX:
            return int(text)
        self.ignore(Ignored.BAD_PRIORITY)
        return 0

    def _tenant(self, tenant: str) -> str:
        if self._trust.pseudonyms is not Pseudonyms.ALL or tenant in {SYSTEM, UNATTRIBUTED}:
            return tenant
        return _pseudonym(self._trust.pseudonym_key, "tenant", tenant)

    def _session(self, tenant: str, session: str) -> str:
        if self._trust.pseudonyms is Pseudonyms.NONE or session == NO_SESSION:
            return session
        return _pseudonym(self._trust.pseudonym_key, "session", tenant, session)


class IdentityMiddleware:
    """ASGI middleware: resolves the caller and hands it on to the engine by rewriting the headers.

    What came as ``X-Tenant-ID``, ``X-Session-ID``, ``X-Scenario`` and ``X-Priority`` (with hyphens or underscores)
    is removed; the same names are set to what was resolved, ``X-Session-ID`` to the signed text of :func:`pack`,
    which is the one that engines carry to their core. Applications find the caller in ``scope["kvledger.caller"]``.
    """

    def __init__(self, app: App, identity: Identity | None = None, handover_key: bytes | None = None) -> None:
        self._app = app
        if identity is None or handover_key is None:
            # Here and not above: settings name the classes of this module.
            from ledger.hook import settings  # noqa: PLC0415

            found = settings.load_or_off()
            identity = identity or Identity(found.trust)
            handover_key = handover_key or found.handover_key
        self.identity = identity
        self._handover_key = handover_key

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """See :class:`IdentityMiddleware`."""
        if scope["type"] in {"http", "websocket"}:
            client = scope.get("client")
            headers = list(scope.get("headers") or ())
            caller = self.identity.resolve(client[0] if client else None, headers)
            kept = [(name, value) for name, value in headers if _plain(name) not in _OURS]
            scope = {
                **scope,
                SCOPE_KEY: caller,
                "headers": [
                    *kept,
                    (TENANT, caller.tenant.encode()),
                    (SESSION, pack(caller, self._handover_key).encode()),
                    (SCENARIO, caller.scenario.encode()),
                    (PRIORITY, str(caller.priority).encode()),
                ],
            }
        await self._app(scope, receive, send)


def pack(caller: Caller, key: bytes) -> str:
    """A caller as one header: ``kvl1/TENANT/SESSION/SCENARIO/PRIORITY/SIGNATURE``, each percent-encoded."""
    stated = "/".join(
        quote(part, safe="") for part in (_FORMAT, caller.tenant, caller.session, caller.scenario, str(caller.priority))
    )
    return f"{stated}/{_signature(key, stated)}"


def is_packed(text: str | None) -> bool:
    """Whether it looks like what :func:`pack` wrote, whoever did."""
    return text is not None and text.startswith(_FORMAT + "/")


def unpack(text: str, key: bytes) -> Caller | None:
    """The caller that :func:`pack` wrote with the same key; None for everything else. For the hook in the engine."""
    stated, _, signature = text.rpartition("/")
    parts = stated.split("/")
    if len(parts) != 5 or parts[0] != _FORMAT or not text.isascii():
        return None
    if not hmac.compare_digest(signature, _signature(key, stated)):
        return None
    tenant, session, scenario, priority = map(unquote, parts[1:])
    return Caller(tenant=tenant, session=session, scenario=scenario, priority=int(priority))


def _signature(key: bytes, stated: str) -> str:
    return hmac.digest(key, stated.encode(), "sha256")[:16].hex()


def _pseudonym(key: bytes, *parts: str) -> str:
    """130 bits of HMAC-SHA-256, as text that cannot be taken for a name."""
    made = hmac.digest(key, "\0".join(parts).encode(), "sha256")
    return "p-" + base64.b32encode(made).decode()[:26].lower()


def _plain(name: bytes) -> bytes:
    # Some servers take X_Tenant_ID for X-Tenant-ID; a caller shall not get past the rewriting by spelling.
    return name.lower().replace(b"_", b"-")
