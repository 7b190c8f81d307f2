"""What one look at a host's GPUs gave: figures of an instant, before they become samples of a period.

Invariant: what a device did not say is ``None``. Nothing is added up, guessed or carried over here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ledger import limits
from ledger.core.samples import Engagement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ledger.core.samples import Gpu

BLANKS: Final = frozenset({2**64 - 1, 2**63 - 1, limits.BLANK_INT64, 2**32 - 1, 2**31 - 1})
"""What drivers write where they have no figure: all bits set, the largest signed value, or DCGM's blanks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """A process on a GPU at an instant."""

    pid: int
    engagement: Engagement = Engagement.COMPUTE
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """A GPU or instance at an instant. ``processes`` is None where the driver does not list them."""

    gpu: Gpu
    used_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    busy_ppm: int | None = None
    memory_busy_ppm: int | None = None
    occupancy_ppm: int | None = None
    power_mw: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    throttles: tuple[str, ...] | None = None
    processes: tuple[ProcessReading, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at all GPUs: what could be read in time, what there is, and what went wrong.

    ``gpus`` is what the driver lists, read or not; ``troubles`` counts by reason and GPU (empty: the driver).
    """

    readings: tuple[GpuReading, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    troubles: Mapping[tuple[str, str], int] = field(default_factory=dict)


def within(value: int | None, most: int) -> int | None:
    """``value`` where it is a figure: not blank, not negative, at most ``most``."""
    if value is None or value in BLANKS or not 0 <= value <= most:
        return None
    return value
