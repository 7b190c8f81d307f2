"""A plugin of vLLM's for the tests, loaded where its folder is on PYTHONPATH, before the hook's: it spies, and breaks.

``SPY_ARRIVALS``  a file that gets a line of JSON for each request that the scheduler of any engine core admits
``BREAK``         ``once``: each entry point of the hook raises at one of its calls; ``always``: those that vLLM's own
                  threads run through raise at every call; ``attach``: whatever attaches the hook raises;
                  ``version``: the hook knows no version
``DISK_FULL``     a file; while it is there no segment of a spool takes a byte
``STEP_S``        how much longer each step takes: a tiny model outruns its own server, a large one never does
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import importlib
import json
import os
import time
from pathlib import Path

GUARDED = {
    "ledger.hook.vllm.recorder.Recorder": (
        "received", "preempted", "ended", "scheduling", "scheduled", "updating", "updated", "closed",
    ),
    "ledger.hook.vllm.callers.CallerMiddleware": ("_resolve",),
    "ledger.hook.vllm.callers.Carrier": ("send", "receive"),
    "ledger.hook.vllm.workers.Scribe": ("write",),
}  # fmt: skip
"""Methods with a guard of their own around them."""
CALLED = {
    "ledger.hook.vllm.recorder.Recorder": ("releasing", "released", "dropped"),
}
"""Methods that are called from within a guard."""
BESIDE = {
    "ledger.hook.vllm.engine.Heartbeat": ("__call__",),
    "ledger.outbox.drain.Outbox": ("emit",),
}
"""What the hook's own thread runs through; it would keep back the word that the hook is off."""
ATTACHING = {
    "ledger.hook.vllm.engine": ("_recorder_of",),
    "ledger.hook.vllm.frontend": ("add_to",),
    "ledger.hook.vllm.workers": ("attach",),
    "ledger.hook.vllm.ending": ("ask_to_end",),
}
AT_CALL = 5
"""Late enough for a request to be under way."""


class OnPurpose(Exception):  # noqa: N818
    """Nothing catches it by its name."""


def register() -> None:
    if path := os.environ.get("SPY_ARRIVALS"):
        _spy_on_arrivals(Path(path))
    if path := os.environ.get("DISK_FULL"):
        _fill_the_disk(Path(path))
    if seconds := os.environ.get("STEP_S"):
        _slow_steps_down(float(seconds))
    mode = os.environ.get("BREAK")
    if mode == "version":
        importlib.import_module("ledger.hook.vllm").SUPPORTED = ("0.31",)
    elif mode == "attach":
        for name, functions in ATTACHING.items():
            module = importlib.import_module(name)
            for function in functions:
                setattr(module, function, _raising(getattr(module, function), once=False))
    elif mode:
        _break_every_entry_point(once=mode == "once")


def _slow_steps_down(seconds: float) -> None:
    """The outputs of a step that computed anything come so much later."""
    scheduler = _found("vllm.v1.core.sched.scheduler.Scheduler")
    update = scheduler.update_from_output

    @functools.wraps(update)
    def updated(self, scheduler_output, *args, **kwargs):
        if scheduler_output.total_num_scheduled_tokens:
            time.sleep(seconds)
        return update(self, scheduler_output, *args, **kwargs)

    scheduler.update_from_output = updated


def _break_every_entry_point(*, once: bool) -> None:
    guard = importlib.import_module("ledger.hook.vllm.guard")
    if once:
        guard.HOOK_FAULTS_MAX = 1000
    for name, methods in GUARDED.items():
        owner = _found(name)
        for method in methods:
            made = getattr(owner, method)
            setattr(owner, method, guard.guarded(_raising(getattr(made, "__wrapped__", made), once=once)))
    _break_the_clock_of_steps(once=once)
    for name, methods in (CALLED | (BESIDE if once else {})).items():
        owner = _found(name)
        for method in methods:
            setattr(owner, method, _raising(getattr(owner, method), once=once))


def _break_the_clock_of_steps(*, once: bool) -> None:
    """All that a rank does in a step is to look at its clock."""
    times = _found("ledger.hook.vllm.workers.WallTimes")
    init = times.__init__

    @functools.wraps(init)
    def made(self, *args, **kwargs):
        init(self, *args, **kwargs)
        looks = iter(range(1, 1_000_000))
        clock = self._now_ns

        def now_ns() -> int:
            # A step looks four times: it begins, returns, is resumed, returns.
            if not once or next(looks) in {9, 14, 19}:
                raise OnPurpose("clock")
            return clock()

        self._now_ns = now_ns

    times.__init__ = made


def _raising(function, *, once: bool):
    calls = 0

    @functools.wraps(function)
    def call(*args, **kwargs):
        nonlocal calls
        calls += 1
        if not once or calls == (1 if function.__name__ in {"closed", "dropped"} else AT_CALL):
            raise OnPurpose(function.__qualname__)
        return function(*args, **kwargs)

    return call


def _found(name: str):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _fill_the_disk(flag: Path) -> None:
    segment = importlib.import_module("ledger.outbox.segment")
    write = segment._write

    def _write(fd: int, raw: bytes, at: int) -> None:
        if flag.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(fd, raw, at)

    segment._write = _write


def _spy_on_arrivals(path: Path) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - vLLM is loaded by now

    from ledger.hook.vllm.callers import caller_of  # noqa: PLC0415

    admit = Scheduler.add_request
    key = os.environ.get("KVLEDGER_HANDOVER_KEY", "").encode()

    @functools.wraps(admit)
    def add_request(self, request, *args, **kwargs):
        arrived = {
            "request": request.request_id,
            "session_id": request.session_id,
            "priority": request.priority,
            "rank": self.vllm_config.parallel_config.data_parallel_index,
            "caller": dataclasses.asdict(caller_of(request, key)),
        }
        with path.open("a") as file:
            file.write(json.dumps(arrived) + "\n")
        return admit(self, request, *args, **kwargs)

    Scheduler.add_request = add_request
