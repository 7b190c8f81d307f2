"""What the meter costs the engine's thread, against what the engine does anyway.

    python -m bench.bench_meter [--json FILE] [--quick]

Steady decode: 16-token blocks, 64 shared and 60 private blocks a request; at 128 running one finish and arrival
every second step, at 512 running two a step. The yardstick is a loop over the scheduled requests
(``for r in scheduled: d[r] += 1``), timed after each of the meter's steps in the same process, so that both feel the
same machine. A ratio compares the two medians of one repeat; the figure is the median of the repeats.

At 128 running the load is a cycle of two steps: one with a turnover (a finish and an arrival), one without. Half of
the steps are of each kind and the kinds lie far apart, so a median over all steps says nothing: it falls in the gap
between them, and one step more of either kind moves it from one side to the other. The limit is therefore on the median
over cycles, each the meter's time for both of its steps divided by two. Beside it stand both kinds apart, and mean and
99th percentile of all steps. At 512 running every step is the same, and is a cycle by itself.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass

from bench.figures import Figure, main
from ledger.core.records import Boot, Dimensions, Group, Origin, Outcome, Source
from ledger.hook.meter import Meter

BLOCK = 16
SHARED = 64
PRIVATE = 60
REPEATS = 5
STEP_US = 20_000
clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class Arrival:
    name: str
    dims: Dimensions
    prompt: int
    hit: list[int]
    new: list[int]


@dataclass(frozen=True, slots=True)
class Departure:
    name: str
    blocks: list[int]
    own: list[int]


class Load:
    """Steady decode: requests come and go, each with the same prefix and blocks of its own."""

    def __init__(self, running: int, pool_blocks: int, *, shared: int = SHARED, private: int = PRIVATE) -> None:
        self.shared, self.private = shared, private
        self.t = 0
        source = Source(engine="bench", origin=Origin.SIMULATED)
        boot = Boot(boot_id="bench", anchor_us=1_793_664_000_000_000, started_us=1_793_664_000_000_000)
        self.meter = Meter(source, boot, lambda _batch: None, settle_later=True)
        self.pool = self.meter.open(0, "gpu", blocks=pool_blocks, groups=(Group(block_size=BLOCK),))
        self.prefix = list(range(shared))
        self.free = deque(range(shared, pool_blocks))
        self.tables: dict[str, list[int]] = {}
        self.frontier: dict[str, int] = {}
        self.names = 0
        self.tokens: dict[str, int] = {}
        for i in range(running):
            came = self.arrive(i % (BLOCK * max(private // 4, 1)))
            self.meter.request(0, came.name, came.dims, prompt_tokens=came.prompt)
            self.pool.acquire(0, came.name, 0, hit=came.hit, new=came.new)
        for _ in range(3):
            self.step()

    def arrive(self, done: int = 0) -> Arrival:
        """The next request, with its prompt's blocks; prompts differ in length, so that block boundaries spread."""
        name = f"cmpl-{self.names:08d}"
        dims = Dimensions(tenant=f"tenant-{self.names % 10}", session=f"session-{self.names % 2000}")
        done += self.names * 7 % BLOCK
        prompt = (self.shared + self.private) * BLOCK - BLOCK // 2 - done % (BLOCK * self.private // 2)
        blocks = -(-prompt // BLOCK)
        first = not self.names
        self.names += 1
        own = [self.free.popleft() for _ in range(blocks - self.shared)]
        hit = [] if first else self.prefix
        self.tables[name] = self.prefix + own
        self.frontier[name] = len(hit) * BLOCK
        self.tokens[name] = prompt - len(hit) * BLOCK
        return Arrival(name, dims, prompt, hit, self.prefix + own if first else own)

    def depart(self) -> Departure:
        """The oldest request but one ends; the first keeps the prefix alive, as a busy engine does."""
        names = iter(self.tables)
        next(names)
        name = next(names)
        blocks = self.tables.pop(name)
        del self.tokens[name], self.frontier[name]
        own = blocks[self.shared :]
        self.free.extend(own)
        # The end of the table first, as engines free it, so that its beginning is evicted last.
        blocks.reverse()
        return Departure(name, blocks, own)

    def grow(self) -> tuple[list[str], list[int]]:
        """Who needs a next block for this step, and which it gets."""
        growing, blocks = [], []
        for name, count in self.tokens.items():
            end = self.frontier[name] = self.frontier[name] + count
            if end > len(self.tables[name]) * BLOCK:
                block = self.free.popleft()
                self.tables[name].append(block)
                growing.append(name)
                blocks.append(block)
        return growing, blocks

    def step(self, turnover: int = 0) -> int:
        """One step of the engine; returns the nanoseconds of the meter's calls, all of them made in one go."""
        changes = [(self.depart(), self.arrive()) for _ in range(turnover)]
        growing, blocks = self.grow()
        total = sum(self.tokens.values())
        meter, pool, t, tokens = self.meter, self.pool, self.t, self.tokens
        started = clock()
        for gone, came in changes:
            meter.finish(t, gone.name, Outcome.FINISHED, "stop")
            pool.release(t, gone.name, gone.blocks, freed=gone.own)
            meter.request(t, came.name, came.dims, prompt_tokens=came.prompt)
            pool.acquire(t, came.name, 0, hit=came.hit, new=came.new)
        if growing:
            pool.grow(t, 0, growing, blocks)
        meter.scheduled(t, tokens, total)
        meter.stepped(t + STEP_US)
        spent = clock() - started
        self.t += STEP_US
        for name in self.tokens:
            self.tokens[name] = 1
        return spent


def calibrate(load: Load, counts: dict[str, int]) -> int:
    """The yardstick: one addition for each scheduled request, over the mapping that the engine hands on."""
    scheduled = load.tokens
    for name in scheduled:
        counts.setdefault(name, 0)
    d = counts
    started = clock()
    for r in scheduled:
        d[r] += 1
    return clock() - started


@dataclass(frozen=True, slots=True)
class Decode:
    """µs per step of one repeat."""

    cycle: float
    """The median over cycles, for one step."""
    mean: float
    p99: float
    turnover: float
    """The median of steps with a turnover."""
    plain: float
    """The median of steps without (at 512 running there are none: 0)."""
    loop: float


def decode(running: int, rounds: int) -> Decode:
    load = Load(running, running * (SHARED + PRIVATE) * 2)
    turns = [1, 0] if running <= 128 else [2]
    times: dict[int, list[int]] = {turn: [] for turn in turns}
    yard: list[int] = []
    counts: dict[str, int] = {}
    for i in range(rounds):
        for turn in turns:
            times[turn].append(load.step(turn))
            yard.append(calibrate(load, counts))
        if i % 50 == 49:
            load.meter.settle()
    steps = sorted(step for kind in times.values() for step in kind)
    cycles = [sum(cycle) / len(turns) for cycle in zip(*times.values(), strict=True)]
    assert not load.meter.faults, load.meter.faults
    return Decode(
        cycle=statistics.median(cycles) / 1e3,
        mean=statistics.mean(steps) / 1e3,
        p99=steps[len(steps) * 99 // 100] / 1e3,
        turnover=statistics.median(times[turns[0]]) / 1e3,
        plain=statistics.median(times.get(0, [0])) / 1e3,
        loop=statistics.median(yard) / 1e3,
    )


def speculating(running: int, rounds: int) -> float:
    """Every request schedules three drafts beside its token, and one in two is accepted."""
    load = Load(running, running * (SHARED + PRIVATE) * 2)
    times = []
    for _ in range(rounds):
        tokens = dict.fromkeys(load.tokens, 4)
        accepted = {name: 2 + i % 2 for i, name in enumerate(tokens)}
        for name in tokens:
            load.frontier[name] += accepted[name]
            while load.frontier[name] + 4 > len(load.tables[name]) * BLOCK:
                block = [load.free.popleft()]
                load.tables[name].extend(block)
                load.pool.acquire(load.t, name, 0, new=block)
        started = clock()
        load.meter.scheduled(load.t, tokens, 4 * len(tokens))
        load.meter.stepped(load.t + 20_000, accepted)
        times.append(clock() - started)
        load.t += 20_000
    return statistics.median(times) / 1e3


def scan(load: Load) -> int:
    """What everybody does at first: walk the held blocks of every request, each step."""
    references: dict[int, int] = {}
    started = clock()
    for blocks in load.tables.values():
        for block in blocks:
            references[block] = references.get(block, 0) + 1
    return clock() - started


def pool_sizes(rounds: int) -> dict[int, float]:
    """µs per step of identical small requests in pools of three sizes, interleaved."""
    loads = {size: Load(32, size, shared=8, private=8) for size in (1_000, 100_000, 1_000_000)}
    gc.freeze()
    times: dict[int, list[int]] = {size: [] for size in loads}
    for _ in range(rounds):
        for size, load in loads.items():
            times[size].append(load.step(1))
    gc.unfreeze()
    return {size: statistics.median(values) / 1e3 for size, values in times.items()}


def touched_blocks(rounds: int) -> float:
    """µs per block of an arrival or departure of 124 blocks and more."""
    load = Load(128, 128 * (SHARED + PRIVATE) * 2)
    times = []
    for _ in range(rounds):
        gone = load.depart()
        load.meter.finish(load.t, gone.name, Outcome.FINISHED, "stop")
        started = clock()
        load.pool.release(load.t, gone.name, gone.blocks, freed=gone.own)
        times.append((clock() - started) / len(gone.blocks))
        came = load.arrive()
        load.meter.request(load.t, came.name, came.dims, prompt_tokens=came.prompt)
        started = clock()
        load.pool.acquire(load.t, came.name, 0, hit=came.hit, new=came.new)
        times.append((clock() - started) / (len(came.hit) + len(came.new)))
        load.step()
    return statistics.median(times) / 1e3


def cuts(rounds: int) -> tuple[float, float]:
    """Milliseconds (median, worst) to cut a period of 512 requests of 1 000 blocks that share 64."""
    load = Load(512, 512 * 1_000, shared=64, private=936)
    for _ in range(20):
        load.step()
    times = []
    for _ in range(rounds):
        load.t = (load.t // 15_000_000 + 1) * 15_000_000
        started = clock()
        load.meter.advance(load.t)
        times.append(clock() - started)
        load.meter.settle()
        load.step()
    return statistics.median(times) / 1e6, max(times) / 1e6


def decode_figures(running: int, limit: float, aim: int, rounds: int) -> list[Figure]:
    repeats = [decode(running, rounds) for _ in range(REPEATS)]
    often = "a turnover every second step" if running <= 128 else "two turnovers a step"

    def middle(what: str) -> float:
        return float(statistics.median(getattr(one, what) for one in repeats))

    kinds = [
        Figure(name="  the meter, p50 of steps with a turnover", value=middle("turnover"), unit="µs"),
        Figure(name="  the meter, p50 of steps without", value=middle("plain"), unit="µs"),
    ]
    return [
        Figure(
            name=f"decode, {running} running, {often}, p50 of cycles",
            value=statistics.median(one.cycle / one.loop for one in repeats),
            unit="x loop",
            limit=limit,
        ),
        Figure(
            name="  the same, mean of all steps",
            value=statistics.median(one.mean / one.loop for one in repeats),
            unit="x loop",
        ),
        Figure(name=f"  the meter, p50 of cycles, a step (aim {aim})", value=middle("cycle"), unit="µs"),
        Figure(name="  the meter, mean of all steps", value=middle("mean"), unit="µs"),
        Figure(name="  the meter, p99 of all steps", value=middle("p99"), unit="µs"),
        *(kinds if running <= 128 else ()),
        Figure(name="  the loop over the scheduled requests", value=middle("loop"), unit="µs"),
    ]


def scan_figure(rounds: int) -> Figure:
    load = Load(512, 512 * (SHARED + PRIVATE) * 2)
    steps, scans = [], []
    for _ in range(rounds):
        steps.append(load.step(2))
        scans.append(scan(load))
    return Figure(
        name="full scan of held blocks, 512 running",
        value=statistics.median(scans) / statistics.median(steps),
        unit="x meter",
        limit=10.0,
        least=True,
    )


def measure(quick: bool) -> list[Figure]:
    scale = 1 if quick else 4
    figures = [
        *decode_figures(128, 4.0, 30, 160 * scale),
        *decode_figures(512, 6.0, 120, 160 * scale),
        scan_figure(30 * scale),
    ]
    sizes = pool_sizes(300 * scale)
    figures.extend(Figure(name=f"small requests, pool of {n:,}", value=sizes[n], unit="µs") for n in sizes)
    spread = max(sizes.values()) / min(sizes.values())
    figures.append(Figure(name="  largest over smallest of the three", value=spread, unit="x", limit=1.2))
    block = touched_blocks(200 * scale)
    figures.append(Figure(name="a block acquired or released", value=block, unit="µs", limit=1.0))
    median, worst = cuts(10 * scale)
    cut = "cut of a period, 512 requests of 1 000 blocks, p50"
    figures.append(Figure(name=cut, value=median, unit="ms", limit=1.0))
    figures.append(Figure(name="  worst", value=worst, unit="ms"))
    for running in (128, 512):
        name = f"every request speculating, {running} running"
        figures.append(Figure(name=name, value=speculating(running, 20 * scale), unit="µs"))
    return figures


if __name__ == "__main__":
    sys.exit(main("bench_meter", __doc__, measure))
