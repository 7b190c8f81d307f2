"""Tokens and logins: what is kept of them, when they hold, and who gets through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from ledger import limits
from ledger.errors import LedgerError, UsageError
from ledger.store import migrate
from ledger.store.database import Database, connect
from ledger.store.tokens import Scope, add_token, end_token, list_tokens
from ledger.web.access import Gate, Rates, session_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = 1_770_000_000_000_000


class Clock:
    """Two clocks that the test moves."""

    def __init__(self) -> None:
        self.us = NOW

    def wall(self) -> int:
        return self.us

    def mono(self) -> float:
        return self.us / 1e6


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = connect(f"sqlite:///{tmp_path / 'books.db'}")
    migrate.upgrade(made)
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(database: Database, clock: Clock) -> Gate:
    return Gate(database, b"k" * 32, clock_us=clock.wall, clock_s=clock.mono)


def made(database: Database, *, scope: Scope = Scope.READ, tenant: str | None = None, fill: int = 7) -> str:
    return database.write(
        lambda c: add_token(c, name="t", scope=scope, tenant=tenant, secret=bytes([fill]) * 32, now_us=NOW)
    )


def test_the_database_keeps_no_secret(database: Database) -> None:
    secret = made(database).rpartition("_")[2]
    with database.read() as connection:
        kept = " ".join(str(value) for row in connection.execute(text("SELECT * FROM tokens")) for value in row)
    assert secret not in kept


def test_a_token_gets_through_with_its_scope_and_tenant(database: Database, gate: Gate) -> None:
    found = gate.bearer(made(database, tenant="acme"))
    assert found is not None
    assert (found.scope, found.tenant, found.may(Scope.READ), found.may(Scope.INGEST)) == (
        Scope.READ, "acme", True, False,
    )  # fmt: skip


def test_an_admin_may_whatever_the_others_may(database: Database, gate: Gate) -> None:
    found = gate.bearer(made(database, scope=Scope.ADMIN))
    assert found is not None
    assert all(found.may(scope) for scope in Scope)


@pytest.mark.parametrize("change", [
    lambda t: t[:-1] + ("0" if t[-1] != "0" else "1"), lambda t: t[:-1], lambda t: t + "0", lambda t: t.upper(),
    lambda t: t.replace("kvl_1", "kvl_2"), lambda t: t.replace("kvl_1", "kvl_01"), lambda _: "", lambda t: f" {t}",
])  # fmt: skip
def test_nothing_but_the_whole_token_gets_through(database: Database, gate: Gate, change: object) -> None:
    token = made(database)
    assert gate.bearer(token) is not None
    assert gate.bearer(change(token)) is None  # type: ignore[operator]


def test_a_rotation_lets_both_tokens_through_until_the_old_one_ends(
    database: Database, gate: Gate, clock: Clock
) -> None:
    old = made(database)
    database.write(lambda c: end_token(c, 1, at_us=NOW + 3_600_000_000))
    new = made(database, fill=8)
    assert gate.bearer(old)
    assert gate.bearer(new)
    clock.us += 3_600_000_000
    assert gate.bearer(old) is None
    assert gate.bearer(new)


def test_a_revoked_token_is_refused_within_the_stated_time(database: Database, gate: Gate, clock: Clock) -> None:
    token = made(database)
    assert gate.bearer(token)
    assert database.write(lambda c: end_token(c, 1, at_us=NOW))
    clock.us += int(limits.TOKEN_STALE_S * 1e6) + 1
    assert gate.bearer(token) is None


def test_an_end_is_never_put_off(database: Database) -> None:
    made(database)
    assert database.write(lambda c: end_token(c, 1, at_us=NOW + 5))
    assert not database.write(lambda c: end_token(c, 1, at_us=NOW + 9))
    with database.read() as connection:
        assert list_tokens(connection)[0].ends_us == NOW + 5


def test_ending_a_token_that_is_not_there_says_how_to_find_those_that_are(database: Database) -> None:
    with pytest.raises(UsageError, match="tokens list"):
        database.write(lambda c: end_token(c, 4, at_us=NOW))


def test_only_a_reader_can_be_of_one_tenant(database: Database) -> None:
    with pytest.raises(UsageError, match="one tenant"):
        made(database, scope=Scope.INGEST, tenant="acme")


def test_a_login_holds_for_its_time(database: Database, gate: Gate, clock: Clock) -> None:
    token = gate.bearer(made(database))
    assert token is not None
    cookie = gate.login(token)
    assert gate.session(cookie) == token
    clock.us += limits.SESSION_COOKIE_S * 1_000_000 - 1
    assert gate.session(cookie) == token
    clock.us += 1
    assert gate.session(cookie) is None


def test_a_login_dies_with_its_token(database: Database, gate: Gate, clock: Clock) -> None:
    token = gate.bearer(made(database))
    assert token is not None
    cookie = gate.login(token)
    database.write(lambda c: end_token(c, 1, at_us=NOW + 1))
    clock.us += 10_000_000
    assert gate.session(cookie) is None


def test_a_login_cannot_be_made_nor_changed_without_the_key(database: Database, gate: Gate, clock: Clock) -> None:
    token = gate.bearer(made(database))
    assert token is not None
    other = Gate(database, b"x" * 32, clock_us=clock.wall, clock_s=clock.mono)
    assert gate.session(other.login(token)) is None
    number, expires, mac = gate.login(token).split(".")
    assert gate.session(f"{number}.{int(expires) + 1}.{mac}") is None


def test_uses_are_written_down_so_that_a_rotation_can_be_watched(database: Database, gate: Gate) -> None:
    gate.bearer(made(database))
    gate.write_uses()
    with database.read() as connection:
        assert list_tokens(connection)[0].used_us == NOW


def test_the_key_of_logins_stays_and_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    key = session_key(tmp_path / "state")
    assert session_key(tmp_path / "state") == key
    files = list((tmp_path / "state").iterdir())
    assert [(file.name, file.stat().st_mode & 0o777) for file in files] == [("session.key", 0o600)]


def test_a_key_that_was_cut_is_told_and_not_used(tmp_path: Path) -> None:
    (tmp_path / "session.key").write_bytes(b"short")
    with pytest.raises(LedgerError, match="5 bytes"):
        session_key(tmp_path)


def test_a_caller_that_asks_too_often_waits_and_others_do_not(clock: Clock) -> None:
    rates = Rates(per_s=2, burst=3, clock_s=clock.mono)
    assert [rates.take("a") for _ in range(3)] == [0, 0, 0]
    assert rates.take("a") == pytest.approx(0.5)
    assert rates.take("b") == 0
    clock.us += 500_000
    assert rates.take("a") == 0


def test_the_callers_that_are_remembered_are_bounded(clock: Clock) -> None:
    rates = Rates(per_s=1, burst=1, clock_s=clock.mono)
    for caller in range(limits.RATE_KEYS_MAX + 5):
        rates.take(str(caller))
    assert len(rates._buckets) == limits.RATE_KEYS_MAX
