"""The reference engine: a virtual clock, a scheduler, and the meter inside, told as any engine would tell it.

It has no model: :class:`~ledger.reference.latency.LatencyModel` says how long a step takes, the trace says how
many tokens come out. Everything else (blocks, prefix cache, batching, preemption) is real. The engine works as
vLLM does without asynchronous scheduling: between two steps it takes what has arrived and drops who has left;
then it schedules, the step runs, and whoever is answered lets go of its blocks at the step's end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

from ledger.core.records import SYSTEM, Boot, Dimensions, Group, Origin, Outcome, Shard, Source
from ledger.hook.meter import Meter
from ledger.reference.content import block_hashes, extend_unique, stable_hash
from ledger.reference.events import EventLog
from ledger.reference.pool import BlockPool
from ledger.reference.request import TraceRequest
from ledger.reference.scheduler import CoreRequest, Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger.core.records import Batch
    from ledger.reference.hooks import EngineHook
    from ledger.reference.latency import LatencyModel
    from ledger.reference.policy import Policy

POOL = "kv"
"""The name of an engine's only pool."""

_FIRST_UNIQUE = 3
"""``hash(-1) == hash(-2)`` in CPython: the numbers of unique content begin beyond that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine is made of. Times in microseconds; ``start_us`` is wall time."""

    name: str
    blocks: int
    block_size: int
    start_us: int
    load_us: int
    """From the boot to the opening of the pool: loading the weights."""
    model: str
    gpu_model: str
    latency: LatencyModel
    warmup_requests: int
    acceptance_ratio: float
    """Probability that a draft token is right, given that those before it were."""
    seed: int


class Flow:
    """A conversation (or a single request) in progress: what follows, and the hashes of what went before."""

    __slots__ = ("hashes", "open", "then")

    def __init__(self, then: Iterator[TraceRequest] | None) -> None:
        self.then = then
        self.hashes: list[int] = []
        self.open = 0
        """Core requests of the current request that have not ended."""


class Engine:
    """One engine from boot to close. Times inside are microseconds since the boot (its monotonic clock)."""

    def __init__(
        self,
        config: EngineConfig,
        policy: Policy,
        emit: Callable[[Batch], None],
        events: Callable[[str], object] | None = None,
    ) -> None:
        self.config = config
        self.now_us = config.load_us
        self.received = 0
        self.steps = 0
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        source = Source(engine=config.name, origin=Origin.SIMULATED, software="kvledger-reference")
        boot = Boot(boot_id=f"{config.name}@{config.start_us}", anchor_us=config.start_us, started_us=config.start_us)
        self.meter = meter = Meter(source, boot, emit)
        self.hook: EngineHook = (
            meter if events is None else EventLog(meter, events, engine=config.name, anchor_us=config.start_us)
        )
        kv = self.hook.open(
            self.now_us,
            POOL,
            blocks=config.blocks,
            groups=(Group(block_size=config.block_size),),
            shards=(Shard(gpu_uuid=f"sim-{config.name}", gpu_model=config.gpu_model),),
            model=config.model,
        )
        self.pool = BlockPool(config.blocks)
        self.scheduler = Scheduler(
            self.pool,
            config.block_size,
            hook=self.hook,
            kv=kv,
            policy=policy,
            random=Random(f"{config.seed}/{config.name}"),  # noqa: S311 - a simulation, repeatable on purpose
            acceptance_ratio=config.acceptance_ratio,
        )
        self._arrivals: list[tuple[int, int, TraceRequest, Flow]] = []
        self._arrived = 0
        self._leaving: list[tuple[int, int, CoreRequest, Outcome]] = []
        self._flows: dict[CoreRequest, Flow] = {}
        self._unique = _FIRST_UNIQUE
        for number in range(config.warmup_requests):
            self.submit(_warmup(config, number), self.now_us)

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits, or is still to come of what was submitted."""
        return not (self._arrivals or self.scheduler.running or self.scheduler.waiting_count)

    def submit(self, trace: TraceRequest, at_us: int) -> None:
        """``trace`` (and whatever follows it) arrives at ``at_us``, not before what is submitted already ran."""
        self._push(at_us, trace, Flow(trace.then))

    def run_until(self, horizon_us: int) -> None:
        """Run steps that begin before ``horizon_us``; everything that arrives before it has been submitted."""
        while self.now_us < horizon_us:
            self._receive()
            scheduler = self.scheduler
            total = scheduler.schedule(self.now_us) if scheduler.running or scheduler.waiting_count else 0
            if total:
                self._run(total)
                continue
            next_us = min(
                horizon_us,
                self._arrivals[0][0] if self._arrivals else horizon_us,
                self._leaving[0][0] if self._leaving else horizon_us,
            )
            self.now_us = next_us
            self.hook.advance(next_us)

    def close(self, at_us: int) -> None:
        """Shut down at ``at_us``."""
        self.hook.close(at_us)

    def _push(self, at_us: int, trace: TraceRequest, flow: Flow) -> None:
        heappush(self._arrivals, (at_us, self._arrived, trace, flow))
        self._arrived += 1

    def _run(self, total: int) -> None:
        scheduler = self.scheduler
        self.hook.scheduled(self.now_us, scheduler.tokens, total)
        step_us = self.config.latency.step_us(
            prefill_tokens=scheduler.prefill_tokens,
            prefill_pairs=scheduler.prefill_pairs,
            sequences=scheduler.decoding,
            kv_tokens=scheduler.kv_tokens,
        )
        self.now_us += step_us
        self.steps += 1
        accepted, answered = scheduler.complete()
        if accepted:
            self.hook.stepped(self.now_us, accepted)
        else:
            self.hook.stepped(self.now_us)
        # One rank, and the rest of the step takes none of its time. The audit log has durations already.
        self.meter.phases(self.now_us, {"execute": step_us, "compute": step_us}, shard="dp0pp0tp0", method="modelled")
        for request in answered:
            self._end(request, Outcome.FINISHED, "length")

    def _receive(self) -> None:
        now = self.now_us
        while self._arrivals and self._arrivals[0][0] <= now:
            at_us, _order, trace, flow = heappop(self._arrivals)
            self._arrive(at_us, trace, flow)
        while self._leaving and self._leaving[0][0] <= now:
            _at_us, _order, request, outcome = heappop(self._leaving)
            if not request.ended:
                self._end(request, outcome, "abort")

    def _arrive(self, at_us: int, trace: TraceRequest, flow: Flow) -> None:
        size = self.config.block_size
        # A request that names no model asks for the one that is served.
        dims = trace.dims if trace.dims.model else replace(trace.dims, model=self.config.model)
        fits = self.scheduler.fits(trace.prompt_tokens, trace.output_tokens)
        flow.open = trace.samples
        source: Callable[[], list[int]] = partial(self._hash, trace, flow)
        if trace.samples > 1 and fits:
            prompt_blocks = trace.prompt_tokens // size
            shared = source()[:prompt_blocks]
            extend_unique(shared, prompt_blocks, self._unique, trace.cache_salt)
            self._unique += 1
            # A copy for each: their answers differ, and what they hash further the others must not see.
            source = shared.copy
        for sample in range(trace.samples):
            self.received += 1
            request = CoreRequest(
                request=trace.request if trace.samples == 1 else f"{sample}_{trace.request}",
                dims=dims,
                arrived_us=at_us,
                prompt_tokens=trace.prompt_tokens,
                output_tokens=trace.output_tokens,
                source=source,
                unique=self._unique,
                cache_salt=trace.cache_salt,
                draft_tokens=trace.draft_tokens,
            )
            self._unique += 1
            self.hook.request(
                self.now_us,
                request.request,
                dims,
                prompt_tokens=trace.prompt_tokens,
                parent=trace.request if trace.samples > 1 else None,
                arrived_us=at_us,
            )
            self._flows[request] = flow
            if not fits:
                request.ended = True
                self.hook.finish(self.now_us, request.request, Outcome.REFUSED, "length")
                self._after(request, Outcome.REFUSED)
                continue
            self.scheduler.receive(request)
            if trace.leaves_after_us is not None:
                outcome = Outcome.ABANDONED if trace.abandons else Outcome.ABORTED
                heappush(self._leaving, (at_us + trace.leaves_after_us, self._unique, request, outcome))

    def _hash(self, trace: TraceRequest, flow: Flow) -> list[int]:
        flow.hashes = block_hashes(trace, self.config.block_size, flow.hashes)
        return flow.hashes

    def _end(self, request: CoreRequest, outcome: Outcome, finish_reason: str) -> None:
        self.scheduler.end(self.now_us, request, outcome, finish_reason)
        self._after(request, outcome)

    def _after(self, request: CoreRequest, outcome: Outcome) -> None:
        """Count the end, and call what follows in its conversation."""
        self.outcomes[outcome] += 1
        flow = self._flows.pop(request)
        flow.open -= 1
        if request.hashes is None:
            # It ended before anybody looked at its content: what follows cannot lean on it.
            flow.hashes = []
        if flow.open or flow.then is None:
            return
        for trace in flow.then:
            at_us = self.now_us + trace.arrival_us
            if not trace.forks:
                self._push(at_us, trace, flow)
                return
            self._push(at_us, trace, Flow(trace.then))


def engine_of(trace: TraceRequest, engines: int) -> int:
    """The engine that a request's session lives on: the same whatever else is replayed."""
    dims = trace.dims
    key = f"{dims.tenant}\n{dims.session}" if dims.session != "-" else trace.request
    return stable_hash(key) % engines


def _warmup(config: EngineConfig, number: int) -> TraceRequest:
    """Short, middling and long prompts in turn, as engines send to themselves before they open."""
    return TraceRequest(
        request=f"{config.name}-warmup-{number}",
        dims=Dimensions(tenant=SYSTEM, session="warm-up", model=config.model),
        arrival_us=0,
        prompt_tokens=min((16, 256, 2048)[number % 3], config.blocks * config.block_size // 2),
        output_tokens=min(8, config.blocks * config.block_size // 2),
    )
