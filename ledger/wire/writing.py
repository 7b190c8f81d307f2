"""How records are written: objects with sorted keys, defaults left out."""

from __future__ import annotations

from heapq import merge
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ledger.core.records import NO_REPORT, Dimensions, GroupKind
from ledger.wire.fields import (
    ABSENT,
    ADMISSION,
    BOOT,
    DIMENSION_TEXTS,
    GROUP,
    HOLDING,
    MILESTONES,
    NO_HOLDING,
    NO_PREEMPTIONS,
    NO_TOKENS,
    OPEN,
    POOL,
    PREEMPTIONS,
    PRIORITY,
    REQUEST,
    SESSION,
    SHARD,
    SHARD_FACTS,
    SOURCE_TEXTS,
    TOKENS,
    USE,
    Ints,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from ledger.core.records import Batch, Histogram, PoolOpen, PoolPeriod, RequestRecord, SessionPeriod

_Object = dict[str, Any]


def _writer(*tables: Ints, also: tuple[tuple[str, object], ...] = ()) -> Callable[[Any], _Object]:
    """A function that writes the named fields of a record, those that have their default left out."""
    fields = tuple(sorted([(name, default) for table in tables for name, default, _, _ in table] + list(also)))
    names = tuple(name for name, _ in fields)
    defaults = tuple(default for _, default in fields)
    get = attrgetter(*names)

    def write(record: Any) -> _Object:
        return {
            name: value
            for name, value, default in zip(names, get(record), defaults, strict=True)
            if value != default and value is not None
        }

    return write


def _texts(*names: str) -> tuple[tuple[str, object], ...]:
    return tuple((name, "") for name in names)


_write_tokens: Final = _writer(TOKENS)
_write_preemptions: Final = _writer(PREEMPTIONS)
_write_holding: Final = _writer(HOLDING)
_write_dimensions: Final = _writer((PRIORITY,), also=(*_texts(*DIMENSION_TEXTS, "tenant"), ("session", "-")))
_in_order: Final = attrgetter(*Dimensions.__slots__)
"""What dimension sets are sorted by: their fields, compared as a tuple without a step of Python."""
_write_source: Final = _writer(also=_texts("engine", *SOURCE_TEXTS))
_write_boot: Final = _writer(BOOT, also=_texts("boot_id"))
_write_open: Final = _writer(OPEN, also=(*_texts("model", "pool"), ("paying", True)))
_write_shard: Final = _writer(
    SHARD, also=(*_texts("gpu_model", "gpu_uuid"), *((name, None) for name, _, _ in SHARD_FACTS))
)
_write_close: Final = _writer((("at_us", ABSENT, 0, 0),), also=_texts("pool", "reason"))
_write_pool: Final = _writer(POOL, also=_texts("pool"))
_write_group_period: Final = _writer(GROUP)
_write_session: Final = _writer(SESSION, also=_texts("pool"))
_write_standing: Final = _writer((("cached_blocks", 0, 0, 0),), also=_texts("pool"))
_write_admission: Final = _writer(ADMISSION, also=(("parent", None), ("request", "")))
_write_use: Final = _writer(USE)
_write_request: Final = _writer(
    REQUEST,
    also=(
        *((name, None) for name in MILESTONES),
        *_texts("finish_reason", "outcome", "pool", "request"),
        ("parent", None),
    ),
)
_write_histogram: Final = _writer((("count", 0, 0, 0), ("total", 0, 0, 0)), also=_texts("name"))
_write_hook: Final = _writer(also=(("dropped", ()), ("faults", ()), *_texts("off")))


def _open_row(opened: PoolOpen) -> _Object:
    row = _write_open(opened)
    row["groups"] = [
        {"block_size": group.block_size} | ({} if group.kind is GroupKind.FULL else {"kind": group.kind})
        for group in opened.groups
    ]
    if opened.shards:
        row["shards"] = [_write_shard(shard) for shard in opened.shards]
    return row


def _pool_row(pool: PoolPeriod) -> _Object:
    row = _write_pool(pool)
    if pool.groups:
        row["groups"] = [_write_group_period(group) for group in pool.groups]
    return row


def _common(row: _Object, record: SessionPeriod | RequestRecord, index: Mapping[Dimensions, int]) -> _Object:
    row["dims"] = index[record.dims]
    if record.tokens != NO_TOKENS:
        row["tokens"] = _write_tokens(record.tokens)
    if record.preemptions != NO_PREEMPTIONS:
        row["preemptions"] = _write_preemptions(record.preemptions)
    if record.holding != NO_HOLDING:
        row["holding"] = _write_holding(record.holding)
    return row


def _request_row(record: RequestRecord, index: Mapping[Dimensions, int]) -> _Object:
    row = _common(_write_request(record), record, index)
    if record.uses:
        row["uses"] = [_write_use(use) for use in record.uses]
    if record.other_holdings:
        row["other_holdings"] = [
            {"pool": other.pool, "holding": _write_holding(other.holding)} for other in record.other_holdings
        ]
    return row


def _histogram_row(histogram: Histogram) -> _Object:
    row = _write_histogram(histogram)
    if histogram.labels:
        row["labels"] = [list(pair) for pair in histogram.labels]
    if histogram.buckets:
        row["buckets"] = [list(pair) for pair in histogram.buckets]
    return row


def dimensions_of(batch: Batch, rows: int) -> Generator[bytes, None, dict[Dimensions, int]]:
    """The dimension sets of a batch, sorted, each with its index; yields no bytes where a thread may take a rest.

    Hashing and sorting a few thousand of them keeps the GIL for milliseconds: so they are sorted in runs, and merged.
    """
    found: set[Dimensions] = set()
    for records in (batch.sessions, batch.admissions, batch.requests, batch.standing or ()):
        for start in range(0, len(records), 4 * rows):
            found.update([record.dims for record in records[start : start + 4 * rows]])
            yield b""
    every = list(found)
    runs = []
    for start in range(0, len(every), 8 * rows):
        runs.append(sorted(every[start : start + 8 * rows], key=_in_order))
        yield b""
    index: dict[Dimensions, int] = {}
    for dims in merge(*runs, key=_in_order) if len(runs) > 1 else chain(*runs):
        index[dims] = len(index)
        if len(index) % (4 * rows) == 0:
            yield b""
    return index


def head_of(batch: Batch, *, dims: bool) -> Iterator[tuple[str, Any]]:
    """The keys of ``batch`` in order, each with its value, or None where :func:`rows_of` has its rows."""
    yield "admissions", None
    yield "boot", _write_boot(batch.boot)
    yield "closes", None
    if dims:
        yield "dims", None
    yield "end_us", batch.end_us
    yield "histograms", None
    if batch.hook != NO_REPORT:
        yield "hook", _write_hook(batch.hook)
    yield "opens", None
    yield "pools", None
    yield "requests", None
    yield "seq", batch.seq
    yield "sessions", None
    if batch.skew_us:
        yield "skew_us", batch.skew_us
    yield "source", _write_source(batch.source) | {"origin": batch.source.origin.value}
    yield "standing", None
    yield "start_us", batch.start_us


_ROWS: Final[dict[str, Callable[[Any, Mapping[Dimensions, int]], _Object]]] = {
    "admissions": lambda row, index: _write_admission(row) | {"dims": index[row.dims]},
    "closes": lambda row, _: _write_close(row),
    "histograms": lambda row, _: _histogram_row(row),
    "opens": lambda row, _: _open_row(row),
    "pools": lambda row, _: _pool_row(row),
    "requests": _request_row,
    "sessions": lambda row, index: _common(_write_session(row), row, index),
    "standing": lambda row, index: _write_standing(row) | {"dims": index[row.dims]},
}


def rows_of(batch: Batch, key: str, index: Mapping[Dimensions, int]) -> Iterator[_Object] | None:
    """The rows under ``key`` as written; None where the key is left out."""
    if key == "dims":
        return map(_write_dimensions, index)
    records = getattr(batch, key)
    if records is None or (not records and key != "standing"):
        return None
    write = _ROWS[key]
    return (write(record, index) for record in records)
