"""Batches that arrive at the same time, booked together: one transaction, and one wait for the disk, for all of them.

Invariants: a batch is answered only after the commit that holds it; batches of one sender, who waits for each answer,
keep their order; where a group fails for another reason than the database, each is tried by itself, so none suffers
for another's sake.

Whoever comes first books, for itself and for all that came while the one before it was booking: no thread of its own,
no waiting for company. (Group commit, as databases do it with their logs.)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger import ingest, limits
from ledger.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.ingest import Examined, Outcome
    from ledger.store.database import Database


@dataclass(slots=True, eq=False)
class _Waiting:
    examined: Examined
    answer: Outcome | Exception | None = None


class Booking:
    """Books what several threads hand in; thread-safe."""

    def __init__(self, database: Database, clock_us: Callable[[], int]) -> None:
        self._database = database
        self._clock_us = clock_us
        self._waiting: list[_Waiting] = []
        self._handing_in = threading.Lock()
        self._booking = threading.Lock()

    def accept(self, raw: bytes) -> tuple[Outcome, int]:
        """What became of a batch, durably, and when it was received; raises as :func:`ledger.ingest.accept` does."""
        received_us = self._clock_us()
        # Before the queue, so that this one is read while the group before it waits for the disk.
        mine = _Waiting(ingest.examine(self._database, raw, received_us))
        with self._handing_in:
            self._waiting.append(mine)
        with self._booking:
            # Perhaps the one before took mine along; or those before it filled a whole group, and another is due.
            while mine.answer is None:
                with self._handing_in:
                    group = self._waiting[: limits.BATCHES_AT_ONCE_MAX]
                    del self._waiting[: limits.BATCHES_AT_ONCE_MAX]
                assert group, "who took my batch along has left it without an answer"
                self._book(group)
        if isinstance(mine.answer, Exception):
            raise mine.answer
        return mine.answer, received_us

    def _book(self, group: list[_Waiting]) -> None:
        try:
            outcomes = ingest.book(self._database, [one.examined for one in group])
        except Exception as error:  # noqa: BLE001 - it is raised in the thread that it belongs to
            if len(group) > 1 and not isinstance(error, StoreError):
                for one in group:
                    self._book([one])
                return
            for one in group:
                one.answer = error
            return
        for one, outcome in zip(group, outcomes, strict=True):
            one.answer = outcome
