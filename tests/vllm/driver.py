"""An engine of vLLM in this process, driven step by step by seeded traffic, walked after every step.

    python tests/vllm/driver.py MODEL STEPS SEED [async] [caching] [priority] [ngram] [deferred] [planted]

Prints one JSON object: what the walks found, and for each request that ended what vLLM says of it beside what the
hook's record says. vLLM switches asynchronous scheduling off on the CPU, where it saves nothing; here it is switched on
again, since the scheduler that it takes then is the one that runs on GPUs.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "KVLEDGER_HANDOVER_KEY": "a key of the tests alone",
    "KVLEDGER_SPOOL": tempfile.mkdtemp(prefix="kvledger-spool-"),
}

import asynchronous
import walk
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.request import Request

from ledger.hook.identity import Caller, pack
from ledger.hook.vllm.recorder import Recorder
from ledger.outbox.drain import Outbox

if TYPE_CHECKING:
    from ledger.core.records import Batch

SHARED_TOKENS = 96
WAITING_MAX = 24
NAP_EVERY = 150


class Traffic:
    """Requests with shared prefixes, samples, aborts, priorities, resets of the cache: all from one seed."""

    def __init__(self, engine: LLMEngine, seed: int, *, priorities: bool, resets: bool) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.priorities = priorities
        self.may_reset = resets
        self.prefixes = [[self.random.randrange(10, 500) for _ in range(SHARED_TOKENS)] for _ in range(3)]
        self.names: list[str] = []
        self.steps = self.resets = self.naps = 0

    def add(self) -> None:
        rng = self.random
        prefix = rng.choice(self.prefixes)[: rng.choice([32, 64, 96])]
        prompt = prefix + [rng.randrange(10, 500) for _ in range(rng.randrange(1, 150))]
        if rng.random() < 0.1:
            prompt = prompt[: 32 * (len(prompt) // 32)]  # all of it can be a hit but the last token
        samples = rng.choice([1, 1, 1, 2, 3])
        params = SamplingParams(
            max_tokens=rng.randrange(1, 120),
            temperature=0 if samples == 1 else 1,
            n=samples,
            ignore_eos=rng.random() < 0.7,
        )
        name = f"r{len(self.names)}"
        self.names.append(name)
        session = pack(Caller(tenant=f"t{rng.randrange(4)}", session=f"s{rng.randrange(6)}"), _key())
        self.engine.add_request(
            name,
            {"prompt_token_ids": prompt},
            params,
            priority=rng.randrange(3) if self.priorities else 0,
            session_id=session,
        )

    def step(self, *, more: bool) -> None:
        rng = self.random
        while more and self.engine.get_num_unfinished_requests() < WAITING_MAX:
            self.add()
        if rng.random() < 0.03:
            self.engine.abort_request([rng.choice(self.names[-WAITING_MAX:])])
        if self.may_reset and rng.random() < 0.005:
            self.resets += 1
            self.engine.reset_prefix_cache(reset_running_requests=rng.random() < 0.5)
        self.steps += 1
        if self.may_reset and not self.steps % NAP_EVERY:
            self.naps += 1
            core = self.engine.engine_core.engine_core
            core.sleep(1, "keep")
            core.wake_up()
        self.engine.step()


def _key() -> bytes:
    return os.environ["KVLEDGER_HANDOVER_KEY"].encode()


def _planted() -> None:
    """An error to be found: one block of one release is not told."""
    released = Recorder.released

    def forgetful(self: Any, request: str | None, blocks: list[int], cached: list[int], freed: list[int]) -> None:
        if len(blocks) > 1 and not hasattr(self, "forgot"):
            self.forgot = blocks.pop()
            cached, freed = [b for b in cached if b != self.forgot], [b for b in freed if b != self.forgot]
        released(self, request, blocks, cached, freed)

    Recorder.released = forgetful


def _observed(theirs: dict[str, dict[str, Any]], batches: list[Batch], totals: Counter[str]) -> None:
    """Listen to vLLM (what it says of a request at its end) and to the hook (every batch)."""
    free, emit, scheduled = Scheduler._free_request, Outbox.emit, Recorder.scheduled
    take, cached = Request.take_prefill_stats, {}

    def ended(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        theirs[request.request_id] = {
            "prompt": request.num_prompt_tokens,
            "output": request.num_output_tokens,
            "preemptions": request.num_preemptions,
            "status": request.status.name,
            "cached": cached.get(request.request_id),
        }
        return free(self, request, *args, **kwargs)

    def prefilled(self: Any) -> Any:
        if self.prefill_stats is not None:
            cached[self.request_id] = self.prefill_stats.num_local_cached_tokens
        return take(self)

    def taken(self: Any, batch: Batch) -> None:
        batches.append(batch)
        emit(self, batch)

    def counted(self: Any, output: Any) -> None:
        totals["drafted"] += sum(map(len, output.scheduled_spec_decode_tokens.values()))
        totals["scheduled"] += output.total_num_scheduled_tokens
        scheduled(self, output)

    Scheduler._free_request, Outbox.emit, Recorder.scheduled = ended, taken, counted
    Request.take_prefill_stats = prefilled


def main(model: Path, steps: int, seed: int, options: set[str]) -> dict[str, Any]:
    """Drive it for ``steps`` steps and let it drain."""
    theirs: dict[str, dict[str, Any]] = {}
    batches: list[Batch] = []
    totals: Counter[str] = Counter()
    walkers: list[walk.Walker] = []
    _observed(theirs, batches, totals)
    walk.install(walkers)
    if "planted" in options:
        _planted()
    if "async" in options:
        asynchronous.switch_on()
    more: dict[str, Any] = {}
    if "ngram" in options:
        more["speculative_config"] = {
            "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2,
        }  # fmt: skip
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model),
            served_model_name="tiny",
            load_format="dummy",
            enforce_eager=True,
            dtype="float32",
            seed=0,
            block_size=32,
            num_gpu_blocks_override=40,
            max_model_len=512,
            max_num_batched_tokens=256,
            max_num_seqs=16,
            enable_prefix_caching="caching" in options,
            scheduling_policy="priority" if "priority" in options else "fcfs",
            **more,
        )
    )
    scheduler = engine.engine_core.engine_core.scheduler
    recorder = scheduler._kvledger
    # So vLLM does with a KV connector that loads, when steps overlap; it cannot reset the cache then.
    scheduler.defer_block_free = "deferred" in options
    traffic = Traffic(engine, seed, priorities="priority" in options, resets="deferred" not in options)
    while not walkers or walkers[0].steps < steps:
        traffic.step(more=True)
    while engine.has_unfinished_requests():
        traffic.step(more=False)
    recorder.closed("shutdown")
    ours = {record.request: record for batch in batches for record in batch.requests}
    (walker,) = walkers
    return {
        "scheduler": type(scheduler).__mro__[2].__name__,
        "steps": walker.steps,
        "walks": walker.walks,
        "differences": walker.differences,
        "engine_references": walker.engine_references,
        "peak_shared": walker.peak_shared,
        "deferred": walker.deferred,
        "faults": dict(recorder.meter.faults),
        "resets": traffic.resets,
        "naps": traffic.naps,
        "closes": [close.reason for batch in batches for close in batch.closes],
        "records": sum(len(batch.requests) for batch in batches),
        "totals": dict(totals),
        "step_us": sum(pool.step_us for batch in batches for pool in batch.pools),
        "requests": {
            name: {
                "vllm": said,
                "hook": _said(ours[name]) if name in ours else None,
            }
            for name, said in theirs.items()
        },
    }


def _said(record: Any) -> dict[str, Any]:
    tokens, preemptions = record.tokens, record.preemptions
    return {
        "prompt": record.prompt_tokens,
        "output": tokens.output,
        "preemptions": preemptions.kv_full + preemptions.priority + preemptions.reset + preemptions.other,
        "resets": preemptions.reset,
        "by_priority": preemptions.priority,
        "outcome": record.outcome.value,
        "reason": record.finish_reason,
        "computed": tokens.computed,
        "cached": tokens.cached_own + tokens.cached_others,
        "recomputed": tokens.recomputed,
        "unprocessed": tokens.unprocessed,
        "drafted": tokens.drafted,
        "rejected": tokens.rejected,
        "tenant": record.dims.tenant,
        "parent": record.parent,
    }


if __name__ == "__main__":
    print("\n" + json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), set(sys.argv[4:]))))
