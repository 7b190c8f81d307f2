"""A measured figure beside its limit, and how a bench prints and keeps its figures."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``limit`` is an upper one unless ``least``; a figure without a limit is stated only."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    least: bool = False

    @property
    def holds(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.least else self.value <= self.limit

    def line(self) -> str:
        limit = "" if self.limit is None else f"{'≥' if self.least else '≤'} {self.limit:g}"
        verdict = "" if self.limit is None else ("holds" if self.holds else "DOES NOT HOLD")
        return f"{self.name:<66}{self.value:>14,.2f} {self.unit:<10}{limit:>8} {verdict}".rstrip()


def command(bench: str, about: str | None) -> argparse.ArgumentParser:
    """The command line of a bench: ``--quick``, ``--json FILE``."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{bench}", description=(about or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures in a file too")
    return parser


def tell(figures: list[Figure], kept: Path | None) -> int:
    """Print the figures, and keep them where the command says; 1 where a limit does not hold."""
    for figure in figures:
        print(figure.line(), flush=True)
    if kept:
        kept.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    return 0 if all(figure.holds for figure in figures) else 1


def main(bench: str, about: str | None, measure: Callable[[bool], list[Figure]]) -> int:
    """A bench that has no arguments of its own; exits 1 where a limit does not hold."""
    options = command(bench, about).parse_args()
    return tell(measure(options.quick), options.json)
