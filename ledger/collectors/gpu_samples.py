"""What a GPU exporter said of a period, as the samples of an agent: the same document, the same way into the ledger.

Invariant: a device's figure stays the device's: there are no rows of processes, since an exporter knows none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ledger import limits, wire
from ledger.core.records import PERIOD_US, Boot, Origin
from ledger.core.samples import Agent, GpuPeriod, SampleBatch, Spread
from ledger.core.samples import Gpu as Device

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ledger.collectors.readings import Gpu

SOFTWARE: Final = "dcgm-exporter (scraped)"


class SampleMaker:
    """Batches of one exporter, in a chain. Not thread-safe."""

    def __init__(self, source_id: str, *, boot_id: str, host: str, started_us: int) -> None:
        self._source = Agent(source_id=source_id, origin=Origin.LIVE, host=host, software=SOFTWARE)
        self._boot = Boot(boot_id=boot_id, anchor_us=started_us, started_us=started_us)
        self._seq = 0
        self._prev = b""
        self._told: tuple[tuple[Device, ...], int] | None = None

    def batch(self, start_us: int, seen: Sequence[Sequence[Gpu]]) -> bytes:
        """The encoded batch of the period that begins at ``start_us``; ``seen`` are its scrapes in order."""
        readings: dict[str, list[Gpu]] = {}
        for gpus in seen:
            for gpu in gpus:
                readings.setdefault(_name(gpu), []).append(gpu)
        devices = tuple(_device(name, found[-1]) for name, found in sorted(readings.items()))
        told = devices, start_us // limits.DAY_US
        self._seq += 1
        made = SampleBatch(
            source=self._source,
            boot=self._boot,
            seq=self._seq,
            start_us=start_us,
            end_us=start_us + PERIOD_US,
            gpus=None if told == self._told else devices,
            samples=tuple(_period(name, found) for name, found in sorted(readings.items())),
        )
        self._told = told
        raw = wire.encode(made, self._prev)
        self._prev = wire.digest_of(raw)
        return raw


def _name(gpu: Gpu) -> str:
    return f"{gpu.uuid}/{gpu.mig}" if gpu.mig else gpu.uuid


def _device(name: str, gpu: Gpu) -> Device:
    return Device(
        uuid=name,
        index=int(gpu.index) if gpu.index.isascii() and gpu.index.isdigit() and len(gpu.index) < 4 else 0,
        model=gpu.model,
        parent=gpu.uuid if gpu.mig else "",
        instance=int(gpu.mig) if gpu.mig.isascii() and gpu.mig.isdigit() and len(gpu.mig) < 4 else None,
        memory_bytes=_total(gpu),
    )


def _total(gpu: Gpu) -> int | None:
    """Used, free and reserved; None where one is not told."""
    parts = (gpu.used_bytes, gpu.free_bytes, gpu.reserved_bytes)
    return None if None in parts else sum(part or 0 for part in parts)


def _period(name: str, found: Sequence[Gpu]) -> GpuPeriod:
    return GpuPeriod(
        gpu=name,
        readings=len(found),
        used_bytes=_spread(gpu.used_bytes for gpu in found),
        free_bytes=_spread(gpu.free_bytes for gpu in found),
        total_bytes=_spread(_total(gpu) for gpu in found),
        reserved_bytes=_spread(gpu.reserved_bytes for gpu in found),
        busy_ppm=_spread(gpu.utilization_ppm for gpu in found),
        power_mw=_spread(gpu.power_mw for gpu in found),
    )


def _spread(values: Iterable[int | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(least=min(known), mean=sum(known) // len(known), most=max(known)) if known else None
