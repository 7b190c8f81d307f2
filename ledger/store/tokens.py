"""Tokens: who may talk to the service, and what each may do there.

Invariants: the secret of a token is never stored, its SHA-256 is; a token is told from another by its public
number, so that looking one up compares one digest, in constant time; revoking writes the instant from which
the token is no longer taken, which may lie ahead: a new token is added, clients move to it, and the old one
ends by itself, so that a rotation interrupts nobody.

A secret has 256 random bits, so a plain digest is enough: a slow one guards words that people choose.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from sqlalchemy import Column, Connection, Table, Text, func, select, update

from ledger.errors import UsageError
from ledger.limits import TOKENS_KEPT_MAX
from ledger.store.database import lock
from ledger.store.tables import Int, integer, metadata, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SECRET_BYTES: Final = 32

_TOKEN: Final = re.compile(r"kvl_([1-9][0-9]{0,17})_([0-9a-f]{64})")

tokens = Table(
    "tokens",
    metadata,
    Column("id", Int, primary_key=True),
    text("name"),
    text("scope"),
    Column("tenant", Text),
    text("digest"),
    integer("created_us"),
    Column("ends_us", Int),
    Column("used_us", Int),
    sqlite_strict=True,
)
"""``tenant`` is null where the token speaks for nobody in particular; ``ends_us`` is null while it is in force
without an end; ``used_us`` is coarse (a minute), and null until it was used."""


class Scope(StrEnum):
    """What a token is good for. ``ADMIN`` may whatever the others may, and see refused batches as they came."""

    INGEST = "ingest"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret. ``tenant`` (with ``READ`` only): it sees this tenant's figures and no others."""

    number: int
    name: str
    scope: Scope
    tenant: str | None
    created_us: int
    ends_us: int | None
    used_us: int | None

    def holds(self, at_us: int) -> bool:
        """Whether the token is in force."""
        return self.ends_us is None or at_us < self.ends_us

    def may(self, scope: Scope) -> bool:
        """Whether it is good for ``scope``."""
        return self.scope in (scope, Scope.ADMIN)


def add_token(
    connection: Connection,
    *,
    name: str,
    scope: Scope,
    secret: bytes,
    now_us: int,
    tenant: str | None = None,
    ends_us: int | None = None,
) -> str:
    """Write a token down; its text, which nobody can make again.

    ``secret`` are :data:`SECRET_BYTES` random bytes. UsageError for a tenant beside another scope than read,
    and where :data:`~ledger.limits.TOKENS_KEPT_MAX` are in force.
    """
    assert len(secret) == SECRET_BYTES, len(secret)
    if tenant is not None and scope is not Scope.READ:
        raise UsageError(f"a token for {scope.value} cannot be for one tenant: leave --tenant out, or choose read")
    lock(connection, "tokens")
    in_force = sum(token.holds(now_us) for token in list_tokens(connection))
    if in_force >= TOKENS_KEPT_MAX:
        raise UsageError(f"{in_force} tokens are in force, and {TOKENS_KEPT_MAX} may be: revoke some first")
    number = int(connection.execute(select(func.coalesce(func.max(tokens.c.id), 0))).scalar_one()) + 1
    connection.execute(
        tokens.insert().values(
            id=number,
            name=name,
            scope=scope.value,
            tenant=tenant,
            digest=_digest(secret.hex()),
            created_us=now_us,
            ends_us=ends_us,
        )
    )
    return f"kvl_{number}_{secret.hex()}"


def list_tokens(connection: Connection) -> tuple[Token, ...]:
    """Every token that ever was, oldest first."""
    return tuple(token for token, _ in _read(connection))


def tokens_in_force(connection: Connection, at_us: int) -> dict[int, tuple[Token, str]]:
    """Every token that holds, with the digest of its secret, by number."""
    return {token.number: (token, digest) for token, digest in _read(connection) if token.holds(at_us)}


def read_text(presented: str) -> tuple[int, str] | None:
    """Number and secret of what somebody presents as a token; None if it is not the text of one."""
    match = _TOKEN.fullmatch(presented)
    return None if match is None else (int(match[1]), match[2])


def is_secret(secret: str, digest: str) -> bool:
    """Whether ``secret`` is the one that ``digest`` was kept of."""
    return hmac.compare_digest(_digest(secret), digest)


def end_token(connection: Connection, number: int, *, at_us: int) -> bool:
    """Let a token be in force until ``at_us``; False if it ends as early already. UsageError where there is none."""
    lock(connection, "tokens")
    found = next(_read(connection, number), None)
    if found is None:
        raise UsageError(f"there is no token {number}; `kvledger tokens list` shows those that there are")
    if not found[0].holds(at_us):
        return False
    connection.execute(update(tokens).where(tokens.c.id == number).values(ends_us=at_us))
    return True


def note_use(connection: Connection, used: Mapping[int, int]) -> None:
    """Write down when tokens were last used (``used_us`` by number), so that it shows who still uses the old one."""
    for number, used_us in sorted(used.items()):
        connection.execute(
            update(tokens)
            .where(tokens.c.id == number, func.coalesce(tokens.c.used_us, 0) < used_us)
            .values(used_us=used_us)
        )


def _read(connection: Connection, number: int | None = None) -> Iterator[tuple[Token, str]]:
    query = select(tokens).order_by(tokens.c.id)
    if number is not None:
        query = query.where(tokens.c.id == number)
    for row in connection.execute(query):
        token = Token(
            number=row.id,
            name=row.name,
            scope=Scope(row.scope),
            tenant=row.tenant,
            created_us=row.created_us,
            ends_us=row.ends_us,
            used_us=row.used_us,
        )
        yield token, row.digest


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
