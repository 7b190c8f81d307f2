"""vLLM's worker processes: how long each rank executes, and how much of that it communicates.

Invariants: the model's pass, the sampling and every collective run as before, once, with their own result and
exceptions; nothing is measured while the model is being compiled or captured; where the platform's clock says nothing
about its device, nothing is told. A collective within another one counts once, with the waiting for the other ranks.
"""

# ruff: noqa: BLE001
# Whatever goes wrong in here must not reach the engine: each call catches everything, and counts it.

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Final, Protocol

from ledger.hook import settings
from ledger.hook.vllm.device_times import on_device
from ledger.hook.vllm.guard import Guarded, guarded
from ledger.hook.vllm.ring import RingWriter, path_of
from ledger.hook.vllm.wrapping import wrap_once
from ledger.limits import RING_RECORDS, SCRIBE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[tuple[int, int | None, str]], None]
    """Takes ``execute_us``, ``communication_us`` (None: not known) and the method, as one."""

log: Final = logging.getLogger("kvledger.hook")

_TIMES: Final = "_kvledger_times"

COLLECTIVES: Final = (
    # What the public three of these names come to, also from within a compiled model, and only between ranks.
    "_all_reduce_out_place",
    "_all_gather_out_place",
    "_reduce_scatter_out_place",
    "all_gatherv",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_object_list",
    "broadcast_tensor_dict",
    "combine",
    "combine_into_output",
    "dispatch",
    "dispatch_router_logits",
    "gather",
    "irecv_tensor_dict",
    "isend_object",
    "isend_tensor_dict",
    "recv",
    "recv_object",
    "recv_tensor_dict",
    "reduce_scatterv",
    "reduce_scatterv_into_output",
    "send",
    "send_object",
    "send_tensor_dict",
)
"""Methods of vLLM's ``GroupCoordinator`` that have to do with other ranks."""


class Times(Protocol):
    """The clock of one rank: its steps, and the collectives in them. Nothing raises."""

    off: bool

    def began(self) -> None:
        """A step begins."""

    def returned(self, *, done: bool) -> None:
        """The rank has returned to whoever called it; ``done``: the step is at its end, and no sampling is to come."""

    def resumed(self) -> None:
        """The sampling of the step begins."""

    def failed(self) -> None:
        """The step raised: it has no times."""

    def entered(self) -> None:
        """A collective begins."""

    def left(self) -> None:
        """It has ended, in whatever way."""


class WallTimes(Guarded):
    """By the clock on the wall: right where the device is the CPU, and its calls come back when they are done.

    Made on the thread that runs the steps. Every step goes through here with nothing in the nearest cache, so that a
    call costs more than what it does: hence few of them, and no decorators.
    """

    def __init__(self, tell: Tell, *, sees_all: bool, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """``sees_all``: no collective hides in a compiled model."""
        super().__init__()
        self._tell = tell
        self._sees_all = sees_all
        self._now_ns = now_ns
        self._thread = threading.get_ident()
        self._open = False
        """Whether a step has begun whose times are not told."""
        self._from_ns = self._execute_ns = 0
        self._depth = self._inside_from_ns = self._inside_ns = 0

    def began(self) -> None:
        """See :class:`Times`."""
        try:
            if self._open:
                # vLLM asked for no sampling.
                self._end()
            self._open = True
            self._from_ns = self._now_ns()
        except Exception:
            self.fault("began")

    def returned(self, *, done: bool) -> None:
        """See :class:`Times`."""
        try:
            if self._open:
                self._execute_ns += self._now_ns() - self._from_ns
                if done:
                    self._end()
        except Exception:
            self.fault("returned")

    def resumed(self) -> None:
        """See :class:`Times`."""
        try:
            self._from_ns = self._now_ns()
        except Exception:
            self.fault("resumed")

    def failed(self) -> None:
        """See :class:`Times`."""
        self._open = False
        self._execute_ns = self._inside_ns = self._depth = 0

    def entered(self) -> None:
        """See :class:`Times`."""
        try:
            if threading.get_ident() == self._thread:
                self._depth += 1
                if self._depth == 1:
                    self._inside_from_ns = self._now_ns()
        except Exception:
            self.fault("entered")

    def left(self) -> None:
        """See :class:`Times`."""
        try:
            if threading.get_ident() == self._thread:
                self._depth -= 1
                if not self._depth:
                    self._inside_ns += self._now_ns() - self._inside_from_ns
        except Exception:
            self.fault("left")

    def _end(self) -> None:
        told = (self._execute_ns // 1000, self._inside_ns // 1000 if self._sees_all else None, "wall")
        self._open = False
        self._execute_ns = self._inside_ns = self._depth = 0
        self._tell(told)


class Scribe(Guarded):
    """Writes down what is told, ten times a second, on a thread of its own: a step only leaves it on a pile."""

    def __init__(self, ring: RingWriter) -> None:
        super().__init__()
        self._ring = ring
        self._pile: deque[tuple[int, int | None, str]] = deque(maxlen=RING_RECORDS)
        self._ended = threading.Event()
        self.tell: Tell = self._pile.append

    def start(self) -> None:
        """Begin; the exit of the process ends it."""
        # vLLM's workers are children of multiprocessing, which does not call what is registered with atexit.
        Finalize(None, self.close, exitpriority=0)
        threading.Thread(target=self._run, name="kvledger-steps", daemon=True).start()

    def _run(self) -> None:
        while not (self._ended.wait(SCRIBE_S) or self.off):
            self.write()

    @guarded
    def write(self) -> None:
        """Everything that lies on the pile."""
        while self._pile:
            self._ring.write(*self._pile.popleft())

    @guarded
    def close(self) -> None:
        """Write down the rest, and let the file go."""
        self._ended.set()
        self.write()
        self._ring.close()


class Process:
    """What this process is timing at the moment: the collectives' wrappers look here."""

    def __init__(self) -> None:
        self.times: Times | None = None


process: Final = Process()


def attach() -> None:
    """Wrap what executes steps and what talks to other ranks, in the classes of this process. Again: nothing more."""
    from vllm.distributed.parallel_state import GroupCoordinator  # noqa: PLC0415 - the engine's own
    from vllm.v1.worker.worker_base import WorkerWrapperBase  # noqa: PLC0415

    wrap_once(WorkerWrapperBase, "execute_model", executing)
    if not hasattr(WorkerWrapperBase, "sample_tokens"):
        WorkerWrapperBase.sample_tokens = _sample_tokens
    wrap_once(WorkerWrapperBase, "sample_tokens", sampling)
    is_compiling = _is_compiling()
    for name in COLLECTIVES:
        if hasattr(GroupCoordinator, name):
            wrap_once(GroupCoordinator, name, lambda method: communicating(method, is_compiling))


def _attach_to_arrivals() -> None:
    """Wrap the waiting for what the rank before sends; the module is one that a worker has, and others do without."""
    arrivals = getattr(sys.modules.get("vllm.v1.worker.gpu_worker"), "AsyncIntermediateTensors", None)
    if arrivals is not None:
        wrap_once(arrivals, "wait_for_comm", lambda method: communicating(method, _is_compiling()))


def _is_compiling() -> Callable[[], bool]:
    from torch.compiler import is_compiling  # noqa: PLC0415 - the engine's own

    found: Callable[[], bool] = is_compiling
    return found


def _sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What vLLM's wrapper does by ``__getattr__``: it asks its worker."""
    return self.worker.sample_tokens(*args, **kwargs)


def executing(method: Callable[..., Any]) -> Callable[..., Any]:
    """``WorkerWrapperBase.execute_model``, timed."""

    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        times = times_of(self)
        if times is None:
            return method(self, *args, **kwargs)
        times.began()
        output = _under(times, method, self, *args, **kwargs)
        times.returned(done=output is not None)
        return output

    return execute_model


def sampling(method: Callable[..., Any]) -> Callable[..., Any]:
    """``sample_tokens`` of the same, which ends the step."""

    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        times = self.__dict__.get(_TIMES)
        if times is None or times.off:
            return method(self, *args, **kwargs)
        times.resumed()
        output = _under(times, method, self, *args, **kwargs)
        times.returned(done=True)
        return output

    return sample_tokens


def _under(times: Times, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What the method gives; the collectives in it are timed as a part of ``times``."""
    process.times = times
    try:
        return method(*args, **kwargs)
    except BaseException:
        times.failed()
        raise
    finally:
        process.times = None


def communicating(method: Callable[..., Any], is_compiling: Callable[[], bool]) -> Callable[..., Any]:
    """A collective, timed where a step is and the group has more than one rank."""

    def collective(self: Any, *args: Any, **kwargs: Any) -> Any:
        # First: a compiler that reads this takes it for true, and sees nothing but the method.
        if is_compiling() or (times := process.times) is None or getattr(self, "world_size", 2) == 1:
            return method(self, *args, **kwargs)
        times.entered()
        try:
            return method(self, *args, **kwargs)
        finally:
            times.left()

    return collective


def times_of(wrapper: Any) -> Times | None:
    """The clock of a worker, made with its first step; None where there is none, or it has let go. Never raises."""
    try:
        found: Times | None = wrapper.__dict__[_TIMES]
    except KeyError:
        found = None
        try:
            found = _times(wrapper)
        except Exception:
            log.exception("kvledger: a worker's steps cannot be timed; it goes on without")
        wrapper.__dict__[_TIMES] = found
    return None if found is None or found.off else found


def _times(wrapper: Any) -> Times | None:
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group  # noqa: PLC0415 - the engine's own
    from vllm.platforms import current_platform  # noqa: PLC0415

    config = wrapper.vllm_config
    parallel = config.parallel_config
    if not (current_platform.is_cpu() or current_platform.is_cuda_alike()):
        log.warning("kvledger: there is no clock for the device of this platform; steps are timed as a whole")
        return None
    ring = RingWriter(
        path_of(config.instance_id, parallel.data_parallel_index, wrapper.global_rank),
        dp=parallel.data_parallel_index,
        pp=get_pp_group().rank_in_group,
        tp=get_tp_group().rank_in_group,
    )
    _attach_to_arrivals()
    scribe = Scribe(ring)
    scribe.start()
    compilation = config.compilation_config
    if current_platform.is_cpu():
        # The CPU's collectives are compiled along with the model; a GPU's are called by it, unless a graph has them.
        return WallTimes(scribe.tell, sees_all=compilation.mode.name == "NONE")
    every = settings.load(os.environ).profile_every
    return on_device(scribe.tell, sees_all=compilation.cudagraph_mode.name == "NONE", profile_every=every)
