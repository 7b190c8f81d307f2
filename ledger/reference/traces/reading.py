"""Reading a trace that may be broken: lines one by one, and every value checked against a limit.

A reader never passes on what it does not understand. What is wrong is said once, as a
:class:`~ledger.errors.UsageError` that names file, line, value, limit and the way out. Nothing is skipped in
silence, since a trace with holes would be a different workload.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Never

from ledger.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ledger.reference.request import TraceRequest

TOKENS_MAX = 16_777_216
"""In or out of one request: ten times the longest context on offer."""

TRACE_SECONDS_MAX = 366 * 86_400
"""A trace longer than a year has a wrong unit of time."""

WALL_SECONDS_MAX = 4_102_444_800
"""The year 2100."""

LINE_BYTES_MAX = 256 * 1024 * 1024
"""The longest line read: a session of a thousand long requests takes 1 MB."""

REORDER_ROWS = 4096
"""Rows held back to sort a trace that was written as requests ended."""


class TraceFile:
    """A trace on disk, and its lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.bytes_total = path.stat().st_size
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}: give the path of a trace file") from error

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (number, text) of each line that is not blank; the file is closed at the end."""
        number = 0
        found = False
        try:
            with self.path.open("rb") as raw:
                text = self._decompressed(raw)
                while line := text.readline(LINE_BYTES_MAX):
                    number += 1
                    if len(line) >= LINE_BYTES_MAX:
                        self.fail(number, f"the line has {LINE_BYTES_MAX} bytes or more", "this is no trace by lines")
                    row = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                    if row:
                        found = True
                        yield number, row
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            self.fail(number, f"byte {byte:#04x} is not UTF-8", "fetch the file again, or convert it")
        except (EOFError, OSError, zlib.error) as error:
            self.fail(number + 1, f"the file is cut or damaged, or cannot be read ({error})", "fetch it again")
        if not found:
            self.fail(1, "the file is empty", "give a trace with at least one request")

    @staticmethod
    def _decompressed(raw: io.BufferedReader) -> io.BufferedReader:
        magic = raw.read(2)
        raw.seek(0)
        return io.BufferedReader(gzip.GzipFile(fileobj=raw)) if magic == b"\x1f\x8b" else raw

    def fail(self, line: int, what: str, way_out: str) -> Never:
        """Raise for ``line``: what is wrong there, and what to do."""
        raise UsageError(f"{self.path}, line {line}: {what}: {way_out}")

    def row(self, line: int, text: str) -> Row:
        """``text`` as a JSON object."""
        try:
            value = json.loads(text, parse_constant=lambda constant: self.fail_constant(line, constant))
        except json.JSONDecodeError as error:
            self.fail(line, f"no JSON at column {error.colno} ({error.msg})", "the file is cut or not of this format")
        except RecursionError:
            self.fail(line, "JSON is nested too deep", "the file is not of this format")
        return self.of(line, value)

    def of(self, line: int, value: Any) -> Row:
        """``value`` as an object with keys."""
        if not isinstance(value, dict):
            self.fail(line, f"{_short(value)} is not an object with keys", "the file is not of this format")
        return Row(self, line, value)

    def fail_constant(self, line: int, constant: str) -> Never:
        self.fail(line, f"{constant} is no number", "correct or remove the row")


@dataclass(frozen=True, slots=True)
class Row:
    """An object of a trace with checked access to its keys."""

    file: TraceFile
    line: int
    values: dict[str, Any]

    def tokens(self, key: str, *, least: int = 0, most: int = TOKENS_MAX) -> int:
        """A whole number of tokens (or of anything else) from ``least`` to ``most``."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, value, f"a whole number from {least} to {most}")
        if not least <= value <= most:
            self.fail(key, value, f"from {least} to {most}")
        return value

    def micros(self, key: str, *, per_unit: int, default: int | None = None) -> int:
        """A time or duration from 0 to a year in units of ``per_unit`` µs (0: nanoseconds), as whole µs."""
        value = self.values.get(key) if default is not None else self._value(key)
        if value is None:
            assert default is not None
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(key, value, "a number")
        most = TRACE_SECONDS_MAX * (1_000_000 // per_unit if per_unit else 1_000_000_000)
        if not 0 <= value <= most:
            self.fail(key, value, f"from 0 to {most} (a year)")
        return round(value * per_unit) if per_unit else int(value) // 1000

    def wall_us(self, key: str, *, per_unit: int) -> int:
        """A time since 1970 in units of ``per_unit`` µs, before the year 2100, as whole µs."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(key, value, "a number")
        most = WALL_SECONDS_MAX * (1_000_000 // per_unit)
        if not 0 <= value <= most:
            self.fail(key, value, f"a time since 1970, from 0 to {most} (the year 2100)")
        return round(value * per_unit)

    def text(self, key: str, *, most: int = 512) -> str:
        value = self._value(key)
        if not isinstance(value, str) or not 0 < len(value) <= most:
            self.fail(key, value, f"text of 1 to {most} characters")
        return value

    def ids(self, key: str) -> list[int]:
        """A list of whole numbers, none negative."""
        value = self._value(key)
        if not isinstance(value, list) or len(value) > TOKENS_MAX:
            self.fail(key, value, f"a list of at most {TOKENS_MAX} numbers")
        for item in value:
            # The exact type: a bool is an int to isinstance, and this loop is the reader's hottest.
            if type(item) is not int or item < 0:
                self.fail(key, item, "whole numbers from 0")
        return value

    def nested(self, key: str) -> Row:
        return self.file.of(self.line, self._value(key))

    def rows(self, key: str, *, most: int = 1_000_000) -> list[Row]:
        value = self._value(key)
        if not isinstance(value, list) or len(value) > most:
            self.fail(key, value, f"a list of at most {most} objects")
        return [self.file.of(self.line, item) for item in value]

    def fail(self, key: str, value: object, wanted: str) -> Never:
        self.file.fail(self.line, f"{key} is {_short(value)}", f"it must be {wanted}; correct or remove the row")

    def _value(self, key: str) -> Any:
        if key not in self.values:
            self.file.fail(self.line, f"there is no {key}", "the row is cut, or the file is of another format")
        return self.values[key]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def in_order(file: TraceFile, requests: Iterator[tuple[int, TraceRequest]]) -> Iterator[TraceRequest]:
    """(line, request) sorted by arrival, as far as a window of ``REORDER_ROWS`` rows sorts them.

    Arrivals in wall time are turned into arrivals since the first one.
    """
    heap: list[tuple[int, int, TraceRequest]] = []
    last_us = 0
    line = 0
    origin_us: int | None = None
    for line, request in requests:
        if request.arrival_us < last_us:
            file.fail(
                line,
                f"the request arrives {last_us - request.arrival_us} us before one more than {REORDER_ROWS} rows above",
                "sort the file by time of arrival",
            )
        heappush(heap, (request.arrival_us, line, request))
        if len(heap) > REORDER_ROWS:
            last_us, _line, first = heappop(heap)
            origin_us = _origin(first) if origin_us is None else origin_us
            yield _since(first, origin_us)
    if not line:
        file.fail(1, "there is no request in it", "give a trace with at least one")
    while heap:
        first = heappop(heap)[2]
        origin_us = _origin(first) if origin_us is None else origin_us
        yield _since(first, origin_us)


def _origin(first: TraceRequest) -> int:
    """0 for times that count from the start of the trace: no trace of these formats is a year long."""
    return first.arrival_us if first.arrival_us > TRACE_SECONDS_MAX * 1_000_000 else 0


def _since(request: TraceRequest, origin_us: int) -> TraceRequest:
    return replace(request, arrival_us=request.arrival_us - origin_us) if origin_us else request
