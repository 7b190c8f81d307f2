"""Many engines, each asked every interval, none of them able to keep the others waiting."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scraped import T0, S

from ledger import limits
from ledger.collectors.fetch import Place, Unfetched, Why
from ledger.collectors.scraper import ROUND_LAG_US, Aim, Answer, Failure, Round, Scraper

if TYPE_CHECKING:
    import pytest

TEXT = b"vllm:num_requests_running 2\nvllm:generation_tokens_total %d\n"
DCGM = b'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1"} 5\n'


@dataclass
class Notes:
    """What a scraper told."""

    answers: list[Answer] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skips: list[Aim] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    def answered(self, answer: Answer) -> None:
        self.answers.append(answer)

    def failed(self, failure: Failure) -> None:
        self.failures.append(failure)

    def skipped(self, aim: Aim) -> None:
        self.skips.append(aim)

    def began(self, aim: Aim, late_s: float) -> None:
        self.late_s.append(late_s)

    def round(self, made: Round) -> None:
        self.rounds.append(made)


class World:
    """Engines that answer at once in a time that the test moves, tick by tick."""

    def __init__(self, answers: dict[str, bytes | Unfetched], **kinds: str) -> None:
        self.notes = Notes()
        self.now_s = 0.0
        self.answers = answers
        self.asked: Counter[str] = Counter()
        self.scraper = Scraper(self.notes, clock_us=self.wall, mono_s=lambda: self.now_s, get=self.get)
        self.scraper._next_us = T0
        self.aim(**{name: kinds.get(name, "auto") for name in answers})

    def wall(self) -> int:
        return T0 + int(self.now_s * S)

    def get(self, place: Place) -> bytes:
        self.asked[place.host] += 1
        answer = self.answers[place.host]
        if isinstance(answer, Unfetched):
            raise answer
        return answer % int(self.now_s) if b"%d" in answer else answer

    def aim(self, **kinds: str) -> tuple[Aim, ...]:
        aims = [
            Aim(number=n, engine=name, url=f"http://{name}/", kind=kind) for n, (name, kind) in enumerate(kinds.items())
        ]
        return self.scraper.aim(aims)

    def live(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            self.scraper.tick()
            settled(self.scraper)


def settled(scraper: Scraper) -> None:
    """Wait until nothing is under way."""
    until_s = time.monotonic() + 5
    while any(state.busy for state in scraper._states.values()):
        assert time.monotonic() < until_s
        time.sleep(0.0005)


def test_every_target_is_asked_once_in_an_interval_at_an_instant_of_its_own() -> None:
    names = [f"engine-{number}" for number in range(60)]
    world = World(dict.fromkeys(names, TEXT))
    world.live(150)
    assert set(world.asked.values()) == {10}
    phases = {answer.aim.engine: answer.at_us % (15 * S) for answer in world.notes.answers}
    assert len(set(phases.values())) > 20  # of 30 half seconds
    assert all(late_s < 0.6 for late_s in world.notes.late_s)


def test_a_complete_period_is_handed_out_once_with_a_record_of_each_engine() -> None:
    world = World({"a": TEXT, "b": TEXT})
    world.live(150)
    starts = [made.start_us for made in world.notes.rounds]
    assert starts == list(range(T0, T0 + 15 * S * len(starts), 15 * S))
    assert starts[-1] + 15 * S + ROUND_LAG_US <= world.wall()
    middle = world.notes.rounds[3]
    assert middle.targets == 2
    assert [(number, record.engine) for number, record in middle.records] == [(0, "a"), (1, "b")]
    for _, record in middle.records:
        assert (record.end_us - record.start_us, record.busy_us, record.running_us) == (15 * S, 15 * S, 30 * S)
        assert record.output_tokens in (15, 14, 16)


def test_one_that_fails_is_told_with_its_reason_and_leaves_the_others_alone() -> None:
    world = World(
        {"a": TEXT, "down": Unfetched(Why.UNREACHABLE, "refused"), "page": b"<html>\n", "silent": b"vllm:x 1\n"}
    )
    world.live(60)
    assert {failure.aim.engine: failure.why for failure in world.notes.failures} == {
        "down": Why.UNREACHABLE, "page": Why.NOT_METRICS, "silent": Why.NO_FIGURES,
    }  # fmt: skip
    assert [failure.in_a_row for failure in world.notes.failures if failure.aim.engine == "down"] == [1, 2, 3, 4]
    assert len(world.notes.answers) == 4


def test_an_engine_that_comes_back_is_watched_again_and_its_gap_has_no_record() -> None:
    world = World({"a": TEXT})
    world.live(60)
    world.answers["a"] = Unfetched(Why.TIMEOUT, "hangs")
    world.live(90)
    world.answers["a"] = TEXT
    world.live(180)
    covered = sum(r.end_us - r.start_us for made in world.notes.rounds for _, r in made.records)
    assert any("gap" in word for made in world.notes.rounds for _, r in made.records for word, _ in r.signs)
    assert covered <= (60 + 180) * S - ROUND_LAG_US + 15 * S


def test_an_address_that_changes_or_goes_is_asked_no_more_and_what_it_said_is_kept() -> None:
    world = World({"a": TEXT, "b": TEXT})
    world.live(60)
    world.aim(b="vllm")
    before = world.asked["a"]
    world.live(120)
    assert world.asked["a"] == before
    last = max(made.start_us for made in world.notes.rounds if any(r.engine == "a" for _, r in made.records))
    assert last >= T0 + 30 * S
    assert world.scraper._gone == []


def test_an_address_that_cannot_be_used_is_handed_back() -> None:
    world = World({})
    bad = Aim(number=1, engine="x", url="http://me:secret@x/")
    assert world.scraper.aim([bad]) == (bad,)


def test_once_an_engine_is_known_only_its_names_are_read_until_another_moves_in() -> None:
    world = World({"a": TEXT})
    world.live(30)
    assert world.scraper._states["a"].kind == "vllm"
    world.answers["a"] = b"sglang:num_running_reqs 1\n"
    world.live(45)
    assert world.notes.answers[-1].reading.kind == "sglang"
    assert sum(failure.why is Why.NOT_METRICS for failure in world.notes.failures) == 1


def test_what_an_exporter_says_of_gpus_comes_with_the_round() -> None:
    world = World({"gpus": DCGM}, gpus="dcgm")
    world.live(120)
    ((aim, seen),) = world.notes.rounds[2].gpus
    assert aim.engine == "gpus"
    assert [gpu.used_bytes for gpus in seen for gpu in gpus] == [5 * 1024 * 1024]
    assert not any(made.records for made in world.notes.rounds)


def test_bad_lines_are_noticed_and_the_good_ones_count() -> None:
    world = World({"a": TEXT + b"vllm:num_requests_waiting{ 3\n"})
    world.live(30)
    assert [each.word for each in world.notes.answers[-1].noticed] == ["bad_lines"]
    assert "the first is 3" in world.notes.answers[-1].noticed[0].detail


def test_a_stop_hands_out_what_is_left() -> None:
    world = World({"a": TEXT})
    world.live(60)
    assert world.notes.rounds == []
    stopped = threading.Event()
    stopped.set()
    world.scraper.run(stopped)
    assert [len(made.records) for made in world.notes.rounds] == [1, 1, 1, 1, 0]


def test_engines_that_hang_keep_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """In real time: 40 engines answer at once, 30 hang for 0.3 s at intervals of 0.5 s, which 0.1 s makes slow."""
    monkeypatch.setattr(limits, "SCRAPE_SLOW_S", 0.1)
    notes, stopped = Notes(), threading.Event()

    def get(place: Place) -> bytes:
        if place.host.startswith("hang"):
            stopped.wait(0.3)
            raise Unfetched(Why.TIMEOUT, "hangs")
        return TEXT % 1

    scraper = Scraper(notes, clock_us=lambda: time.time_ns() // 1000, mono_s=time.monotonic, get=get, interval_s=0.5)
    names = [f"well-{n}" for n in range(40)] + [f"hang-{n}" for n in range(30)]
    scraper.aim(Aim(number=n, engine=name, url=f"http://{name}/") for n, name in enumerate(names))
    thread = threading.Thread(target=scraper.run, args=(stopped,))
    began_s = time.monotonic()
    thread.start()
    times: Counter[str] = Counter()
    while time.monotonic() < began_s + 60 and (len(times) < 40 or min(times.values()) < 4 or not notes.skips):
        stopped.wait(0.1)
        times = Counter(answer.aim.engine for answer in list(notes.answers))
    stopped.set()
    thread.join(10)
    assert not thread.is_alive()
    assert set(times) == set(names[:40])
    assert min(times.values()) >= 4
    assert notes.skips
    assert all(aim.engine.startswith("hang") for aim in notes.skips)
