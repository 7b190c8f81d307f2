"""The DCGM exporter: GPUs, by UUID.

Invariants: a blank is absent, and so is a field that the exporter was not told to give; the pods beside a series share
the device, and none of them is given its figures; where a scrape was federated, the labels of the exporter itself
(`exported_pod` and so on) count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ledger import limits
from ledger.collectors.readings import Gpu
from ledger.collectors.sources import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ledger.collectors.exposition import Exposition

MIB: Final = 1024 * 1024

FIELDS: Final[Mapping[str, tuple[str, float]]] = {
    "DCGM_FI_DEV_FB_USED": ("used_bytes", MIB),
    "DCGM_FI_DEV_FB_FREE": ("free_bytes", MIB),
    "DCGM_FI_DEV_FB_RESERVED": ("reserved_bytes", MIB),
    "DCGM_FI_DEV_GPU_UTIL": ("utilization_ppm", 10_000),
    "DCGM_FI_DEV_POWER_USAGE": ("power_mw", 1000),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1),
}
"""Our figure for a field of the exporter, and what its unit is times."""

BLANKS: Final = frozenset(
    {float(limits.BLANK_INT64 + delta) for delta in range(-2, 2)}
    | {float(2_147_483_632 + delta) for delta in range(4)}
    | {140_737_488_355_328.0 + delta for delta in range(4)}
)
"""What DCGM writes where there is no figure: blank, not found, not supported, not permitted, in 64 and 32 bits and as a
float (dcgm_structs.h)."""


def gpus(text: Exposition) -> tuple[Gpu, ...]:
    """Every GPU (or MIG instance) that the text tells of, by UUID."""
    found: dict[tuple[str, str], dict[str, str | int]] = {}
    owners: dict[tuple[str, str], set[str]] = {}
    for name, samples in text.samples.items():
        if not name.startswith("DCGM_FI_"):
            continue
        for sample in samples:
            labels = sample.labels
            uuid = labels.get("UUID", "")
            if not uuid:
                continue
            key = (uuid, labels.get("GPU_I_ID", ""))
            gpu = found.setdefault(key, {"uuid": uuid, "mig": key[1]})
            for ours, theirs in (("index", "gpu"), ("model", "modelName"), ("host", "Hostname")):
                if label := labels.get(theirs):
                    gpu[ours] = label
            pod = labels.get("exported_pod", labels.get("pod", ""))
            if pod:
                namespace = labels.get("exported_namespace", labels.get("namespace", ""))
                owners.setdefault(key, set()).add(f"{namespace}/{pod}" if namespace else pod)
            value = _value(sample.value)
            if name in FIELDS and value is not None:
                field, times = FIELDS[name]
                gpu[field] = round(value * times)
    return tuple(
        Gpu(**gpu, owners=tuple(sorted(owners.get(key, ()))))  # type: ignore[arg-type] # the fields above, by name
        for key, gpu in sorted(found.items())
    )


def _value(value: float) -> float | None:
    return None if not math.isfinite(value) or value < 0 or value in BLANKS else value


DCGM: Final = Source(
    kind="dcgm",
    title="DCGM exporter",
    seen="texts of 4.x on L4 and L40S, the README's",
    prefixes=("DCGM_FI_",),
    gpus=gpus,
    fields=tuple(FIELDS),
)
