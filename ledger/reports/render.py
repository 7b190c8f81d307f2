"""A sheet of rows shown three ways: a table for people, JSON and CSV for programs.

Invariants: JSON and CSV carry every column and exact integers; a table may round and leave columns out, and its
sums are made of the exact figures before any rounding; nothing is cut, what is too long goes on below; text from the
ledger is never taken for markup.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, TextIO

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ledger.core.money import rounded_text
from ledger.core.periods import HOUR_US, format_time
from ledger.reports.separated import write_csv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Value = int | str | bool | None

ABSENT = "-"
"""Where there is no figure: absent is not zero."""

PLACES = 4
"""Decimals of amounts in tables: a hundredth of a cent; the exact figures are in JSON and CSV."""

TEXT_MIN = 10
"""Cells that a text keeps when a table is squeezed, and folds into; figures and times keep all of theirs."""

NAME_MIN = 40
"""Cells that a name keeps as long as columns can be spared instead: it is typed or copied into the next command."""

SENTENCE_MIN = 40
"""Cells below which a sentence is not folded into a column any more, but told under the table: twelve lines of one word
are no sentence."""

GAP = 3
"""Cells between two columns."""

WIDTH_MIN, WIDTH_MAX = 60, 160
"""Narrower, a table is unreadable; wider, the eye loses its line."""

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
    spare: int = 0
    """Where a table is too wide, the column with the highest figure goes first; 0 stays."""
    name: bool = False
    """What other commands take as an argument: it is folded last."""
    sentence: bool = False
    """Where it would be squeezed, it is told under the table instead, after the first cell of its row."""
    absent: str = ABSENT
    """What a table shows for None."""
    blank: str = ""
    """What a table shows for an empty text."""


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


def counted(number: int, one: str, several: str = "") -> str:
    """A number with its noun: ``1 interval``, ``2 intervals``, ``0 breaches``."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def percent(part: int, whole: int) -> str:
    """``part`` of ``whole`` to a tenth of a percent; a dash where there is no whole."""
    if whole == 0:
        return ABSENT
    tenths = (2000 * abs(part) + abs(whole)) // (2 * abs(whole))
    if part and not tenths:
        return "<0.1 %"
    sign = "-" if (part < 0) != (whole < 0) else ""
    return f"{sign}{tenths // 10}.{tenths % 10} %"


def money(nanos: int) -> str:
    """An amount to :data:`PLACES` decimals; what is there but too small to show says so."""
    text = rounded_text(nanos, PLACES)
    if nanos and not text.strip("-0.,"):
        return f"{'>-' if nanos < 0 else '<'}{rounded_text(10 ** (9 - PLACES), PLACES)}"
    return text


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
    if block_us and not hundredths:
        return "<0.01"
    if hundredths >= 100_000:
        return f"{(hundredths + 50) // 100:,}"
    return f"{hundredths // 100:,}.{hundredths % 100:02d}"


_SHOWN: dict[Shape, Callable[[int], str]] = {
    Shape.TEXT: str,
    Shape.TIME: format_time,
    Shape.COUNT: lambda value: f"{value:,}",
    Shape.MONEY: money,
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
    lines = [_Cells(sheet, row) for row in (sheet.rows[:top] if top else sheet.rows)]
    left = len(sheet.rows) - len(lines)
    if left:
        lines.append(_Cells(sheet, _sum(sheet, sheet.rows[top:], f"{left:,} more"), sums=True))
    summed = any(column.summed and column.title for column in sheet.columns)
    footer = _Cells(sheet, _sum(sheet, sheet.rows, "all"), sums=True)
    measured = [*lines, footer] if summed else lines
    sizes = [_size(column, [line.texts[i] for line in measured]) for i, column in enumerate(sheet.columns)]
    widths = _fit(sheet, sizes, screen.width)
    told = [i for i, width in widths.items() if sheet.columns[i].sentence and width < min(sizes[i], SENTENCE_MIN)]
    if told:
        widths = _fit(sheet, [0 if i in told else size for i, size in enumerate(sizes)], screen.width)
    table = Table(box=RULED, show_edge=False, pad_edge=False, show_footer=summed, header_style="bold")
    table.footer_style = "bold"
    table.width = sum(widths.values()) + GAP * (len(widths) - 1)
    for index, width in widths.items():
        column = sheet.columns[index]
        right = column.shape not in (Shape.TEXT, Shape.TIME)
        table.add_column(
            Text(column.title),
            Text(footer.texts[index]),
            justify="right" if right else "left",
            width=width,
            overflow="fold",
            no_wrap=column.shape is not Shape.TEXT,
        )
    for line in lines:
        table.add_row(*(Text(line.texts[index]) for index in widths), style="dim" if line.sums else None)
    screen.print(table, crop=False)  # a figure that is cut is another figure: rather too wide
    for line in lines if told else ():
        sentences = " · ".join(line.texts[index] for index in told if line.texts[index])
        if sentences and not line.sums:
            screen.print(Text(f"{line.texts[next(iter(widths))]}: {sentences}"))
    spared = sum(map(bool, sizes)) - len(widths) - len(told)
    notes = [f"Left out at this width: {counted(spared, 'column')}."] if spared else []
    notes += [sheet.rounded] if sheet.rounded else []
    if notes:
        screen.print(Text(" ".join(notes), style="dim"))


class _Cells:
    """The texts of a row; only those of sums have cells with nothing in them."""

    __slots__ = ("sums", "texts")

    def __init__(self, sheet: Sheet, row: Sequence[Value], *, sums: bool = False) -> None:
        self.texts = [
            column.absent if value is None else shown(value, column.shape) or ("" if sums else column.blank)
            for column, value in zip(sheet.columns, row, strict=True)
        ]
        self.sums = sums


def _sum(sheet: Sheet, rows: Sequence[tuple[Value, ...]], name: str) -> tuple[Value, ...]:
    """One row for many: ``name`` in the first column that always shows, sums where they mean something."""
    first = next(index for index, column in enumerate(sheet.columns) if column.title and not column.spare)
    return tuple(
        name
        if index == first
        else sum(value for value in (row[index] for row in rows) if isinstance(value, int))
        if column.summed
        else ""
        for index, column in enumerate(sheet.columns)
    )


def _size(column: Column, texts: Sequence[str]) -> int:
    """Cells of a column; 0 where a table leaves it out, and where there is nothing in it."""
    return max(map(cell_len, [column.title, *texts])) if column.title and any(texts) else 0


def _fit(sheet: Sheet, sizes: Sequence[int], width: int) -> dict[int, int]:
    """The columns that a table has room for, with their widths: texts are squeezed, then columns spared."""
    kept = {index: size for index, size in enumerate(sizes) if size}

    def least(index: int, *, name_min: int = TEXT_MIN) -> int:
        column = sheet.columns[index]
        if column.shape is not Shape.TEXT:
            return kept[index]
        return min(kept[index], max(cell_len(column.title), name_min if column.name else TEXT_MIN))

    def over(sizes: Iterable[int]) -> int:
        return sum(sizes) + GAP * (len(kept) - 1) - width

    while over(least(index, name_min=NAME_MIN) for index in kept) > 0:
        spare = max(kept, key=lambda index: (sheet.columns[index].spare, index))
        if not sheet.columns[spare].spare:
            break
        del kept[spare]
    while over(kept.values()) > 0:
        texts = [index for index in kept if kept[index] > least(index)]
        if not texts:
            break
        kept[max(texts, key=lambda index: (kept[index] > least(index, name_min=NAME_MIN), kept[index]))] -= 1
    return kept


def _json(sheet: Sheet, out: TextIO) -> None:
    # Written row by row: a month of requests is no text to hold in memory twice.
    separator = "[\n"
    for row in objects(sheet):
        out.write(separator + json.dumps(row, ensure_ascii=False, allow_nan=False))
        separator = ",\n"
    out.write("[]\n" if separator == "[\n" else "\n]\n")


def _csv(sheet: Sheet, out: TextIO) -> None:
    write_csv(chain([[column.key for column in sheet.columns]], sheet.rows), out)


def csv_text(rows: Sequence[Sequence[Value]]) -> str:
    """Rows as CSV text."""
    out = io.StringIO()
    write_csv(rows, out)
    return out.getvalue()
