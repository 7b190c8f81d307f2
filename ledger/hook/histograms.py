"""Latencies, lengths and batch sizes of a period: written down by the engine's thread, counted up by the other.

The engine's thread appends (a step costs one tuple, whoever is in steady decode costs nothing); buckets are
found when the period is settled. Latencies are told apart by scenario and priority, up to a bound.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

from ledger.core.quantiles import bucket_index
from ledger.core.records import Histogram, Outcome
from ledger.hook.slices import in_slices, no_rest
from ledger.limits import (
    INT_MAX,
    PERIOD_LABELS_MAX,
    PERIOD_PHASES_MAX,
    PERIOD_SHARDS_MAX,
    SORT_ROWS,
    TEXT_CHARS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ledger.hook.requests import Label, Request

OTHER_LABEL: Label = ("other", 0)

PHASES = frozenset({"schedule", "execute", "communication", "compute", "update", "wait"})
"""Parts of a step that an engine may time, beside ``total``, which the meter times itself."""

METHODS = frozenset({"wall", "cuda_events", "sampled", "modelled"})
"""How a part was timed; the last is the reference engine's, which has no clock but its model."""

DURATION_US_MAX = INT_MAX // PERIOD_PHASES_MAX
"""A year: the sums of a period stay within a BIGINT."""


class Log:
    """What happened in a period, as it came."""

    __slots__ = ("arrived", "changes", "ended", "first_token", "phases", "scheduled", "steps", "token_times")

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int, int]] = []
        """(serial, duration, gap to the end before, requests) of each step that ended."""
        self.phases: list[tuple[str, str, Mapping[str, int]]] = []
        """(shard, method, durations by phase) of each step, as its parts were timed."""
        self.changes: list[tuple[int, Request, int]] = []
        """From the step with that serial on the request is (1) or is not (-1) in steady decode."""
        self.token_times: dict[tuple[Label, int], int] = {}
        """Tokens outside of steady decode, by the time from one to the next."""
        self.arrived: list[Request] = []
        self.scheduled: list[Request] = []
        """For the first time."""
        self.first_token: list[Request] = []
        self.ended: list[Request] = []

    def tokens(self, label: Label, gap: int, count: int) -> None:
        key = (label, gap)
        self.token_times[key] = self.token_times.get(key, 0) + count

    def phased(self, durations_us: Mapping[str, int], shard: str, method: str) -> bool:
        """Write down how long parts of a step took; False where it cannot be meant so, and nothing is written."""
        if not durations_us.keys() <= PHASES or method not in METHODS:
            return False
        if not isinstance(shard, str) or len(shard) > TEXT_CHARS_MAX:
            return False
        for duration in durations_us.values():
            if not 0 <= duration <= DURATION_US_MAX or type(duration) is not int:
                return False
        if len(self.phases) < PERIOD_PHASES_MAX:
            self.phases.append((shard, method, durations_us))
        return True

    def __bool__(self) -> bool:
        return bool(self.steps or self.arrived or self.scheduled or self.first_token or self.ended)


class Tally:
    """Turns the logs of successive periods into histograms; knows how many requests decode steadily."""

    def __init__(self) -> None:
        self.steady: Counter[Label] = Counter()
        self.pending: list[tuple[int, Label, int]] = []

    def histograms(self, log: Log, rest: Callable[[], None] = no_rest) -> tuple[Histogram, ...]:
        """The histograms of a period, by name and labels; empty ones are left out."""
        for serial, request, by in log.changes:
            heapq.heappush(self.pending, (serial, request.label, by))
        tokens: dict[Label, Counter[int]] = {}
        for (label, gap), count in log.token_times.items():
            tokens.setdefault(label, Counter())[gap] += count
        steps: Counter[int] = Counter()
        batches: Counter[int] = Counter()
        pending = self.pending
        for serial, duration, gap, requests in in_slices(log.steps, rest, SORT_ROWS):
            while pending and pending[0][0] <= serial:
                _, label, by = heapq.heappop(pending)
                self.steady[label] += by
                if not self.steady[label]:
                    del self.steady[label]
            steps[duration] += 1
            batches[requests] += 1
            for label, count in self.steady.items():
                tokens.setdefault(label, Counter())[gap] += count
        finished = [request for request in log.ended if request.outcome is Outcome.FINISHED]
        made = [
            _histogram("step_latency_us", (("phase", "total"),), steps),
            *_phased(in_slices(log.phases, rest, SORT_ROWS)),
            _histogram("step_batch_requests", (), batches),
            *_labelled("inter_token_us", tokens.items()),
            *_labelled("queue_us", _gather(log.scheduled, lambda one: _since_arrival(one, one.scheduled_t))),
            *_labelled("first_token_us", _gather(log.first_token, lambda one: _since_arrival(one, one.first_token_t))),
            *_labelled("end_to_end_us", _gather(finished, lambda one: _since_arrival(one, one.ended_t))),
            *_labelled("request_length_tokens", _gather(log.arrived, lambda one: one.prompt), ("direction", "in")),
            *_labelled("request_length_tokens", _gather(log.ended, _output), ("direction", "out")),
        ]
        return tuple(sorted((one for one in made if one is not None), key=lambda one: (one.name, one.labels)))


def _phased(timed: Iterable[tuple[str, str, Mapping[str, int]]]) -> list[Histogram | None]:
    """Histograms of the parts of steps; shards beyond the bound go together as ``other``."""
    shards: dict[str, str] = {}
    gathered: dict[tuple[str, str, str], Counter[int]] = {}
    for shard, method, durations in timed:
        name = shards.get(shard)
        if name is None:
            name = shards[shard] = shard if len(shards) < PERIOD_SHARDS_MAX else "other"
        for phase, duration in durations.items():
            gathered.setdefault((method, phase, name), Counter())[duration] += 1
    return [
        _histogram("step_latency_us", (("method", method), ("phase", phase), ("shard", shard)), counts)
        for (method, phase, shard), counts in gathered.items()
    ]


def _gather(requests: Iterable[Request], value: Callable[[Request], int]) -> Iterable[tuple[Label, Counter[int]]]:
    gathered: dict[Label, Counter[int]] = {}
    for request in requests:
        gathered.setdefault(request.label, Counter())[value(request)] += 1
    return gathered.items()


def _since_arrival(request: Request, t: int | None) -> int:
    assert t is not None, "it is in the log because that has happened"
    return t - request.arrived_t


def _output(request: Request) -> int:
    return max(request.output, 0)


def _labelled(
    name: str, values: Iterable[tuple[Label, Counter[int]]], *more: tuple[str, str]
) -> list[Histogram | None]:
    kept: dict[Label, Counter[int]] = {}
    for label, counts in sorted(values):
        kept.setdefault(label if len(kept) < PERIOD_LABELS_MAX else OTHER_LABEL, Counter()).update(counts)
    return [
        _histogram(name, tuple(sorted((*more, ("priority", str(priority)), ("scenario", scenario)))), counts)
        for (scenario, priority), counts in kept.items()
    ]


def _histogram(name: str, labels: tuple[tuple[str, str], ...], values: Counter[int]) -> Histogram | None:
    """None where nothing is left: what steady decode supposed was taken back."""
    buckets: Counter[int] = Counter()
    count = total = 0
    for value, times in values.items():
        if times:
            buckets[bucket_index(value)] += times
            count += times
            total += value * times
    if not count:
        return None
    return Histogram(
        name=name,
        labels=labels,
        buckets=tuple(sorted((index, times) for index, times in buckets.items() if times)),
        count=count,
        total=total,
    )
