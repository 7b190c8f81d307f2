"""Recorded traces: which format a file has, and its requests in order of arrival.

Readers stream: memory holds a window of rows, and of agent sessions those that are open.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ledger.errors import UsageError
from ledger.reference.traces.open_loop import AZURE_HEADER, azure, dynamo, llmservingsim, lmsys, mooncake
from ledger.reference.traces.reading import TraceFile, in_order
from ledger.reference.traces.sessions import agent_sessions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ledger.reference.request import TraceRequest

AUTO = "auto"

READERS = {
    "agent-sessions": agent_sessions,
    "mooncake": mooncake,
    "azure": azure,
    "sharegpt": llmservingsim,
    "lmsys": lmsys,
    "dynamo": dynamo,
    "llmservingsim": llmservingsim,
}
"""By name of the format; the recorded ShareGPT workload is LLMServingSim's format with token ids."""

FORMATS = (AUTO, *READERS)

_MARKS = (
    ("agent-sessions", ("requests", "block_size")),
    ("mooncake", ("input_length", "hash_ids")),
    ("sharegpt", ("input_toks", "input_tok_ids")),
    ("llmservingsim", ("input_toks", "output_toks")),
    ("dynamo", ("event", "timestamp")),
    ("lmsys", ("config", "result")),
)
"""The keys of its first row that tell a format, most telling first."""

BLOCK_SIZES = {"agent-sessions": 64}
"""The engine block size that goes with a format whose ids are coarser than the usual 16; others: 16."""


@dataclass(frozen=True, slots=True)
class Trace:
    """An open trace. ``format`` is never ``auto`` here; ``block_size`` is what suits it."""

    format: str
    block_size: int
    file: TraceFile
    limit: int | None

    def requests(self) -> Iterator[TraceRequest]:
        """Yield the requests in order of arrival, once; ``limit`` counts lines of the file that are requests.

        Of agent sessions a line is a session. Raises UsageError where a row is broken: rows before it have
        been given out already, so nothing may be settled before the end is reached.
        """
        return islice(in_order(self.file, READERS[self.format](self.file)), self.limit)


def open_trace(path: Path, format: str = AUTO, *, limit: int | None = None) -> Trace:  # noqa: A002 - the option's name
    """Open ``path`` as ``format``, or as what its first row looks like. Raises UsageError."""
    if format not in FORMATS:
        raise UsageError(f"format {format!r} is not known: give one of {', '.join(FORMATS)}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}: give a whole number from 1, or leave it out")
    if not path.is_file():
        raise UsageError(f"{path} is not a file: give the path of a trace")
    found = detect(path) if format == AUTO else format
    return Trace(found, BLOCK_SIZES.get(found, 16), TraceFile(path), limit)


def detect(path: Path) -> str:
    """Tell the format of ``path`` by its first row."""
    file = TraceFile(path)
    _number, text = next(file.lines())
    if text == AZURE_HEADER:
        return "azure"
    try:
        first = json.loads(text)
    except (ValueError, RecursionError):
        first = None
    found = [name for name, keys in _MARKS if isinstance(first, dict) and all(key in first for key in keys)]
    if not found:
        file.fail(1, f"{text[:60]!r} is the first row of no known format", f"say which: one of {', '.join(READERS)}")
    return found[0]
