"""Any `/metrics` text, line by line: the good lines as samples, the bad ones named with their numbers.

Invariants: one bad line costs itself and no other; of a series that is said twice (two scrapes in one text) the last
saying counts; nothing here knows an engine. Each line is read by prometheus_client's own parser, whose whole-text
function stops at the first fault and renames counters without `_total`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families

from ledger import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KINDS: Final = frozenset(
    ("counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset", "gaugehistogram")
)
"""What may stand behind `# TYPE`, in the text format and in OpenMetrics."""

SUFFIXES: Final = ("_bucket", "_count", "_sum", "_created", "_total", "_info")
"""What a sample's name may have behind its family's."""

_NAME: Final = re.compile(r"[^\s{]*")
_VALID: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_PLAIN: Final = re.compile(
    r'[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{(?:[a-zA-Z_]\w*="[^"\\]*",?)*\})?\s+[-+.0-9IiNn]\S*(?:\s+-?[0-9.]\S*)?', re.ASCII
)
"""A sample as nearly all of them are."""

_NOT_UTF8: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series' value; ``line`` counts from 1."""

    name: str
    labels: Mapping[str, str]
    value: float
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that is no sample and no comment; ``text`` is its beginning."""

    line: int
    text: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposition:
    """A text, read. ``bad`` names the first :data:`~ledger.limits.BAD_LINES_NAMED`, ``bad_lines`` counts all.

    ``samples`` holds each series once, by name in the order of their first line; ``families`` counts the series of
    every family that the text has, those that were not ``wanted`` included. ``repeated`` counts sayings of a series
    that a later line overruled.
    """

    samples: Mapping[str, tuple[Sample, ...]]
    families: Mapping[str, int]
    bad: tuple[BadLine, ...]
    bad_lines: int
    repeated: int
    lines: int

    def of(self, name: str) -> tuple[Sample, ...]:
        """The series of a name; empty where there is none."""
        return self.samples.get(name, ())


def parse(raw: bytes, *, wanted: Callable[[str], bool] | None = None) -> Exposition:
    """Read a text; of names that are not ``wanted`` no more than whether the line can be read."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], Sample]] = {}
    families: dict[str, int] = {}
    kinds: dict[str, str] = {}
    bad: list[BadLine] = []
    bad_lines = repeated = number = 0
    for number, line in enumerate(_lines(raw), start=1):
        try:
            if line.startswith("#"):
                _note_kind(line, kinds)
                continue
            name = _NAME.match(line)[0]  # type: ignore[index] # it matches the empty text, too
            if wanted is not None and name and not wanted(name):
                if not _PLAIN.fullmatch(line):
                    _sample(line, number)  # it is odd: whether it is bad, the parser knows
                family = _family(name, kinds)
                families[family] = families.get(family, 0) + 1
                continue
            sample = _sample(line, number)
        except ValueError as problem:
            bad_lines += 1
            if len(bad) < limits.BAD_LINES_NAMED:
                bad.append(BadLine(line=number, text=_shown(line), why=str(problem)))
            continue
        series = samples.setdefault(sample.name, {})
        key = tuple(sorted(sample.labels.items()))
        if key in series:
            repeated += 1
        else:
            family = _family(sample.name, kinds)
            families[family] = families.get(family, 0) + 1
        series[key] = sample
    return Exposition(
        samples={name: tuple(series.values()) for name, series in samples.items()},
        families=families,
        bad=tuple(bad),
        bad_lines=bad_lines,
        repeated=repeated,
        lines=number,
    )


def _lines(raw: bytes) -> Iterator[str]:
    """Lines without their blanks; an empty one comes as a comment, so that it still counts."""
    for line in () if not raw else raw.removesuffix(b"\n").decode("utf-8", errors="surrogateescape").split("\n"):
        yield line.strip() or "#"


def _note_kind(line: str, kinds: dict[str, str]) -> None:
    parts = line.split(None, 3)
    if parts[:2] != ["#", "TYPE"]:
        return
    if len(parts) < 4 or parts[3] not in KINDS:
        raise ValueError("a TYPE without a name and one of the types that there are")
    kinds[parts[2]] = parts[3]


def _sample(line: str, number: int) -> Sample:
    if _NOT_UTF8.search(line):
        raise ValueError("not UTF-8")
    head, exemplar, _ = line.partition(" # {")
    try:
        (family,) = text_string_to_metric_families(head if exemplar else line)
        (found,) = family.samples
    except (ValueError, IndexError) as error:
        raise ValueError(_complaint(line, str(error))) from error
    return Sample(name=found.name, labels=found.labels, value=float(found.value), line=number)


def _complaint(line: str, said: str) -> str:
    name = _NAME.match(line)[0]  # type: ignore[index]
    if not _VALID.fullmatch(name):
        return "no metric name at its beginning"
    labelled = line[len(name) :].lstrip().startswith("{")
    open_ended = "}" not in line or line.count('"') % 2
    return "labels that cannot be read" if labelled and (open_ended or "label" in said) else "no value behind it"


def _family(name: str, kinds: Mapping[str, str]) -> str:
    """The family of a sample: its name, or what is left of it without a suffix where that was declared."""
    if name in kinds:
        return name
    for suffix in SUFFIXES:
        if name.endswith(suffix) and (stem := name.removesuffix(suffix)) in kinds:
            return stem
    return name


def _shown(line: str) -> str:
    text = _NOT_UTF8.sub("\ufffd", line)
    return text if len(text) <= limits.BAD_LINE_CHARS_MAX else text[: limits.BAD_LINE_CHARS_MAX] + "…"
