"""What the meter costs the engine's thread, against what the engine does anyway.

    python bench/bench_meter.py [--json FILE] [--quick]

Steady decode as issue 2 says: 16-token blocks, 64 shared and 60 private blocks a request; at 128 running one
finish and arrival every second step, at 512 running two a step. The yardstick is a loop over the scheduled
requests (``for r in scheduled: d[r] += 1``), timed between the meter's own steps in the same process. Figures are
medians of interleaved repeats; a ratio compares medians. Exit status 1 if any limit is broken.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections import deque
from pathlib import Path

from ledger.core.records import Boot, Dimensions, Group, Origin, Outcome, Source
from ledger.hook.meter import Meter

BLOCK = 16
SHARED = 64
PRIVATE = 60
clock = time.perf_counter_ns


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
        self.calls: list[int] = []
        self.spent = 0
        self.first = True
        for i in range(running):
            self.arrive(i % (BLOCK * max(private // 4, 1)))
        for _ in range(3):
            self.step()

    def arrive(self, done: int = 0) -> None:
        """A request with its prompt's blocks; ``done`` output tokens spread the block boundaries."""
        name = f"cmpl-{self.names:08d}"
        dims = Dimensions(tenant=f"tenant-{self.names % 10}", session=f"session-{self.names % 2000}")
        self.names += 1
        prompt = (self.shared + self.private) * BLOCK - BLOCK // 2 - done % (BLOCK * self.private // 2)
        blocks = -(-prompt // BLOCK)
        hit = [] if self.first else self.prefix
        new = self.prefix if self.first else []
        own = [self.free.popleft() for _ in range(blocks - self.shared)]
        self.first = False
        new = [*new, *own]
        begun = clock()
        self.meter.request(self.t, name, dims, prompt_tokens=prompt)
        started = clock()
        self.pool.acquire(self.t, name, 0, hit=hit, new=new)
        ended = clock()
        self.calls.append(ended - started)
        self.spent += ended - begun
        self.tables[name] = self.prefix + own
        self.frontier[name] = len(hit) * BLOCK
        self.tokens[name] = prompt - len(hit) * BLOCK

    def finish(self) -> None:
        """The oldest request but one ends; the first keeps the prefix alive, as a busy engine does."""
        names = iter(self.tables)
        next(names)
        name = next(names)
        blocks = self.tables.pop(name)
        del self.tokens[name], self.frontier[name]
        own = blocks[self.shared :]
        self.free.extend(own)
        blocks.reverse()
        begun = clock()
        self.meter.finish(self.t, name, Outcome.FINISHED, "stop")
        started = clock()
        self.pool.release(self.t, name, blocks, freed=own)
        ended = clock()
        self.calls.append(ended - started)
        self.spent += ended - begun

    def grow(self) -> list[tuple[str, list[int]]]:
        """Who needs a next block for this step: the engine's own work, not timed."""
        needs = []
        for name, count in self.tokens.items():
            end = self.frontier[name] = self.frontier[name] + count
            if end > len(self.tables[name]) * BLOCK:
                block = [self.free.popleft()]
                self.tables[name].extend(block)
                needs.append((name, block))
        return needs

    def step(self, turnover: int = 0) -> int:
        """One step of the engine; returns the nanoseconds that the meter took of it."""
        self.spent = 0
        for _ in range(turnover):
            self.finish()
            self.arrive()
        needs = self.grow()
        total = sum(self.tokens.values())
        meter, pool, t, tokens = self.meter, self.pool, self.t, self.tokens
        started = clock()
        for name, block in needs:
            pool.acquire(t, name, 0, new=block)
        meter.scheduled(t, tokens, total)
        meter.stepped(t + 20_000)
        self.spent += clock() - started
        self.t += 20_000
        for name in self.tokens:
            self.tokens[name] = 1
        return self.spent


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


def decode(running: int, rounds: int) -> dict[str, float]:
    """µs per step: the meter's medians, mean and 99th percentile, and the yardstick's median.

    At 128 running every second step has a finish and an arrival, at 512 each has two. So at 128 the steps are of
    two kinds, half of each, and their common median lies anywhere between the two: ``quiet`` is the median of those
    without, ``both`` that of two steps together, by one. Only the meter's calls are timed, not what the engine
    does to make them.
    """
    load = Load(running, running * (SHARED + PRIVATE) * 2)
    busy, quiet, both, yard = [], [], [], []
    counts: dict[str, int] = {}
    for i in range(rounds):
        busy.append(load.step(2 if running > 128 else 1))
        yard.append(calibrate(load, counts))
        if running <= 128:
            quiet.append(load.step())
            both.append((busy[-1] + quiet[-1]) / 2)
        if i % 50 == 49:
            load.meter.settle()
    steps = sorted(busy + quiet)
    return {
        "quiet": statistics.median(quiet or busy) / 1e3,
        "both": statistics.median(both or busy) / 1e3,
        "p99": steps[len(steps) * 99 // 100] / 1e3,
        "loop": statistics.median(yard) / 1e3,
    }


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
    """µs per block of an arrival or departure of 124 blocks."""
    load = Load(128, 128 * (SHARED + PRIVATE) * 2)
    load.calls.clear()
    for _ in range(rounds):
        load.step(1)
    return statistics.median(load.calls) / 1e3 / (SHARED + PRIVATE)


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


def measure(quick: bool) -> list[dict[str, object]]:
    """Every line of the table: name, figure, unit, limit (None: stated only)."""
    scale = 1 if quick else 4
    lines: list[dict[str, object]] = []

    def line(name: str, figure: float, unit: str, limit: float | None, *, least: bool = False) -> None:
        ok = limit is None or (figure >= limit if least else figure <= limit)
        lines.append({"name": name, "figure": round(figure, 3), "unit": unit, "limit": limit, "least": least, "ok": ok})

    for running, limit, aim in ((128, 4.0, 30), (512, 6.0, 120)):
        repeats = [decode(running, 160 * scale) for _ in range(5)]
        middle = {what: statistics.median(one[what] for one in repeats) for what in repeats[0]}
        kind = "a step without arrival, p50" if running <= 128 else "two arrivals a step, p50"
        line(
            f"decode, {running} running, {kind}",
            statistics.median(o["quiet"] / o["loop"] for o in repeats),
            "x loop",
            limit,
        )
        line(f"  the meter (aim {aim})", middle["quiet"], "µs", None)
        if running <= 128:
            line("  with an arrival every second step, a step of the two", middle["both"], "µs", None)
            line("  the same", statistics.median(o["both"] / o["loop"] for o in repeats), "x loop", None)
        line("  the meter, p99 of all steps", middle["p99"], "µs", None)
        line("  the loop over the scheduled requests", middle["loop"], "µs", None)
    load = Load(512, 512 * (SHARED + PRIVATE) * 2)
    steps, scans = [], []
    for _ in range(30 * scale):
        steps.append(load.step(2))
        scans.append(scan(load))
    line(
        "full scan of held blocks, 512 running",
        statistics.median(scans) / statistics.median(steps),
        "x meter",
        10.0,
        least=True,
    )
    sizes = pool_sizes(300 * scale)
    for size, figure in sizes.items():
        line(f"small requests, pool of {size:,}", figure, "µs", None)
    line("  largest over smallest of the three", max(sizes.values()) / min(sizes.values()), "x", 1.2)
    line("a block acquired or released", touched_blocks(200 * scale), "µs", 1.0)
    median, worst = cuts(10 * scale)
    line("cut of a period, 512 requests of 1 000 blocks, p50", median, "ms", 1.0)
    line("  worst", worst, "ms", None)
    for running in (128, 512):
        line(f"every request speculating, {running} running", speculating(running, 20 * scale), "µs", None)
    return lines


def main() -> int:
    """Print the table; 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the lines to this file too")
    parser.add_argument("--quick", action="store_true", help="a quarter of the repeats")
    options = parser.parse_args()
    lines = measure(options.quick)
    for one in lines:
        limit = "" if one["limit"] is None else f"{'>=' if one['least'] else '<='} {one['limit']:g}"
        verdict = "" if one["limit"] is None else ("ok" if one["ok"] else "OVER")
        print(f"{one['name']:<66}{one['figure']:>12.2f} {one['unit']:<8}{limit:>8} {verdict}")
    if options.json:
        options.json.write_text(
            json.dumps({"bench": "meter", "python": sys.version.split()[0], "lines": lines}, indent=1)
        )
    return 0 if all(one["ok"] for one in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
