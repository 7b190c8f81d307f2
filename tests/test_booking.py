"""Group commit: who comes while others are being booked goes along with the next, and each gets its own answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from batches import ALICE, T0, Life

from ledger import ingest, limits
from ledger.booking import Booking
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


def together(held: Held, booking: Booking, engines: list[str]) -> list[tuple[Outcome, int] | Exception]:
    """What each engine is answered; the first is being booked when the others come."""

    def accept(engine: str) -> tuple[Outcome, int] | Exception:
        try:
            return booking.accept(announcement(engine))
        except Exception as error:  # noqa: BLE001 - it is the answer
            return error

    with ThreadPoolExecutor(len(engines)) as pool:
        first = pool.submit(accept, engines[0])
        assert held.entered.wait(10)
        others = [pool.submit(accept, engine) for engine in engines[1:]]
        return [one.result(30) for one in (first, *others)]


def test_those_that_came_meanwhile_share_one_transaction(db: Database, monkeypatch) -> None:
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 3)
    answers = together(held, booking, ["a", "b", "c", "d"])
    assert [answer[0].status for answer in answers] == [Status.ACCEPTED] * 4
    assert [answer[0].batch.source.engine for answer in answers] == ["a", "b", "c", "d"], "each its own answer"
    assert [sorted(group) for group in held.groups] == [["a"], ["b", "c", "d"]]


def test_no_group_is_larger_than_a_transaction_may_be(db: Database, monkeypatch) -> None:
    monkeypatch.setattr(limits, "BATCHES_AT_ONCE_MAX", 2)
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 5)
    answers = together(held, booking, list("abcdef"))
    assert [answer[0].status for answer in answers] == [Status.ACCEPTED] * 6
    assert [len(group) for group in held.groups] == [1, 2, 2, 1]


def test_a_fault_of_one_batch_is_no_fault_of_the_others(db: Database, monkeypatch) -> None:
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 3)
    held.fault, held.faulty = ZeroDivisionError("a bug"), "c"
    answers = together(held, booking, ["a", "b", "c", "d"])
    assert answers[2] is held.fault
    assert [answers[n][0].status for n in (0, 1, 3)] == [Status.ACCEPTED] * 3


def test_a_database_that_fails_fails_the_group_and_the_next_is_booked(db: Database, monkeypatch) -> None:
    booking = Booking(db, lambda: NOW)
    held = Held(monkeypatch, booking, 2)
    held.fault, held.faulty = StoreError("the disk is full"), "b"
    answers = together(held, booking, ["a", "b", "c"])
    assert [type(answer) for answer in answers] == [tuple, StoreError, StoreError]
    held.fault = None
    assert booking.accept(announcement("b"))[0].status is Status.ACCEPTED
    assert booking.accept(announcement("a"))[0].status is Status.DUPLICATE


def test_what_is_refused_keeps_no_other_from_being_accepted(db: Database, monkeypatch) -> None:
    booking = Booking(db, lambda: NOW)
    life = Life()
    life.announce()
    held = Held(monkeypatch, booking, 0)
    assert booking.accept(b"{}")[0].status is Status.REFUSED
    assert booking.accept(life.send(life.period({ALICE: (1, 1)})))[0].status is Status.REFUSED, "the chain is broken"
    assert booking.accept(announcement("a")) == (
        ingest.Outcome(status=Status.ACCEPTED, batch=Life("a").announce()),
        NOW,
    )
    assert len(held.groups) == 3
