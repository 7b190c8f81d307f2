"""What an agent saw of a host's GPUs and processes, as frozen records; nothing here carries money by itself.

Invariants kept by everybody who makes or reads them:

* every quantity is an integer: bytes, microseconds, millionths (``_ppm``), milliwatts (``_mw``);
* what a device or the kernel does not say is ``None``, never zero, and never another thing's figure: the use of a
  whole device is not the use of a process on it;
* a :class:`Spread` is of the readings of one period, one each second; a period without a reading has no row;
* the rows of one GPU travel together (the device, its processes, the rest of its use that no process has), so that
  they speak of the same readings and can be added up.

A GPU whose rows are not in a batch has changed by at most a mebibyte since its last ones, at most a minute ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.core.records import Boot, Origin

CHANGE_BYTES = 1024 * 1024
"""A change of memory up to this is not worth rows of its own."""

KEPT_US = 60_000_000
"""How old the last rows of a GPU may become, whether anything changes or not."""

MARK_US = 5_000_000
"""Readings at these marks of a period travel one by one, for whoever looks for leaks."""

MARKS = 3
"""Marks of a whole period: 5, 10 and 15 s after its start."""


class Engagement(StrEnum):
    """How a process uses a GPU, by NVML's lists."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


class Watch(StrEnum):
    """Why a process is watched."""

    GPU = "gpu"
    """It is on a GPU."""
    PARENT = "parent"
    """It started one that is, and runs in the same group: an engine's front."""
    OWN = "own"
    """The agent or the service itself."""
    NAMED = "named"
    """Somebody asked for it by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Who reports. ``source_id`` is stable across restarts and is the key of its samples; it is no engine."""

    source_id: str
    origin: Origin
    cluster: str = ""
    namespace: str = ""
    pod: str = ""
    host: str = ""
    software: str = ""
    """What the agent is, as ``name version``."""
    driver: str = ""
    """The GPU driver's version; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, or an instance of one (MIG), that the agent can see.

    ``index`` is the driver's, which may change when the host starts; of an instance it is that of its device.
    """

    uuid: str
    index: int = 0
    model: str = ""
    parent: str = ""
    """The device of an instance; empty for a device."""
    instance: int | None = None
    """The driver's number of the instance within its device."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The smallest, mean (rounded down) and largest of a period's readings."""

    least: int
    mean: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPeriod:
    """One GPU or instance in a period. ``used + free + reserved = total`` at every reading that has all four."""

    gpu: str
    readings: int
    """Times that the GPU answered at all."""
    used_bytes: Spread | None = None
    """Without ``reserved_bytes`` where that is told apart (NVML's memory info v2), else with it."""
    free_bytes: Spread | None = None
    total_bytes: Spread | None = None
    reserved_bytes: Spread | None = None
    """What the driver and the firmware keep for themselves."""
    used_marks: tuple[int, ...] = ()
    """``used_bytes`` at the 5-second marks, in order; empty where a mark has no reading."""
    busy_ppm: Spread | None = None
    """Of the time, with a kernel running: NVML's utilisation."""
    memory_busy_ppm: Spread | None = None
    """Of the time, with memory being read or written."""
    occupancy_ppm: Spread | None = None
    """Warps that are resident on the multiprocessors, of those that could be."""
    power_mw: Spread | None = None
    ecc_corrected: int | None = None
    """Errors since the driver was loaded, at the end of the period."""
    ecc_uncorrected: int | None = None
    throttles: tuple[tuple[str, int], ...] | None = None
    """Why clocks were held down: reasons by name, sorted, each with the readings that gave it; ``()``: none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU in a period."""

    gpu: str
    pid: int
    """As the host sees it."""
    engagement: Engagement = Engagement.COMPUTE
    readings: int
    used_bytes: Spread | None = None
    """None where the driver does not say: on unified memory, in some containers."""
    used_marks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRest:
    """What is used on a GPU and by none of its processes: of the readings in which every process had a figure.

    Negative where processes share memory that each of them is said to use.
    """

    gpu: str
    rest_bytes: Spread | None = None
    """None where some process had no figure in every reading."""
    unmeasured: int = 0
    """Processes without a figure, the most in a reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPeriod:
    """How a process was in a period, as the kernel says."""

    pid: int
    inner_pid: int | None = None
    """Its id in its own namespace, where that is another one."""
    name: str = ""
    watch: Watch = Watch.GPU
    started_us: int | None = None
    threads: int | None = None
    rss_bytes: int | None = None
    """Resident memory at the end of the period."""
    cpu_us: int | None = None
    """Processor time in the period, of all its threads; None in the first period."""
    busiest: str = ""
    """The name of the thread that used most processor time."""
    busiest_us: int | None = None
    """Its time; None where threads were not looked at, since the process as a whole was far from a full core."""
    waiting_threads: int | None = None
    """Other threads that woke often and got little done: they waited for something, the interpreter's lock say."""
    workers: int | None = None
    """Threads that its pool may have, where known."""
    workers_busy: int | None = None
    """Most of them at work at a reading."""
    queued: int | None = None
    """Most that waited for one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that a device or the driver did not do, and how often in the period.

    ``gpu`` is empty where it concerns the whole driver.
    """

    reason: str
    gpu: str = ""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """All that one agent saw in one period, and the unit of delivery, keyed (source_id, boot_id, seq).

    ``seq`` counts from 1 without a gap within a boot. ``gpus`` is every GPU that could be seen, or ``None`` where
    that is as it was: it goes along with the first batch of a boot and of each UTC day, whenever it changes, and
    after a drop.
    """

    source: Agent
    boot: Boot
    seq: int
    start_us: int
    end_us: int
    skew_us: int = 0
    gpus: tuple[Gpu, ...] | None = None
    samples: tuple[GpuPeriod, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    rests: tuple[GpuRest, ...] = ()
    health: tuple[ProcessPeriod, ...] = ()
    troubles: tuple[Trouble, ...] = ()
