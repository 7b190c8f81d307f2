"""Samples as rows of tables, and the rows as samples again: the two directions side by side.

Invariant: ``batch_of(rows_of(batch)) == batch``, as in :mod:`ledger.store.fact_rows`.
"""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ledger.core.samples import (
    Agent,
    Engagement,
    Gpu,
    GpuPeriod,
    GpuProcess,
    GpuRest,
    ProcessPeriod,
    SampleBatch,
    Spread,
    Trouble,
    Watch,
)
from ledger.store import sample_tables as tables
from ledger.store.fact_rows import Row, day_of
from ledger.store.sample_tables import HEALTH_COLUMNS, SPREAD_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Table

    from ledger.core.records import Boot

_spreads: Final = attrgetter(*SPREAD_COLUMNS)
_health: Final = attrgetter(*HEALTH_COLUMNS)
_UNKNOWN: Final = (None, None, None)


def uuids_in(batch: SampleBatch) -> set[str]:
    """The GPUs that rows name."""
    found = {gpu.uuid for gpu in batch.gpus or ()}
    for rows in (batch.samples, batch.processes, batch.rests):
        found.update(row.gpu for row in rows)
    return found


def rows_of(batch: SampleBatch, boot: int, ids: Mapping[str, int]) -> Iterator[tuple[Table, list[Row]]]:
    """The rows of ``batch`` by table, empty ones left out, in the order of tables; ``ids`` are those of its GPUs."""
    key = (day_of(batch.start_us), boot, batch.seq)
    made: tuple[tuple[Table, list[Row]], ...] = (
        (
            tables.gpu_lists,
            [
                (*key, i, ids[gpu.uuid], gpu.index, gpu.model, gpu.parent, gpu.instance, gpu.memory_bytes)
                for i, gpu in enumerate(batch.gpus or ())
            ],
        ),
        (tables.gpu_periods, [(*key, i, ids[row.gpu], *_gpu_row(row)) for i, row in enumerate(batch.samples)]),
        (
            tables.gpu_processes,
            [(*key, i, ids[row.gpu], *_process_row(row)) for i, row in enumerate(batch.processes)],
        ),
        (
            tables.gpu_rests,
            [(*key, i, ids[row.gpu], *_spread(row.rest_bytes), row.unmeasured) for i, row in enumerate(batch.rests)],
        ),
        (
            tables.process_periods,
            [
                (*key, i, row.pid, row.name, row.watch.value, row.busiest, *_health(row))
                for i, row in enumerate(batch.health)
            ],
        ),
        (
            tables.agent_troubles,
            [(*key, i, row.reason, row.gpu, row.count) for i, row in enumerate(batch.troubles)],
        ),
    )
    return ((table, rows) for table, rows in made if rows)


def _gpu_row(row: GpuPeriod) -> Row:
    spreads = [part for spread in _spreads(row) for part in _spread(spread)]
    throttles = None
    if row.throttles is not None:
        throttles = json.dumps([list(pair) for pair in row.throttles], ensure_ascii=False, separators=(",", ":"))
    return row.readings, *spreads, *_marks(row.used_marks), row.ecc_corrected, row.ecc_uncorrected, throttles


def _process_row(row: GpuProcess) -> Row:
    return row.pid, row.engagement.value, row.readings, *_spread(row.used_bytes), *_marks(row.used_marks)


def _spread(spread: Spread | None) -> tuple[int | None, int | None, int | None]:
    return _UNKNOWN if spread is None else (spread.least, spread.mean, spread.most)


def _marks(marks: tuple[int, ...]) -> tuple[int | None, ...]:
    return (*marks, *_UNKNOWN)[:3]


# --- back ------------------------------------------------------------------------------------------------


def batch_of(
    *,
    source: Agent,
    boot: Boot,
    seq: int,
    start_us: int,
    end_us: int,
    skew_us: int,
    has_gpus: bool,
    rows: Mapping[Table, Sequence[Row]],
    uuids: Mapping[int, str],
) -> SampleBatch:
    """The batch whose rows are ``rows``: by table, from their place on, sorted by place."""

    def of(table: Table) -> Iterator[Row]:
        return (row[1:] for row in rows.get(table, ()))

    return SampleBatch(
        source=source,
        boot=boot,
        seq=seq,
        start_us=start_us,
        end_us=end_us,
        skew_us=skew_us,
        gpus=tuple(gpu_of(row, uuids) for row in of(tables.gpu_lists)) if has_gpus else None,
        samples=tuple(gpu_period_of(row, uuids) for row in of(tables.gpu_periods)),
        processes=tuple(process_of(row, uuids) for row in of(tables.gpu_processes)),
        rests=tuple(rest_of(row, uuids) for row in of(tables.gpu_rests)),
        health=tuple(health_of(row) for row in of(tables.process_periods)),
        troubles=tuple(Trouble(reason=row[0], gpu=row[1], count=row[2]) for row in of(tables.agent_troubles)),
    )


def gpu_of(row: Sequence[Any], uuids: Mapping[int, str]) -> Gpu:
    """A GPU from a row of ``gpu_lists`` without its key."""
    return Gpu(uuid=uuids[row[0]], index=row[1], model=row[2], parent=row[3], instance=row[4], memory_bytes=row[5])


def gpu_period_of(row: Sequence[Any], uuids: Mapping[int, str]) -> GpuPeriod:
    """A GPU's row from one of ``gpu_periods`` without its key."""
    at = 2 + 3 * len(SPREAD_COLUMNS)
    spreads = {name: spread_of(row[2 + 3 * i : 5 + 3 * i]) for i, name in enumerate(SPREAD_COLUMNS)}
    corrected, uncorrected, throttles = row[at + 3 : at + 6]
    pairs = None if throttles is None else tuple((name, count) for name, count in json.loads(throttles))
    return GpuPeriod(
        gpu=uuids[row[0]],
        readings=row[1],
        used_marks=marks_of(row[at : at + 3]),
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
        throttles=pairs,
        **spreads,
    )


def process_of(row: Sequence[Any], uuids: Mapping[int, str]) -> GpuProcess:
    """A process on a GPU from a row of ``gpu_processes`` without its key."""
    return GpuProcess(
        gpu=uuids[row[0]],
        pid=row[1],
        engagement=Engagement(row[2]),
        readings=row[3],
        used_bytes=spread_of(row[4:7]),
        used_marks=marks_of(row[7:10]),
    )


def rest_of(row: Sequence[Any], uuids: Mapping[int, str]) -> GpuRest:
    """The rest of a GPU's use from a row of ``gpu_rests`` without its key."""
    return GpuRest(gpu=uuids[row[0]], rest_bytes=spread_of(row[1:4]), unmeasured=row[4])


def health_of(row: Sequence[Any]) -> ProcessPeriod:
    """A process's health from a row of ``process_periods`` without its key."""
    return ProcessPeriod(
        pid=row[0],
        name=row[1],
        watch=Watch(row[2]),
        busiest=row[3],
        **dict(zip(HEALTH_COLUMNS, row[4:], strict=True)),
    )


def spread_of(parts: Sequence[int | None]) -> Spread | None:
    """A spread from its three columns; None where they are null."""
    least, mean, most = parts
    if least is None or mean is None or most is None:
        return None
    return Spread(least=least, mean=mean, most=most)


def marks_of(parts: Sequence[int | None]) -> tuple[int, ...]:
    """The readings at the marks of a period that has them."""
    return tuple(mark for mark in parts if mark is not None)
