"""How fast an engine with the meter inside replays, and what memory it needs.

    python -m bench.bench_replay [--quick] [--json FILE]

An engine-hour with 64 running requests (closed loop: each answer is followed by a new request) at prompts of
1 000 and of 8 000 tokens, against the limits: 120 µs a step plus 1.5 µs a block acquired, about 10 s of CPU for
the hour. And the peak memory of a short and of a ten times longer trace, each in a process of its own: it
follows what is live, not the length. Times are CPU seconds of this process. ``--quick`` plays a tenth.
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Figure, main
from ledger.core.records import Batch, Dimensions
from ledger.reference.replay import ReplaySummary, replay
from ledger.reference.request import TraceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RUNNING = 64
ANSWER = 256
STEP_US_MAX = 120.0
BLOCK_US_MAX = 1.5
HOUR_SECONDS_MAX = 10.0
REPEATS = 3
RSS_RATIO_MAX = 1.3
START_US = 1_793_664_000_000_000


def closed_loop(prompt: int, until_us: int) -> Iterator[TraceRequest]:
    """So many clients, each with a request running until ``until_us``; a third of each prompt is shared."""
    for client in range(RUNNING):
        flow = _client(client, prompt)
        first = next(flow)
        yield TraceRequest(
            request=first.request,
            dims=first.dims,
            arrival_us=client * 20_000,
            prompt_tokens=prompt,
            output_tokens=1 + client * ANSWER // RUNNING,
            content=first.content,
            content_tokens=16,
            content_covers=prompt,
            then=itertools.islice(flow, _rounds(prompt, until_us)),
        )


def _rounds(prompt: int, until_us: int) -> int:
    """Requests that a client gets answered in that time, at some 35 ms a step and its part of all prefills."""
    seconds = ANSWER * 0.035 + RUNNING * prompt * 2 / 3 * 0.00012
    return max(1, int(until_us / 1_000_000 / seconds))


def _client(client: int, prompt: int) -> Iterator[TraceRequest]:
    blocks = prompt // 16
    shared = list(range(1, blocks // 3 + 1))
    for number in itertools.count():
        own = ((client << 24) + number + 1) << 16
        yield TraceRequest(
            request=f"c{client}-{number}",
            dims=Dimensions(tenant=f"t{client % 10}", session=f"s{client}", scenario="bench"),
            arrival_us=0,
            prompt_tokens=prompt,
            output_tokens=ANSWER,
            content=shared + list(range(own, own + blocks - len(shared))),
            content_tokens=16,
            content_covers=prompt,
        )


def measured(requests: Iterable[TraceRequest], blocks: int) -> tuple[ReplaySummary, float, int]:
    """Summary, CPU seconds and batches."""
    batches = 0

    def emit(_batch: Batch) -> None:
        nonlocal batches
        batches += 1

    began = time.process_time()
    summary = replay(requests, blocks=blocks, block_size=16, start_us=START_US, emit=emit)
    return summary, time.process_time() - began, batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One engine at prompts of one length: virtual hours, CPU seconds, and what they went into."""

    prompt: int
    hours: float
    cpu_s: float
    steps: int
    blocks: int
    batches: int

    def figures(self) -> list[Figure]:
        allowed_us = STEP_US_MAX * self.steps + BLOCK_US_MAX * self.blocks
        return [
            Figure(
                name=f"an engine-hour, {RUNNING} running, prompts of {self.prompt:,}",
                value=self.cpu_s / self.hours,
                unit="CPU s",
                limit=HOUR_SECONDS_MAX,
            ),
            Figure(
                name=f"  of {STEP_US_MAX:g} µs a step and {BLOCK_US_MAX:g} µs a block",
                value=self.cpu_s * 1e6 / allowed_us,
                unit="x allowed",
                limit=1.0,
            ),
            Figure(name="  a step, all in", value=self.cpu_s * 1e6 / self.steps, unit="µs"),
            Figure(name="  steps", value=self.steps, unit=""),
            Figure(name="  blocks acquired", value=self.blocks, unit=""),
            Figure(name="  batches", value=self.batches, unit=""),
        ]


def speed(prompt: int, hours: float) -> Speed:
    """One engine at ``prompt`` tokens, for so many hours of virtual time."""
    blocks = RUNNING * (prompt + 2 * ANSWER) // 16
    # The best of several: on a shared machine others' use of the caches is in the CPU time.
    runs = [measured(closed_loop(prompt, int(hours * 3_600_000_000)), blocks) for _ in range(REPEATS)]
    summary, seconds, batches = min(runs, key=lambda run: run[1])
    return Speed(
        prompt=prompt,
        hours=(summary.closed_us - summary.start_us) / 3_600_000_000,
        cpu_s=seconds,
        steps=summary.steps,
        blocks=summary.blocks_acquired,
        batches=batches,
    )


def split(one: Speed, two: Speed) -> list[Figure]:
    """µs a step and µs a block that explain both runs: two equations."""
    det = one.steps * two.blocks - two.steps * one.blocks
    step = (one.cpu_s * two.blocks - two.cpu_s * one.blocks) / det
    block = (one.steps * two.cpu_s - two.steps * one.cpu_s) / det
    return [
        Figure(name="a step that explains both", value=step * 1e6, unit="µs"),
        Figure(name="  with a block", value=block * 1e6, unit="µs"),
    ]


def tell_peak(hours: float) -> None:
    """Replay for so many hours and print the peak memory of this process in kB."""
    measured(closed_loop(1000, int(hours * 3_600_000_000)), RUNNING * 1512 // 16)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def peak_mb(hours: float) -> float:
    """Peak memory of a replay of so many hours, in a process of its own."""
    command = [sys.executable, "-c", f"from bench.bench_replay import tell_peak; tell_peak({hours})"]
    root = Path(__file__).parents[1]
    return int(subprocess.run(command, check=True, cwd=root, capture_output=True, text=True).stdout) / 1024


def measure(quick: bool) -> list[Figure]:
    hours = 0.1 if quick else 1.0
    speeds = [speed(1000, hours), speed(8000, hours)]
    short, long = peak_mb(hours / 10), peak_mb(hours)
    return [
        *(figure for of in speeds for figure in of.figures()),
        *split(*speeds),
        Figure(name="peak memory, a trace ten times longer", value=long / short, unit="x short", limit=RSS_RATIO_MAX),
        Figure(name="  of the longer one", value=long, unit="MB"),
    ]


if __name__ == "__main__":
    sys.exit(main("bench_replay", __doc__, measure))
