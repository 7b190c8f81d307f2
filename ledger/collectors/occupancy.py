"""How full the multiprocessors are, where the device has counters for it (NVML's GPM: from Hopper on).

Invariant: a figure is of the time between two samples of one unit; without two there is none. The samples are the
driver's memory, so they are given back when the unit is let go of.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Occupancy:
    """Of one device, or with ``instance`` of one of its instances. Errors of the binding are the caller's."""

    def __init__(self, binding: Any, device: Any, instance: int | None) -> None:
        self._nvml = binding
        self._take: Callable[[Any], Any] = (
            (lambda sample: binding.nvmlGpmSampleGet(device, sample))
            if instance is None
            else (lambda sample: binding.nvmlGpmMigSampleGet(device, ctypes.c_uint(instance), sample))
        )
        self._before = binding.nvmlGpmSampleAlloc()
        self._now = binding.nvmlGpmSampleAlloc()
        self._primed = False
        self._asked = binding.c_nvmlGpmMetricsGet_t()
        self._asked.version = binding.NVML_GPM_METRICS_GET_VERSION
        self._asked.numMetrics = 1
        self._asked.metrics[0].metricId = binding.NVML_GPM_METRIC_SM_OCCUPANCY

    def read_ppm(self) -> int | None:
        """Since the call before; None at the first, or where the driver could not work it out."""
        self._take(self._now)
        found = None
        if self._primed:
            asked = self._asked
            asked.sample1, asked.sample2 = self._before, self._now
            self._nvml.nvmlGpmMetricsGet(asked)
            metric = asked.metrics[0]
            if metric.nvmlReturn == 0 and 0 <= metric.value <= 100:
                found = round(metric.value * 10_000)
        self._before, self._now, self._primed = self._now, self._before, True
        return found

    def close(self) -> None:
        """Give the samples back."""
        for sample in (self._before, self._now):
            self._nvml.nvmlGpmSampleFree(sample)
