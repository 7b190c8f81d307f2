"""How an engine's names become our figures: rules as data, and the one function that applies them.

Invariants: of the names of a rule the first that is there counts, so a renamed metric is found under either name and
the reading says under which; ranks that tell the same requests again are told apart by labels and left out; a value
that cannot be (negative, not a number, a device's blank) is absent and named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ledger.collectors.readings import COUNTERS, LATENCIES, Figure, Gpu, Latency, Pool, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ledger.collectors.exposition import Exposition, Sample

PPM: Final = 1_000_000
US: Final = 1_000_000
"""Scales of ratios to millionths and of seconds to microseconds."""

GENERIC: Final = ("process_", "python_", "http_", "go_", "promhttp_", "nats_", "tokio_")
"""Families of the process or its web server, which no engine owns; nobody is told that they are not used."""

STARTED: Final = "process_start_time_seconds"

EXACT_MAX: Final = 2.0**53
"""From here on a float skips whole numbers: no count comes so far, a device's blank value lies beyond."""


@dataclass(frozen=True, slots=True)
class At:
    """A place in a text: a name, newest first where it was renamed, and labels that a series must have."""

    names: tuple[str, ...]
    where: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one figure is read; of several rules for a figure the first that gives something counts.

    The value is ``(at + plus - minus) * scale``, or ``at / over`` as a share. Of what ended, ``by`` is the label that
    says why, ``reason`` the word where there is none. Of a capacity, ``times`` are the tokens of a block, and ``size``
    reads (tokens, tokens of a block) from the labels of a series.
    """

    figure: Figure
    at: At
    plus: At | None = None
    minus: At | None = None
    over: At | None = None
    times: At | None = None
    scale: int = 1
    by: str = ""
    reason: str = ""
    size: Callable[[Sample], tuple[int, int] | None] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What there is to know of an engine's `/metrics`.

    ``rank`` is the label of data-parallel ranks, which have requests of their own; ``copied`` are labels of ranks that
    tell the requests of others again. ``sums`` are labels whose empty value is the sum of the others. ``unused`` are
    names that mean something and are no figure of ours, with the reason. ``rounded``: its KV share has two decimals
    only, so a zero need not be one. ``gpus`` reads the devices that an exporter tells of.
    """

    kind: str
    title: str
    seen: str
    """The versions whose texts were read, or whose names were looked up in their source."""
    prefixes: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    models: tuple[str, ...] = ("model_name",)
    rank: str = ""
    copied: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    unused: tuple[tuple[str, str], ...] = ()
    rounded: bool = False
    gpus: Callable[[Exposition], tuple[Gpu, ...]] | None = None
    fields: tuple[str, ...] = ()
    """Names that ``gpus`` makes use of."""

    def names(self) -> frozenset[str]:
        """Every sample name that is read."""
        found: set[str] = {STARTED, *self.fields}
        for rule in self.rules:
            ends = ("_bucket", "_sum", "_count") if rule.figure in LATENCIES else ("",)
            for at in (rule.at, rule.plus, rule.minus, rule.over, rule.times):
                found |= {f"{name}{end}" for name in (at.names if at else ()) for end in ends}
        return frozenset(found)


def read(source: Source, text: Exposition) -> Reading:
    """What the text says by the rules of a source."""
    reader = _Reader(source, text)
    gauges = {figure: reader.whole(figure) for figure in (Figure.RUNNING, Figure.WAITING, *COUNTERS)}
    started = reader.whole(Figure.STARTED)
    if started is None and (process := text.of(STARTED)) and process[0].value > 0:
        started = round(process[0].value * US)
        reader.origins[Figure.STARTED] = STARTED
    return Reading(
        kind=source.kind,
        models=reader.models(),
        started_us=started,
        running=gauges[Figure.RUNNING],
        waiting=gauges[Figure.WAITING],
        pools=reader.pools(),
        counters={figure: value for figure in COUNTERS if (value := gauges[figure]) is not None},
        finished=reader.reasons(),
        latencies={figure: found for figure in LATENCIES if (found := reader.latency(figure)) is not None},
        gpus=() if source.gpus is None else source.gpus(text),
        origins=reader.origins,
        copies=reader.copies,
        nonsense=tuple(reader.nonsense),
    )


def count_of(value: float) -> float | None:
    """The value, or None where no count can be that."""
    return value if math.isfinite(value) and 0 <= value < EXACT_MAX else None


class _Reader:
    def __init__(self, source: Source, text: Exposition) -> None:
        self._source = source
        self._text = text
        self.origins: dict[Figure, str] = {}
        self.copies = 0
        self.nonsense: dict[str, None] = {}
        self._kept: dict[str, Sequence[Sample]] = {}

    def models(self) -> tuple[str, ...]:
        """The models that the series of the rules are labelled with."""
        found: set[str] = set()
        for rule in self._source.rules:
            for name in rule.at.names:
                for sample in self._text.of(name):
                    found.update(label for key in self._source.models if (label := sample.labels.get(key)))
        return tuple(sorted(found))

    def whole(self, figure: Figure) -> int | None:
        """The figure over all ranks; None where it is not there."""
        for rule in self._rules(figure):
            values = self._values(rule)
            if values:
                self._from(rule)
                return round(sum(values.values()))
        return None

    def reasons(self) -> dict[str, int] | None:
        """Requests that ended, by the engine's own word for why; a rule without a label gives its name's word."""
        found: dict[str, int] = {}
        for rule in self._rules(Figure.FINISHED):
            picked = self._picked(rule.at)
            if picked:
                self._from(rule)
            for sample in picked:
                value = self._value(sample)
                if value is not None:
                    reason = sample.labels.get(rule.by, "") if rule.by else rule.reason
                    found[reason] = found.get(reason, 0) + round(value)
        return found or None

    def pools(self) -> tuple[Pool, ...]:
        """The KV memory of each rank."""
        shares = {figure: self._shares(figure) for figure in (Figure.KV_ACTIVE, Figure.KV_CACHED)}
        sizes = self._sizes()
        ranks = sorted(
            {*shares[Figure.KV_ACTIVE], *shares[Figure.KV_CACHED], *sizes}, key=lambda rank: (len(rank), rank)
        )
        return tuple(
            Pool(
                rank=rank,
                active_ppm=shares[Figure.KV_ACTIVE].get(rank),
                cached_ppm=shares[Figure.KV_CACHED].get(rank),
                capacity=sizes[rank][0] if rank in sizes else None,
                block_size=sizes[rank][1] if rank in sizes else None,
            )
            for rank in ranks
        )

    def latency(self, figure: Figure) -> Latency | None:
        """A histogram over all ranks and labels."""
        for rule in self._rules(figure):
            for name in rule.at.names:
                counts = [value for s in self._unique(f"{name}_count") if (value := self._value(s)) is not None]
                if not counts:
                    continue
                buckets: dict[int, int] = {}
                for sample in self._unique(f"{name}_bucket"):
                    bound, value = _bound(sample.labels.get("le", "")), self._value(sample)
                    if bound is not None and value is not None:
                        at = round(bound * rule.scale)
                        buckets[at] = buckets.get(at, 0) + round(value)
                sums = [value for s in self._unique(f"{name}_sum") if (value := self._value(s)) is not None]
                self.origins[figure] = name
                return Latency(
                    buckets=tuple(sorted(buckets.items())),
                    count=round(sum(counts)),
                    total_us=round(sum(sums) * rule.scale) if sums else None,
                )
        return None

    def _rules(self, figure: Figure) -> Iterator[Rule]:
        return (rule for rule in self._source.rules if rule.figure is figure)

    def _shares(self, figure: Figure) -> dict[str, int]:
        for rule in self._rules(figure):
            parts = self._values(rule)
            if rule.over is not None:
                wholes = self._at(rule.over)
                parts = {rank: part / wholes[rank] * PPM for rank, part in parts.items() if wholes.get(rank)}
            for rank in [rank for rank, part in parts.items() if part > PPM]:
                self._refuse(f"{self._name(rule)} is {parts.pop(rank) / PPM:g} times the whole")
            if parts:
                self._from(rule)
                return {rank: round(part) for rank, part in parts.items()}
        return {}

    def _sizes(self) -> dict[str, tuple[int, int]]:
        """Tokens that fit, and tokens of a block, by rank."""
        for rule in self._rules(Figure.KV_CAPACITY):
            if rule.size is not None:
                picked = self._picked(rule.at)
                read_off = {self._rank(sample): size for sample in picked if (size := rule.size(sample)) is not None}
                if read_off:
                    self._from(rule)
                    return read_off
                continue
            blocks = self._values(rule)
            tokens = self._at(rule.times) if rule.times else dict.fromkeys(blocks, 1.0)
            found = {
                rank: (round(n * tokens[rank]), round(tokens[rank])) for rank, n in blocks.items() if tokens.get(rank)
            }
            if found:
                self._from(rule)
                return found
        return {}

    def _values(self, rule: Rule) -> dict[str, float]:
        """The rule's value by rank; nothing where its name is not there."""
        found = self._at(rule.at)
        for at, sign in ((rule.plus, 1), (rule.minus, -1)):
            if at is not None:
                more = self._at(at)
                found = {rank: max(0.0, value + sign * more.get(rank, 0)) for rank, value in found.items()}
        return {rank: value * rule.scale for rank, value in found.items()}

    def _at(self, at: At) -> dict[str, float]:
        found: dict[str, float] = {}
        for sample in self._picked(at):
            value = self._value(sample)
            if value is not None:
                rank = self._rank(sample)
                found[rank] = found.get(rank, 0) + value
        return found

    def _from(self, rule: Rule) -> None:
        self.origins.setdefault(rule.figure, self._name(rule))

    def _name(self, rule: Rule) -> str:
        picked = self._picked(rule.at)
        return picked[0].name if picked else rule.at.names[0]

    def _picked(self, at: At) -> Sequence[Sample]:
        for name in at.names:
            found = [s for s in self._unique(name) if all(s.labels.get(key) == value for key, value in at.where)]
            if found:
                return found
        return ()

    def _rank(self, sample: Sample) -> str:
        return sample.labels.get(self._source.rank, "") if self._source.rank else ""

    def _unique(self, name: str) -> Sequence[Sample]:
        """The series of a name without those that are sums of others or tell again what another rank tells."""
        if name not in self._kept:
            self._kept[name] = self._chosen(name)
        return self._kept[name]

    def _chosen(self, name: str) -> Sequence[Sample]:
        samples = self._text.of(name)
        for label in self._source.sums:
            whole = [sample for sample in samples if sample.labels.get(label) == ""]
            samples = tuple(whole) or samples
        if not self._source.copied:
            return samples
        firsts: dict[tuple[tuple[str, str], ...], Sample] = {}
        for sample in samples:
            key = tuple(sorted(item for item in sample.labels.items() if item[0] not in self._source.copied))
            known = firsts.get(key)
            if known is None or self._place(sample) < self._place(known):
                firsts[key] = sample
            self.copies += known is not None
        return tuple(firsts.values())

    def _place(self, sample: Sample) -> tuple[tuple[int, str], ...]:
        texts = [sample.labels.get(label, "") for label in self._source.copied]
        return tuple((len(text), text) for text in texts)

    def _value(self, sample: Sample) -> float | None:
        value = count_of(sample.value)
        if value is None:
            self._refuse(f"{sample.name} is {sample.value:g} in line {sample.line}")
        return value

    def _refuse(self, sentence: str) -> None:
        self.nonsense[sentence] = None


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if math.isfinite(bound) and bound >= 0 else None
