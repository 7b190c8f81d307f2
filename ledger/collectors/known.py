"""Every source that there is, and which of them a text is from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ledger.collectors.dcgm import DCGM
from ledger.collectors.dynamo import DYNAMO
from ledger.collectors.exposition import SUFFIXES, parse
from ledger.collectors.llamacpp import LLAMACPP
from ledger.collectors.sglang import SGLANG
from ledger.collectors.sources import GENERIC, Source, read
from ledger.collectors.triton_trtllm import TRITON
from ledger.collectors.vllm import VLLM

if TYPE_CHECKING:
    from ledger.collectors.exposition import Exposition
    from ledger.collectors.readings import Reading

SOURCES: Final = (VLLM, SGLANG, TRITON, LLAMACPP, DYNAMO, DCGM)
"""Where a text fits several equally, the first counts: a Dynamo worker tells more as the engine that it is."""

KINDS: Final = tuple(source.kind for source in SOURCES)

AUTO: Final = "auto"

_BY_KIND: Final = {source.kind: source for source in SOURCES}
_NAMES: Final = {source.kind: source.names() for source in SOURCES}


def source_of(kind: str) -> Source:
    """The source of a kind; KeyError for one that there is not."""
    return _BY_KIND[kind]


def recognised(text: Exposition) -> Source | None:
    """The source whose names the text has; None where it has nobody's."""

    def weight(source: Source) -> int:
        return sum(name.startswith(source.prefixes) for name in text.families if name not in ("", "#"))

    used = {source.kind: sum(name in text.samples for name in _NAMES[source.kind]) for source in SOURCES}
    best = max(SOURCES, key=lambda source: (used[source.kind] if source.rules else 0, weight(source)))
    return best if weight(best) else None


def wanted(source: Source, name: str) -> bool:
    """Whether the rules of the source look at a sample of this name."""
    return name in _NAMES[source.kind] or (source.gpus is not None and name.startswith(source.prefixes))


def read_text(raw: bytes, kind: str) -> tuple[Exposition, Reading | None]:
    """The text as an engine of ``kind`` (or :data:`AUTO`) tells it; no reading where nobody's names are in it."""
    if kind != AUTO:
        source = source_of(kind)
        text = parse(raw, wanted=lambda name: wanted(source, name))
        has = any(name.startswith(source.prefixes) for name in text.families)
        return text, read(source, text) if has else None
    text = parse(raw)
    found = recognised(text)
    return text, None if found is None else read(found, text)


def strangers(text: Exposition, source: Source | None) -> tuple[str, ...]:
    """Families that neither the source nor a process is known for, by name."""
    known = frozenset() if source is None else _NAMES[source.kind]
    unused = set() if source is None else {family for family, _ in not_used(text, source)}
    return tuple(
        sorted(
            family
            for family in text.families
            if not family.startswith(GENERIC)
            and not family.endswith("_created")
            and family not in unused
            and not any(f"{family}{end}" in known for end in ("", *SUFFIXES))
        )
    )


def not_used(text: Exposition, source: Source) -> tuple[tuple[str, str], ...]:
    """Families of the text that mean something and are no figure of ours, with the reason."""
    return tuple(
        (family, why)
        for name, why in source.unused
        for family in text.families
        if family == name or (family.startswith(name) and family.removeprefix(name) in SUFFIXES)
    )
