"""vLLM asleep: its cache is gone for a while, so its pool closes, and opens again when all of it is back.

Invariant: a pool is open exactly while the executor has its KV cache; what is paid meanwhile is ``vacant``.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from ledger.hook.vllm.guard import log
from ledger.hook.vllm.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.hook.vllm.recorder import Recorder

_CACHE: Final = "kv_cache"
"""What vLLM calls the part of its memory that the pool lies in."""

_recorders: Final[weakref.WeakSet[Recorder]] = weakref.WeakSet()


def attach() -> None:
    """Wrap what puts an executor to sleep and wakes it."""
    from vllm.v1.executor.abstract import Executor  # noqa: PLC0415 - the engine's own

    for name in ("sleep", "discard", "wake_up"):
        wrap_once(Executor, name, _watched)


def watch(recorder: Recorder) -> None:
    """From now on ``recorder`` is told about its engine's sleep."""
    _recorders.add(recorder)


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            _look(self)

    return call


def _look(executor: Any) -> None:
    try:
        asleep = _CACHE in executor.sleeping_tags
        for recorder in list(_recorders):
            if recorder.config is executor.vllm_config:
                recorder.slept(asleep=asleep)
    except Exception:  # noqa: BLE001 - a guest: whatever it is, it ends here
        log.exception("kvledger: whether the engine sleeps could not be seen")
