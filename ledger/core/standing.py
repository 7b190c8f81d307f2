"""How many cached blocks each session had while it had no row: the quiet spans of a boot, in the order of its batches.

Invariant: a session without a row kept its count; so its cached time is its count times the length, as a span that is
booked when it ends, not as a row per period. The work is proportional to the rows and the standing counts.

From a gap to the next standing counts nobody's count is known, and only rows speak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Book = Callable[[int, int, int, int], None]
"""``(session, count, first, stop)``: the session had ``count`` cached blocks in the periods ``[first, stop)``."""


class StandingCounts:
    """The known counts, and since which period each has been quiet. Sessions and periods are indices."""

    __slots__ = ("_book", "_counts", "_since", "known", "total")

    def __init__(self, book: Book) -> None:
        self._book = book
        self._counts: dict[int, int] = {}
        self._since: dict[int, int] = {}
        self.known = False
        self.total = 0
        """Sum of the counts."""

    def counts(self) -> Mapping[int, int]:
        """The known counts by session, none zero."""
        return self._counts

    def count(self, session: int) -> int:
        return self._counts.get(session, 0)

    def forget(self, period: int) -> None:
        """Batches were lost before ``period``: spans end where the loss begins, and nothing is known."""
        self._flush(period)
        self.known = False

    def restart(self, period: int) -> None:
        """The pool is a new one from ``period`` on: nothing is cached."""
        self._flush(period)
        self.known = True

    def stand(self, period: int, counts: Mapping[int, int], rows: Iterable[int]) -> None:
        """``counts`` at the end of ``period``; those without a row in it had them all through it."""
        self._flush(period)
        self._counts = {session: count for session, count in counts.items() if count}
        self._since = dict.fromkeys(self._counts, period)
        for session in rows:
            if session in self._since:
                self._since[session] = period + 1
        self.total = sum(self._counts.values())
        self.known = True

    def row(self, period: int, session: int, count: int) -> None:
        """A row of ``session`` in ``period`` tells its own cached time, and ``count`` blocks at its end."""
        before = self._counts.pop(session, 0)
        if before:
            self._book(session, before, self._since.pop(session), period)
        if count:
            self._counts[session] = count
            self._since[session] = period + 1
        self.total += count - before

    def end(self, period: int) -> None:
        """The facts end before ``period``."""
        self._flush(period)

    def _flush(self, period: int) -> None:
        for session, count in self._counts.items():
            # One that had a row in ``period`` itself is quiet only after it.
            if self._since[session] < period:
                self._book(session, count, self._since[session], period)
        self._counts = {}
        self._since = {}
        self.total = 0
