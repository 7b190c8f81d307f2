"""Rows as CSV, of the command line and of the interface.

Invariant: a text that a spreadsheet would run as a formula is written with a quote before it.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet runs."""


def write_csv(rows: Iterable[Iterable[object]], out: TextIO) -> None:
    """Write the rows to ``out``; absent is an empty cell, a truth is yes or no."""
    csv.writer(out, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return value
