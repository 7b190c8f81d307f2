"""What the samples of one period must keep by themselves; docs/wire.md lists the reasons.

Pure: samples in, the first breach out. There is no law of sums here: readings of a device and of its processes are
taken one after another, so memory that moves between two of them is in both or in none.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ledger.core.records import PERIOD_US
from ledger.errors import Refusal
from ledger.refusals import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.samples import SampleBatch, Spread


def sample_breach(batch: SampleBatch) -> Refusal | None:
    """The first rule that ``batch`` breaks, with the figures that show it; None where it keeps them all."""
    return next(_breaches(batch), None)


def _breaches(batch: SampleBatch) -> Iterator[Refusal]:
    start, end = batch.start_us, batch.end_us
    rows = batch.samples or batch.processes or batch.rests or batch.health or batch.troubles
    if end < start or (end == start and rows):
        yield _refusal(Reason.BAD_PERIOD, f"ends at {end}, which is not after its start {start}")
    elif end > (start // PERIOD_US + 1) * PERIOD_US:
        yield _refusal(Reason.BAD_PERIOD, f"[{start}, {end}) crosses a multiple of {PERIOD_US} µs")
    yield from _duplicates(batch)
    sampled = {row.gpu for row in batch.samples}
    for kind, gpus in (("process", [row.gpu for row in batch.processes]), ("rest", [row.gpu for row in batch.rests])):
        for gpu in gpus:
            if gpu not in sampled:
                yield _refusal(Reason.UNKNOWN_GPU, f"a {kind} has a row of GPU {gpu!r}, which has none itself")
    for row in batch.samples:
        yield from _marks(f"GPU {row.gpu!r}", row.used_bytes, row.used_marks)
        for reason, readings in row.throttles or ():
            if readings > row.readings:
                detail = f"GPU {row.gpu!r}: {readings} of {row.readings} readings gave {reason!r}"
                yield _refusal(Reason.BAD_SPREAD, detail)
    for process in batch.processes:
        yield from _marks(f"process {process.pid} on {process.gpu!r}", process.used_bytes, process.used_marks)


def _duplicates(batch: SampleBatch) -> Iterator[Refusal]:
    checked: tuple[tuple[str, list[object]], ...] = (
        ("GPU", [row.uuid for row in batch.gpus or ()]),
        ("row of GPU", [row.gpu for row in batch.samples]),
        ("process", [(row.gpu, row.pid) for row in batch.processes]),
        ("rest of GPU", [row.gpu for row in batch.rests]),
        ("health of process", [row.pid for row in batch.health]),
        ("trouble", [(row.reason, row.gpu) for row in batch.troubles]),
    )
    for kind, keys in checked:
        for key, times in Counter(keys).items():
            if times > 1:
                yield _refusal(Reason.DUPLICATE_ROW, f"{kind} {key} stands {times} times in the batch")


def _marks(where: str, spread: Spread | None, marks: tuple[int, ...]) -> Iterator[Refusal]:
    for mark in marks:
        if spread is None or not spread.least <= mark <= spread.most:
            yield _refusal(Reason.BAD_SPREAD, f"{where}: read {mark} at a mark, outside its smallest and largest")


def _refusal(reason: Reason, detail: str) -> Refusal:
    return Refusal(reason=reason, detail=detail)
