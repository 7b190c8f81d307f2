"""Many engines, each asked every interval, none of them able to keep the others waiting.

Invariants: a target has at most one scrape under way; one that was slow or hung the last time is asked on threads of
its own kind, so that those that answer never queue behind it; scrapes are spread over the interval by the target's
name, the same in every process; what is known of a period is handed out once, when no answer that could still bridge
it can come any more; clocks are given.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from ledger import limits
from ledger.collectors.fetch import Unfetched, Why, fetch, place_of
from ledger.collectors.known import AUTO, read_text, source_of, strangers
from ledger.collectors.series import Noticed, Series, Sign
from ledger.core.records import PERIOD_US
from ledger.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.collectors.exposition import Exposition
    from ledger.collectors.fetch import Place
    from ledger.collectors.readings import Gpu, Reading
    from ledger.collectors.series import Moved
    from ledger.core.scraped import ScrapedPeriod

log = logging.getLogger(__name__)

TICK_S: Final = 0.05
"""Between two looks at who is due: a scrape is late by no more through us."""

ROUND_LAG_US: Final = limits.SCRAPE_BRIDGED_US + int(limits.SCRAPE_TIMEOUT_S * 1e6) + 1_000_000
"""After a period's end, when the last answer has come that could still bridge it: 52 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What to scrape: an engine (or an exporter) by name, where, and what it is; ``number`` is the caller's."""

    number: int
    engine: str
    url: str
    kind: str = AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One scrape that was answered. ``moved`` is None for the first one of a target."""

    aim: Aim
    at_us: int
    took_s: float
    text: Exposition
    reading: Reading
    moved: Moved | None
    noticed: tuple[Noticed, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One scrape that was not. ``in_a_row`` counts this one and those right before it."""

    aim: Aim
    at_us: int
    took_s: float
    why: Why
    detail: str
    in_a_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What the targets said in the period that begins at ``start_us``: records of engines, readings of GPUs."""

    start_us: int
    targets: int
    records: tuple[tuple[int, ScrapedPeriod], ...]
    gpus: tuple[tuple[Aim, tuple[tuple[Gpu, ...], ...]], ...]


class Observer(Protocol):
    """Whoever wants to know; called from the scraper's threads, one call at a time for each target."""

    def answered(self, answer: Answer) -> None:
        """A target answered."""

    def failed(self, failure: Failure) -> None:
        """A target did not."""

    def skipped(self, aim: Aim) -> None:
        """A scrape was due and not begun: the one before still runs, or too many slow ones wait."""

    def began(self, aim: Aim, late_s: float) -> None:
        """A scrape began, so much later than it was due."""

    def round(self, made: Round) -> None:
        """A period is complete."""


@dataclass(slots=True)
class _State:
    aim: Aim
    place: Place
    series: Series
    phase_s: float
    due_s: float
    kind: str
    busy: bool = False
    slow: bool = False
    failures: int = 0
    gpus: deque[tuple[int, tuple[Gpu, ...]]] = field(default_factory=lambda: deque(maxlen=limits.SCRAPE_STRETCHES_MAX))
    lock: threading.Lock = field(default_factory=threading.Lock)


class Scraper:
    """Scrapes what it is aimed at. :meth:`run` is a thread of the caller's; the rest may be called from any."""

    def __init__(
        self,
        observer: Observer,
        *,
        clock_us: Callable[[], int],
        mono_s: Callable[[], float],
        get: Callable[[Place], bytes] = fetch,
        interval_s: float = limits.SCRAPE_INTERVAL_S,
    ) -> None:
        self._observer = observer
        self._clock_us = clock_us
        self._mono_s = mono_s
        self._get = get
        self._interval_s = interval_s
        self._states: dict[str, _State] = {}
        self._gone: list[_State] = []
        self._lock = threading.Lock()
        self._waiting_slow = 0
        self._fast = ThreadPoolExecutor(limits.SCRAPE_THREADS, thread_name_prefix="scrape")
        self._slow = ThreadPoolExecutor(limits.SCRAPE_SLOW_THREADS, thread_name_prefix="scrape-slow")
        self._next_us = 0

    def aim(self, aims: Iterable[Aim]) -> tuple[Aim, ...]:
        """Scrape these and no others from now on; those whose address cannot be used come back."""
        refused = []
        now_s = self._mono_s()
        with self._lock:
            wanted = {aim.engine: aim for aim in aims}
            for engine in [engine for engine, state in self._states.items() if wanted.get(engine) != state.aim]:
                # What it said until now still belongs to the periods that are not handed out yet.
                self._gone.append(self._states.pop(engine))
            for engine, aim in wanted.items():
                if engine in self._states:
                    continue
                try:
                    place = place_of(aim.url)
                except UsageError:
                    refused.append(aim)
                    continue
                phase_s = zlib.crc32(engine.encode()) / 2**32 * self._interval_s
                self._states[engine] = _State(
                    aim=aim,
                    place=place,
                    series=Series(engine, rounded=aim.kind != AUTO and source_of(aim.kind).rounded),
                    phase_s=phase_s,
                    due_s=_due(now_s, phase_s, self._interval_s),
                    kind=aim.kind,
                )
        return tuple(refused)

    def run(self, stopped: threading.Event) -> None:
        """Scrape until ``stopped``; then wait for what is under way and hand out what is left."""
        self._next_us = self._next_us or self._clock_us() // PERIOD_US * PERIOD_US
        while not stopped.wait(TICK_S):
            self.tick()
        self._fast.shutdown(wait=True, cancel_futures=True)
        self._slow.shutdown(wait=True, cancel_futures=True)
        self._hand_out(self._clock_us() + PERIOD_US)

    def tick(self) -> None:
        """Begin what is due, and hand out the periods that are complete."""
        now_s = self._mono_s()
        with self._lock:
            due = [state for state in self._states.values() if state.due_s <= now_s]
        for state in due:
            late_s = now_s - state.due_s
            state.due_s = _due(now_s, state.phase_s, self._interval_s)
            self._begin(state, late_s)
        if self._next_us:
            self._hand_out(self._clock_us() - ROUND_LAG_US)

    def _begin(self, state: _State, late_s: float) -> None:
        with self._lock:
            full = state.slow and self._waiting_slow >= limits.SCRAPE_SLOW_WAITING_MAX
            if state.busy or full:
                skip = True
            else:
                skip, state.busy = False, True
                self._waiting_slow += state.slow
        if skip:
            self._observer.skipped(state.aim)
            return
        due_s = self._mono_s() - late_s
        (self._slow if state.slow else self._fast).submit(self._scrape, state, due_s, slow=state.slow)

    def _scrape(self, state: _State, due_s: float, *, slow: bool) -> None:
        began_s, began_us = self._mono_s(), self._clock_us()
        self._observer.began(state.aim, began_s - due_s)
        try:
            raw = self._get(state.place)
            took_s = self._mono_s() - began_s
            self._take(state, began_us + int(took_s * 5e5), took_s, raw)
        except Unfetched as error:
            took_s = self._mono_s() - began_s
            self._fail(state, began_us, took_s, error)
        except Exception as error:
            log.exception("scraping %s failed in a way that was not foreseen", state.aim.engine)
            self._fail(state, began_us, self._mono_s() - began_s, Unfetched(Why.FAULT, repr(error)))
        finally:
            with self._lock:
                state.busy = False
                self._waiting_slow -= slow

    def _take(self, state: _State, at_us: int, took_s: float, raw: bytes) -> None:
        text, reading = read_text(raw, state.kind)
        if reading is None:
            known = "none is known" if state.kind == AUTO else f"none is of the kind {state.kind}"
            raise Unfetched(Why.NOT_METRICS, f"it answers with {len(text.families)} families, and {known}")
        if not reading.gpus and reading.running is None and not reading.counters:
            raise Unfetched(Why.NO_FIGURES, "it tells neither running requests nor tokens")
        source = source_of(reading.kind)
        unknown = strangers(text, source)
        noticed = []
        if text.bad_lines:
            first = text.bad[0]
            detail = f"{text.bad_lines} bad lines, the first is {first.line}: {first.why}"
            noticed.append(Noticed(sign=Sign.BAD_LINES, detail=detail))
        with state.lock:
            state.kind = reading.kind  # once it is known, only its names need be read
            state.series.rounded = source.rounded
            moved, odd = state.series.add(at_us, reading, noticed) if not reading.gpus else (None, tuple(noticed))
            if reading.gpus:
                state.gpus.append((at_us, reading.gpus))
        state.failures, state.slow = 0, took_s > limits.SCRAPE_SLOW_S
        self._observer.answered(
            Answer(
                aim=state.aim,
                at_us=at_us,
                took_s=took_s,
                text=text,
                reading=reading,
                moved=moved,
                noticed=odd,
                unknown=unknown,
            )
        )

    def _fail(self, state: _State, at_us: int, took_s: float, error: Unfetched) -> None:
        with state.lock:
            state.series.failed(at_us)
            if error.why is Why.NOT_METRICS:
                state.kind = state.aim.kind  # another engine may have moved in: look at all names again
        state.failures += 1
        state.slow = took_s > limits.SCRAPE_SLOW_S
        self._observer.failed(
            Failure(
                aim=state.aim,
                at_us=at_us,
                took_s=took_s,
                why=error.why,
                detail=str(error),
                in_a_row=state.failures,
            )
        )

    def _hand_out(self, until_us: int) -> None:
        """Hand out every period that ended at ``until_us``, in order."""
        while self._next_us + PERIOD_US <= until_us:
            start_us, self._next_us = self._next_us, self._next_us + PERIOD_US
            with self._lock:
                states, gone = list(self._states.values()), self._gone
            records: list[tuple[int, ScrapedPeriod]] = []
            gpus = []
            for state in (*gone, *states):
                with state.lock:
                    records += [(state.aim.number, record) for record in state.series.period(start_us)]
                    seen = [found for at_us, found in state.gpus if start_us <= at_us < start_us + PERIOD_US]
                    while state.gpus and state.gpus[0][0] < start_us + PERIOD_US:
                        state.gpus.popleft()
                if seen:
                    gpus.append((state.aim, tuple(seen)))
            with self._lock:
                self._gone = [state for state in self._gone if state.busy or state.series.pending or state.gpus]
            made = Round(start_us=start_us, targets=len(states), records=tuple(records), gpus=tuple(gpus))
            self._observer.round(made)


def _due(now_s: float, phase_s: float, interval_s: float) -> float:
    """The first instant after now that has the phase."""
    due_s = now_s // interval_s * interval_s + phase_s
    return due_s if due_s > now_s else due_s + interval_s
