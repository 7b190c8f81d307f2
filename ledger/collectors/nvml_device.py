"""One GPU, one call after another: what NVML's functions say of it, and what they cannot say.

Invariants: a call that the driver or the device does not have is not made again until GPUs are listed anew; a value
that is blank is absent; any other refusal is counted under NVML's own name for it. :class:`Gone` is raised where the
device or the driver is not there any more, and nothing else is.

Memory comes from ``nvmlDeviceGetMemoryInfo_v2``, which tells what the driver keeps for itself from what is used; a
driver without it (before 510) has both in ``used``, and ``reserved`` is absent then. On a GPU that is cut into
instances (MIG) processes are asked of the instances alone, or they would count twice.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ledger import limits
from ledger.collectors.gpu_readings import BLANKS, GpuReading, ProcessReading, within
from ledger.collectors.occupancy import Occupancy
from ledger.core.samples import Engagement, Gpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_THROTTLES: Final = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
_THROTTLES_ALL: Final = sum(_THROTTLES)
_PER_CENT: Final = 10_000


class Gone(Exception):  # noqa: N818 - an everyday answer of a driver
    """The device, or the whole driver, is not there any more; the message is NVML's name for it."""


class Driver:
    """The binding, and what its calls may answer."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self.lacking = frozenset({
            binding.NVML_ERROR_NOT_SUPPORTED,
            binding.NVML_ERROR_FUNCTION_NOT_FOUND,
            binding.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            binding.NVML_ERROR_DEPRECATED,
        })  # fmt: skip
        self.gone = frozenset({
            binding.NVML_ERROR_UNINITIALIZED,
            binding.NVML_ERROR_INVALID_ARGUMENT,
            binding.NVML_ERROR_DRIVER_NOT_LOADED,
            binding.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            binding.NVML_ERROR_GPU_IS_LOST,
            binding.NVML_ERROR_GPU_NOT_FOUND,
            binding.NVML_ERROR_RESET_REQUIRED,
        })  # fmt: skip
        self.version = ""

    def begin(self) -> None:
        """Start, or start anew: handles from before are dead."""
        nvml = self.binding
        for _ in range(limits.NVML_BEGINS_MAX):
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                break
        nvml.nvmlInit()
        self.version = str(nvml.nvmlSystemGetDriverVersion())


def name_of(error: BaseException) -> str:
    """What is counted: NVML's name for its error, or the kind of ours."""
    if isinstance(error, Gone):
        return str(error)
    value = getattr(error, "value", None)
    if isinstance(value, int):
        return _NAMES.get(value, f"error_{value}")
    return {"ModuleNotFoundError": "binding_not_installed"}.get(type(error).__name__, type(error).__name__.lower())


_NAMES: Final[Mapping[int, str]] = {
    1: "uninitialized",
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    6: "not_found",
    7: "insufficient_size",
    8: "insufficient_power",
    9: "driver_not_loaded",
    10: "timeout",
    11: "irq_issue",
    12: "library_not_found",
    13: "function_not_found",
    14: "corrupted_inforom",
    15: "gpu_is_lost",
    16: "reset_required",
    17: "operating_system",
    18: "lib_rm_version_mismatch",
    19: "in_use",
    20: "memory",
    21: "no_data",
    23: "insufficient_resources",
    25: "argument_version_mismatch",
    26: "deprecated",
    27: "not_ready",
    28: "gpu_not_found",
    29: "invalid_state",
    999: "unknown",
}
"""nvmlReturn_t in words, as nvml.h has them."""


class _Unit:
    """A device or an instance: a handle, and which calls it does not answer."""

    def __init__(self, driver: Driver, handle: Any, gpu: Gpu, troubles: Counter[tuple[str, str]]) -> None:
        self.driver = driver
        self.handle = handle
        self.gpu = gpu
        self.troubles = troubles
        self.lacks: set[str] = set()
        self.occupancy: Occupancy | None = None

    def ask(self, name: str, *args: Any, key: str = "") -> Any:
        """What the function ``name`` of the binding says; None where it says nothing; Gone where nobody is there.

        ``key`` is what it is remembered by where one function asks for several things.
        """
        if (key or name) in self.lacks:
            return None
        nvml = self.driver.binding
        try:
            return getattr(nvml, name)(self.handle, *args)
        except nvml.NVMLError as error:
            self._refused(key or name, error)
        except AttributeError:  # an older binding
            self.lacks.add(key or name)
        return None

    def _refused(self, key: str, error: Any) -> None:
        if error.value in self.driver.gone:
            raise Gone(name_of(error)) from error
        if error.value in self.driver.lacking:
            self.lacks.add(key)
            return
        self.troubles[name_of(error), self.gpu.uuid] += 1
        if error.value == self.driver.binding.NVML_ERROR_NO_PERMISSION:
            self.lacks.add(key)  # said once, and again when GPUs are listed anew

    def figure(self, value: int | None, most: int, per: int = 1) -> int | None:
        """``value`` times ``per`` where it is a figure; one that is neither a figure nor blank is counted."""
        found = within(value, most)
        if found is None and value is not None and value not in BLANKS:
            self.troubles["out_of_bounds", self.gpu.uuid] += 1
        return None if found is None else found * per

    def memory(self) -> dict[str, Any]:
        """used, free, total and, where the driver tells it apart, reserved bytes."""
        call = "nvmlDeviceGetMemoryInfo"
        info = self.ask(call, self.driver.binding.nvmlMemory_v2, key="memory_v2")
        if info is None:
            info = self.ask(call)
        if info is None or not info.total:
            return {}
        return {
            f"{name}_bytes": self.figure(getattr(info, name, None), limits.MEMORY_BYTES_MAX)
            for name in ("used", "free", "total", "reserved")
        }

    def processes(self) -> tuple[ProcessReading, ...] | None:
        """Who is on it, by pid; None where the driver does not list them. One that is on several lists is here once."""
        found: dict[int, ProcessReading] = {}
        known = False
        for engagement, call in _LISTS:
            listed = self.ask(f"{call}_v3")
            if listed is None:
                listed = self.ask(f"{call}_v2")
            known = known or (listed is not None and engagement is Engagement.COMPUTE)
            for one in listed or ():
                used = self.figure(one.usedGpuMemory, limits.MEMORY_BYTES_MAX)
                if 0 < one.pid <= limits.PID_MAX and one.pid not in found:
                    found[one.pid] = ProcessReading(pid=one.pid, engagement=engagement, used_bytes=used)
        return tuple(found[pid] for pid in sorted(found)) if known else None

    def occupancy_ppm(self, device: Any) -> int | None:
        """Since the reading before, where the device counts it; ``device`` is the handle of the whole one."""
        nvml = self.driver.binding
        if "gpm" in self.lacks:
            return None
        try:
            if self.occupancy is None:
                if not nvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice:
                    self.lacks.add("gpm")
                    return None
                self.occupancy = Occupancy(nvml, device, self.gpu.instance)
            return self.occupancy.read_ppm()
        except nvml.NVMLError as error:
            self._refused("gpm", error)
        except AttributeError:
            self.lacks.add("gpm")
        return None

    def let_go(self) -> None:
        """Give back what the driver lent; it may be gone itself."""
        if self.occupancy is not None:
            with contextlib.suppress(self.driver.binding.NVMLError):
                self.occupancy.close()
            self.occupancy = None


_LISTS: Final = (
    (Engagement.COMPUTE, "nvmlDeviceGetComputeRunningProcesses"),
    (Engagement.MPS, "nvmlDeviceGetMPSComputeRunningProcesses"),
    (Engagement.GRAPHICS, "nvmlDeviceGetGraphicsRunningProcesses"),
)


class Device(_Unit):
    """A device with its instances. Made on the lister's thread, read on its own."""

    def __init__(self, driver: Driver, handle: Any, index: int) -> None:
        super().__init__(driver, handle, Gpu(uuid="", index=index), Counter())
        uuid = self.ask("nvmlDeviceGetUUID")
        if uuid is None:
            raise Gone("no_uuid")
        gpu = replace(self.gpu, uuid=str(uuid))
        self.gpu = replace(gpu, model=str(self.ask("nvmlDeviceGetName") or ""), memory_bytes=self._total())
        self.instances = list(self._find_instances())
        self._looks = 0

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The device, then its instances."""
        return self.gpu, *(instance.gpu for instance in self.instances)

    def read(self) -> list[GpuReading]:
        """The device and its instances at this instant."""
        own = GpuReading(
            gpu=self.gpu,
            **self.memory(),
            **self._busy(),
            **self._errors(),
            power_mw=self.figure(self.ask("nvmlDeviceGetPowerUsage"), limits.POWER_MW_MAX),
            occupancy_ppm=self.occupancy_ppm(self.handle),
            throttles=self._throttles(),
            processes=self.processes() if not self.instances else (),
        )
        self._looks += 1
        return [own, *(self._of_instance(instance) for instance in self.instances)]

    def take_troubles(self) -> Counter[tuple[str, str]]:
        """What was refused since the last call; only while nobody reads."""
        found = self.troubles.copy()
        self.troubles.clear()
        return found

    def let_go(self) -> None:
        for instance in self.instances:
            instance.let_go()
        super().let_go()

    def _total(self) -> int | None:
        return self.memory().get("total_bytes")

    def _of_instance(self, unit: _Unit) -> GpuReading:
        return GpuReading(
            gpu=unit.gpu,
            **unit.memory(),
            occupancy_ppm=unit.occupancy_ppm(self.handle),
            processes=unit.processes(),
        )

    def _find_instances(self) -> Iterator[_Unit]:
        mode = self.ask("nvmlDeviceGetMigMode")
        if mode is None or mode[0] != self.driver.binding.NVML_DEVICE_MIG_ENABLE:
            return
        nvml = self.driver.binding
        for number in range(min(self.ask("nvmlDeviceGetMaxMigDeviceCount") or 0, limits.GPUS_MAX)):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, number)
                uuid, instance = str(nvml.nvmlDeviceGetUUID(handle)), int(nvml.nvmlDeviceGetGpuInstanceId(handle))
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_NOT_FOUND:  # a place that no instance has
                    self._refused("instances", error)
                continue
            gpu = Gpu(uuid=uuid, index=self.gpu.index, parent=self.gpu.uuid, instance=instance)
            unit = _Unit(self.driver, handle, gpu, self.troubles)
            unit.gpu = replace(
                gpu, model=str(unit.ask("nvmlDeviceGetName") or ""), memory_bytes=unit.memory().get("total_bytes")
            )
            yield unit

    def _busy(self) -> dict[str, Any]:
        rates = self.ask("nvmlDeviceGetUtilizationRates")
        if rates is None:
            return {}
        return {
            "busy_ppm": self.figure(rates.gpu, 100, _PER_CENT),
            "memory_busy_ppm": self.figure(rates.memory, 100, _PER_CENT),
        }

    def _errors(self) -> dict[str, Any]:
        """Counters that hardly ever move: every tenth reading has them."""
        if self._looks % 10:
            return {}
        nvml, call, most = self.driver.binding, "nvmlDeviceGetTotalEccErrors", limits.TOKENS_MAX
        kinds = (
            ("ecc_corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ("ecc_uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        )
        return {name: self.figure(self.ask(call, kind, nvml.NVML_VOLATILE_ECC), most) for name, kind in kinds}

    def _throttles(self) -> tuple[str, ...] | None:
        mask = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:
            mask = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if mask is None or mask in BLANKS:
            return None
        known = [name for bit, name in _THROTTLES.items() if mask & bit]
        return tuple(sorted([*known, "other"] if mask & ~_THROTTLES_ALL else known))
