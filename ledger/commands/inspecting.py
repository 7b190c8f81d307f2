"""`kvledger inspect`: a `/metrics` text taken apart, for people and for programs."""

from __future__ import annotations

import codecs
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.padding import Padding
from rich.text import Text

from ledger import limits
from ledger.collectors.fetch import Unfetched, fetch, place_of
from ledger.collectors.inspection import Inspection
from ledger.collectors.inspection import inspect as taken_apart
from ledger.collectors.readings import ABOUT
from ledger.core.records import one_line
from ledger.errors import LedgerError, UsageError
from ledger.reports.render import Column, Shape, Sheet, console, counted, json_text, show

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from rich.console import Console

FOUND, NOTHING = 0, 1

NAMED_MAX = 12
"""Names of a list that a person is shown; JSON has all."""

MODEL_CHARS_MAX = 80
"""Of a model's name that a person is shown: it comes from somebody's text."""


def inspect(args: Namespace) -> int:
    """Take a text apart; exit 1 where nothing in it is known."""
    seen = taken_apart(_text(args.text), args.kind)
    if args.format == "json":
        print(json_text(_as_value(seen)))
    else:
        _show(seen, sys.stdout)
    return FOUND if seen.found or seen.gpus else NOTHING


def _text(named: str) -> bytes:
    if named.startswith(("http://", "https://")):
        try:
            return fetch(place_of(named))
        except Unfetched as error:
            raise LedgerError(f"{named}: {error}; see that it is the engine's /metrics and can be reached") from error
    try:
        if named == "-":
            raw = sys.stdin.buffer.read(limits.SCRAPE_BYTES_MAX + 1)
        else:
            with Path(named).open("rb") as file:
                raw = file.read(limits.SCRAPE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"{named}: {said}; name a file, or a URL that begins with http:// or https://") from error
    if len(raw) > limits.SCRAPE_BYTES_MAX:
        raise UsageError(f"{named}: more than {limits.SCRAPE_BYTES_MAX} bytes, so no /metrics text; name another")
    return raw.removeprefix(codecs.BOM_UTF8)


def _as_value(seen: Inspection) -> dict[str, object]:
    return {
        "kind": seen.kind or None,
        "title": seen.title or None,
        "models": list(seen.models),
        "lines": seen.lines,
        "series": seen.series,
        "families": seen.families,
        "figures": [{"figure": f.figure.value, "value": f.value, "from": f.origin} for f in seen.found],
        "gpus": [asdict(gpu) for gpu in seen.gpus],
        "missing": [figure.value for figure in seen.missing],
        "not_used": [{"family": family, "why": why} for family, why in seen.unused],
        "unknown": list(seen.unknown),
        "bad_lines": seen.bad_lines,
        "bad": [asdict(line) for line in seen.bad],
        "repeated": seen.repeated,
        "copies": seen.copies,
        "nonsense": list(seen.nonsense),
        "uses": list(seen.uses),
    }


def named(models: Sequence[str]) -> str:
    """The models that somebody's text names, as they may be shown: few, short, and nothing that a terminal obeys."""
    plain = [one_line(model) for model in models[:NAMED_MAX]]
    shown = [name if len(name) <= MODEL_CHARS_MAX else f"{name[:MODEL_CHARS_MAX]}…" for name in plain]
    return ", ".join(shown) + (f" and {len(models) - NAMED_MAX} more" if len(models) > NAMED_MAX else "")


def _show(seen: Inspection, out: TextIO) -> None:
    screen = console(out)
    screen.print(Text(seen.title or "Nothing in it is known", style="bold"))
    sizes = f"{counted(seen.lines, 'line')}, {counted(seen.series, 'series', 'series')} in "
    models = f"; {named(seen.models)}" if seen.models else ""
    screen.print(Text(f"{sizes}{counted(seen.families, 'family', 'families')}{models}", style="dim"))
    if seen.found:
        screen.print()
        columns = (
            Column(key="figure", title="figure", name=True),
            Column(key="value", title="value"),
            Column(key="from", title="read from"),
        )
        rows = [(each.figure.value, each.shown, each.origin) for each in seen.found]
        show(Sheet(columns=columns, rows=rows, empty=""), "table", out)
    if seen.gpus:
        screen.print()
        _show_gpus(seen, out)
    _list(screen, "What the ledger could do with it", seen.uses)
    _list(screen, "What it should have and has not", [f"{figure}: {ABOUT[figure].what}" for figure in seen.missing])
    _list(screen, "Values that cannot be, left out", seen.nonsense)
    told = []
    if seen.repeated:
        told.append(f"{counted(seen.repeated, 'series', 'series')} said more than once (two scrapes in one text?)")
    if seen.copies:
        told.append(f"{counted(seen.copies, 'series', 'series')} in which a rank tells what another has told: left out")
    _list(screen, "Told again", told)
    _list(screen, "Known and not used", [f"{family}: {why}" for family, why in seen.unused])
    _list(screen, "Not recognised", seen.unknown)
    more = seen.bad_lines - min(len(seen.bad), NAMED_MAX)
    bad = [f"line {line.line}: {line.why}: {line.text}" for line in seen.bad[:NAMED_MAX]]
    _list(screen, counted(seen.bad_lines, "bad line"), [*bad, f"and {more:,} more"] if more else bad)


def _show_gpus(seen: Inspection, out: TextIO) -> None:
    mib = 1024 * 1024
    columns = (
        Column(key="gpu", title="GPU", name=True),
        Column(key="model", title="model", spare=1),
        Column(key="used", title="used MiB", shape=Shape.COUNT),
        Column(key="free", title="free", shape=Shape.COUNT),
        Column(key="reserved", title="reserved", shape=Shape.COUNT),
        Column(key="busy", title="busy", shape=Shape.PPM),
        Column(key="pods", title="shared by", spare=2),
    )
    rows = [
        (
            gpu.uuid + (f"/{gpu.mig}" if gpu.mig else ""),
            gpu.model,
            *(None if size is None else size // mib for size in (gpu.used_bytes, gpu.free_bytes, gpu.reserved_bytes)),
            gpu.utilization_ppm,
            ", ".join(gpu.owners),
        )
        for gpu in seen.gpus
    ]
    show(Sheet(columns=columns, rows=rows, empty=""), "table", out)


def _list(screen: Console, title: str, sentences: tuple[str, ...] | list[str]) -> None:
    if not sentences:
        return
    screen.print()
    screen.print(Text(title, style="bold"))
    for sentence in sentences[: NAMED_MAX + 1]:
        screen.print(Padding(Text(one_line(sentence), overflow="fold"), (0, 0, 0, 2)))
    if len(sentences) > NAMED_MAX + 1:
        screen.print(Text(f"  and {len(sentences) - NAMED_MAX - 1} more", style="dim"))
