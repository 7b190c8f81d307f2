"""Who is asking, and whether they may: bearer tokens, the page's cookie, and how often anybody may ask.

Invariants: a token is compared in constant time and never logged; a cookie is good for reading only (what
changes anything wants a bearer token, so no other site can make a browser do it); a cookie dies with its token;
what is kept about callers is bounded.

The cookie is ``number.expires.mac``, with a key that lies in a file of the state directory and not in the
database: who reads the database can neither use a token nor make a login.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from ledger import limits
from ledger.errors import LedgerError
from ledger.store.tokens import Token, is_secret, note_use, read_text, tokens_in_force

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ledger.store.database import Database

COOKIE: Final = "kvledger_session"
KEY_FILE: Final = "session.key"
KEY_BYTES: Final = 32

RELOAD_S_MIN: Final = 1.0
"""An unknown number makes the tokens be read again, so that a new one works at once, but no oftener than this."""

_COOKIE: Final = re.compile(r"([1-9][0-9]{0,17})\.([1-9][0-9]{0,17})\.([0-9a-f]{64})")


class Rates:
    """How often each of many callers may ask: a bucket of ``burst`` that fills with ``per_s``; thread-safe."""

    def __init__(self, *, per_s: float, burst: float, clock_s: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock_s = clock_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str) -> float:
        """Take one from the bucket of ``key``; the seconds to wait until there is one, 0 where there was."""
        with self._lock:
            left = self._level(key)
            wait_s = 0.0 if left >= 1 else (1 - left) / self._per_s
            self._keep(key, left - 1 if not wait_s else left)
            return wait_s

    def wait_s(self, key: str) -> float:
        """Like :meth:`take`, and nothing is taken."""
        with self._lock:
            left = self._level(key)
            return 0.0 if left >= 1 else (1 - left) / self._per_s

    def _level(self, key: str) -> float:
        level, at_s = self._buckets.get(key, (self._burst, self._clock_s()))
        return min(self._burst, level + (self._clock_s() - at_s) * self._per_s)

    def _keep(self, key: str, level: float) -> None:
        self._buckets[key] = (level, self._clock_s())
        self._buckets.move_to_end(key)
        while len(self._buckets) > limits.RATE_KEYS_MAX:
            self._buckets.popitem(last=False)


class Gate:
    """Knows the tokens in force; thread-safe. StoreError where they cannot be read."""

    def __init__(
        self, database: Database, key: bytes, *, clock_us: Callable[[], int], clock_s: Callable[[], float]
    ) -> None:
        self._database = database
        self._key = key
        self._clock_us = clock_us
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._known: dict[int, tuple[Token, str]] = {}
        self._read_s = float("-inf")
        self._used: dict[int, int] = {}

    def bearer(self, presented: str) -> Token | None:
        """The token whose text was presented, if it is in force."""
        return self._holder(presented, self._find)

    def at_once(self, presented: str) -> Token | None:
        """:meth:`bearer` that never waits: None also where the tokens would have to be read again."""
        return self._holder(presented, self._known.get) if self._age_s() <= limits.TOKEN_STALE_S else None

    def _holder(self, presented: str, find: Callable[[int], tuple[Token, str] | None]) -> Token | None:
        parts = read_text(presented)
        if parts is None:
            return None
        number, secret = parts
        found = find(number)
        if found is None or not is_secret(secret, found[1]):
            return None
        return self._taken(found[0])

    def session(self, cookie: str) -> Token | None:
        """The token that a page logged in with, if it is still in force and the login has not run out."""
        match = _COOKIE.fullmatch(cookie)
        if match is None or not hmac.compare_digest(self._mac(match[1], match[2]), match[3]):
            return None
        found = self._find(int(match[1]))
        if found is None or int(match[2]) * 1_000_000 <= self._clock_us():
            return None
        return self._taken(found[0])

    def login(self, token: Token) -> str:
        """A cookie for ``token``, good for :data:`~ledger.limits.SESSION_COOKIE_S`."""
        number, expires = str(token.number), str(self._clock_us() // 1_000_000 + limits.SESSION_COOKIE_S)
        return f"{number}.{expires}.{self._mac(number, expires)}"

    def write_uses(self) -> None:
        """Write down which tokens were used since the last time."""
        with self._lock:
            used, self._used = self._used, {}
        if used:
            self._database.write(lambda connection: note_use(connection, used))

    def _find(self, number: int) -> tuple[Token, str] | None:
        with self._lock:
            age_s = self._age_s()
            if age_s > limits.TOKEN_STALE_S or (number not in self._known and age_s > RELOAD_S_MIN):
                with self._database.read() as connection:
                    self._known = tokens_in_force(connection, self._clock_us())
                self._read_s = self._clock_s()
            return self._known.get(number)

    def _age_s(self) -> float:
        return self._clock_s() - self._read_s

    def _taken(self, token: Token) -> Token | None:
        now_us = self._clock_us()
        if not token.holds(now_us):
            return None
        self._used[token.number] = now_us
        return token

    def _mac(self, number: str, expires: str) -> str:
        return hmac.new(self._key, f"{number}.{expires}".encode(), hashlib.sha256).hexdigest()


def session_key(state_dir: Path) -> bytes:
    """The key that logins are signed with, made (readable by its owner only) where there is none yet.

    Replicas that serve the same pages need the same file.
    """
    path = state_dir / KEY_FILE
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        try:
            # Written aside and linked, so that of two starts at once both read the same whole key.
            aside = path.with_suffix(f".{os.getpid()}")
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
                stream.write(secrets.token_bytes(KEY_BYTES))
            os.link(aside, path)
        except FileExistsError:
            pass
        finally:
            aside.unlink(missing_ok=True)
        key = path.read_bytes()
    except OSError as error:
        raise LedgerError(
            f"{path}: the key of logins cannot be kept: {error.strerror}; see that the state directory can be written"
        ) from error
    if len(key) != KEY_BYTES:
        raise LedgerError(f"{path}: has {len(key)} bytes and must have {KEY_BYTES}; remove it, and pages log in again")
    return key
