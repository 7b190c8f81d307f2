"""A sheet of rows shown three ways: a table for people, JSON and CSV for programs.

Invariants: JSON and CSV carry every column and exact integers; a table may round and leave columns out, and its
sums are made of the exact figures before any rounding; text from the ledger is never taken for markup.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TextIO

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ledger.core.money import rounded_text
from ledger.core.periods import HOUR_US, format_time

Value = int | str | bool | None

WIDTH_MIN, WIDTH_MAX = 60, 160
"""Narrower, a table is unreadable; wider, the eye loses its line."""

ABSENT = "-"
"""Where there is no figure: absent is not zero."""

RULED = Box(
    "    \n"  # no top edge
    "    \n"
    " ── \n"  # below the header
    "    \n"
    " ── \n"
    " ── \n"  # above the footer
    "    \n"
    "    \n"
)
"""Rules above and below, none between: the rows themselves are the lines."""


class Shape(Enum):
    """How a value reads in a table; the figure itself is an exact integer."""

    TEXT = "text"
    TIME = "time"
    COUNT = "count"
    MONEY = "money"
    BLOCK_TIME = "block time"
    DURATION = "duration"
    MILLI = "thousandths"
    PPM = "millionths"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``key`` is the JSON and CSV name; a column without ``title`` is left out of tables."""

    key: str
    title: str = ""
    shape: Shape = Shape.TEXT
    summed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Rows under columns; each row has a value for each column."""

    columns: tuple[Column, ...]
    rows: Sequence[tuple[Value, ...]]
    empty: str
    """What a person reads where there are no rows: why, and what to do."""
    rounded: str = ""
    """What a table says about its rounding and units."""


def show(sheet: Sheet, form: str, out: TextIO, *, top: int = 0) -> None:
    """Write the sheet as ``table``, ``json`` or ``csv``; a table has its first ``top`` rows and their rest (0: all)."""
    {"table": lambda: _show_table(sheet, out, top), "json": lambda: _json(sheet, out), "csv": lambda: _csv(sheet, out)}[
        form
    ]()


def console(out: TextIO, *, width: int | None = None) -> Console:
    """A console on ``out`` that takes text as it is: no markup, no emoji, no highlighting, no wrapping of data."""
    made = Console(file=out, markup=False, emoji=False, highlight=False, width=width)
    if width is None:
        made.width = max(WIDTH_MIN, min(WIDTH_MAX, made.width))
    return made


def json_text(value: object) -> str:
    """JSON for programs and for people who look over their shoulder; one key order, no NaN."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def objects(sheet: Sheet) -> Iterator[dict[str, Value]]:
    """The rows as JSON objects, in the order of the columns."""
    keys = [column.key for column in sheet.columns]
    return (dict(zip(keys, row, strict=True)) for row in sheet.rows)


def shown(value: Value, shape: Shape) -> str:
    """One value as a person reads it."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return _SHOWN[shape](value)


def percent(part: int, whole: int) -> str:
    """``part`` of ``whole`` to a tenth of a percent; a dash where there is no whole."""
    if whole == 0:
        return ABSENT
    tenths = (2000 * abs(part) + abs(whole)) // (2 * abs(whole))
    if part and not tenths:
        return "<0.1 %"
    sign = "-" if (part < 0) != (whole < 0) else ""
    return f"{sign}{tenths // 10}.{tenths % 10} %"


def duration(us: int) -> str:
    """A length of time in its largest two units: ``3 d 02 h``, ``2 h 05 min``, ``4 min 30 s``, ``1.25 s``."""
    seconds = us // 1_000_000
    if seconds >= 86_400:
        return f"{seconds // 86_400} d {seconds % 86_400 // 3600:02d} h"
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    if seconds >= 60:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{us / 1e6:.2f} s"


def shown_quantity(quantity: int, unit: str) -> str:
    """A quantity of waste with its unit: block and slot time in hours, tokens as they are."""
    if unit == "tokens":
        return f"{quantity:,} tokens"
    return f"{_block_hours(quantity)} {unit.removesuffix('_us')}-h"


def _block_hours(block_us: int) -> str:
    hundredths = (200 * block_us + HOUR_US) // (2 * HOUR_US)
    return f"{hundredths // 100:,}.{hundredths % 100:02d}"


_SHOWN: dict[Shape, Callable[[int], str]] = {
    Shape.TEXT: str,
    Shape.TIME: format_time,
    Shape.COUNT: lambda value: f"{value:,}",
    Shape.MONEY: lambda value: rounded_text(value, 4),
    Shape.BLOCK_TIME: _block_hours,
    Shape.DURATION: duration,
    Shape.MILLI: lambda value: f"{value / 1000:,.0f}",
    Shape.PPM: lambda value: percent(value, 1_000_000),
}


def _show_table(sheet: Sheet, out: TextIO, top: int) -> None:
    screen = console(out)
    if not sheet.rows:
        screen.print(sheet.empty, soft_wrap=True)
        return
    rows = sheet.rows[:top] if top else sheet.rows
    left = len(sheet.rows) - len(rows)
    places = [index for index, column in enumerate(sheet.columns) if column.title]
    summed = any(sheet.columns[index].summed for index in places)
    table = Table(box=RULED, show_edge=False, pad_edge=False, show_footer=summed, header_style="bold")
    table.footer_style = "bold"
    for index in places:
        column = sheet.columns[index]
        footer = _footer(sheet, index, first=index == places[0])
        right = column.shape not in (Shape.TEXT, Shape.TIME)
        table.add_column(
            Text(column.title), Text(footer), justify="right" if right else "left", overflow="ellipsis", no_wrap=True
        )
    for row in rows:
        table.add_row(*(Text(shown(row[index], sheet.columns[index].shape)) for index in places))
    if left:
        rest = [f"{left:,} more" if index == places[0] else _summed(sheet, index, sheet.rows[top:]) for index in places]
        table.add_row(*(Text(text, style="dim") for text in rest))
    screen.print(table)
    if sheet.rounded:
        screen.print(Text(sheet.rounded, style="dim"))


def _footer(sheet: Sheet, index: int, *, first: bool) -> str:
    return "all" if first else _summed(sheet, index, sheet.rows)


def _summed(sheet: Sheet, index: int, rows: Sequence[tuple[Value, ...]]) -> str:
    column = sheet.columns[index]
    if not column.summed:
        return ""
    values = [row[index] for row in rows]
    return shown(sum(value for value in values if isinstance(value, int)), column.shape)


def _json(sheet: Sheet, out: TextIO) -> None:
    # Written row by row: a month of requests is no text to hold in memory twice.
    separator = "[\n"
    for row in objects(sheet):
        out.write(separator + json.dumps(row, ensure_ascii=False, allow_nan=False))
        separator = ",\n"
    out.write("[]\n" if separator == "[\n" else "\n]\n")


def _csv(sheet: Sheet, out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.key for column in sheet.columns)
    writer.writerows([_cell(value) for value in row] for row in sheet.rows)


def _cell(value: Value) -> Value:
    return ("yes" if value else "no") if isinstance(value, bool) else value


def csv_text(rows: Sequence[Sequence[Value]]) -> str:
    """Rows as CSV text."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
