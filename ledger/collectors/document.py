"""The part of docs/collectors.md that is made of the sources: what each engine can give, and where it is read.

    python -m ledger.collectors.document

Invariant: what stands between the two marks of the page follows from the rules alone; the rest of the page is written
by hand and left as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledger.collectors.dcgm import FIELDS
from ledger.collectors.known import SOURCES
from ledger.collectors.readings import ABOUT, Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.collectors.sources import At, Rule, Source

PAGE: Final = Path(__file__).parents[2] / "docs" / "collectors.md"
BEGIN: Final = "<!-- Made of the rules by `python -m ledger.collectors.document`; a test compares. -->"
END: Final = "<!-- end of what is made -->"


def made() -> str:
    """What stands between the marks."""
    engines = [source for source in SOURCES if source.rules]
    lines = ["| our figure | what it is | " + " | ".join(source.title for source in engines) + " |"]
    lines.append("|---|---|" + "---|" * len(engines))
    for figure, about in ABOUT.items():
        marks = ["yes" if any(rule.figure is figure for rule in source.rules) else "-" for source in engines]
        if figure is Figure.STARTED:
            marks = ["yes" if "yes" in mark else "if the process says so" for mark in marks]
        lines.append(f"| `{figure.value}` | {about.what} | " + " | ".join(marks) + " |")
    for source in SOURCES:
        lines += ["", *_source(source)]
    return "\n".join(lines)


def page() -> str:
    """The whole page, its made part made anew."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    assert rest, f"{PAGE} has no mark {BEGIN!r}"
    return f"{head}{BEGIN}\n\n{made()}\n\n{END}{rest.partition(END)[2]}"


def _source(source: Source) -> Iterator[str]:
    yield f"### {source.title}"
    yield ""
    yield f"`--kind {source.kind}`. Seen: {source.seen}."
    yield ""
    if source.rules:
        yield "| figure | read from | notes |"
        yield "|---|---|---|"
        for rule in source.rules:
            yield f"| `{rule.figure.value}` | {_read_from(rule)} | {rule.note} |"
    else:
        yield "| figure of a GPU | read from |"
        yield "|---|---|"
        for field, (ours, _) in FIELDS.items():
            yield f"| `{ours}` | `{field}` |"
    if source.unused:
        yield ""
        yield "Known and not used: " + "; ".join(f"`{name}` ({why})" for name, why in source.unused) + "."


def _read_from(rule: Rule) -> str:
    parts = [_at(rule.at)]
    for sign, at in (("+", rule.plus), ("-", rule.minus), ("/", rule.over), ("x", rule.times)):
        if at is not None:
            parts += [sign, _at(at)]
    if rule.by:
        parts.append(f"by `{rule.by}`")
    if rule.reason:
        parts.append(f"as `{rule.reason}`")
    if rule.size is not None:
        parts.append("(its labels)")
    return " ".join(parts)


def _at(at: At) -> str:
    where = "".join(f', {label}="{value}"' for label, value in at.where)
    labels = f"{{{where[2:]}}}" if where else ""
    names = [f"`{name}{labels}`" for name in at.names]
    return names[0] + (f" (before: {', '.join(names[1:])})" if len(names) > 1 else "")


if __name__ == "__main__":
    PAGE.write_text(page())
