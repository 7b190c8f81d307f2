"""Batches that arrive at the same time, booked together: one transaction, and one wait for the disk, for all of them.

Invariants: a batch is answered only after the commit that holds it; batches of one sender, who waits for each answer,
keep their order; where a group fails for another reason than the database, each is tried by itself, so none suffers
for another's sake; what is unpacked at a time is bounded in batches and in bytes.

One worker thread unpacks, examines and books, as long as there is something to book. It books what has come by then,
without waiting for company: while a transaction waits for the disk, the next group gathers. (Group commit, as databases
do it with their logs.) More threads would not read faster, since the interpreter runs one at a time, and would take
each other's turns.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger import ingest, limits
from ledger.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.ingest import Examined, Outcome
    from ledger.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """What became of a batch, durably; when it was received; its bytes unpacked."""

    outcome: Outcome
    received_us: int
    plain_bytes: int


@dataclass(slots=True, eq=False)
class _Waiting:
    unpack: Callable[[], bytes]
    received_us: int
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Booked]
    examined: Examined | None = None
    """There once the worker has taken it."""


class Booking:
    """Books what the coroutines of an event loop hand in."""

    def __init__(self, database: Database, clock_us: Callable[[], int]) -> None:
        self._database = database
        self._clock_us = clock_us
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._at_work = False
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="booking")

    async def accept(self, unpack: Callable[[], bytes]) -> Booked:
        """Book the batch that ``unpack`` gives, which the worker calls; raises what it raises.

        Raises as :func:`ledger.ingest.accept` does, too.
        """
        loop = asyncio.get_running_loop()
        mine = _Waiting(unpack, self._clock_us(), loop, loop.create_future())
        with self._lock:
            self._waiting.append(mine)
            if not self._at_work:
                self._worker.submit(self._work)
                self._at_work = True
        return await mine.answer

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._at_work = False
                    return
            group = self._next_group()
            if group:
                self._book(group)

    def _next_group(self) -> list[_Waiting]:
        """Those that wait, examined; who cannot be unpacked is answered here."""
        group: list[_Waiting] = []
        size = 0
        for _ in range(min(len(self._waiting), limits.BATCHES_AT_ONCE_MAX)):
            one = self._waiting.popleft()
            try:
                raw = one.unpack()
                one.examined = ingest.examine(self._database, raw, one.received_us)
            except Exception as error:  # noqa: BLE001 - it is raised where the batch came from
                _tell([(one, error)])
                continue
            group.append(one)
            size += len(raw)
            if size > limits.GROUP_BYTES_MAX:
                break
        return group

    def _book(self, group: list[_Waiting]) -> None:
        examined = [one.examined for one in group if one.examined is not None]
        try:
            outcomes = ingest.book(self._database, examined)
        except Exception as error:  # noqa: BLE001 - it is raised where the batches came from
            if len(group) > 1 and not isinstance(error, StoreError):
                for one in group:
                    self._book([one])
            else:
                _tell([(one, error) for one in group])
            return
        _tell(
            [
                (one, Booked(outcome=outcome, received_us=one.received_us, plain_bytes=len(seen.raw)))
                for one, seen, outcome in zip(group, examined, outcomes, strict=True)
            ]
        )


def _tell(told: list[tuple[_Waiting, Booked | Exception]]) -> None:
    """Wake those who wait: one call for each event loop, however many they are."""
    for loop in {one.loop for one, _ in told}:
        try:
            loop.call_soon_threadsafe(_answer, [(one, answer) for one, answer in told if one.loop is loop])
        except RuntimeError:
            if not loop.is_closed():
                raise
            # Nobody waits any more. What was booked stays so; its sender asks again and is told.


def _answer(told: list[tuple[_Waiting, Booked | Exception]]) -> None:
    for one, answer in told:
        if one.answer.done():
            continue  # its request was cancelled
        if isinstance(answer, Exception):
            one.answer.set_exception(answer)
        else:
            one.answer.set_result(answer)
