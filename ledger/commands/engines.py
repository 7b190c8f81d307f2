"""`kvledger engines`: reference engines on the wall clock, reporting as any engine does: meter, outbox, HTTP.

Invariant: an engine's clock is the wall clock at its start plus what has passed since, so its periods lie on the grid
and it never reports what has not happened yet.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ledger import limits
from ledger.core.periods import period_start
from ledger.errors import UsageError
from ledger.hook import settings as hook
from ledger.reference.engine import Engine, EngineConfig, engine_of
from ledger.reference.policy import Policy
from ledger.reference.workload import mixed_day

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping

    from ledger.hook.settings import HookSettings
    from ledger.outbox.drain import Outbox
    from ledger.reference.request import TraceRequest

REPORTING = tuple(each.name for each in (hook.URL, hook.TOKEN, hook.TOKEN_FILE, hook.CA_FILE, hook.TIMEOUT))
"""What these engines take of a hook's environment; the rest is about engines of another kind."""

TICK_S = 0.25
"""Between two looks at the clock: engines simulate what has passed, in one go."""

BEHIND_US = 1_000_000
"""Engines live a second behind the clock: a step of theirs that is under way ends before now, too."""

CLOSE_S = 4.0
"""For the last batches of an engine that stops; what is not sent by then waits in the spool."""

LOAD_US = 5_000_000
"""From boot to the opening of the pool; a demonstration does not wait for weights."""


def run(args: Namespace) -> int:
    """Run until it is told to stop; then close the engines and send what is left."""
    settings = _settings(os.environ)
    # One for each engine, as each engine of the real world has its own.
    outboxes = [_outbox(settings, args.spool and Path(args.spool) / str(number)) for number in range(args.engines)]
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    load = mixed_day(args.seed)
    start_us = period_start(time.time_ns() // 1000)
    began_s = time.monotonic() - (time.time_ns() / 1e9 - start_us / 1e6)
    fleet = [
        Engine(
            EngineConfig(
                name=f"{args.name}-{number}",
                blocks=load.blocks,
                block_size=load.block_size,
                start_us=start_us,
                load_us=LOAD_US,
                model="reference",
                gpu_model="simulated",
                latency=load.latency,
                warmup_requests=3,
                acceptance_ratio=0.7,
                seed=args.seed,
            ),
            Policy(),
            outbox.emit,
        )
        for number, outbox in enumerate(outboxes)
    ]
    _drive(fleet, _days(args.seed, start_us), began_s, stopping, parent=args.parent)
    now_us = max([int((time.monotonic() - began_s) * 1e6), *(engine.now_us for engine in fleet)])
    for engine in fleet:
        engine.close(now_us)
    for outbox in outboxes:
        outbox.close(CLOSE_S)
    return 0


def _settings(environ: Mapping[str, str]) -> HookSettings:
    """Where to report, read as a hook reads it. UsageError for what cannot be used, or is not said."""
    found = hook.load({name: environ[name] for name in REPORTING if name in environ})
    if not found.urls:
        raise UsageError("KVLEDGER_URL and KVLEDGER_TOKEN say where to report; set both, as --help shows")
    return found


def _outbox(settings: HookSettings, spool: Path | None) -> Outbox:
    made = hook.outbox_of(replace(settings, spool=spool))
    made.start()
    return made


def _drive(
    fleet: list[Engine],
    requests: Iterator[TraceRequest],
    began_s: float,
    stopping: threading.Event,
    *,
    parent: int | None,
) -> None:
    """Let each engine live through what has passed, again and again."""
    following = next(requests)
    while not stopping.wait(TICK_S):
        if parent is not None and os.getppid() != parent:
            return  # whoever started us was killed, and nobody else would stop us
        now_us = int((time.monotonic() - began_s) * 1e6) - BEHIND_US
        while LOAD_US + following.arrival_us <= now_us:
            at_us = LOAD_US + following.arrival_us
            for engine in fleet:
                engine.run_until(at_us)
            fleet[engine_of(following, len(fleet))].submit(following, at_us)
            following = next(requests)
        for engine in fleet:
            engine.run_until(now_us)


def _days(seed: int, start_us: int) -> Iterator[TraceRequest]:
    """The mixed day from the present time of day on, and after it the next one, with another seed."""
    day_us = limits.DAY_US
    into_us = start_us % day_us
    for number in itertools.count():
        for request in mixed_day(seed + number).requests():
            at_us = request.arrival_us + number * day_us - into_us
            if at_us >= 0:
                yield replace(request, arrival_us=at_us)
