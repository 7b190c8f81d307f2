"""Looks become samples: the smallest, mean and largest of each period, and when a GPU's rows are worth sending.

Invariants: a period lies within one cell of the 15-second grid; the rows of a GPU go together, when its memory moved
by more than a mebibyte or a minute has passed; whatever was looked at goes into exactly one period. Pure: times and
looks are arguments.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ledger import limits
from ledger.core.records import PERIOD_US
from ledger.core.samples import (
    CHANGE_BYTES,
    KEPT_US,
    MARK_US,
    MARKS,
    Engagement,
    GpuPeriod,
    GpuProcess,
    GpuRest,
    ProcessPeriod,
    SampleBatch,
    Spread,
    Trouble,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.collectors.gpu_readings import GpuReading, Look, ProcessReading
    from ledger.core.records import Boot
    from ledger.core.samples import Agent, Gpu

FIELDS: Final = (
    "used_bytes",
    "free_bytes",
    "total_bytes",
    "reserved_bytes",
    "busy_ppm",
    "memory_busy_ppm",
    "occupancy_ppm",
    "power_mw",
)
"""What of a reading becomes a spread of the same name."""

BUSY_PPM: Final = 950_000
"""A thread that used so much of the period is worth a row whatever else is as it was."""


@dataclass(slots=True)
class _Sum:
    """The readings of one figure, added up."""

    least: int = 0
    total: int = 0
    most: int = 0
    count: int = 0

    def add(self, value: int) -> None:
        if not self.count:
            self.least = self.most = value
        elif value < self.least:
            self.least = value
        elif value > self.most:
            self.most = value
        self.total += value
        self.count += 1

    @property
    def spread(self) -> Spread | None:
        if not self.count:
            return None
        return Spread(least=self.least, mean=self.total // self.count, most=self.most)


@dataclass(slots=True)
class _Memory(_Sum):
    """The same of memory, with the last reading before each mark."""

    at_marks: dict[int, int] = field(default_factory=dict)

    def add_at(self, value: int, mark: int) -> None:
        self.add(value)
        self.at_marks[mark] = value

    @property
    def marks(self) -> tuple[int, ...]:
        if len(self.at_marks) < MARKS:
            return ()
        return tuple(self.at_marks[mark] for mark in range(MARKS))


@dataclass(slots=True)
class _Process:
    engagement: Engagement
    readings: int = 0
    used: _Memory = field(default_factory=_Memory)


class _Device:
    """One GPU or instance in the period that is under way."""

    __slots__ = ("ecc", "processes", "readings", "rest", "sums", "throttles", "unmeasured", "used", "uuid")

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.readings = 0
        self.used = _Memory()
        self.sums = {name: _Sum() for name in FIELDS if name != "used_bytes"}
        self.ecc: list[int | None] = [None, None]
        self.throttles: Counter[str] | None = None
        self.processes: dict[int, _Process] = {}
        self.rest = _Sum()
        self.unmeasured = 0

    def add(self, reading: GpuReading, mark: int, of_instances: int | None) -> None:
        """``of_instances``: what its instances use together; None: one of them does not say."""
        self.readings += 1
        if reading.used_bytes is not None:
            self.used.add_at(reading.used_bytes, mark)
        for name, found in self.sums.items():
            value = getattr(reading, name)
            if value is not None:
                found.add(value)
        for place, value in enumerate((reading.ecc_corrected, reading.ecc_uncorrected)):
            if value is not None:
                self.ecc[place] = value
        if reading.throttles is not None:
            self.throttles = self.throttles if self.throttles is not None else Counter()
            self.throttles.update(reading.throttles)
        if reading.processes is not None:
            self._add_processes(reading.processes, reading.used_bytes, mark, of_instances)

    def _add_processes(
        self, processes: Sequence[ProcessReading], device_used: int | None, mark: int, of_instances: int | None
    ) -> None:
        together, unmeasured = of_instances, 0
        for one in processes:
            found = self.processes.get(one.pid)
            if found is None:
                found = self.processes[one.pid] = _Process(one.engagement)
            found.readings += 1
            used = one.used_bytes
            if used is None:
                unmeasured += 1
                together = None
            else:
                found.used.add_at(used, mark)
                together = together + used if together is not None else None
        self.unmeasured = max(self.unmeasured, unmeasured)
        if device_used is not None and together is not None:
            self.rest.add(device_used - together)

    def rows(self) -> tuple[GpuPeriod, tuple[GpuProcess, ...], GpuRest]:
        own = GpuPeriod(
            gpu=self.uuid,
            readings=self.readings,
            used_bytes=self.used.spread,
            used_marks=self.used.marks,
            ecc_corrected=self.ecc[0],
            ecc_uncorrected=self.ecc[1],
            throttles=None if self.throttles is None else tuple(sorted(self.throttles.items())),
            free_bytes=self.sums["free_bytes"].spread,
            total_bytes=self.sums["total_bytes"].spread,
            reserved_bytes=self.sums["reserved_bytes"].spread,
            busy_ppm=self.sums["busy_ppm"].spread,
            memory_busy_ppm=self.sums["memory_busy_ppm"].spread,
            occupancy_ppm=self.sums["occupancy_ppm"].spread,
            power_mw=self.sums["power_mw"].spread,
        )
        processes = tuple(
            GpuProcess(
                gpu=self.uuid,
                pid=pid,
                engagement=one.engagement,
                readings=one.readings,
                used_bytes=one.used.spread,
                used_marks=one.used.marks,
            )
            for pid, one in sorted(self.processes.items())
        )
        return own, processes, GpuRest(gpu=self.uuid, rest_bytes=self.rest.spread, unmeasured=self.unmeasured)


@dataclass(frozen=True, slots=True)
class _Sent:
    """What was last sent of a GPU, or of a process's health: until when it was, and the memory in it."""

    end_us: int
    memory: dict[object, Spread | None]


class Sampler:
    """The samples of one agent and one boot; :meth:`add` each look, :meth:`cut` each period that is over."""

    def __init__(self, source: Agent, boot: Boot) -> None:
        self.source = source
        self.boot = boot
        self.start_us = boot.started_us
        """The start of the period that is under way."""
        self._seq = 0
        self._gpus: tuple[Gpu, ...] = ()
        self._told: tuple[Gpu, ...] | None = None
        self._told_day = -1
        self._devices: dict[str, _Device] = {}
        self._troubles: Counter[tuple[str, str]] = Counter()
        self._sent: dict[str, _Sent] = {}
        self._healthy: dict[int, tuple[int, ProcessPeriod]] = {}

    @property
    def end_us(self) -> int:
        """When the period that is under way is over."""
        return (self.start_us // PERIOD_US + 1) * PERIOD_US

    @property
    def pids(self) -> set[int]:
        """The processes that are on a GPU in this period."""
        return {pid for device in self._devices.values() for pid in device.processes}

    def resend(self) -> None:
        """Something did not arrive: tell everything with the next batch."""
        self._told = None
        self._sent.clear()
        self._healthy.clear()

    def add(self, look: Look, at_us: int) -> None:
        """A look that was begun at ``at_us``, within the period that is under way."""
        mark = min(MARKS - 1, (at_us % PERIOD_US) // MARK_US)
        self._gpus = look.gpus[: limits.GPUS_MAX]
        self._troubles.update(look.troubles)
        if look.driver and look.driver != self.source.driver:
            self.source = replace(self.source, driver=look.driver[: limits.TEXT_CHARS_MAX])
        of_instances: dict[str, int | None] = {}
        for reading in look.readings:
            if reading.gpu.parent:
                before = of_instances.get(reading.gpu.parent, 0)
                used = reading.used_bytes
                of_instances[reading.gpu.parent] = None if before is None or used is None else before + used
        for reading in look.readings[: limits.GPUS_MAX]:
            uuid = reading.gpu.uuid
            device = self._devices.get(uuid)
            if device is None:
                device = self._devices[uuid] = _Device(uuid)
            device.add(reading, mark, of_instances.get(uuid, 0))

    def cut(self, end_us: int, health: Sequence[ProcessPeriod] = (), *, skew_us: int = 0) -> SampleBatch:
        """The samples of the period that ends at ``end_us``; the next one begins there."""
        start_us, self.start_us = self.start_us, end_us
        assert start_us < end_us <= (start_us // PERIOD_US + 1) * PERIOD_US, (start_us, end_us)
        due = [rows for device in self._devices.values() if self._is_due(rows := device.rows(), end_us)]
        self._seq += 1
        batch = SampleBatch(
            source=self.source,
            boot=self.boot,
            seq=self._seq,
            start_us=start_us,
            end_us=end_us,
            skew_us=skew_us,
            gpus=self._list(start_us // limits.DAY_US),
            samples=tuple(own for own, _, _ in due),
            processes=tuple(one for _, processes, _ in due for one in processes)[: limits.GPU_PROCESSES_MAX],
            rests=tuple(rest for _, _, rest in due),
            health=tuple(row for row in health if self._is_news(row, end_us - start_us, end_us)),
            troubles=tuple(
                Trouble(reason=reason, gpu=gpu, count=count)
                for (reason, gpu), count in sorted(self._troubles.items())[: limits.TROUBLES_MAX]
            ),
        )
        self._forget(health)
        return batch

    def _list(self, day: int) -> tuple[Gpu, ...] | None:
        if self._told == self._gpus and self._told_day == day:
            return None
        self._told, self._told_day = self._gpus, day
        return self._gpus

    def _is_due(self, rows: tuple[GpuPeriod, tuple[GpuProcess, ...], GpuRest], end_us: int) -> bool:
        own, processes, rest = rows
        memory: dict[object, Spread | None] = {"used": own.used_bytes, "rest": rest.rest_bytes}
        memory.update((one.pid, one.used_bytes) for one in processes)
        sent = self._sent.get(own.gpu)
        if sent is not None and end_us - sent.end_us < KEPT_US and not _moved(sent.memory, memory):
            return False
        self._sent[own.gpu] = _Sent(end_us, memory)
        return True

    def _is_news(self, row: ProcessPeriod, length_us: int, end_us: int) -> bool:
        sent = self._healthy.get(row.pid)
        if sent is not None and end_us - sent[0] < KEPT_US and not _health_moved(sent[1], row, length_us):
            return False
        self._healthy[row.pid] = end_us, row
        return True

    def _forget(self, health: Sequence[ProcessPeriod]) -> None:
        """What is over; a GPU or a process that is gone is told anew when it is back."""
        for uuid in self._sent.keys() - self._devices.keys():
            del self._sent[uuid]
        for pid in self._healthy.keys() - {row.pid for row in health}:
            del self._healthy[pid]
        self._devices, self._troubles = {}, Counter()


def _moved(before: dict[object, Spread | None], now: dict[object, Spread | None]) -> bool:
    if before.keys() != now.keys():
        return True
    for key, spread in now.items():
        old = before[key]
        if old is spread is None:
            continue
        if old is None or spread is None:
            return True
        if (
            abs(old.least - spread.least) > CHANGE_BYTES
            or abs(old.mean - spread.mean) > CHANGE_BYTES
            or abs(old.most - spread.most) > CHANGE_BYTES
        ):
            return True
    return False


def _health_moved(before: ProcessPeriod, now: ProcessPeriod, length_us: int) -> bool:
    if (before.started_us, before.threads) != (now.started_us, now.threads):
        return True
    if abs((before.rss_bytes or 0) - (now.rss_bytes or 0)) > CHANGE_BYTES:
        return True
    if now.workers is not None and now.workers_busy is not None and now.workers_busy >= now.workers:
        return True
    return now.busiest_us is not None and now.busiest_us * 1_000_000 >= BUSY_PPM * length_us
