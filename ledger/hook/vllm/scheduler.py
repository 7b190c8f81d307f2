"""The way in: vLLM's scheduler class, whichever it chose, with the recorder's calls around its own.

Invariants: every method runs its original exactly once, with its own arguments, result and exceptions; with the hook
off, or where it could not attach, nothing else happens. No flag is needed: the class is put in where vLLM asks its
configuration for one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ledger.hook.vllm.engine import recorder_of
from ledger.hook.vllm.guard import log
from ledger.hook.vllm.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.hook.vllm.recorder import Recorder


def attach() -> None:
    """Wrap ``SchedulerConfig.get_scheduler_cls``: the engine core makes a scheduler of what it gives."""
    from vllm.config.scheduler import SchedulerConfig  # noqa: PLC0415 - the engine's own

    wrap_once(SchedulerConfig, "get_scheduler_cls", _metered_too)


def _metered_too(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_scheduler_cls(self: Any) -> Any:
        base = original(self)
        try:
            return metered(base)
        except Exception:  # noqa: BLE001 - a guest: whatever it is, it ends here
            log.exception("kvledger: %s cannot be metered; the engine goes on without the hook", base)
            return base

    return get_scheduler_cls


@functools.cache
def metered(base: type[Any]) -> type[Any]:
    """A subclass of one of vLLM's two schedulers that tells the recorder; any other class comes back as it is."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: PLC0415
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415

    if base not in {Scheduler, AsyncScheduler}:
        log.warning("kvledger: the scheduler %s is not one of vLLM's own two; the hook does not attach", base.__name__)
        return base
    return type(base.__name__, (Metered, base), {"__module__": base.__module__, "__qualname__": base.__qualname__})


_Scheduler: Any = object
"""Stands for whichever scheduler class :class:`Metered` is put before."""


class Metered(_Scheduler):  # type: ignore[misc]  # its base is chosen at run time
    """The calls around vLLM's own; put before its scheduler in a class of both."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._kvledger: Recorder | None = None
        self._kvledger_resetting = False
        super().__init__(*args, **kwargs)
        self._kvledger = recorder_of(self)

    def add_request(self, request: Any) -> Any:
        """A request was received, or goes on with another turn."""
        known = request.request_id in self.requests
        result = super().add_request(request)
        if (recorder := self._kvledger) is not None and not known:
            recorder.received(request)
        return result

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """A step is put together."""
        recorder = self._kvledger
        if recorder is None:
            return super().schedule(*args, **kwargs)
        recorder.scheduling()
        output = super().schedule(*args, **kwargs)
        recorder.scheduled(output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """A step ended."""
        recorder = self._kvledger
        if recorder is None:
            return super().update_from_output(scheduler_output, model_runner_output)
        recorder.updating()
        result = super().update_from_output(scheduler_output, model_runner_output)
        recorder.updated(scheduler_output.num_scheduled_tokens, model_runner_output)
        return result

    def _preempt_request(self, request: Any, timestamp: float, drop_stale_output: bool = False, **kwargs: Any) -> Any:
        if (recorder := self._kvledger) is not None:
            recorder.preempted(request, drops_output=drop_stale_output, resetting=self._kvledger_resetting)
        return super()._preempt_request(request, timestamp, drop_stale_output, **kwargs)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if (recorder := self._kvledger) is not None:
            recorder.ended(request)
        return super()._free_request(request, *args, **kwargs)

    def _free_cow_retained_blocks(self, *args: Any, **kwargs: Any) -> Any:
        before = len(self.deferred_frees)
        result = super()._free_cow_retained_blocks(*args, **kwargs)
        if (recorder := self._kvledger) is not None:
            recorder.watch.retained(len(self.deferred_frees) - before)
        return result

    def _drain_deferred_frees(self) -> Any:
        if (recorder := self._kvledger) is not None:
            return recorder.watch.draining(super()._drain_deferred_frees)
        return super()._drain_deferred_frees()

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """All content is dropped; requests that run may be sent back to wait."""
        self._kvledger_resetting = True
        try:
            return super().reset_prefix_cache(*args, **kwargs)
        finally:
            self._kvledger_resetting = False

    def shutdown(self) -> Any:
        """The engine ends."""
        if (recorder := self._kvledger) is not None:
            recorder.closed("shutdown")
        return super().shutdown()
