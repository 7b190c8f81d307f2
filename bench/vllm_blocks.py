"""Blocks of steps on a real vLLM with the hook switched on and off, for bench_vllm: it runs in vLLM's environment.

    python -m bench.vllm_blocks MODEL RUNNING ROUNDS FILE

The engine is vLLM's ``LLMEngine`` with its core in the same process and thread, so that a block is repeatable step by
step. Writes a JSON list of rounds, each an object of way to blocks.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 200
BLOCK_SIZE = 32
BLOCKS = 2_000

OFF, METER, STATS, TIMED = "off", "meter", "stats", "timed"
WAYS = (OFF, OFF, METER, STATS, TIMED)
_RECORDER, _TIMES = "_kvledger", "_kvledger_times"
"""Where vLLM's scheduler and its worker have the hook's parts."""
_INSIDE = (
    "received", "preempted", "ended", "scheduling", "scheduled", "updating", "updated", "releasing", "released",
    "dropped",
)  # fmt: skip
_INSIDE_WORKER = ("began", "returned", "resumed", "entered", "left")
"""Methods of the recorder, and of the worker's clock, through which the engine's thread goes."""


@dataclass(slots=True)
class Block:
    """What was measured in a block, step by step."""

    ended_us: list[int] = field(default_factory=list)
    """The wall clock at its end."""
    wall_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    scheduler_ns: list[int] = field(default_factory=list)
    """CPU time in the scheduler's three methods."""
    arrivals: list[int] = field(default_factory=list)
    """Requests that were added before it, each in the place of one that ended."""
    inside_ns: list[int] = field(default_factory=list)
    """Wall time in the hook's calls, in blocks where they are timed."""
    tokens: int = 0
    seconds: float = 0.0
    collections_ns: int = 0
    """Wall time in garbage collections."""


class Stopwatch:
    """Adds up the time of calls on one thread; calls within calls count once."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.total_ns = 0
        self._depth = 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            began = self.clock()
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.total_ns += self.clock() - began

        return timed

    def take(self) -> int:
        taken, self.total_ns = self.total_ns, 0
        return taken


class Bench:
    """The engine, and the switches of the ways."""

    def __init__(self, model: Path, running: int) -> None:
        from vllm import EngineArgs, LLMEngine  # noqa: PLC0415 - in its own environment alone

        arguments = EngineArgs(
            model=str(model), load_format="dummy", enforce_eager=True, dtype="float32", seed=0, block_size=BLOCK_SIZE,
            max_model_len=2048, max_num_seqs=running, max_num_batched_tokens=2048,
            num_gpu_blocks_override=BLOCKS, disable_log_stats=False,
        )  # fmt: skip
        self.engine = LLMEngine.from_engine_args(arguments)
        self.core: Any = self.engine.engine_core.engine_core
        self.scheduler: Any = self.core.scheduler
        self.recorder: Any = vars(self.scheduler)[_RECORDER]
        assert self.recorder is not None, "the hook has not attached itself"
        self.worker: Any = self.core.model_executor.driver_worker
        self.in_scheduler = Stopwatch(time.thread_time_ns)
        for name in ("schedule", "update_from_output", "add_request"):
            setattr(self.scheduler, name, self.in_scheduler.around(getattr(self.scheduler, name)))
        self.inside = Stopwatch(time.perf_counter_ns)
        self.collections_ns = 0
        self._collecting_ns = 0
        self._times: Any = None
        gc.callbacks.append(self._collect)
        self._metering = True
        self._number = 0

    def _collect(self, phase: str, _: object) -> None:
        if phase == "start":
            self._collecting_ns = time.perf_counter_ns()
        else:
            self.collections_ns += time.perf_counter_ns() - self._collecting_ns

    def switch(self, way: str) -> None:
        """Between blocks, with nothing running and an empty cache, so that the meter's account stays whole."""
        meters = way in {METER, TIMED}
        worker = self.worker.__dict__
        if meters != self._metering:
            self._metering = meters
            if meters:
                self.recorder.watch.watch()
                worker[_TIMES] = self._times
            else:
                self.recorder.watch.unwatch()
                self._times, worker[_TIMES] = worker.get(_TIMES), None
            setattr(self.scheduler, _RECORDER, self.recorder if meters else None)
        stats = way == STATS
        manager = self.scheduler.kv_cache_manager
        for owner in (self.engine, self.engine.output_processor, self.core, self.scheduler, manager):
            owner.log_stats = stats
        for owner, names in ((self.recorder, _INSIDE), (worker.get(_TIMES), _INSIDE_WORKER)):
            for name in names if owner is not None else ():
                vars(owner).pop(name, None)
                if way == TIMED:
                    setattr(owner, name, self.inside.around(getattr(owner, name)))

    def run(self, way: str, running: int, steps: int = STEPS) -> Block:
        """A block: fill up, measure, and let everything go."""
        self.switch(way)
        requests = _requests(running)
        alive: set[str] = set()
        block = Block()
        while len(alive) < running or self.scheduler.waiting:
            self._fill(alive, running, requests)
            self._step(alive)
        for _ in range(3):
            self._fill(alive, running, requests)
            self._step(alive)
        gc.collect()
        self.in_scheduler.take()
        self.inside.take()
        self.collections_ns = 0
        began = time.perf_counter()
        for _ in range(steps):
            block.arrivals.append(self._fill(alive, running, requests))
            self._step(alive, block)
        block.seconds = time.perf_counter() - began
        block.collections_ns = self.collections_ns
        self.engine.abort_request(list(alive))
        while self.engine.has_unfinished_requests() or self.core.batch_queue:
            self._step(alive)
        assert not alive or not self.scheduler.running
        assert self.scheduler.reset_prefix_cache()
        return block

    def _fill(self, alive: set[str], running: int, requests: Iterator[tuple[list[int], int]]) -> int:
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.inputs import TokensPrompt  # noqa: PLC0415

        before = len(alive)
        while len(alive) < running:
            prompt, answer = next(requests)
            self._number += 1
            name = str(self._number)
            self.engine.add_request(
                name,
                TokensPrompt(prompt_token_ids=prompt),
                SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False),
            )
            alive.add(name)
        return running - before

    def _step(self, alive: set[str], block: Block | None = None) -> None:
        step = self.core.step_fn
        wall_ns = cpu_ns = 0

        def timed() -> Any:
            nonlocal wall_ns, cpu_ns
            cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
            output = step()
            wall_ns, cpu_ns = time.perf_counter_ns() - wall, time.thread_time_ns() - cpu
            return output

        self.core.step_fn = timed
        try:
            outputs = self.engine.step()
        finally:
            self.core.step_fn = step
        for output in outputs:
            if output.finished:
                alive.discard(output.request_id)
        if block is not None:
            block.ended_us.append(time.time_ns() // 1000)
            block.wall_ns.append(wall_ns)
            block.cpu_ns.append(cpu_ns)
            block.scheduler_ns.append(self.in_scheduler.take())
            block.inside_ns.append(self.inside.take())
            block.tokens += len(outputs)


def _requests(running: int) -> Iterator[tuple[list[int], int]]:
    """The same prompts and lengths of answers for every block of a level."""
    random = Random(running)
    shared = [random.randrange(2, 250) for _ in range(64)]
    for number in count():
        own = [random.randrange(2, 250) for _ in range(random.randrange(16, 64))]
        answer = random.randrange(300, 1000)  # 650 on average, as in the recorded ShareGPT requests
        # Those that fill the engine up are somewhere in the middle, as if it had run for long.
        yield shared + own, answer if number >= running else max(2, round(answer * random.random()))


def measure(model: Path, running: int, rounds: int) -> list[dict[str, list[Block]]]:
    """Rounds of one block for each of :data:`WAYS`, in an order drawn anew; a first round is thrown away."""
    bench = Bench(model, running)
    random = Random(7)
    found: list[dict[str, list[Block]]] = []
    for number in range(rounds + 1):
        ways = list(WAYS)
        random.shuffle(ways)
        blocks: dict[str, list[Block]] = {}
        for way in ways:
            steps = STEPS if number else STEPS // 4
            blocks.setdefault(way, []).append(bench.run(way, running, steps))
        found += [blocks] if number else []
    faults = bench.recorder.meter.faults
    assert not faults, f"the meter met what cannot be: {dict(faults)}"
    assert not bench.recorder.faults, f"the hook failed: {dict(bench.recorder.faults)}"
    return found


def main() -> None:
    model, running, rounds, file = sys.argv[1:]
    # The model computes in the thread that is measured, and in no other.
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR", "KVLEDGER_SPOOL": f"{Path(file).parent}/spool",
    }  # fmt: skip
    found = measure(Path(model), int(running), int(rounds))
    plain = [{way: [asdict(block) for block in blocks] for way, blocks in one.items()} for one in found]
    Path(file).write_text(json.dumps(plain))


if __name__ == "__main__":
    main()
