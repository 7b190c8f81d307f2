"""The memory of GPUs as the usual loops would have logged it, from what was kept.

``csv`` is the log of a loop around ``nvmlDeviceGetMemoryInfo(handle).used``: seconds since 1970 and bytes.
``nvidia-smi`` is that of ``nvidia-smi --query-gpu=memory.used,memory.free,memory.total --format=csv``.

Invariants: an instant at which no agent looked has no line; a figure that the device did not give is no number. Rows
hold until the next ones of their GPU, a minute at most. MiB are rounded down, as by the tool.

Pure: rows in, lines out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ledger.core.records import PERIOD_US
from ledger.core.samples import KEPT_US, MARK_US

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ledger.store.gpu_history import MemoryRow

MIB: Final = 1024 * 1024
FIELDS: Final = ("memory.used [MiB]", "memory.free [MiB]", "memory.total [MiB]")
EXTRA: Final = ("timestamp", "index", "uuid")
HOLDS_US: Final = KEPT_US + PERIOD_US
"""How long after its start a row may still be the newest: a minute, and the period that is under way."""


class Form(StrEnum):
    """Whose log it is."""

    CSV = "csv"
    NVIDIA_SMI = "nvidia-smi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A GPU's memory at an instant; None is what the device did not give."""

    at_us: int
    index: int
    uuid: str
    used_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None


def readings(
    gpus: Sequence[tuple[int, str, Sequence[MemoryRow]]], start_us: int, end_us: int, *, every_us: int
) -> Iterator[Reading]:
    """What was kept of each instant of ``(start_us, end_us]`` that ``every_us`` divides, and each GPU at it.

    ``gpus`` are (index, UUID, rows of the device by time, from :data:`HOLDS_US` before ``start_us`` on), in the order
    in which they are said.
    """
    places = [0] * len(gpus)
    for at_us in range(start_us - start_us % every_us + every_us, end_us + 1, every_us):
        for number, (index, uuid, rows) in enumerate(gpus):
            place = places[number]
            while place < len(rows) and rows[place].start_us < at_us:
                place += 1
            places[number] = place
            row = rows[place - 1] if place else None
            if row is None or at_us - row.start_us > HOLDS_US:
                continue
            used, free = _figures(row, at_us)
            yield Reading(
                at_us=at_us, index=index, uuid=uuid, used_bytes=used, free_bytes=free, total_bytes=row.total_bytes
            )


def log_lines(found: Iterator[Reading]) -> Iterator[str]:
    """``seconds,bytes``, without a heading, as the loop writes them; an unknown figure has no line."""
    for one in found:
        if one.used_bytes is not None:
            yield f"{one.at_us / 1e6},{one.used_bytes}"


def tool_lines(found: Iterator[Reading], *, extra: bool) -> Iterator[str]:
    """The tool's heading and lines; ``extra`` puts time, index and UUID before its three fields."""
    yield ", ".join((*(EXTRA if extra else ()), *FIELDS))
    for one in found:
        figures = [_mib(value) for value in (one.used_bytes, one.free_bytes, one.total_bytes)]
        before = [_time(one.at_us), str(one.index), one.uuid] if extra else []
        yield ", ".join([*before, *figures])


def _figures(row: MemoryRow, at_us: int) -> tuple[int | None, int | None]:
    """Used and free at an instant: at a mark what was read then, else the mean of the period."""
    used, free = row.mean_bytes, row.free_bytes
    mark = (at_us - row.start_us) // MARK_US - 1
    if used is not None and row.start_us % PERIOD_US == 0 and 0 <= mark < len(row.marks_bytes):
        read = row.marks_bytes[mark]
        return read, None if free is None else free + used - read
    return used, free


def _mib(value: int | None) -> str:
    return "[N/A]" if value is None else f"{value // MIB} MiB"


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y/%m/%d %H:%M:%S.000")
