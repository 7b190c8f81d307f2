"""Price files: a CSV of hourly GPU prices in, checked rows out, or the first thing that is wrong with it.

Invariants: decimal text becomes nano-units exactly or is refused, never rounded; a file is taken whole or not
at all; a column that nobody knows is refused, since it may be the one that says how the price is meant.
The columns are those of the public catalogues (SkyPilot, gpuhunt, OpenCost) that such files are copied from.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

from ledger.config import scaled
from ledger.core.money import decimal_text, parse_nanos
from ledger.errors import Refusal, UsageError
from ledger.limits import PRICE_FILE_BYTES_MAX, TEXT_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

GPU, ON_DEMAND, SPOT = "gpu", "price_usd_per_gpu_hour", "spot_usd_per_gpu_hour"

REQUIRED = (GPU, ON_DEMAND)

KEY = ("provider", "instance_type", GPU, "region")
"""What tells two prices apart; a column that is absent or empty means any."""

WHOLE_INSTANCE, COUNT = "price_usd_per_hour_instance", "gpu_count"

GPUS_MAX = 1024
"""GPUs of one instance; beyond any machine that is let."""

NOTES = ("gpu_mem_mib", "source_repo", "source_path", "source_commit")
"""Columns that are known and say nothing about the price."""

COLUMNS = (*KEY, COUNT, WHOLE_INSTANCE, ON_DEMAND, SPOT, *NOTES)


class Capacity(StrEnum):
    """How the machine was bought."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPrice:
    """One price of one kind of GPU; an empty text means any. ``line`` is the line of the file."""

    provider: str
    instance_type: str
    gpu: str
    region: str
    capacity: Capacity
    nanos_per_hour: int
    line: int


def read(file: Path) -> tuple[ListedPrice, ...]:
    """All prices of the file in its order; :class:`UsageError` for the first thing that cannot be used."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(PRICE_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}; name a CSV file of prices") from error
    if len(raw) > PRICE_FILE_BYTES_MAX:
        raise UsageError(f"{file}: more than {PRICE_FILE_BYTES_MAX} bytes; split it, or name the right file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: byte {error.start} is not UTF-8 text; save it as plain CSV") from error
    if "\0" in text:
        raise UsageError(f"{file}: byte {text.index(chr(0))} is NUL, so no text; save it as plain CSV")
    return tuple(parse(text, str(file)))


def parse(text: str, name: str) -> Iterator[ListedPrice]:
    """The prices in the text of a file called ``name``."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    seen: dict[tuple[str, ...], int] = {}
    try:
        header = [column.strip() for column in next(lines, [])]
        _check_header(header, name)
        for cells in lines:
            if not cells:
                continue
            at = _Place(name=name, line=lines.line_num)
            if len(cells) != len(header):
                at.refuse(f"{len(cells)} cells, and the header has {len(header)}: quote cells that hold a comma")
            row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
            key = tuple(row.get(column, "") for column in KEY)
            if key in seen:
                at.refuse(f"{', '.join(filter(None, key))} stands in line {seen[key]} already: keep one of them")
            seen[key] = at.line
            yield from _prices(row, at)
    except csv.Error as error:
        raise UsageError(f"{name}, line {lines.line_num}: this is not CSV: {error}; save it as plain CSV") from error
    if not seen:
        raise UsageError(f"{name}: there are no prices below the header; nothing was imported")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A line of a file, to complain about."""

    name: str
    line: int

    def refuse(self, sentence: str) -> NoReturn:
        raise UsageError(f"{self.name}, line {self.line}: {sentence} (nothing was imported)")


def _check_header(header: list[str], name: str) -> None:
    at = _Place(name=name, line=1)
    if not any(header):
        at.refuse(f"no header: the first line names the columns, {', '.join(REQUIRED)} at least")
    for index, column in enumerate(header):
        if column not in COLUMNS:
            at.refuse(f"unknown column {column[:60]!r}, known are {', '.join(COLUMNS)}: rename or remove it")
        if column in header[:index]:
            at.refuse(f"column {column} twice, each may stand once: remove one")
    for column in REQUIRED:
        if column not in header:
            at.refuse(f"no column {column}, needed are {', '.join(REQUIRED)}: add it")


def _prices(row: Mapping[str, str], at: _Place) -> Iterator[ListedPrice]:
    for column in KEY:
        if len(row.get(column, "")) > TEXT_CHARS_MAX:
            at.refuse(f"{column} of {len(row[column])} characters, the most is {TEXT_CHARS_MAX}: shorten it")
        if not row.get(column, "").isprintable():
            at.refuse(f"{column} {row[column][:60]!a} has a character that does not print: remove it")
    if not row[GPU]:
        at.refuse(f"empty {GPU}, a price is of a GPU model: fill it in or remove the line")
    on_demand = _nanos(row[ON_DEMAND], ON_DEMAND, at)
    _check_instance(row, on_demand, at)
    yield _listed(row, Capacity.ON_DEMAND, on_demand, at)
    if row.get(SPOT):
        spot = _nanos(row[SPOT], SPOT, at)
        if spot > on_demand:
            at.refuse(f"{SPOT} {row[SPOT]!r} is above {ON_DEMAND} {row[ON_DEMAND]!r}: see whether they are swapped")
        yield _listed(row, Capacity.SPOT, spot, at)


def _listed(row: Mapping[str, str], capacity: Capacity, nanos: int, at: _Place) -> ListedPrice:
    provider, instance_type, gpu, region = (row.get(column, "") for column in KEY)
    return ListedPrice(
        provider=provider,
        instance_type=instance_type,
        gpu=gpu,
        region=region,
        capacity=capacity,
        nanos_per_hour=nanos,
        line=at.line,
    )


def _nanos(text: str, column: str, at: _Place) -> int:
    nanos = parse_nanos(text, what=column)
    if isinstance(nanos, Refusal):
        at.refuse(nanos.detail)
    if nanos == 0:
        at.refuse(f"{column} {text!r} is 0, a listed price is above it: leave the line out, no price is unpriced")
    return nanos


def _check_instance(row: Mapping[str, str], nanos_per_gpu: int, at: _Place) -> None:
    """The instance's price must be its GPUs' within 1 %: a file whose columns have slipped is caught by that."""
    count = 1
    if row.get(COUNT):
        try:
            count = scaled(row[COUNT], digits=0, low=1, high=GPUS_MAX)
        except ValueError as problem:
            at.refuse(f"{COUNT} {row[COUNT][:60]!r}: {problem}; write a whole number from 1 to {GPUS_MAX}")
    if row.get(WHOLE_INSTANCE):
        whole = _nanos(row[WHOLE_INSTANCE], WHOLE_INSTANCE, at)
        if abs(whole - nanos_per_gpu * count) * 100 > whole:
            expected = decimal_text(nanos_per_gpu * count)
            at.refuse(
                f"{WHOLE_INSTANCE} {row[WHOLE_INSTANCE]!r} is more than 1 % from {expected}, "
                f"which {count} GPUs at {row[ON_DEMAND]} cost: see which of the three is wrong"
            )
