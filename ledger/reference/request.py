"""A request as a trace or a workload tells it: who, when, how long, and which content it shares with others.

Content is named, never carried: ``content`` is a row of ids, each standing for ``content_tokens`` tokens from
position 0 on (token ids: 1; block hashes of a trace: its block size). Two requests share a block of the engine
exactly if all ids from the start up to the block's end are equal, and so is ``cache_salt``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ledger.core.records import Dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request. A closed-loop conversation hangs its later requests on the first one (``then``)."""

    request: str
    """Unique within a replay."""
    dims: Dimensions
    arrival_us: int
    """From the start of the traffic; of a follow-up: think time from the end of the request before."""
    prompt_tokens: int
    output_tokens: int
    """How many the model will answer, at least 1."""
    content: Sequence[int] = ()
    content_tokens: int = 1
    content_covers: int = 0
    """Leading positions (prompt, then answer) whose content ``content`` tells; the rest is like no other's."""
    shared_ids: int = 0
    """Leading ids known to be those of the request it follows: spares hashing them again."""
    cache_salt: str = ""
    """Requests with different salts share nothing."""
    samples: int = 1
    """``n``: more than one makes as many child requests."""
    draft_tokens: int = 0
    """Tokens that a draft model proposes in each of its decode steps."""
    leaves_after_us: int | None = None
    """The client goes away so long after the arrival, unless answered before."""
    abandons: bool = False
    """Whether leaving counts as abandoned (patience ran out) rather than aborted."""
    then: Iterator[TraceRequest] | None = None
    """What follows this request, pulled one by one as each ends (so that a session is never unrolled in memory)."""
    forks: bool = False
    """A follow-up that runs beside the next one instead of before it (a sub-agent); may have its own ``then``."""
