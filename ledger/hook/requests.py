"""What the meter knows of one core request while it lives.

Invariants: ``frontier <= high``; each prompt position is classified once, when ``high`` first passes it, so
the five classes and what is left unprocessed sum to the prompt; in steady decode frontier, computing time and
output are read with the global counts (see :mod:`ledger.hook.steps`), else as they stand.

``known`` counts prompt and output so far, and supposes that every draft in flight will be accepted; the
frontier never passes it. ``loose`` is how far both may fall back when the steps in flight end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.holders import Holder

if TYPE_CHECKING:
    from ledger.core.records import Dimensions, Outcome

COMPUTED, OWN, OTHERS, TRANSFERRED, UNPROCESSED, RECOMPUTED, DRAFTED, REJECTED = range(8)
KV_FULL, PRIORITY, RESET, OTHER = range(8, 12)
COUNTS = 12
"""Length of a request's list of counts: token classes, then preemptions by reason."""

Label = tuple[str, int]
"""Scenario and priority: what latencies are told apart by."""


class Settled:
    """Where the settled periods of a request end, and their sums."""

    __slots__ = ("compute", "compute_done", "counts", "holdings", "output", "output_done", "uses")

    def __init__(self) -> None:
        self.compute_done = self.compute = 0
        self.output_done = self.output = 0
        self.counts = [0] * COUNTS
        self.holdings: dict[str, list[int]] = {}
        self.uses: list[tuple[int, int, int]] = []


class Request(Holder):
    """One core request, from its arrival until its terminal record has been cut."""

    __slots__ = (
        "adopted",
        "arrived_t",
        "compute",
        "counts",
        "ended_t",
        "finish_reason",
        "first_token_t",
        "from_serial",
        "generation",
        "high",
        "id",
        "known",
        "last_token_t",
        "outcome",
        "output",
        "parent",
        "peak_blocks",
        "prompt",
        "scheduled_t",
        "settled",
        "waits",
    )

    def __init__(self, request: str, dims: Dimensions, *, prompt: int, arrived_t: int, parent: str | None) -> None:
        # What Holder's own does, written out: an arrival is spared a call.
        self.dims = dims
        self.key = (dims.tenant, dims.session)
        self.frontier = self.loose = 0
        self.steady = False
        self.tables = []
        self.id = request
        self.parent = parent
        self.prompt = self.known = prompt
        self.high = 0
        self.generation = 0
        """Counts preemptions, so that the end of a step from before one leaves the frontier alone."""
        self.adopted = False
        self.compute = 0
        """Microseconds in fixed point; while steady without the global integral."""
        self.output = 0
        self.counts: list[int] | None = None
        """Counts of the present period, None while there are none."""
        self.peak_blocks = 0
        self.from_serial = 0
        self.waits = 0
        """Steps in flight that the ended request still has a share in."""
        self.arrived_t = arrived_t
        self.scheduled_t: int | None = None
        self.first_token_t: int | None = None
        self.last_token_t: int | None = None
        self.ended_t: int | None = None
        self.outcome: Outcome | None = None
        self.finish_reason = ""
        self.settled: Settled | None = None
        """For the settling alone, which makes it: an arrival costs the engine's thread less without."""

    @property
    def label(self) -> Label:
        return self.dims.scenario, self.dims.priority

    def note_peak(self, held: int) -> None:
        """It held so many blocks until it let go: they only grow between two releases, so here is where to look."""
        if held > self.peak_blocks:
            self.peak_blocks = held

    @property
    def sums(self) -> Settled:
        """What of the request is settled; asked for by the settling alone."""
        settled = self.settled
        if settled is None:
            settled = self.settled = Settled()
        return settled


def cover(request: Request, counts: list[int], tokens: int, classes: list[tuple[int, int]]) -> None:
    """Move the frontier over ``tokens`` positions of reused content, given as runs of (class, positions).

    Positions below the high-water mark were classified before and count as nothing; no more is covered than
    prompt and output so far: nobody can have content for tokens that are still in flight.
    """
    position, high, prompt = request.frontier, request.high, request.prompt
    last = prompt + request.output
    if position + tokens < last:
        last = position + tokens
    for kind, run in classes:
        if position >= last:
            break
        end = position + run
        if end > last:
            end = last
        if high <= position and end <= prompt:
            counts[kind] += end - position
        else:
            fresh = min(end, prompt) - max(position, high)
            if fresh > 0:
                counts[kind] += fresh
        position = end
    request.frontier = position
    if position > high:
        request.high = position


def compute(request: Request, counts: list[int], tokens: int) -> tuple[bool, int]:
    """``tokens`` positions are scheduled; returns whether they end in a new token, and how many are drafts.

    A request whose known positions are all covered computes the last of them again: without it there is no
    next token.
    """
    known = request.known
    start = request.frontier if request.frontier < known else max(known - 1, 0)
    end = start + tokens
    high = request.high
    if start < high:
        counts[RECOMPUTED] += min(end, high) - start
    if end > high:
        prompt = request.prompt
        if high < prompt:
            counts[COMPUTED] += (end if end < prompt else prompt) - high
        request.high = end
    request.frontier = end
    if end < known:
        return False, 0
    drafted = end - known
    if drafted:
        counts[DRAFTED] += drafted
    request.known = end + 1
    return True, drafted


def accept(request: Request, counts: list[int], accepted: int, drafted: int, generation: int) -> None:
    """A step that ended in a new token gave ``accepted`` tokens, where one more than its drafts was supposed."""
    request.output += accepted
    if accepted == drafted + 1:
        return
    request.known += accepted - 1 - drafted
    rejected = drafted - max(accepted - 1, 0)
    if rejected > 0:
        counts[REJECTED] += rejected
        request.high -= rejected
        if request.generation == generation:
            request.frontier -= rejected
    if request.generation != generation:
        # What was computed again since the preemption cannot reach beyond what there is.
        request.frontier = min(request.frontier, request.high)
    elif (beyond := request.frontier - request.known) > 0:
        # A step ahead of this one computed for a token that does not come.
        request.frontier -= beyond
        request.high -= beyond
