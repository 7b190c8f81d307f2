"""The clock of a rank on a GPU, where the time of a Python call says nothing: kernels run after it has returned.

**This has not run on a GPU.** It is tested against a fake ``torch.cuda`` only.

Two ways, told apart by ``method``:

* ``cuda_events``: pairs of events around the step and around its collectives, on the current stream, in one step of
  :data:`~ledger.limits.DEVICE_STEPS_APART`. They are read one step or more later, when the GPU has passed them; nothing
  waits for it. Collectives that were captured in a CUDA graph run without Python, so where vLLM uses graphs only
  ``execute`` is told: communication is not known, which is not 0.
* ``sampled``: a profile of one step in N (``KVLEDGER_PROFILE_EVERY``; off unless set), graphs or not: the time of the
  kernels that communicate. The step that is profiled waits for the GPU at its end, and starting the first profile takes
  a second or more; hence it is off unless set.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ledger.hook.vllm.guard import Guarded, guarded
from ledger.limits import DEVICE_STEPS_APART, DEVICE_STEPS_PENDING_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.hook.vllm.workers import Tell, Times

COMMUNICATION: Final = re.compile(
    r"nccl|rccl|cross_device_reduce|multimem_|quick_?reduce|all_?reduce|nvshmem", re.IGNORECASE
)
"""Kernels that talk to other GPUs: of NCCL and RCCL, of vLLM's own all-reduce, of symmetric memory, of NVSHMEM."""


class Span:
    """From one event to another."""

    __slots__ = ("begin", "end")

    def __init__(self, begin: Any) -> None:
        self.begin = begin
        self.end: Any = None


class EventTimes(Guarded):
    """By CUDA events. ``cuda`` is ``torch.cuda``; ``sees_all``: no collective hides in a graph."""

    def __init__(self, cuda: Any, tell: Tell, *, sees_all: bool, apart: int = DEVICE_STEPS_APART) -> None:
        super().__init__()
        self._cuda = cuda
        self._tell = tell
        self._sees_all = sees_all
        self._apart = apart
        self._count = 0
        self._thread = 0
        self._depth = 0
        self._steps: list[Span] | None = None
        """The parts of the step that is being timed: the pass, the sampling."""
        self._collectives: list[Span] = []
        self._pending: deque[tuple[list[Span], list[Span]]] = deque()
        self._spare: list[Any] = []

    @guarded
    def began(self) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`."""
        if self._steps is not None:
            self._end()
        self._read()
        self._count += 1
        if self._count % self._apart or len(self._pending) >= DEVICE_STEPS_PENDING_MAX:
            return
        self._thread = threading.get_ident()
        self._depth = 0
        self._collectives = []
        self._steps = [Span(self._event())]

    @guarded
    def returned(self, *, done: bool) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`."""
        if self._steps is not None:
            self._steps[-1].end = self._event()
            if done:
                self._end()

    @guarded
    def resumed(self) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`."""
        if self._steps is not None:
            self._steps.append(Span(self._event()))

    @guarded
    def failed(self) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`."""
        self._steps = None

    @guarded
    def entered(self) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`."""
        if self._counts():
            self._depth += 1
            if self._depth == 1:
                self._collectives.append(Span(self._event()))

    @guarded
    def left(self) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`."""
        if self._counts() and self._depth:
            self._depth -= 1
            if not self._depth:
                self._collectives[-1].end = self._event()

    def _counts(self) -> bool:
        return bool(
            self._sees_all
            and self._steps is not None
            and threading.get_ident() == self._thread
            and not self._cuda.is_current_stream_capturing()
        )

    def _event(self) -> Any:
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _end(self) -> None:
        assert self._steps is not None
        self._pending.append((self._steps, [span for span in self._collectives if span.end is not None]))
        self._steps = None

    def _read(self) -> None:
        """Tell the steps that the GPU has passed, oldest first."""
        while self._pending and self._pending[0][0][-1].end.query():
            steps, collectives = self._pending.popleft()
            execute_us = _microseconds(steps)
            self._tell((execute_us, _microseconds(collectives) if self._sees_all else None, "cuda_events"))
            for span in (*steps, *collectives):
                self._spare += (span.begin, span.end)


def _microseconds(spans: Iterable[Span]) -> int:
    milliseconds: float = sum(span.begin.elapsed_time(span.end) for span in spans)
    return round(1000 * milliseconds)


class SampledTimes(Guarded):
    """By a profile of one step in ``every``. ``profile`` makes one, with ``start``, ``stop`` and ``events``."""

    def __init__(
        self,
        profile: Callable[[], Any],
        synchronize: Callable[[], None],
        tell: Tell,
        *,
        every: int,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        super().__init__()
        self._profile = profile
        self._synchronize = synchronize
        self._tell = tell
        self._every = every
        self._now_ns = now_ns
        self._count = 0
        self._from_ns = 0
        self._running: Any = None

    @guarded
    def began(self) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`."""
        self._drop()
        self._count += 1
        if self._count % self._every:
            return
        self._synchronize()  # what the steps before it left to the GPU is not of this one
        self._running = self._profile()
        self._running.start()
        self._from_ns = self._now_ns()

    @guarded
    def returned(self, *, done: bool) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`."""
        if self._running is None or not done:
            return
        self._synchronize()
        execute_us = (self._now_ns() - self._from_ns) // 1000
        running, self._running = self._running, None
        running.stop()
        self._tell((execute_us, communication_us(running.events()), "sampled"))

    def resumed(self) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`: one profile covers both."""

    @guarded
    def failed(self) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`."""
        self._drop()

    def entered(self) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`: the profile sees kernels, whoever starts them."""

    def left(self) -> None:
        """See :class:`~ledger.hook.vllm.workers.Times`."""

    def let_go(self) -> None:
        """Stop a profile that runs."""
        self._drop()

    def _drop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop()


def communication_us(events: Iterable[Any]) -> int:
    """Microseconds in which kernels of a profile's events communicated; those that overlap count once."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if str(event.device_type).endswith("CUDA") and COMMUNICATION.search(event.name)
    )
    total = 0.0
    until = float("-inf")
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return round(total)


def on_device(tell: Tell, *, sees_all: bool, profile_every: int) -> Times:
    """The clock of a rank on the GPU of this process; ``profile_every`` 0: by events.

    ``sees_all``: no collective hides in a CUDA graph.
    """
    from torch import cuda, profiler  # noqa: PLC0415 - the engine's own

    if not profile_every:
        return EventTimes(cuda, tell, sees_all=sees_all)
    return SampledTimes(
        lambda: profiler.profile(activities=[profiler.ProfilerActivity.CUDA]),
        cuda.synchronize,
        tell,
        every=profile_every,
    )
