"""What settling knows of engines that are looked at from outside: the scraped side of one interval.

Invariant: the same rows give the same inputs, whoever asks and when; an engine that was never scraped has none.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

from ledger.core.periods import SILENCE_US
from ledger.core.scraped import ScrapedInputs
from ledger.store import scrapes

if TYPE_CHECKING:
    from ledger.core.scraped import ScrapedPeriod
    from ledger.store.database import Connection


class Lookout:
    """Reads one interval at a time, for all engines at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known = scrapes.targeted(connection)
        self._place: tuple[int, int] | None = None
        self._records: dict[str, tuple[ScrapedPeriod, ...]] = {}
        self._heard: dict[str, int] = {}
        self._closes = scrapes.clean_closes(connection) if self._known else {}
        self._counts: dict[str, int] = {}
        self._counted: tuple[int, int] | None = None

    def frame(self, engine: str | None, start_us: int, end_us: int) -> ScrapedInputs | None:
        """All that an interval of the engine depends on but its records; None where nothing was scraped of it."""
        if engine not in self._known or engine is None:
            return None
        self._read(start_us, end_us)
        heard_us = self._heard.get(engine)
        if heard_us is None and engine not in self._records:
            return None
        closes = self._closes.get(engine, ())
        before = bisect_left(closes, end_us)
        return ScrapedInputs(heard_us=heard_us, hook_closed_us=closes[before - 1] if before else None)

    def filled(self, frame: ScrapedInputs, engine: str | None, start_us: int, end_us: int) -> ScrapedInputs:
        """The same with its records."""
        assert engine is not None, frame
        self._read(start_us, end_us)
        return replace(frame, records=self._records.get(engine, ()))

    def count(self, engine: str | None, start_us: int, end_us: int) -> int:
        """Records of the engine in the quarters of an hour that begin in ``[start_us, end_us)``."""
        if engine not in self._known:
            return 0
        if self._counted != (start_us, end_us):
            self._counts = {}
            found = scrapes.count_records(self._connection, start_us, end_us, scrapes.QUARTER_US)
            for (of, _), records in found.items():
                self._counts[of] = self._counts.get(of, 0) + records
            self._counted = (start_us, end_us)
        return self._counts.get(engine or "", 0)

    def _read(self, start_us: int, end_us: int) -> None:
        if self._place != (start_us, end_us):
            self._records = scrapes.scraped_between(self._connection, start_us, end_us)
            self._heard = scrapes.heard_before(self._connection, start_us, SILENCE_US)
            self._place = (start_us, end_us)
