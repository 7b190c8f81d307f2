"""Answers that are kept: how old they may be, and who waits for whom."""

from __future__ import annotations

import threading

import pytest

from ledger.web.service import KEPT_TIMES, Kept


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(clock: Clock) -> Kept[int]:
    return Kept(seconds=5.0, most=2, clock_s=clock)


def test_an_answer_is_made_anew_when_it_is_some_seconds_old(kept: Kept[int], clock: Clock) -> None:
    assert kept.get("a", lambda: 1) == 1
    clock.now_s += 4.9
    assert kept.get("a", lambda: 2) == 1
    clock.now_s += 0.1
    assert kept.get("a", lambda: 3) == 3


def test_what_takes_long_to_make_is_kept_for_a_multiple_of_that(kept: Kept[int], clock: Clock) -> None:
    def slow() -> int:
        clock.now_s += 3.0
        return 1

    kept.get("a", slow)
    clock.now_s += 3.0 * KEPT_TIMES - 0.1
    assert kept.get("a", lambda: 2) == 1
    clock.now_s += 0.1
    assert kept.get("a", lambda: 3) == 3


def test_who_asks_while_an_answer_is_made_anew_gets_the_one_before(kept: Kept[int], clock: Clock) -> None:
    kept.get("a", lambda: 1)
    clock.now_s += 6.0
    begun, go_on, made = threading.Event(), threading.Event(), []

    def waits() -> int:
        begun.set()
        assert go_on.wait(10)
        return 2

    thread = threading.Thread(target=lambda: made.append(kept.get("a", waits)))
    thread.start()
    assert begun.wait(10)
    assert kept.get("a", lambda: 3) == 1
    go_on.set()
    thread.join(10)
    assert made == [2]
    assert kept.get("a", lambda: 4) == 2


def test_the_first_who_ask_wait_for_one_answer(kept: Kept[int]) -> None:
    begun, go_on, made = threading.Event(), threading.Event(), []

    def waits() -> int:
        begun.set()
        assert go_on.wait(10)
        return 1

    def never() -> int:
        raise AssertionError("it is being made")

    threads = [threading.Thread(target=lambda: made.append(kept.get("a", waits)))]
    threads[0].start()
    assert begun.wait(10)
    threads.append(threading.Thread(target=lambda: made.append(kept.get("a", never))))
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert made == [1, 1]


def test_an_answer_that_could_not_be_made_is_made_by_the_next(kept: Kept[int]) -> None:
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 // 0)
    assert kept.get("a", lambda: 2) == 2


def test_no_more_are_kept_than_may_be_the_oldest_go(kept: Kept[int], clock: Clock) -> None:
    for name in "abc":
        kept.get(name, lambda: 1)
        clock.now_s += 0.1
    assert kept.get("a", lambda: 2) == 2
    assert kept.get("c", lambda: 3) == 1
