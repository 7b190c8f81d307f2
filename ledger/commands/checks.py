"""What a command that looks at many things says about each. Standard library only.

Invariant: whatever is not ok says what to do about it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ledger.cli import FOUND, OK

if TYPE_CHECKING:
    from collections.abc import Iterable


class Verdict(Enum):
    OK = "ok"
    WARN = "warn"
    """Could not be looked at, or will become bad, or costs figures that somebody may miss."""
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at, what was seen, and the way out where that is not ok."""

    what: str
    verdict: Verdict
    found: str
    todo: str = ""


def judged(what: str, good: bool, fine: str, wrong: str, todo: str, *, otherwise: Verdict = Verdict.BAD) -> Check:
    """``fine`` where it is good; else ``wrong`` and what to do."""
    if good:
        return Check(what=what, verdict=Verdict.OK, found=fine)
    return Check(what=what, verdict=otherwise, found=wrong, todo=todo)


def report(checks: Iterable[Check], form: str) -> int:
    """Print each check as it is made (``json``: all at the end); 1 if any is bad."""
    made = []
    for check in checks:
        made.append(check)
        if form != "json":
            print(f"{check.verdict.value:<4} {check.what:<10} {check.found}", flush=True)
            if check.todo:
                print(f"{'':<15} → {check.todo}", flush=True)
    if form == "json":
        rows = [
            {"check": each.what, "verdict": each.verdict.value, "found": each.found, "todo": each.todo} for each in made
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    bad, warned = (sum(each.verdict is verdict for each in made) for verdict in (Verdict.BAD, Verdict.WARN))
    if form != "json":
        print(f"{bad} bad, {warned} to look at, {len(made) - bad - warned} ok")
    return FOUND if bad else OK


def named(things: Iterable[str], *, most: int = 5) -> str:
    """The first few of ``things``, and how many more there are."""
    every = list(things)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def ago(span_us: int) -> str:
    """A length of time in its largest whole unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if span_us >= 2 * size * 1_000_000:
            return f"{span_us // (size * 1_000_000)} {unit}"
    return f"{max(0, span_us) // 1_000_000} s"
