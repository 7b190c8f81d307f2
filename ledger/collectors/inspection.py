"""What a `/metrics` text holds for the ledger: figures with where each was read, and all that was not understood.

Invariant: every family of the text is on exactly one list: read, known and not used (with the reason), or unknown; a
family of the process itself is on none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.collectors.known import not_used, read_text, source_of, strangers
from ledger.collectors.readings import ABOUT, COUNTERS, LATENCIES, Figure
from ledger.core.periods import format_time

if TYPE_CHECKING:
    from ledger.collectors.exposition import BadLine
    from ledger.collectors.readings import Gpu, Reading
    from ledger.collectors.sources import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A figure of the text: for people, for programs, and the name that it was read from."""

    figure: Figure
    shown: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A text, taken apart. ``kind`` is empty where it is nobody's; ``uses`` says what the ledger could do with it."""

    kind: str
    title: str
    models: tuple[str, ...]
    lines: int
    series: int
    families: int
    found: tuple[Found, ...]
    gpus: tuple[Gpu, ...]
    missing: tuple[Figure, ...]
    unused: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    bad: tuple[BadLine, ...]
    bad_lines: int
    repeated: int
    copies: int
    nonsense: tuple[str, ...]
    uses: tuple[str, ...]


def inspect(raw: bytes, kind: str) -> Inspection:
    """Take a text apart, as one of ``kind`` or as what it looks like."""
    text, reading = read_text(raw, kind)
    source = None if reading is None else source_of(reading.kind)
    found = () if reading is None else tuple(_found(reading))
    have = {each.figure for each in found}
    return Inspection(
        kind="" if source is None else source.kind,
        title="" if source is None else source.title,
        models=() if reading is None else reading.models,
        lines=text.lines,
        series=sum(text.families.values()),
        families=len(text.families),
        found=found,
        gpus=() if reading is None else reading.gpus,
        missing=() if source is None else tuple(f for f in gives(source) if f not in have),
        unused=() if source is None else not_used(text, source),
        unknown=strangers(text, source),
        bad=text.bad,
        bad_lines=text.bad_lines,
        repeated=text.repeated,
        copies=0 if reading is None else reading.copies,
        nonsense=() if reading is None else reading.nonsense,
        uses=tuple(_uses(reading, have)),
    )


def gives(source: Source) -> tuple[Figure, ...]:
    """The figures that a source can give, in the order of the tables."""
    can = {rule.figure for rule in source.rules}
    return tuple(figure for figure in ABOUT if figure in can)


def _found(reading: Reading) -> list[Found]:
    values: dict[Figure, tuple[str, Any]] = {}
    for figure, number in (
        (Figure.RUNNING, reading.running),
        (Figure.WAITING, reading.waiting),
        *((figure, reading.counters.get(figure)) for figure in COUNTERS),
    ):
        if number is not None:
            values[figure] = f"{number:,}", number
    values |= _memory(reading)
    if reading.finished is not None:
        reasons = {reason or "-": number for reason, number in sorted(reading.finished.items())}
        values[Figure.FINISHED] = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items()), reasons
    for figure in LATENCIES:
        if (latency := reading.latencies.get(figure)) is not None:
            mean = ""
            if latency.total_us is not None and latency.count:
                mean = f", {latency.total_us / latency.count / 1000:,.1f} ms on average"
            values[figure] = (
                f"{latency.count:,} values{mean}",
                {"count": latency.count, "total_us": latency.total_us, "buckets": [list(b) for b in latency.buckets]},
            )
    if reading.started_us is not None:
        values[Figure.STARTED] = format_time(reading.started_us), reading.started_us
    return [
        Found(figure=figure, shown=values[figure][0], value=values[figure][1], origin=reading.origins.get(figure, ""))
        for figure in ABOUT
        if figure in values
    ]


def _memory(reading: Reading) -> dict[Figure, tuple[str, Any]]:
    values: dict[Figure, tuple[str, Any]] = {}
    for figure, name in ((Figure.KV_ACTIVE, "active_ppm"), (Figure.KV_CACHED, "cached_ppm")):
        shares = {pool.rank: share for pool in reading.pools if (share := getattr(pool, name)) is not None}
        if shares:
            values[figure] = _by_rank({rank: f"{share / 10_000:.2f} %" for rank, share in shares.items()}), shares
    sizes = {pool.rank: pool for pool in reading.pools if pool.capacity is not None}
    if sizes:
        shown = {
            rank: f"{pool.capacity:,} tokens" + (f" in blocks of {pool.block_size}" if pool.block_size != 1 else "")
            for rank, pool in sizes.items()
        }
        tokens = {rank: {"tokens": p.capacity, "block_size": p.block_size} for rank, p in sizes.items()}
        values[Figure.KV_CAPACITY] = _by_rank(shown), tokens
    return values


def _by_rank(texts: dict[str, str]) -> str:
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"rank {rank}: {text}" for rank, text in texts.items())


def _uses(reading: Reading | None, have: set[Figure]) -> list[str]:
    if reading is None:
        return []
    if reading.gpus:
        shows = "shows each GPU's memory beside what an agent sees"
        return [f"{shows}; a device's figure is given to none of the pods that share it"]
    said = [about.use for figure, about in ABOUT.items() if figure in have and about.use]
    if Figure.RUNNING not in have and Figure.OUTPUT in have:
        said.insert(0, "bills the engine's GPUs by the time in which tokens came out, for want of a running gauge")
    if Figure.RUNNING not in have and Figure.OUTPUT not in have:
        said.append("cannot bill the engine: neither running requests nor output tokens are told")
    return said
