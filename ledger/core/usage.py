"""What every session used of the paying pool: over the interval in its own units, and in each segment as weights.

Invariant (law 2): the sessions' active and cached time sum to the pool's in every period. What rows and known counts
leave of the pool is the tenant ``unattributed``'s: expected between a gap and the next standing counts, a finding
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

from ledger.core.findings import Findings
from ledger.core.money import round_half_up
from ledger.core.records import (
    NO_PREEMPTIONS,
    NO_TOKENS,
    UNATTRIBUTED,
    Dimensions,
    GroupPeriod,
    Holding,
    PoolOpen,
    PoolPeriod,
    Preemptions,
    SessionPeriod,
    Tokens,
)
from ledger.core.settlement import BootFacts, PoolUsage, SessionUsage, Terms
from ledger.core.standing import StandingCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.coverage import Coverage, CoveredPeriod

NOBODY = Dimensions(tenant=UNATTRIBUTED)
MICROS_PER_SECOND = 1_000_000

_HOLDING = tuple(f.name for f in fields(Holding))
_TOKENS = tuple(f.name for f in fields(Tokens))
_PREEMPTIONS = tuple(f.name for f in fields(Preemptions))
_tokens, _preemptions = attrgetter(*_TOKENS), attrgetter(*_PREEMPTIONS)


@dataclass(slots=True)
class SegmentUse:
    """Weights of each session (by index) in a segment, in its scaled units (ledger.core.coverage)."""

    active: dict[int, int] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    """Charged cached time only."""
    compute: dict[int, int] = field(default_factory=dict)
    full_active: dict[int, int] = field(default_factory=dict)
    full_cached: dict[int, int] = field(default_factory=dict)


class _Sums:
    """A session's running sums over the interval; its own class because tens of thousands of rows go through it."""

    __slots__ = ("cached", "cached_charged", "cached_end", "cached_slot", "compute", "holding", "preemptions", "tokens")

    def __init__(self) -> None:
        self.holding = [0] * len(_HOLDING)
        self.tokens = [0] * len(_TOKENS)
        self.preemptions = [0] * len(_PREEMPTIONS)
        self.compute = self.cached = self.cached_charged = self.cached_slot = self.cached_end = 0

    def add(self, row: SessionPeriod) -> None:
        held = row.holding
        mine = self.holding
        mine[0] += held.active_block_us
        mine[1] += held.unfilled_slot_us
        mine[2] += held.lookahead_slot_us
        mine[3] += held.held_slot_us
        self.compute += row.compute_us
        # Mostly they are these very objects, or small.
        if row.tokens is not NO_TOKENS:
            self.tokens = [have + more for have, more in zip(self.tokens, _tokens(row.tokens), strict=True)]
        if row.preemptions is not NO_PREEMPTIONS:
            found = _preemptions(row.preemptions)
            self.preemptions = [have + more for have, more in zip(self.preemptions, found, strict=True)]


assert _HOLDING == ("active_block_us", "unfilled_slot_us", "lookahead_slot_us", "held_slot_us")


class Usage:
    """Sessions' use of an interval. ``segments`` and ``dims`` are by index; read the rest by the methods."""

    def __init__(self, coverage: Coverage, boots: Sequence[BootFacts], terms: Terms, start_us: int) -> None:
        self.dims: list[Dimensions] = []
        self.segments = [SegmentUse() for _ in coverage.scales]
        self.findings = Findings()
        self._ids: dict[Dimensions, int] = {}
        self._sums: list[_Sums] = []
        self._terms = terms
        self._start_us = start_us
        self._pools: list[CoveredPeriod] = []
        self._opens = {boot.boot.boot_id: boot.opens for boot in boots}
        by_boot: dict[str, list[CoveredPeriod]] = {}
        for period in coverage.periods:
            by_boot.setdefault(period.facts.boot_id, []).append(period)
        for periods in by_boot.values():
            _BootUse(self, periods).read()
            self._pools += [p for p in periods if p.facts.pool is not None and p.facts.start_us >= start_us]

    def session(self, dims: Dimensions) -> int:
        """The index of a session."""
        found = self._ids.get(dims)
        if found is None:
            found = self._ids[dims] = len(self.dims)
            self.dims.append(dims)
            self._sums.append(_Sums())
        return found

    def sums(self, session: int) -> _Sums:
        return self._sums[session]

    def nothing_cached(self) -> None:
        """A pool begins: whatever was cached in the one before has gone."""
        for sums in self._sums:
            sums.cached_end = 0

    def opens(self, boot_id: str, before_us: int) -> list[PoolOpen]:
        """The boot's openings of the pool before a time, in order."""
        return [opened for opened in self._opens.get(boot_id, ()) if opened.at_us < before_us]

    def inside(self, period: CoveredPeriod) -> bool:
        """Whether the period is the interval's own, not one before it that merely carries counts."""
        return period.facts.start_us >= self._start_us

    def sessions(self) -> tuple[SessionUsage, ...]:
        """The usage of every session that used anything, by dimensions."""
        pool = self._pools[-1].facts.pool.pool if self._pools and self._pools[-1].facts.pool else ""
        found = []
        for dims, sums in zip(self.dims, self._sums, strict=True):
            row = SessionPeriod(
                pool=pool,
                dims=dims,
                holding=Holding(**dict(zip(_HOLDING, sums.holding, strict=True))),
                cached_block_us=sums.cached,
                cached_blocks_end=sums.cached_end,
                compute_us=sums.compute,
                tokens=Tokens(**dict(zip(_TOKENS, sums.tokens, strict=True))),
                preemptions=Preemptions(**dict(zip(_PREEMPTIONS, sums.preemptions, strict=True))),
            )
            if row == SessionPeriod(pool=pool, dims=dims):
                continue
            weighted = (
                row.holding.held_slot_us * self._terms.active_weight_milli
                + sums.cached_slot * self._terms.cached_weight_milli
            )
            found.append(
                SessionUsage(
                    dims=dims,
                    row=row,
                    cached_charged_block_us=sums.cached_charged,
                    weighted_milliunits=round_half_up(weighted, MICROS_PER_SECOND),
                )
            )
        return tuple(sorted(found, key=lambda usage: usage.dims))

    def pool(self) -> PoolUsage | None:
        """The sums of the pool's periods; blocks and counts at the end are the last period's. None without any."""
        pools = [period.facts.pool for period in self._pools if period.facts.pool is not None]
        if not pools:
            return None
        groups: dict[int, int] = {}
        for pool in pools:
            for group in pool.groups:
                groups[group.group] = groups.get(group.group, 0) + group.active_block_us
        last = max(self._pools, key=lambda period: period.facts.end_us).facts.pool
        assert last is not None
        summed = ("active_block_us", "cached_block_us", "free_block_us", "unfilled_slot_us", "lookahead_slot_us")
        totals = PoolPeriod(
            pool=last.pool,
            blocks=last.blocks,
            active_blocks_end=last.active_blocks_end,
            cached_blocks_end=last.cached_blocks_end,
            groups=tuple(GroupPeriod(group=g, active_block_us=us) for g, us in sorted(groups.items())),
            **{name: sum(getattr(p, name) for p in pools) for name in (*summed, "held_slot_us", "steps", "step_us")},
        )
        return PoolUsage(totals=totals, observed_us=sum(period.length_us for period in self._pools))


class _BootUse:
    """Reads the periods of one boot in ``seq`` order into a :class:`Usage`."""

    def __init__(self, usage: Usage, periods: Sequence[CoveredPeriod]) -> None:
        self._usage = usage
        self._periods = periods
        self._opened, self._slots = 0, 0
        lengths = [period.length_us if usage.inside(period) else 0 for period in periods]
        self._length = [0, *accumulate(lengths)]
        self._charged = [0, *accumulate(n if p.charged else 0 for n, p in zip(lengths, periods, strict=True))]
        # Pieces in order, with running weights of a block that is cached and charged all along.
        pieces = [(period, piece) for period in periods for piece in period.pieces]
        self._first_piece = [0, *accumulate(len(period.pieces) for period in periods)]
        weights = [
            (p.length_us * piece.weight, p.length_us * piece.full_weight) if p.charged else (0, 0)
            for p, piece in pieces
        ]
        self._weight = [0, *accumulate(weight for weight, _ in weights)]
        self._full = [0, *accumulate(full for _, full in weights)]
        self._segment = [piece.segment for _, piece in pieces]
        self._run_end = _run_ends(self._segment)
        self._standing = StandingCounts(self._book)

    def read(self) -> None:
        self._usage.nothing_cached()
        for index, period in enumerate(self._periods):
            if period.facts.gap_before:
                self._standing.forget(index)
            if period.facts.pool is not None:
                self._reopen(index, period)
                self._period(index, period)
        for session, count in self._standing.counts().items():
            self._usage.sums(session).cached_end = count
        self._standing.end(len(self._periods))

    def _reopen(self, index: int, period: CoveredPeriod) -> None:
        facts = period.facts
        opens = self._usage.opens(facts.boot_id, facts.end_us)
        if len(opens) > self._opened:
            begins_here = opens[-1].at_us >= facts.start_us
            if begins_here or self._opened:
                self._usage.nothing_cached()
            if begins_here and facts.standing is None:
                self._standing.restart(index)
            elif self._opened:
                # Either counts stand here, or the new pool's first batches are lost and nothing is known of it.
                self._standing.forget(index)
        self._opened = len(opens)
        self._slots = opens[-1].groups[0].block_size if opens and opens[-1].groups else 0

    def _period(self, index: int, period: CoveredPeriod) -> None:
        facts, standing, usage = period.facts, self._standing, self._usage
        pool = facts.pool
        assert pool is not None
        rows = [(usage.session(row.dims), row) for row in facts.sessions]
        if facts.standing is None:
            known = standing.known
            quiet = standing.total - sum(standing.count(session) for session, _ in rows)
            if known:
                for session, row in rows:
                    standing.row(index, session, row.cached_blocks_end)
        else:
            known = True
            quiet = self._stand(index, period, rows)
        if not usage.inside(period):
            return
        active = cached = compute = 0
        for session, row in rows:
            active += row.holding.active_block_us
            cached += row.cached_block_us
            compute += row.compute_us
            usage.sums(session).add(row)
            usage.sums(session).cached_end = row.cached_blocks_end
            self._charge(period, session, row.holding.active_block_us, row.cached_block_us, row.compute_us)
        rest = (
            pool.active_block_us - active,
            pool.cached_block_us - cached - quiet * period.length_us,
            pool.step_us - compute,
        )
        self._check(period, rest, known=known)
        if any(part > 0 for part in rest):
            nobody = usage.session(NOBODY)
            active, cached, compute = (max(part, 0) for part in rest)
            sums = usage.sums(nobody)
            sums.holding[0] += active
            sums.compute += compute
            self._charge(period, nobody, active, cached, compute)

    def _stand(self, index: int, period: CoveredPeriod, rows: Sequence[tuple[int, SessionPeriod]]) -> int:
        """Take the standing counts of a period; the count of those that were quiet in it."""
        counts = {
            self._usage.session(item.dims): item.cached_blocks
            for item in period.facts.standing or ()
            if item.cached_blocks
        }
        if self._standing.known:
            for session, row in rows:
                self._standing.row(index, session, row.cached_blocks_end)
            if self._standing.counts() != counts:
                where = f"boot {period.facts.boot_id} batch {period.facts.seq}"
                self._usage.findings.add("standing", f"{where}: standing counts differ from what the rows before left")
        row_sessions = {session for session, _ in rows}
        self._standing.stand(index, counts, row_sessions)
        return self._standing.total - sum(counts.get(session, 0) for session in row_sessions)

    def _check(self, period: CoveredPeriod, rest: tuple[int, int, int], *, known: bool) -> None:
        facts, findings = period.facts, self._usage.findings
        pool = facts.pool
        assert pool is not None
        where = f"boot {facts.boot_id} batch {facts.seq}"
        whole = pool.active_block_us + pool.cached_block_us + pool.free_block_us
        if period.length_us and whole != pool.blocks * period.length_us:
            findings.add("law1", f"{where}: {whole} block-us in {pool.blocks} blocks over {period.length_us} us")
        active, cached, compute = rest
        if active:
            findings.add("law2_active", f"{where}: the sessions' active time differs from the pool's by {-active}")
        if cached < 0 or (cached and known):
            findings.add("law2_cached", f"{where}: the sessions' cached time differs from the pool's by {-cached}")
        if compute:
            findings.add("law3", f"{where}: the sessions' compute time differs from the steps' by {-compute}")

    def _charge(self, period: CoveredPeriod, session: int, active: int, cached: int, compute: int) -> None:
        """Weigh a session's time in the period; cached time of a row is also its usage."""
        sums = self._usage.sums(session)
        sums.cached += cached
        sums.cached_slot += cached * self._slots
        if period.charged:
            sums.cached_charged += cached
        for piece in period.pieces:
            use = self._usage.segments[piece.segment]
            if active:
                _add(use.active, session, active * piece.weight)
            if compute:
                _add(use.compute, session, compute * piece.weight)
            if period.charged and active:
                _add(use.full_active, session, active * piece.full_weight)
            if period.charged and cached:
                _add(use.cached, session, cached * piece.weight)
                _add(use.full_cached, session, cached * piece.full_weight)

    def _book(self, session: int, count: int, first: int, stop: int) -> None:
        """A quiet span: ``count`` cached blocks all through the periods ``[first, stop)``."""
        length = count * (self._length[stop] - self._length[first])
        if not length:
            return
        sums = self._usage.sums(session)
        sums.cached += length
        sums.cached_slot += length * self._slots
        sums.cached_charged += count * (self._charged[stop] - self._charged[first])
        at, end = self._first_piece[first], self._first_piece[stop]
        while at < end:
            run_end = min(self._run_end[at], end)
            use = self._usage.segments[self._segment[at]]
            weight = count * (self._weight[run_end] - self._weight[at])
            if weight:
                _add(use.cached, session, weight)
                _add(use.full_cached, session, count * (self._full[run_end] - self._full[at]))
            at = run_end


def _add(weights: dict[int, int], session: int, weight: int) -> None:
    weights[session] = weights.get(session, 0) + weight


def _run_ends(segments: Sequence[int]) -> list[int]:
    """For each piece, the end of the run of pieces of its segment."""
    ends = [len(segments)] * len(segments)
    for i in range(len(segments) - 2, -1, -1):
        ends[i] = ends[i + 1] if segments[i] == segments[i + 1] else i + 1
    return ends
