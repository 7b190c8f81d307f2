"""What the hook costs a real vLLM on the CPU: switched on and off inside one engine, beside vLLM's own statistics.

* **The load.** At 16, 64 and 128 running requests, in blocks of 200 steps. A request that ends is followed by the next;
  prompts have 80 to 128 tokens and share their first 64, answers have 650 on average, as the recorded ShareGPT requests
  do. Every block begins with an empty cache and gets the same requests in the same order: the n-th step of one block
  computes what the n-th of any other does.
* **The ways.** ``off`` (neither), ``meter`` (the whole hook: scheduler, block pool, worker, outbox and spool) and
  ``stats`` (vLLM's own: statistics of the scheduler and the prefix cache, its loggers). A round has two blocks of
  ``off`` and one of each other, in an order drawn anew. A way is compared with the mean of the two ``off`` of its
  round, and these two with each other: that is the noise.
* **What is measured.** The engine core's step, from its call to its return, on the wall and in CPU time of its thread
  (in which the model computes, too; waiting counts less there). Output tokens a second of the wall. In blocks of their
  own, the wall time that a step spends in the hook's calls. Where the noise of the rounds is larger than the 1 % that
  is allowed, they decide nothing, and the limit is put to a step over the same less the time in the hook's calls.
* **The small model.** On a CPU the model's weights go through the caches of the core that schedules, so the hook finds
  nothing of its own there, as it would beside a GPU. A model of two small layers leaves them more alone.
* **The tail.** Garbage collections: their time with the hook and without. The drain thread: steps of the second and a
  half after a period's end, when it settles and encodes, beside all others.

    python -m bench.bench_vllm [--quick] [--json FILE]

Exits 1 where a limit does not hold. Half an hour; the environment of `make test-vllm` is made first if need be. The
engine is vLLM's ``LLMEngine`` with its core in the same thread: no other process's pace gets into a block.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Final

from bench.figures import Figure, main

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[1]

STEP_RATIO_MAX = 1.01
"""Of a step's time, with the hook over without, where a step takes at least :data:`STEP_MS_MIN`."""
STEP_MS_MIN = 10.0

INSIDE_US_MAX = 50.0
"""In the hook's calls, p50 of steps at 128 running."""

ROUNDS = {16: 11, 64: 7, 128: 5}
"""By the number of running requests."""
ROUNDS_QUICK = 2

SHAPE: Final = {
    "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64,
    "num_hidden_layers": 8,
}  # fmt: skip
"""A model whose smallest step takes 10 ms on one core."""

Measured = dict[str, Any]
"""A block, as vllm_blocks writes it."""
Rounds = list[dict[str, list[Measured]]]


def measure(quick: bool) -> list[Figure]:
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = _output(sys.executable, str(ROOT / "tests/vllm/environment.py")).strip().splitlines()[-1]
        for running, rounds in ROUNDS.items():
            model = _model(python, folder, SHAPE)
            found += figures(running, blocks(python, model, running, ROUNDS_QUICK if quick else rounds, folder))
        most = max(ROUNDS)
        small = blocks(python, _model(python, folder, {}), most, ROUNDS_QUICK if quick else ROUNDS[most], folder)
        found += inside(f"{most} running, the small model", small, INSIDE_US_MAX)
    return found


def blocks(python: str, model: Path, running: int, rounds: int, folder: Path) -> Rounds:
    """The blocks of a level, measured by a process in vLLM's environment."""
    file = folder / f"{running}.json"
    _output(python, "-m", "bench.vllm_blocks", str(model), str(running), str(rounds), str(file))
    found: Rounds = json.loads(file.read_text())
    return found


def figures(running: int, rounds: Rounds) -> list[Figure]:
    """What the blocks of a level say."""
    at = f"{running} running"
    step_ns = median([_p50(block["wall_ns"]) for one in rounds for block in one["off"]])
    found = [Figure(name=f"{at}: a step without the hook, p50", value=step_ns / 1e6, unit="ms")]
    limit = STEP_RATIO_MAX if step_ns >= STEP_MS_MIN * 1e6 else None
    noise = _ratios(rounds, "noise", _wall)
    quiet = max(*noise, 1 / min(noise)) <= STEP_RATIO_MAX
    for what, of in (("step time", _wall), ("CPU time of a step", _cpu), ("output tokens a second", _rate)):
        for way, name in (("meter", "the hook"), ("stats", "vLLM's statistics"), ("noise", "nothing: the noise")):
            bound = limit if (way, what) == ("meter", "step time") and quiet else None
            ratios = _ratios(rounds, way, of)
            found += [
                Figure(name=f"{at}: {what}, {name}: median of the rounds", value=median(ratios), unit="x", limit=bound),
                Figure(name="  least", value=min(ratios), unit="x"),
                Figure(name="  most", value=max(ratios), unit="x"),
            ]
    timed = [block for one in rounds for block in one["timed"]]
    share = sum(sum(block["inside_ns"]) for block in timed) / sum(sum(block["wall_ns"]) for block in timed)
    found.append(
        Figure(
            name=f"{at}: a step over the same less the time in the hook's calls",
            value=1 / (1 - share),
            unit="x",
            limit=None if quiet else limit,
        )
    )
    found += inside(at, rounds, INSIDE_US_MAX if running == max(ROUNDS) else None)
    for way, name in (("off", "without the hook"), ("meter", "with")):
        taken = sum(block["collections_ns"] for one in rounds for block in one[way])
        walls = sorted(ns for one in rounds for block in one[way] for ns in block["wall_ns"])
        found += [
            Figure(name=f"{at}: garbage collections, a step, {name}", value=taken / len(walls) / 1e3, unit="µs"),
            Figure(name=f"{at}: a step {name}, p99", value=_p(walls, 99) / 1e6, unit="ms"),
        ]
    return found + _at_boundaries(at, rounds)


def inside(at: str, rounds: Rounds, limit: float | None) -> list[Figure]:
    """Wall time of a step in the hook's calls: of all steps, and of those in which one request came for another."""
    calls = [
        (ns / 1e3, arrivals)
        for one in rounds
        for block in one["timed"]
        for ns, arrivals in zip(block["inside_ns"], block["arrivals"], strict=True)
    ]
    every = sorted(us for us, _ in calls)
    turning = sorted(us for us, arrivals in calls if arrivals)
    found = [
        Figure(name=f"{at}: in the hook's calls, p50", value=_p(every, 50), unit="µs", limit=limit),
        Figure(name=f"{at}: in the hook's calls, p99", value=_p(every, 99), unit="µs"),
        Figure(name=f"{at}: steps in which a request ends and another comes", value=len(turning) / len(every), unit=""),
    ]
    if turning:
        found.append(Figure(name=f"{at}: in the hook's calls, p50 of those", value=_p(turning, 50), unit="µs"))
    return found


def _wall(block: Measured) -> float:
    return _p50(block["wall_ns"])


def _cpu(block: Measured) -> float:
    return _p50(block["cpu_ns"])


def _rate(block: Measured) -> float:
    return float(block["tokens"] / block["seconds"])


def _at_boundaries(at: str, rounds: Rounds) -> list[Figure]:
    """Steps in the second and a half after a period's end, when the drain thread works, over their block's median."""
    near: list[float] = []
    far: list[float] = []
    for one in rounds:
        for block in one["meter"]:
            typical = _p50(block["wall_ns"])
            for ns, ended_us in zip(block["wall_ns"], block["ended_us"], strict=True):
                (near if ended_us % 15_000_000 < 1_500_000 else far).append(ns / typical)
    if len(near) < 100:
        return []
    found = []
    for name, ratios in (("as a period is drained", near), ("otherwise", far)):
        for percent in (50, 99):
            value = _p(sorted(ratios), percent)
            found.append(Figure(name=f"{at}: a step over its block's p50, {name}, p{percent}", value=value, unit="x"))
    return found


def _ratios(rounds: Rounds, way: str, of: Callable[[Measured], float]) -> list[float]:
    """For each round: a way over the mean of the two blocks of ``off``; ``noise``: one of these over the other."""
    found = []
    for one in rounds:
        first, second = (of(block) for block in one["off"])
        found.append(first / second if way == "noise" else of(one[way][0]) / mean((first, second)))
    return found


def _p50(values: list[int]) -> float:
    return median(values)


def _p(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _model(python: str, folder: Path, shape: dict[str, int]) -> Path:
    """The suite's Llama, in another shape."""
    made = f"import models, pathlib; models.llama(pathlib.Path({str(folder / 'model')!r}))"
    _output(python, "-c", made, cwd=ROOT / "tests/vllm")
    config = folder / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | shape))
    return folder / "model"


def _output(*command: str, cwd: Path = ROOT) -> str:
    """What a program prints. It must end well, and what it says beside is shown only where it does not."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, cwd=cwd, env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
    done.check_returncode()
    return done.stdout


if __name__ == "__main__":
    sys.exit(main("bench_vllm", __doc__, measure))
