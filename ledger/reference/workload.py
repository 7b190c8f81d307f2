"""A seeded workload: ten tenants of different habits, sessions that grow, day and night.

Three kinds of work are mixed. *Chat*: many turns, each prompt being the whole conversation so far behind the
tenant's system prompt. *Documents*: a long text, then a few questions about it. *Code*: completions in quick
succession, where the file's beginning stays and its end changes. Content is named per 16 tokens, so system
prompts are shared within a tenant, answers are part of the next prompt, and nothing else is shared.

Everything follows from the seed: the same seed gives the same requests in every process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

from ledger.core.records import Dimensions
from ledger.reference.latency import LARGE_MODEL, LatencyModel
from ledger.reference.request import TraceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
SECOND_US = 1_000_000

CONTENT_TOKENS = 16
"""Tokens that one content id stands for."""

_SESSION_IDS = 1 << 20
"""Content ids that belong to one session; a context of 16 million tokens."""


class Scenario(StrEnum):
    """The kinds of work."""

    CHAT = "chat"
    DOCUMENT = "document"
    CODE = "code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """How one tenant uses the engines. Lengths are in tokens and medians of skewed distributions."""

    tenant: str
    scenario: Scenario
    sessions_per_day: int
    turns: int
    """Mean number of requests in a session."""
    system_prompt: int
    first_prompt: int
    added_prompt: int
    answer: int
    think_s: int
    priority: int = 0
    day_night: float = 0.6
    """0: the same all day; 1: nothing at 3 in the night, twice the mean at 3 in the afternoon."""
    leaves_ratio: float = 0.0
    """Share of requests whose client goes away before the answer is complete."""
    patience_s: int = 0
    """Longest wait before a client that leaves does so; 0 for those who leave at any moment of 20 s (aborted)."""
    samples: int = 1
    draft_tokens: int = 0


TENANTS = (
    Habit(
        tenant="alder",
        scenario=Scenario.CHAT,
        sessions_per_day=900,
        turns=6,
        system_prompt=640,
        first_prompt=90,
        added_prompt=60,
        answer=180,
        think_s=40,
        leaves_ratio=0.04,
    ),
    Habit(
        tenant="birch",
        scenario=Scenario.CHAT,
        sessions_per_day=420,
        turns=10,
        system_prompt=1600,
        first_prompt=140,
        added_prompt=90,
        answer=240,
        think_s=70,
        leaves_ratio=0.02,
    ),
    Habit(
        tenant="cedar",
        scenario=Scenario.CHAT,
        sessions_per_day=240,
        turns=4,
        system_prompt=320,
        first_prompt=60,
        added_prompt=40,
        answer=120,
        think_s=25,
        priority=-1,
        leaves_ratio=0.10,
        patience_s=3,
    ),
    Habit(
        tenant="dogwood",
        scenario=Scenario.CHAT,
        sessions_per_day=160,
        turns=3,
        system_prompt=0,
        first_prompt=700,
        added_prompt=200,
        answer=420,
        think_s=90,
        day_night=0.2,
    ),
    Habit(
        tenant="elm",
        scenario=Scenario.DOCUMENT,
        sessions_per_day=70,
        turns=4,
        system_prompt=480,
        first_prompt=24_000,
        added_prompt=50,
        answer=350,
        think_s=120,
        leaves_ratio=0.03,
        patience_s=10,
    ),
    Habit(
        tenant="fir",
        scenario=Scenario.DOCUMENT,
        sessions_per_day=40,
        turns=1,
        system_prompt=960,
        first_prompt=48_000,
        added_prompt=0,
        answer=900,
        think_s=0,
        priority=2,
        day_night=-0.5,
    ),
    Habit(
        tenant="gingko",
        scenario=Scenario.DOCUMENT,
        sessions_per_day=60,
        turns=1,
        system_prompt=480,
        first_prompt=6000,
        added_prompt=0,
        answer=500,
        think_s=0,
        priority=1,
        day_night=0.0,
        samples=3,
    ),
    Habit(
        tenant="hazel",
        scenario=Scenario.CODE,
        sessions_per_day=150,
        turns=25,
        system_prompt=256,
        first_prompt=3000,
        added_prompt=30,
        answer=28,
        think_s=12,
        priority=-1,
        day_night=0.9,
        leaves_ratio=0.15,
        patience_s=1,
    ),
    Habit(
        tenant="ironwood",
        scenario=Scenario.CODE,
        sessions_per_day=60,
        turns=40,
        system_prompt=256,
        first_prompt=6500,
        added_prompt=45,
        answer=40,
        think_s=20,
        day_night=0.8,
        draft_tokens=4,
    ),
    Habit(
        tenant="juniper",
        scenario=Scenario.CODE,
        sessions_per_day=20,
        turns=12,
        system_prompt=2400,
        first_prompt=14_000,
        added_prompt=400,
        answer=700,
        think_s=45,
        day_night=0.7,
    ),
)
"""Ten tenants; figures are invented, in proportions that public traces of such work show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests, and the fleet that they are meant for."""

    name: str
    seed: int
    duration_us: int
    """Sessions begin within this time; the last ones end a little later."""
    engines: int
    blocks: int
    block_size: int
    latency: LatencyModel
    load: float
    """Multiplies every tenant's sessions."""
    tenants: tuple[Habit, ...] = TENANTS

    def requests(self) -> Iterator[TraceRequest]:
        """Yield the first request of each session in order of arrival; the others hang on them."""
        heap: list[tuple[int, int, int]] = []
        arrivals = [
            _arrivals(habit, Random(f"{self.seed}/{habit.tenant}/arrivals"), self.load, self.duration_us)  # noqa: S311
            for habit in self.tenants
        ]
        for index, times in enumerate(arrivals):
            for at_us in times:
                heappush(heap, (at_us, index, 0))
                break
        while heap:
            at_us, index, number = heappop(heap)
            yield _session(self.tenants[index], index, number, self.seed, at_us)
            for next_us in arrivals[index]:
                heappush(heap, (next_us, index, number + 1))
                break


def mixed_day(seed: int = 1, *, load: float = 1.0, duration_us: int = DAY_US) -> Workload:
    """One simulated day of all ten tenants on two engines of a large model (its figures: ``LARGE_MODEL``).

    At ``load`` 1 and seed 1: 17 000 requests, 2.9 million answer tokens, 630 000 steps; 28 % of the blocks
    active on the mean, 70 % cached. docs/reference-engine.md has the measured load and time.
    """
    return Workload(
        name="mixed-day",
        seed=seed,
        duration_us=duration_us,
        engines=2,
        blocks=5000,
        block_size=16,
        latency=LARGE_MODEL,
        load=load,
    )


def _arrivals(habit: Habit, random: Random, load: float, duration_us: int) -> Iterator[int]:
    """Times of new sessions: a Poisson process whose rate swings over the day, by thinning."""
    peak = 1 + abs(habit.day_night)
    rate = habit.sessions_per_day * load * peak / DAY_US
    at = random.expovariate(rate)
    while at < duration_us:
        # Lowest at 3 in the night, highest at 3 in the afternoon.
        now = 1 - habit.day_night * math.cos((at / HOUR_US - 3) / 24 * 2 * math.pi)
        if random.random() * peak < now:
            yield int(at)
        at += random.expovariate(rate)


def _session(habit: Habit, index: int, number: int, seed: int, at_us: int) -> TraceRequest:
    flow = _turns(habit, index, number, Random(f"{seed}/{habit.tenant}/{number}"))  # noqa: S311
    return replace(next(flow), arrival_us=at_us, then=flow)


def _turns(habit: Habit, index: int, number: int, random: Random) -> Iterator[TraceRequest]:
    """Yield the requests of one session, each with its think time."""
    session = f"{habit.tenant}-{number:05d}"
    dims = Dimensions(
        tenant=habit.tenant, session=session, scenario=str(habit.scenario), priority=habit.priority, model="large"
    )
    system = habit.system_prompt // CONTENT_TOKENS
    # Ids of a tenant's system prompt, then of its sessions: no two ranges meet.
    own = (index << 48) + (number + 1) * _SESSION_IDS
    ids = [(index << 48) + position for position in range(system)]
    ids += _fresh(own, 0, _length(random, habit.first_prompt))
    used = len(ids)
    prompt = len(ids) * CONTENT_TOKENS
    turns = 1 + int(random.expovariate(1 / max(habit.turns - 1, 1e-9))) if habit.turns > 1 else 1
    shared = 0
    for turn in range(turns):
        answer = _length(random, habit.answer)
        stream = ids + _fresh(own, used, prompt + answer - len(ids) * CONTENT_TOKENS)
        used += len(stream) - len(ids)
        leaves = random.random() < habit.leaves_ratio
        patience_us = int(random.random() * (habit.patience_s or 20) * SECOND_US)
        yield TraceRequest(
            request=f"{session}-{turn}",
            dims=dims,
            arrival_us=_think_us(random, habit),
            prompt_tokens=prompt,
            output_tokens=answer,
            content=stream,
            content_tokens=CONTENT_TOKENS,
            content_covers=prompt + answer,
            shared_ids=shared,
            samples=habit.samples,
            draft_tokens=habit.draft_tokens,
            leaves_after_us=patience_us if leaves else None,
            abandons=habit.patience_s > 0,
        )
        if habit.scenario is Scenario.CODE:
            # The file's end was edited: a tail of it is new text, of about the same length.
            keep = len(ids) - max(1, int(len(ids) * 0.1 * random.random()))
            added = _length(random, habit.added_prompt)
            new = _fresh(own, used, (len(ids) - keep) * CONTENT_TOKENS + added)
            used += len(new)
            ids = ids[:keep] + new
            shared = keep
        else:
            added = _length(random, habit.added_prompt)
            whole = (prompt + answer) // CONTENT_TOKENS
            new = _fresh(own, used, added + CONTENT_TOKENS)
            used += len(new)
            ids = stream[:whole] + new
            shared = whole
        prompt = len(ids) * CONTENT_TOKENS


def _fresh(own: int, used: int, tokens: int) -> list[int]:
    """Ids for ``tokens`` more tokens of a session that has ``used`` ids already."""
    count = -(-max(tokens, 0) // CONTENT_TOKENS)
    assert used + count < _SESSION_IDS
    return list(range(own + used, own + used + count))


def _length(random: Random, median: int) -> int:
    """Draw a length: log-normal around ``median``, at least 1, at most 8 medians."""
    if not median:
        return 1
    return max(1, min(8 * median, round(random.lognormvariate(math.log(median), 0.5))))


def _think_us(random: Random, habit: Habit) -> int:
    return int(random.expovariate(1 / max(habit.think_s, 1)) * SECOND_US)
