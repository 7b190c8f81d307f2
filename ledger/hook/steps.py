"""Steps of an engine: who computed, for how long, and what came out.

A request in steady decode has one token in every step. All of these together are read from global counts
(steps scheduled, steps ended, the running integral of step time per token), so that a step costs nothing for
them; whoever does otherwise in a step is its exception and is counted by hand. A request becomes steady when
its scheduled tokens end in a new one without drafts, and stops being so with the first exception.

Law 3: a step lasts from the later of its own start and the previous step's end, to its own end; its time is
divided in proportion to scheduled tokens. Steps are paired with their ends first in, first out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ledger.core.holders import Holder, Ticks
from ledger.core.sharing import SHIFT
from ledger.hook.histograms import Log
from ledger.hook.requests import COUNTS, REJECTED, Request, accept, compute
from ledger.limits import PERIOD_STEPS_MAX, STEPS_IN_FLIGHT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.core.blocks import BlockAccounts

LONG_AGO = -(1 << 62)
"""Before every time of any clock."""


class Entry:
    """What a step is to one request that it is not ordinary for."""

    __slots__ = ("drafted", "ends", "generation", "output", "tokens")

    def __init__(self, tokens: int, output: int, ends: bool, drafted: int, generation: int) -> None:
        self.tokens = tokens
        """Its part of the step in tokens, beside what it reads from the global integral."""
        self.output = output
        """Its correction for what it reads from the global count of steps."""
        self.ends = ends
        """Whether its tokens end in a new one."""
        self.drafted = drafted
        self.generation = generation


class Step:
    """A step that was scheduled and has not ended."""

    __slots__ = ("entries", "requests", "start_t", "strays", "total")

    def __init__(self, start_t: int, total: int, requests: int, strays: int) -> None:
        self.start_t = start_t
        self.total = total
        self.requests = requests
        self.strays = strays
        """Tokens of requests that nobody announced."""
        self.entries: dict[Request, Entry] = {}


class Steps:
    """The steps of one engine, and its requests as far as steps touch them."""

    def __init__(self, fault: Callable[[str], None], complete: Callable[[Request], None]) -> None:
        self.fault = fault
        self.complete = complete
        self.requests: dict[str, Request] = {}
        self.steady: dict[str, Request] = {}
        self.names: list[str] = []
        """The steady requests, as far as is known in the engine's order: a list is compared faster than sets."""
        self.partial: dict[str, Request] = {}
        """Requests that live, have taken blocks and are not steady: the likely exceptions of the next step."""
        self.touched: dict[Request, None] = {}
        """Requests whose own counts changed in the period."""
        self.pools: list[BlockAccounts] = []
        self.ticks = Ticks()
        self.log = Log()
        self.flight: deque[Step] = deque()
        self.weight = 0
        """Running integral of step time per scheduled token, fixed point."""
        self.ended = 0
        """Steps ended so far."""
        self.serial = 0
        """Steps scheduled so far, over the whole life."""
        self.last_end_t = LONG_AGO
        self.period_steps = self.period_step_us = 0
        self.system_compute = self.stray_compute = 0

    def counts(self, request: Request) -> list[int]:
        """The request's counts of the present period, to be changed by the caller."""
        counts = request.counts
        if counts is None:
            counts = request.counts = [0] * COUNTS
            self.touched[request] = None
        return counts

    # -- steady decode -------------------------------------------------------------------------------

    def settle_down(self, t: int, request: Request) -> None:
        """From the next step on the request is ordinary."""
        request.steady = True
        request.frontier -= self.ticks.n
        request.compute -= self.weight
        request.output -= self.ended
        request.from_serial = self.serial + 1
        for step in self.flight:
            entry = step.entries.get(request)
            if entry is None:
                step.entries[request] = Entry(-1, -1, ends=False, drafted=0, generation=request.generation)
            else:
                entry.tokens -= 1
                entry.output -= 1
        for table in request.tables:
            if table.size:
                table.pool.start_falling(t, table)
        self.steady[request.id] = request
        self.names.append(request.id)
        self.partial.pop(request.id, None)
        self.log.changes.append((request.from_serial, request, 1))

    def rouse(self, t: int, request: Request) -> None:
        """The request is ordinary no more; steps in flight that counted it as such get an entry for it."""
        request.steady = False
        request.frontier = request.high = frontier = request.frontier + self.ticks.n
        request.known = frontier + 1
        request.compute += self.weight
        request.output += self.ended
        for step in self.flight:
            entry = step.entries.get(request)
            if entry is None:
                request.loose += 1
                step.entries[request] = Entry(1, 0, ends=True, drafted=0, generation=request.generation)
            else:
                entry.tokens += 1
                entry.output += 1
        landed = self.serial - len(self.flight)
        since = request.from_serial
        if landed >= since:
            request.last_token_t = self.last_end_t
            since = landed + 1
        for table in request.tables:
            if table.size:
                table.pool.stand_still(t, table)
        del self.steady[request.id]
        self.names.remove(request.id)
        if request.ended_t is None:
            self.partial[request.id] = request
        self.touched[request] = None
        self.log.changes.append((since, request, -1))

    def drop(self, request: Request) -> None:
        """The steps in flight give the request nothing: it is known from here on what else their ends would tell."""
        for step in self.flight:
            entry = step.entries.get(request)
            if entry is not None and entry.ends and entry.generation == request.generation:
                request.known -= entry.drafted + 1
                if entry.drafted:
                    self.counts(request)[REJECTED] += entry.drafted
                    request.high -= entry.drafted
                entry.ends = False
                entry.drafted = 0

    # -- scheduling ----------------------------------------------------------------------------------

    def schedule(self, t: int, tokens: Mapping[str, int], total: int) -> None:
        """A step begins: whose tokens it computes."""
        apart, strays, total = self._exceptions(t, tokens, total)
        if len(self.flight) >= STEPS_IN_FLIGHT_MAX:
            self.fault("steps_in_flight")
            self.end(t, {})
        step = Step(t, total, len(tokens), strays)
        self.serial += 1
        self.flight.append(step)
        ticks = self.ticks
        if self.steady:
            for pool in self.pools:
                pool.tick(t)
        ticks.n += 1
        ticks.acc -= t
        for request, count in apart:
            self._schedule_apart(t, step, request, count)

    def _exceptions(self, t: int, tokens: Mapping[str, int], total: int) -> tuple[list[tuple[Request, int]], int, int]:
        """Requests that are not ordinary in this step, tokens of unknown ones, and the true total.

        Mostly they are among those that hold blocks and are not steady, so the others need no looking at.
        """
        steady = self.steady
        apart: list[tuple[Request, int]] = []
        strays = 0
        if not (len(tokens) == total == len(steady) and self._all_steady(tokens, 0)):
            rest = total
            for name, request in self.partial.items():
                count = tokens.get(name)
                if count and count > 0:
                    apart.append((request, count))
                    rest -= count
            if not (len(tokens) - len(apart) == rest == len(steady) and self._all_steady(tokens, len(apart))):
                apart, strays = self._look(t, tokens)
                actual = len(steady) + strays + sum([count for _, count in apart])
                if actual != total:
                    self.fault("total_differs")
                    total = actual
        return apart, strays, total

    def _all_steady(self, tokens: Mapping[str, int], apart: int) -> bool:
        """Whether every steady request is scheduled, given that there is room for just these beside ``apart`` others.

        Engines keep their order and put newcomers last, so mostly two lists are equal.
        """
        names = list(tokens)
        if apart:
            del names[-apart:]
        if names == self.names:
            return True
        if tokens.keys() >= self.steady.keys():
            if not apart:
                self.names = names
            return True
        return False

    def _look(self, t: int, tokens: Mapping[str, int]) -> tuple[list[tuple[Request, int]], int]:
        """The exceptions of a step, found by looking at every request; whoever is missing is steady no more."""
        steady = self.steady
        apart: list[tuple[Request, int]] = []
        strays = ordinary = 0
        for name, count in tokens.items():
            if count == 1 and name in steady:
                ordinary += 1
            elif count <= 0:
                if count < 0:
                    self.fault("negative_tokens")
            elif (request := self.requests.get(name)) is None:
                self.fault("unknown_request")
                strays += count
            else:
                apart.append((request, count))
        if ordinary != len(steady):
            for name, request in list(steady.items()):
                if tokens.get(name) != 1:
                    self.rouse(t, request)
        return apart, strays

    def _schedule_apart(self, t: int, step: Step, request: Request, count: int) -> None:
        if request.ended_t is not None:
            # It has a share in the step's time, and nothing else of it counts any more.
            self.fault("ended_request")
            request.waits += 1
            step.entries[request] = Entry(count, 0, ends=False, drafted=0, generation=request.generation)
            return
        if request.scheduled_t is None:
            request.scheduled_t = t
            self.log.scheduled.append(request)
        counts = request.counts
        if counts is None:
            counts = self.counts(request)
        ends, drafted = compute(request, counts, count)
        if ends:
            request.loose += drafted + 1
        step.entries[request] = Entry(count, 0, ends, drafted, request.generation)
        if ends and not drafted and self._is_plain(request):
            self.settle_down(t, request)
        else:
            self.moved(t, request)

    @staticmethod
    def _is_plain(request: Request) -> bool:
        """Whether steps need do no more for the request than to fill its own tail."""
        if request.high != request.frontier:
            return False
        for table in request.tables:
            # The tail hardly ever lies beyond the end, which takes longer to tell.
            if table.opens or (request.frontier < table.tail and request.frontier < table.end):
                return False
        return True

    # -- the end of a step ---------------------------------------------------------------------------

    def end(self, t: int, accepted: Mapping[str, int]) -> None:
        """The oldest step ended, with as many accepted tokens as named, else the ordinary."""
        if not self.flight:
            self.fault("step_without_schedule")
            return
        step = self.flight.popleft()
        before = self.last_end_t
        start = step.start_t
        duration = t - (start if start > before else before)
        self.last_end_t = t
        self.period_steps += 1
        self.period_step_us += duration
        serial = self.serial - len(self.flight)
        steps = self.log.steps
        if len(steps) < PERIOD_STEPS_MAX:
            steps.append((serial, duration, t - before, step.requests))
        self.ended += 1
        total = step.total
        weight = 0
        if total:
            weight = (duration << SHIFT) // total
            self.weight += weight
            if step.strays:
                self.stray_compute += weight * step.strays
        else:
            self.system_compute += duration << SHIFT
        for request, entry in step.entries.items():
            self._end_apart(t, request, entry, weight, accepted)
        for name, count in accepted.items():
            request = self.requests.get(name)  # type: ignore[assignment]  # None: gone, as after an abort
            if count != 1 and request is not None and request not in step.entries and request.steady:
                self._end_odd(t, request, count, before)

    def _end_apart(self, t: int, request: Request, entry: Entry, weight: int, accepted: Mapping[str, int]) -> None:
        request.compute += entry.tokens * weight
        request.output += entry.output
        self.touched[request] = None
        if request.ended_t is not None:
            request.waits -= 1
            if not request.waits and not request.holds:
                self.complete(request)
            return
        count = accepted.get(request.id, 1 if entry.ends else 0)
        if entry.ends:
            supposed = entry.drafted + 1
            if entry.generation == request.generation:
                request.loose -= supposed
            if count != supposed:
                self._accept(t, request, entry, count)
            else:
                request.output += count
                if entry.drafted:
                    self.moved(t, request)
        elif count:
            self._accept(t, request, entry, count)
        if count > 0:
            self._milestone(t, request, count)

    def _accept(self, t: int, request: Request, entry: Entry, count: int) -> None:
        """Other than what was supposed when the step was scheduled."""
        if request.steady:
            self.rouse(t, request)
        if entry.ends:
            accept(request, self.counts(request), count, entry.drafted, entry.generation)
            self.moved(t, request)
        else:
            # The first token came from elsewhere, with transferred content.
            request.output += count
            request.known += count

    @staticmethod
    def moved(t: int, request: Request) -> None:
        """The request's frontier has moved other than by a tick."""
        for table in request.tables:
            if table.order:
                table.pool.moved(t, table)

    def _end_odd(self, t: int, request: Request, count: int, before: int) -> None:
        """An ordinary request's step that gave other than one token."""
        self.rouse(t, request)
        request.output += count - 1
        request.known += count - 1
        request.last_token_t = t if count else before
        self.log.tokens(request.label, t - before, -1)
        if count > 0:
            self.log.tokens(request.label, (t - before) // count, count)

    def _milestone(self, t: int, request: Request, count: int) -> None:
        last = request.last_token_t
        if last is None:
            request.first_token_t = t
            self.log.first_token.append(request)
        else:
            self.log.tokens(request.label, (t - last) // count, count)
        request.last_token_t = t

    def make_unsteady(self, t: int, holder: Holder) -> None:
        """For block accounting: somebody joined the block that the request is filling."""
        assert isinstance(holder, Request)
        self.rouse(t, holder)
