"""Group commit: who comes while others are being booked goes along with the next, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from batches import ALICE, T0, Life

from ledger import ingest, limits
from ledger.booking import Booked, Booking
from ledger.errors import StoreError
from ledger.ingest import Outcome, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from ledger.ingest import Examined
    from ledger.store.database import Database

NOW = T0 + 3_600_000_000

Book = "Callable[[Database, Sequence[Examined]], tuple[Outcome, ...]]"


class Held:
    """``ingest.book``, whose first call waits until the others stand in the queue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, booking: Booking, others: int) -> None:
        self.groups: list[list[str]] = []
        self.fault: Exception | None = None
        self.faulty = ""
        self._booking, self._others, self._book = booking, others, ingest.book
        self.entered = threading.Event()
        monkeypatch.setattr(ingest, "book", self)

    def __call__(self, db: Database, examined: Sequence[Examined]) -> tuple[Outcome, ...]:
        engines = [one.found.batch.source.engine for one in examined if isinstance(one.found, ingest.Decoded)]
        self.groups.append(engines)
        if len(self.groups) == 1:
            self.entered.set()
            while len(self._booking._waiting) < self._others:
                threading.Event().wait(0.001)
        if self.fault is not None and self.faulty in engines:
            raise self.fault
        return self._book(db, examined)


def announcement(engine: str) -> bytes:
    life = Life(engine=engine)
    return life.send(life.announce())


def accepted(booking: Booking, raw: bytes) -> Booked:
    return asyncio.run(booking.accept(lambda: raw))


def together(held: Held, booking: Booking, engines: list[str]) -> list[Booked | BaseException]:
    """What each engine is answered; the first is being booked when the others come."""

    async def all_of_them() -> list[Booked | BaseException]:
        first = asyncio.create_task(booking.accept(lambda: announcement(engines[0])))
        assert await asyncio.to_thread(held.entered.wait, 10)
        others = [booking.accept(lambda engine=engine: announcement(engine)) for engine in engines[1:]]
        return await asyncio.wait_for(asyncio.gather(first, *others, return_exceptions=True), 30)

    return asyncio.run(all_of_them())


def test_those_that_came_meanwhile_share_one_transaction(db: Database, monkeypatch) -> None:
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 3)
    answers = together(held, booking, ["a", "b", "c", "d"])
    assert [answer.outcome.status for answer in answers] == [Status.ACCEPTED] * 4
    assert [answer.outcome.batch.source.engine for answer in answers] == ["a", "b", "c", "d"], "each its own answer"
    assert [sorted(group) for group in held.groups] == [["a"], ["b", "c", "d"]]


def test_no_group_is_larger_than_a_transaction_may_be(db: Database, monkeypatch) -> None:
    monkeypatch.setattr(limits, "BATCHES_AT_ONCE_MAX", 2)
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 5)
    answers = together(held, booking, list("abcdef"))
    assert [answer.outcome.status for answer in answers] == [Status.ACCEPTED] * 6
    assert [len(group) for group in held.groups] == [1, 2, 2, 1]


def test_a_fault_of_one_batch_is_no_fault_of_the_others(db: Database, monkeypatch) -> None:
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 3)
    held.fault, held.faulty = ZeroDivisionError("a bug"), "c"
    answers = together(held, booking, ["a", "b", "c", "d"])
    assert answers[2] is held.fault
    assert [answers[n].outcome.status for n in (0, 1, 3)] == [Status.ACCEPTED] * 3


def test_a_database_that_fails_fails_the_group_and_the_next_is_booked(db: Database, monkeypatch) -> None:
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 2)
    held.fault, held.faulty = StoreError("the disk is full"), "b"
    answers = together(held, booking, ["a", "b", "c"])
    assert [type(answer) for answer in answers] == [Booked, StoreError, StoreError]
    held.fault = None
    assert accepted(booking, announcement("b")).outcome.status is Status.ACCEPTED
    assert accepted(booking, announcement("a")).outcome.status is Status.DUPLICATE


def test_what_is_refused_keeps_no_other_from_being_accepted(db: Database, monkeypatch) -> None:
    booking = Booking(db, lambda: NOW)
    life = Life()
    life.announce()
    held = Held(monkeypatch, booking, 0)
    assert accepted(booking, b"{}").outcome.status is Status.REFUSED
    assert accepted(booking, life.send(life.period({ALICE: (1, 1)}))).outcome.status is Status.REFUSED, (
        "the chain is broken"
    )
    raw = announcement("a")
    assert accepted(booking, raw) == Booked(
        outcome=Outcome(status=Status.ACCEPTED, batch=Life("a").announce()), received_us=NOW, plain_bytes=len(raw)
    )
    assert len(held.groups) == 3


def test_what_cannot_be_unpacked_is_its_own_fault_alone(db: Database, monkeypatch) -> None:
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 2)

    def broken() -> bytes:
        raise ZeroDivisionError("no gzip")

    async def all_of_them() -> list[Booked | BaseException]:
        first = asyncio.create_task(booking.accept(lambda: announcement("a")))
        assert await asyncio.to_thread(held.entered.wait, 10)
        others = (booking.accept(broken), booking.accept(lambda: announcement("b")))
        return await asyncio.wait_for(asyncio.gather(first, *others, return_exceptions=True), 30)

    answers = asyncio.run(all_of_them())
    assert [type(answer) for answer in answers] == [Booked, ZeroDivisionError, Booked]
    assert held.groups == [["a"], ["b"]]


def test_no_more_join_a_transaction_that_holds_enough_bytes(db: Database, monkeypatch) -> None:
    monkeypatch.setattr(limits, "GROUP_BYTES_MAX", 2 * len(announcement("a")) - 1)
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 4)
    answers = together(held, booking, list("abcde"))
    assert [answer.outcome.status for answer in answers] == [Status.ACCEPTED] * 5
    assert [len(group) for group in held.groups] == [1, 2, 2]


def test_a_request_that_is_gone_takes_no_answer_from_others(db: Database, monkeypatch) -> None:
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 2)

    async def one_is_gone() -> Booked:
        first = asyncio.create_task(booking.accept(lambda: announcement("a")))
        assert await asyncio.to_thread(held.entered.wait, 10)
        second = asyncio.create_task(booking.accept(lambda: announcement("b")))
        third = asyncio.create_task(booking.accept(lambda: announcement("c")))
        first.cancel()
        await asyncio.wait([second])
        return await asyncio.wait_for(third, 30)

    assert asyncio.run(one_is_gone()).outcome.status is Status.ACCEPTED
    assert held.groups == [["a"], ["b", "c"]]
    assert accepted(booking, announcement("a")).outcome.status is Status.DUPLICATE, "it was booked all the same"
