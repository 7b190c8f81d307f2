"""Which targets cannot be read, since when and why: what the scraper's threads tell, kept in the ledger for people.

Invariant: a target is here from its first failure in a row to its next answer; the ledger is written only when a
target comes, goes or fails for another reason.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ledger.store import scrapes
from ledger.store.scrapes import Failing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.collectors.scraper import Aim, Failure
    from ledger.store.database import Database


S: Final = 1_000_000


class Unread:
    """Thread-safe but for :meth:`keep`, which is one thread's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: dict[int, Failing] = {}
        self._kept: dict[int, Failing] | None = None

    def failed(self, failure: Failure) -> None:
        """A target could not be read."""
        with self._lock:
            had = self._failing.get(failure.aim.number)
            if had is None or had.why != failure.why.value:
                # To the second: nobody needs more of it than a person reads.
                since_us = failure.at_us // S * S if had is None else had.since_us
                self._failing[failure.aim.number] = Failing(
                    since_us=since_us, why=failure.why.value, detail=failure.detail
                )

    def answered(self, aim: Aim) -> None:
        """A target could be read."""
        with self._lock:
            self._failing.pop(aim.number, None)

    def keep(self, database: Database, aims: Iterable[Aim]) -> None:
        """Write what is known of these targets, where it is not what was written; forget all others."""
        numbers = {aim.number for aim in aims}
        with self._lock:
            self._failing = {number: one for number, one in self._failing.items() if number in numbers}
            now = dict(self._failing)
        if now == self._kept or not (now or self._kept or numbers):
            return
        database.write(lambda connection: scrapes.note_failures(connection, now))
        self._kept = now

    def forget(self) -> None:
        """Another process scrapes from here on, and keeps what it sees."""
        with self._lock:
            self._failing, self._kept = {}, None
