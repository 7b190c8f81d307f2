"""From one scrape to the next: what moved, what that means, and the records of periods that it makes.

Invariants: the parts that a movement of a counter gives to periods sum to it, since each is the difference of two
rounded-down running totals; time between scrapes that lie too far apart is covered by no record; a counter that fell
is a restart where the process's start moved or all of them fell, and is skipped otherwise, never a negative count; a
gauge that is known to be dead is absent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ledger import limits
from ledger.collectors.readings import COUNTERS, LATENCIES, Figure, Reading
from ledger.core.records import PERIOD_US
from ledger.core.scraped import ScrapedLatency, ScrapedPeriod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WORK: Final = (Figure.OUTPUT, Figure.PROMPT, Figure.COMPUTED)
"""Counters that move only while requests run."""

START_SLACK_US: Final = 1_000_000
"""A start that moved by less is the same start, rounded otherwise."""

DEAD_EVIDENCE: Final = 8.0
"""Requests that must have run at the instants of so many scrapes together, all of which said none: by chance that is
one in 3 000 (e^-8) where requests come as they like."""

DEAD_EVIDENCE_EACH: Final = 0.5
"""What one scrape can say of that. Requests that come in clumps leave a well engine empty at many looks however many
ran in between (seen: a vLLM 0.32 that ran three on average said none at 5 of 7 scrapes), so it takes 16 at least."""

DEAD_SCRAPES: Final = 20
"""The same where nothing says how many requests must have run, and yet tokens came out between all of these."""

DEAD_KV_SCRAPES: Final = 4
"""Scrapes in a row with running requests and no KV memory held: a running request holds at least a block."""


class Sign(StrEnum):
    """What may be odd about a scrape; a label of a metric and a word of the records."""

    RESTART = "restart"
    RESET = "reset"
    GAP = "gap"
    RENAMED = "renamed"
    VANISHED = "vanished"
    DEAD_GAUGE = "dead_gauge"
    NONSENSE = "nonsense"
    BAD_LINES = "bad_lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What moved from one scrape to the next. A histogram is (bound, values in the bucket), the last bound is None."""

    counters: Mapping[Figure, int] = field(default_factory=dict)
    finished: Mapping[str, int] | None = None
    latencies: Mapping[Figure, tuple[tuple[tuple[int | None, int], ...], int | None]] = field(default_factory=dict)

    @property
    def worked(self) -> bool:
        """Whether anything moved that moves only while requests run."""
        return any(self.counters.get(figure) for figure in WORK) or any((self.finished or {}).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Between two scrapes: watched from ``watched_us`` (None: not at all) to ``to_us``; ``before`` held all along."""

    from_us: int
    to_us: int
    watched_us: int | None
    before: Reading
    after: Reading
    moved: Moved
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """A sign, and the figure that it concerns where it concerns one; ``detail`` is a sentence for people."""

    sign: Sign
    figure: str = ""
    detail: str = ""

    @property
    def word(self) -> str:
        return f"{self.sign.value}:{self.figure}" if self.figure else self.sign.value


class Series:
    """The scrapes of one target, in order. Not thread-safe."""

    def __init__(self, engine: str, *, rounded: bool = False) -> None:
        self._engine = engine
        self.rounded = rounded
        self._last: tuple[int, Reading] | None = None
        self._stretches: list[Stretch] = []
        self._answers: list[int] = []
        self._failures: list[int] = []
        self._signs: list[tuple[int, str]] = []
        self._dead: set[Figure] = set()
        self._evidence = 0.0
        self._worked_unseen = self._empty_kv = 0
        self._carried: list[tuple[int, Moved]] = []

    @property
    def dead(self) -> frozenset[Figure]:
        """Gauges that say nothing while requests run."""
        return frozenset(self._dead)

    @property
    def pending(self) -> bool:
        """Whether there is time of which no record was made yet."""
        return bool(self._stretches)

    def failed(self, at_us: int) -> None:
        """A scrape was not answered."""
        self._failures.append(at_us)

    def add(
        self, at_us: int, reading: Reading, noticed: Sequence[Noticed] = ()
    ) -> tuple[Moved | None, tuple[Noticed, ...]]:
        """Take an answer of ``at_us``; what moved since the one before (None: there was none), and what is odd.

        An answer that is not later than the one before is left out: a clock went back.
        """
        found = [*noticed, *(Noticed(sign=Sign.NONSENSE, detail=sentence) for sentence in reading.nonsense)]
        moved: Moved | None = None
        if self._last is not None and at_us <= self._last[0]:
            return None, ()
        self._answers.append(at_us)
        if self._last is not None:
            stretch, odd = _stretch(self._last, (at_us, reading))
            self._watch(stretch)
            found += odd
            moved = stretch.moved
            self._stretches.append(replace(stretch, busy=self._busy(stretch)))
            del self._stretches[: -limits.SCRAPE_STRETCHES_MAX]
        found += [
            Noticed(sign=Sign.DEAD_GAUGE, figure=figure.value, detail=f"{figure.value} is 0 while requests run")
            for figure in sorted(self._dead)
        ]
        self._signs += [(at_us, each.word) for each in found]
        self._last = (at_us, reading)
        return moved, tuple(found)

    def period(self, start_us: int) -> tuple[ScrapedPeriod, ...]:
        """The records of the period that begins at ``start_us``; what lies before its end is forgotten."""
        end_us = start_us + PERIOD_US
        rows: list[_Row] = []
        for stretch in self._stretches:
            if stretch.from_us >= end_us:
                break
            if stretch.watched_us is None:
                if start_us < stretch.to_us <= end_us:
                    self._carried.append((stretch.to_us - stretch.from_us, stretch.moved))
                continue
            from_us, to_us = max(start_us, stretch.watched_us), min(end_us, stretch.to_us)
            if from_us < to_us:
                if not rows or rows[-1].end_us < from_us:
                    rows.append(_Row(self._engine, from_us, self._carried))
                    self._carried = []
                rows[-1].add(stretch, from_us, to_us, self._dead)
        made = [row.record() for row in rows]
        if made:
            made[0] = replace(
                made[0],
                scrapes=_count(self._answers, start_us, end_us),
                failures=_count(self._failures, start_us, end_us),
                signs=tuple(sorted(Counter(word for at, word in self._signs if start_us <= at < end_us).items())),
            )
        self._stretches = [stretch for stretch in self._stretches if stretch.to_us > end_us]
        self._answers = [at for at in self._answers if at >= end_us]
        self._failures = [at for at in self._failures if at >= end_us]
        self._signs = [(at, word) for at, word in self._signs if at >= end_us]
        return tuple(made)

    def _busy(self, stretch: Stretch) -> bool:
        running = None if Figure.RUNNING in self._dead else stretch.before.running
        return bool(running) or stretch.moved.worked

    def _watch(self, stretch: Stretch) -> None:
        """Weigh what speaks for a gauge being dead, and believe it again once it says something."""
        before, after = stretch.before, stretch.after
        if before.running is None or before.running or after.running:
            self._evidence, self._worked_unseen = 0.0, 0
            self._dead.discard(Figure.RUNNING)
        elif stretch.watched_us is not None:
            self._evidence += min(DEAD_EVIDENCE_EACH, _concurrency(stretch))
            self._worked_unseen += bool(stretch.moved.counters.get(Figure.OUTPUT))
            if not stretch.moved.worked:
                self._worked_unseen = 0
            if self._evidence >= DEAD_EVIDENCE or self._worked_unseen >= DEAD_SCRAPES:
                self._dead.add(Figure.RUNNING)
        share = after.kv_active_ppm
        if share or share is None:
            self._empty_kv = 0
            self._dead.discard(Figure.KV_ACTIVE)
        elif after.running and not self.rounded:
            self._empty_kv += 1
            if self._empty_kv >= DEAD_KV_SCRAPES:
                self._dead.add(Figure.KV_ACTIVE)


class _Row:
    """Sums of one record."""

    def __init__(self, engine: str, start_us: int, carried: Sequence[tuple[int, Moved]]) -> None:
        self._engine = engine
        self.start_us = self.end_us = start_us
        self._busy_us = 0
        self._gap_us = sum(gap_us for gap_us, _ in carried)
        self._gauges: dict[str, list[tuple[int, int]]] = {}
        self._counters: dict[Figure, int] = {}
        self._finished: dict[str, int] | None = None
        self._latencies: dict[Figure, tuple[dict[int | None, int], int | None]] = {}
        self._reading: Reading | None = None
        for _, moved in carried:
            self._count(moved, 0, 1, 1)

    def add(self, stretch: Stretch, from_us: int, to_us: int, dead: set[Figure]) -> None:
        length_us = to_us - from_us
        self.end_us = to_us
        self._busy_us += length_us * stretch.busy
        self._reading = stretch.after
        before = stretch.before
        for name, value in (
            ("running", None if Figure.RUNNING in dead else before.running),
            ("waiting", before.waiting),
            ("kv_active", None if Figure.KV_ACTIVE in dead else before.kv_active_ppm),
            ("kv_cached", before.kv_cached_ppm),
        ):
            if value is not None:
                self._gauges.setdefault(name, []).append((value, length_us))
        first_us = stretch.watched_us
        assert first_us is not None
        self._count(stretch.moved, from_us - first_us, to_us - first_us, stretch.to_us - first_us)

    def record(self) -> ScrapedPeriod:
        reading = self._reading
        assert reading is not None
        pool = next(iter(reading.pools), None)
        counters = {figure.value: self._counters.get(figure) for figure in COUNTERS}
        return ScrapedPeriod(
            engine=self._engine,
            start_us=self.start_us,
            end_us=self.end_us,
            busy_us=self._busy_us,
            kind=reading.kind,
            model=reading.models[0] if reading.models else "",
            gap_us=self._gap_us,
            started_us=reading.started_us,
            running_us=self._integral("running"),
            waiting_us=self._integral("waiting"),
            kv_active_ppm=self._mean("kv_active"),
            kv_cached_ppm=self._mean("kv_cached"),
            capacity_tokens=reading.capacity,
            block_size=None if pool is None else pool.block_size,
            finished=None if self._finished is None else tuple(sorted(self._finished.items())),
            latencies=tuple(self._latency(figure) for figure in LATENCIES if figure in self._latencies),
            **counters,  # type: ignore[arg-type] # names of figures are names of fields, each a whole number
        )

    def _count(self, moved: Moved, part: int, until: int, whole: int) -> None:
        """Add the part ``[part, until)`` of ``whole`` of what moved."""

        def share(value: int) -> int:
            return value * until // whole - value * part // whole

        for figure, value in moved.counters.items():
            self._counters[figure] = self._counters.get(figure, 0) + share(value)
        if moved.finished is not None:
            self._finished = self._finished or {}
            for reason, value in moved.finished.items():
                self._finished[reason] = self._finished.get(reason, 0) + share(value)
        for figure, (buckets, total_us) in moved.latencies.items():
            sums, total = self._latencies.get(figure, ({}, 0))
            for bound, value in buckets:
                sums[bound] = sums.get(bound, 0) + share(value)
            total = None if total is None or total_us is None else total + share(total_us)
            self._latencies[figure] = sums, total

    def _integral(self, name: str) -> int | None:
        found = self._gauges.get(name)
        return None if found is None else sum(value * length for value, length in found)

    def _mean(self, name: str) -> int | None:
        found = self._gauges.get(name)
        return None if found is None else sum(v * n for v, n in found) // sum(n for _, n in found)

    def _latency(self, figure: Figure) -> ScrapedLatency:
        sums, total_us = self._latencies[figure]
        return ScrapedLatency(
            name=figure.value,
            buckets=tuple(sorted((bound, n) for bound, n in sums.items() if bound is not None and n)),
            over=sums.get(None, 0),
            total_us=total_us,
        )


def _stretch(first: tuple[int, Reading], then: tuple[int, Reading]) -> tuple[Stretch, list[Noticed]]:
    (from_us, before), (to_us, after) = first, then
    odd = list(_renames(before, after))
    fell = [figure for figure, value in before.counters.items() if after.counters.get(figure, value) < value]
    both = [figure for figure, value in before.counters.items() if value and figure in after.counters]
    known = before.started_us is not None and after.started_us is not None
    started_us = after.started_us
    if known:
        restarted = abs((after.started_us or 0) - (before.started_us or 0)) > START_SLACK_US
    else:
        restarted = bool(fell) and len(fell) == len(both)
    watched_us: int | None = from_us
    if restarted:
        odd.append(Noticed(sign=Sign.RESTART, detail="the engine's process is another one"))
        # Of a process whose start is told, what it did since then was watched.
        watched_us = max(from_us, started_us) if known and started_us is not None and started_us < to_us else None
    elif fell:
        odd += [Noticed(sign=Sign.RESET, figure=f.value, detail=f"{f.value} fell; what moved is skipped") for f in fell]
    if to_us - from_us > limits.SCRAPE_BRIDGED_US:
        odd.append(Noticed(sign=Sign.GAP, detail=f"nobody watched for {(to_us - from_us) / 1e6:.0f} s"))
        watched_us = None
    if restarted:
        before = Reading(kind=after.kind)  # what the one before held is gone with it
    moved = _moved(before, after, from_zero=restarted)
    stretch = Stretch(
        from_us=from_us, to_us=to_us, watched_us=watched_us, before=before, after=after, moved=moved, busy=False
    )
    return stretch, odd


def _moved(before: Reading, after: Reading, *, from_zero: bool) -> Moved:
    counters = {}
    for figure, value in after.counters.items():
        had = 0 if from_zero else before.counters.get(figure)
        if had is not None and value >= had:
            counters[figure] = value - had
    finished: dict[str, int] | None = None
    if after.finished is not None and (from_zero or before.finished is not None):
        had_ended = before.finished or {}
        finished = {
            reason: value - had_ended.get(reason, 0)
            for reason, value in after.finished.items()
            if value >= had_ended.get(reason, 0)
        }
    latencies = {}
    for figure, then in after.latencies.items():
        first = before.latencies.get(figure)
        if first is None and not from_zero:
            continue
        now, was = _plain(then.buckets, then.count), {} if first is None else dict(_plain(first.buckets, first.count))
        if any(n < was.get(bound, 0) for bound, n in now) or not set(was) <= {bound for bound, _ in now}:
            continue
        total_us = then.total_us
        if total_us is not None and first is not None:
            total_us = None if first.total_us is None else max(0, total_us - first.total_us)
        latencies[figure] = tuple((bound, n - was.get(bound, 0)) for bound, n in now), total_us
    return Moved(counters=counters, finished=finished, latencies=latencies)


def _plain(buckets: Sequence[tuple[int, int]], count: int) -> tuple[tuple[int | None, int], ...]:
    """Cumulative buckets as the values in each, with those above the last one at the end."""
    found: list[tuple[int | None, int]] = []
    below = 0
    for bound, upto in buckets:
        found.append((bound, max(0, upto - below)))
        below = max(below, upto)
    return (*found, (None, max(0, count - below)))


def _renames(before: Reading, after: Reading) -> Iterator[Noticed]:
    for figure, name in before.origins.items():
        now = after.origins.get(figure)
        if now is None:
            yield Noticed(sign=Sign.VANISHED, figure=figure.value, detail=f"{name} is not there any more")
        elif now != name:
            yield Noticed(sign=Sign.RENAMED, figure=figure.value, detail=f"{name} is called {now} now")


def _concurrency(stretch: Stretch) -> float:
    """How many requests ran on average, by what they say they took less what they waited; 0 where nothing says."""
    took = {figure: total_us or 0 for figure, (_, total_us) in stretch.moved.latencies.items()}
    ran_us = took.get(Figure.END_TO_END, 0) - took.get(Figure.QUEUE, 0)
    return max(ran_us, took.get(Figure.INTER_TOKEN, 0)) / (stretch.to_us - stretch.from_us)


def _count(times: Sequence[int], start_us: int, end_us: int) -> int:
    return sum(start_us <= at < end_us for at in times)
