"""NVML through NVIDIA's own binding: what the driver says of each GPU, each in its own thread, by a deadline.

Invariants: a GPU that hangs, is lost or refuses a call never keeps the others from being read; a driver that was
restarted is begun with anew, after pauses that double; whatever goes wrong is counted by reason and GPU, once a look;
nothing here raises, also where there is no binding, no library, no driver or no GPU.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ledger import limits
from ledger.collectors.gpu_readings import GpuReading, Look
from ledger.collectors.nvml_device import Device, Driver, Gone, name_of
from ledger.collectors.workers import Crew

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.collectors.workers import Worker
    from ledger.core.samples import Gpu

RELIST_S: Final = 60.0
"""How often GPUs and instances are listed again: one that is cut anew shows within a minute."""

RESTART_S_MIN: Final = 1.0
RESTART_S_MAX: Final = 60.0
"""The pauses between two attempts to begin anew with a driver that is gone; each is twice the one before."""

PROC_GPUS: Final = Path("/proc/driver/nvidia/gpus")
"""One folder a GPU: a driver that was begun with does not see those that are added, so that is what tells."""

Troubles = Counter[tuple[str, str]]


@dataclass(slots=True, eq=False)
class _Slot:
    """A place in the driver's list. ``handle`` is new where ``device`` was not made with it yet."""

    index: int
    worker: Worker
    driver: Driver
    handle: Any
    device: Device | None = None
    made_of: Any = None
    lost: bool = False


class Nvml:
    """The driver of this host. :meth:`look` is asked once a second, by one thread."""

    def __init__(
        self, *, binding: Callable[[], Any] | None = None, proc_gpus: Path = PROC_GPUS, relist_s: float = RELIST_S
    ) -> None:
        self._load = binding or _binding
        self._proc_gpus = proc_gpus
        self._relist_s = relist_s
        self._crew = Crew()
        self._lister = self._crew.worker("nvml")
        self._driver: Driver | None = None
        self._slots: dict[int, _Slot] = {}
        self._due_s = 0.0
        self._pause_s = RESTART_S_MIN
        self._again = True
        self._folders = frozenset[str]()

    def look(self, deadline_s: float) -> Look:
        """What every GPU said within ``deadline_s`` seconds."""
        until_s = time.monotonic() + deadline_s
        troubles: Troubles = Counter()
        self._crew.gather((), until_s)  # what came too late for the look before
        self._list_when_due(until_s, troubles)
        free = [slot for slot in self._slots.values() if slot.worker.free]
        for slot in free:
            slot.worker.ask(_reader(slot))
        answers = self._crew.gather([slot.worker for slot in free], until_s)
        readings: list[GpuReading] = []
        for slot in self._slots.values():
            readings += self._answered(slot, answers.get(slot.worker), troubles)
        if answers and not self._again:
            self._pause_s = RESTART_S_MIN
        return Look(
            readings=tuple(readings), gpus=self._gpus(), driver=self._driver.version if self._driver else "",
            troubles=troubles,
        )  # fmt: skip

    def close(self) -> None:
        """Let the threads end; one that hangs stays behind, and is a daemon."""
        for worker in (self._lister, *(slot.worker for slot in self._slots.values())):
            worker.end()

    def _gpus(self) -> tuple[Gpu, ...]:
        known = (slot.device for slot in self._slots.values() if not slot.lost)
        return tuple(gpu for device in known if device is not None for gpu in device.gpus)

    def _answered(self, slot: _Slot, answer: Any, troubles: Troubles) -> list[GpuReading]:
        """The readings in a worker's answer; what went wrong is counted."""
        uuid = slot.device.gpu.uuid if slot.device is not None else ""
        if answer is None:
            troubles["hanging", uuid] += 1
            return []
        if isinstance(answer, BaseException):
            troubles[name_of(answer), uuid] += 1
            slot.lost = slot.lost or isinstance(answer, Gone)
            if isinstance(answer, Gone):
                # The others go on; whether it is this one or the driver shows when it is begun with anew.
                self._begin_anew()
            return []
        slot.device, slot.made_of, readings = answer
        slot.lost = False
        troubles += slot.device.take_troubles()
        return list(readings)

    # -- which GPUs there are --------------------------------------------------------------------------

    def _list_when_due(self, until_s: float, troubles: Troubles) -> None:
        if not self._lister.free:
            troubles["hanging", ""] += 1
            # Whether it still began with the driver nobody knows, and its answer is dropped.
            self._driver, self._due_s = None, 0.0
            return
        now_s = time.monotonic()
        if self._driver is not None and self._listed_folders() != self._folders:
            self._again, self._due_s = True, now_s
        if now_s < self._due_s:
            return
        driver, begin = self._driver, self._again or self._driver is None
        self._lister.ask(lambda: _listing(driver, self._load, begin=begin))
        answer = self._crew.gather((self._lister,), until_s).get(self._lister)
        if answer is None:
            return
        if isinstance(answer, BaseException):
            troubles[name_of(answer), ""] += 1
            self._driver, self._again, self._slots = None, True, self._without_devices()
            self._due_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, RESTART_S_MAX)
            return
        self._driver, handles, refused = answer
        self._again, self._due_s = False, now_s + self._relist_s
        self._folders = self._listed_folders()
        self._take(handles, refused, troubles)

    def _take(self, handles: dict[int, Any], refused: dict[int, str], troubles: Troubles) -> None:
        driver = self._driver
        assert driver is not None
        for index, reason in refused.items():
            slot = self._slots.get(index)
            known = slot.device if slot is not None else None
            troubles[reason, known.gpu.uuid if known is not None else ""] += 1
        for index in self._slots.keys() - handles.keys():
            self._slots.pop(index).worker.end()
        for index, handle in handles.items():
            slot = self._slots.get(index)
            if slot is None:
                worker = self._crew.worker(f"nvml-{index}")
                self._slots[index] = _Slot(index=index, worker=worker, driver=driver, handle=handle)
            else:
                slot.driver, slot.handle = driver, handle

    def _without_devices(self) -> dict[int, _Slot]:
        for slot in self._slots.values():
            slot.worker.end()
        return {}

    def _begin_anew(self) -> None:
        """At a later look, and each time after a longer pause while it does not help."""
        if not self._again:
            self._again = True
            self._due_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, RESTART_S_MAX)

    def _listed_folders(self) -> frozenset[str]:
        try:
            return frozenset(path.name for path in self._proc_gpus.iterdir())
        except OSError:
            return frozenset()


def _binding() -> Any:
    import pynvml  # noqa: PLC0415 - of the install kvledger[agent] alone

    return pynvml


def _listing(
    driver: Driver | None, load: Callable[[], Any], *, begin: bool
) -> tuple[Driver, dict[int, Any], dict[int, str]]:
    """The driver, the handle of each GPU by its index, and why there is none of one. On the lister's thread."""
    if driver is None:
        driver = Driver(load())
    if begin:
        driver.begin()
    nvml = driver.binding
    handles, refused = {}, {}
    for index in range(min(nvml.nvmlDeviceGetCount(), limits.GPUS_MAX)):
        try:
            handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            refused[index] = name_of(error)
    return driver, handles, refused


def _reader(slot: _Slot) -> Callable[[], tuple[Device, Any, list[GpuReading]]]:
    """What a GPU's own thread does: find out what it is, where its handle is new, and read it."""
    driver, handle, device = slot.driver, slot.handle, slot.device
    stale = device is None or slot.made_of is not handle

    def work() -> tuple[Device, Any, list[GpuReading]]:
        if not stale:
            assert device is not None
            return device, handle, device.read()
        if device is not None:
            device.let_go()
        made = Device(driver, handle, slot.index)
        return made, handle, made.read()

    return work
