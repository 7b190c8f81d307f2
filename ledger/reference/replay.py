"""Replay: requests in, through reference engines with a meter inside, batches of facts out. Virtual time.

Memory is bounded by what is running, waiting and cached, and by the sessions that are open; never by the
length of the trace: requests are pulled as their time comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.records import PERIOD_US, Outcome
from ledger.errors import UsageError
from ledger.reference.engine import Engine, EngineConfig, engine_of
from ledger.reference.latency import RTX_4090_LLAMA_8B, LatencyModel
from ledger.reference.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.core.records import Batch
    from ledger.reference.request import TraceRequest

ENGINES_MAX = 64
"""Each has state of its own in this process."""

BLOCKS_MAX = 16_777_216
"""Some 200 bytes of bookkeeping each; a GPU of 2 TB at 128 KB a block."""

BLOCK_SIZE_MAX = 4096
"""Tokens; engines use 1 to 1024."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """What a replay did, over all its engines. Times are wall microseconds."""

    start_us: int
    closed_us: int
    """When the last engine closed."""
    received: int
    """Core requests (children of ``n > 1`` each, warm-up included), which is also the number of their records; but
    for those that were under way at ``until_us``: they have none, as of any engine that is stopped."""
    warmups: int
    """Those of them that the engines sent to themselves."""
    finished: int
    aborted: int
    abandoned: int
    refused: int
    preemptions: int
    steps: int
    blocks_acquired: int
    blocks_hit: int
    evictions: int
    faults: int
    """Calls that the meters could not make sense of; anything but 0 is a bug."""


def replay(
    requests: Iterable[TraceRequest],
    *,
    name: str = "engine",
    engines: int = 1,
    blocks: int,
    block_size: int = 16,
    start_us: int,
    until_us: int | None = None,
    emit: Callable[[Batch], None],
    events: Callable[[str], object] | None = None,
    progress: Callable[[int, int], None] | None = None,
    model: str = "reference",
    gpu_model: str = "simulated",
    latency: LatencyModel = RTX_4090_LLAMA_8B,
    policy: Callable[[], Policy] = Policy,
    load_us: int = 20_000_000,
    warmup_requests: int = 3,
    acceptance_ratio: float = 0.7,
    seed: int = 0,
) -> ReplaySummary:
    """Replay ``requests`` (in order of ``arrival_us``) and return the summary.

    Every engine (``engine-0`` …, after ``name``) has a pool ``kv`` of ``blocks`` usable blocks of ``block_size``
    tokens, one shard with GPU ``sim-engine-0`` …, one boot started at wall time ``start_us``; the pool opens and
    traffic starts ``load_us`` later, warm-up requests (tenant ``system``) first. ``emit`` gets each batch in the
    order of periods, engines interleaved, on this thread. ``events`` gets each line of the audit log (with its
    newline); see :mod:`ledger.reference.events`. ``progress`` gets (requests ended, wall time) now and then: at
    least once a simulated period, otherwise no more often than each 64 requests.

    A session stays on one engine (stable hash of tenant and session; requests without a session go by their
    own id). All engines close at the same instant, once nothing is left to do; at wall time ``until_us``, where that
    is given, with what they then have under way (they end the step that they are in). ``acceptance_ratio`` is the
    probability that a draft token is right where requests speculate.
    Raises :class:`ledger.errors.UsageError` for arguments that make no engine, or requests out of order.
    """
    _check(engines=engines, blocks=blocks, block_size=block_size, acceptance_ratio=acceptance_ratio)
    fleet = [
        Engine(
            EngineConfig(
                name=f"{name}-{number}",
                blocks=blocks,
                block_size=block_size,
                start_us=start_us,
                load_us=load_us,
                model=model,
                gpu_model=gpu_model,
                latency=latency,
                warmup_requests=warmup_requests,
                acceptance_ratio=acceptance_ratio,
                seed=seed,
            ),
            policy(),
            emit,
            events,
        )
        for number in range(engines)
    ]
    clock = _Progress(progress, fleet, start_us)
    last_us = load_us
    stop_us = None if until_us is None else until_us - start_us
    for trace in requests:
        at_us = load_us + trace.arrival_us
        if stop_us is not None and at_us >= stop_us:
            break
        if at_us < last_us:
            raise UsageError(
                f"request {trace.request} arrives at {trace.arrival_us} us, after one at {last_us - load_us} us:"
                " requests must come in order of arrival; sort them"
            )
        # Nobody starts a step at or after the arrival before it is submitted: it may belong into that step.
        _run_fleet(fleet, last_us, at_us, clock)
        fleet[engine_of(trace, engines)].submit(trace, at_us)
        last_us = at_us
    if stop_us is not None:
        _run_fleet(fleet, last_us, stop_us, clock)
    while stop_us is None and not all(engine.idle for engine in fleet):
        to_us = last_us + PERIOD_US - (start_us + last_us) % PERIOD_US
        _run_fleet(fleet, last_us, to_us, clock)
        last_us = to_us
    closed_us = max(engine.now_us for engine in fleet)
    for engine in fleet:
        engine.close(closed_us)
    clock.tell(closed_us)
    return _summary(fleet, start_us, closed_us)


class _Progress:
    """Calls back at most once in 64 ended requests, and once a simulated period."""

    def __init__(self, callback: Callable[[int, int], None] | None, fleet: list[Engine], start_us: int) -> None:
        self._callback = callback
        self._fleet = fleet
        self.start_us = start_us
        self._told = 0

    def at(self, now_us: int) -> None:
        if self._callback is None:
            return
        ended = self._ended()
        if ended >= self._told + 64 or (self.start_us + now_us) % PERIOD_US == 0:
            self.tell(now_us)

    def tell(self, now_us: int) -> None:
        if self._callback is not None:
            self._told = self._ended()
            self._callback(self._told, self.start_us + now_us)

    def _ended(self) -> int:
        return sum(sum(engine.outcomes.values()) for engine in self._fleet)


def _run_fleet(fleet: list[Engine], from_us: int, to_us: int, clock: _Progress) -> None:
    """Run all engines to ``to_us``, a period at a time, so that their batches come in order of time."""
    while from_us < to_us:
        from_us = min(to_us, from_us + PERIOD_US - (clock.start_us + from_us) % PERIOD_US)
        for engine in fleet:
            engine.run_until(from_us)
        clock.at(from_us)


def _check(*, engines: int, blocks: int, block_size: int, acceptance_ratio: float) -> None:
    for name, value, most in (
        ("engines", engines, ENGINES_MAX),
        ("blocks", blocks, BLOCKS_MAX),
        ("block_size", block_size, BLOCK_SIZE_MAX),
    ):
        if not 1 <= value <= most:
            raise UsageError(f"{name} is {value}: give a whole number from 1 to {most}")
    if not 0 <= acceptance_ratio <= 1:
        raise UsageError(f"acceptance_ratio is {acceptance_ratio}: give a number from 0 to 1")


def _summary(fleet: list[Engine], start_us: int, closed_us: int) -> ReplaySummary:
    def total(outcome: Outcome) -> int:
        return sum(engine.outcomes[outcome] for engine in fleet)

    return ReplaySummary(
        start_us=start_us,
        closed_us=start_us + closed_us,
        received=sum(engine.received for engine in fleet),
        warmups=sum(engine.config.warmup_requests for engine in fleet),
        finished=total(Outcome.FINISHED),
        aborted=total(Outcome.ABORTED),
        abandoned=total(Outcome.ABANDONED),
        refused=total(Outcome.REFUSED),
        preemptions=sum(engine.scheduler.preemptions for engine in fleet),
        steps=sum(engine.steps for engine in fleet),
        blocks_acquired=sum(engine.scheduler.blocks_acquired for engine in fleet),
        blocks_hit=sum(engine.scheduler.blocks_hit for engine in fleet),
        evictions=sum(engine.scheduler.evictions for engine in fleet),
        faults=sum(sum(engine.meter.faults.values()) for engine in fleet),
    )
