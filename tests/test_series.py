"""From scrape to scrape: what moved, what is odd about it, and the records of periods that it makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scraped import T0, S, periods, reading

from ledger import limits
from ledger.collectors.readings import Figure, Latency, Reading
from ledger.collectors.series import DEAD_KV_SCRAPES, DEAD_SCRAPES, Series, Sign
from ledger.core.records import PERIOD_US
from ledger.core.scraped import ScrapedLatency, ScrapedPeriod


def fed(*scrapes: tuple[float, Reading], rounded: bool = False) -> tuple[Series, list[list[str]]]:
    """A series of scrapes at seconds after T0, and the signs of each."""
    series = Series("e", rounded=rounded)
    return series, [[each.word for each in series.add(T0 + int(at * S), said)[1]] for at, said in scrapes]


def records(series: Series, until_s: float = 600) -> list[ScrapedPeriod]:
    return [record for start in periods(T0, T0 + int(until_s * S)) for record in series.period(start)]


def test_a_gauge_holds_from_one_scrape_to_the_next() -> None:
    series, _ = fed((7, reading(running=2)), (22, reading(running=0)), (37, reading(running=4)))
    first, second, third = records(series)
    assert (first.start_us, first.end_us) == (T0 + 7 * S, T0 + 15 * S)
    assert (first.busy_us, first.running_us) == (8 * S, 16 * S)
    assert (second.busy_us, second.running_us) == (7 * S, 14 * S)  # 15 to 22 with 2, then none
    assert (third.start_us, third.end_us, third.busy_us) == (T0 + 30 * S, T0 + 37 * S, 0)
    assert [record.scrapes for record in (first, second, third)] == [1, 1, 1]


def test_what_a_counter_moved_is_parted_by_time_and_lost_nowhere() -> None:
    series, _ = fed((7, reading(output=0)), (22, reading(output=10)), (37, reading(output=11)))
    assert [record.output_tokens for record in records(series)] == [5, 5, 1]


def test_time_in_which_work_was_counted_is_busy_even_if_no_request_ran_at_either_end() -> None:
    series, _ = fed(
        (0, reading(running=0, output=0)), (15, reading(running=0, output=3)), (30, reading(running=0, output=3))
    )
    assert [record.busy_us for record in records(series)] == [15 * S, 0]


def test_an_engine_that_tells_tokens_only_is_busy_by_them() -> None:
    series, _ = fed((0, reading(running=None, output=0)), (15, reading(running=None, output=3)))
    (record,) = records(series)
    assert (record.busy_us, record.running_us) == (15 * S, None)


def test_up_to_two_answers_may_be_missing_and_more_are_a_gap_whose_counts_are_kept_apart() -> None:
    series, signs = fed(
        (0, reading(output=0)), (45, reading(output=30)), (105, reading(output=90)), (120, reading(output=96))
    )
    series.failed(T0 + 60 * S)
    assert signs == [[], [], ["gap"], []]
    made = records(series)
    assert [(record.start_us - T0) // S for record in made] == [0, 15, 30, 105]
    assert [record.output_tokens for record in made] == [10, 10, 10, 66]
    assert [record.gap_us for record in made] == [0, 0, 0, 60 * S]


def test_a_restart_whose_start_is_told_counts_from_zero_and_watches_from_its_start() -> None:
    series, signs = fed(
        (0, reading(output=1000, started_us=T0 - S)),
        (15, reading(output=1000, started_us=T0 - S)),
        (30, reading(running=3, output=40, started_us=T0 + 20 * S)),
    )
    assert signs == [[], [], ["restart"]]
    first, second = records(series)
    assert (first.start_us, first.end_us, first.output_tokens) == (T0, T0 + 15 * S, 0)
    assert (second.start_us, second.end_us, second.output_tokens) == (T0 + 20 * S, T0 + 30 * S, 40)
    assert (second.busy_us, second.running_us) == (10 * S, None)  # what ran before is gone with its process
    assert second.started_us == T0 + 20 * S


def test_where_no_start_is_told_counters_that_all_fell_are_a_restart_and_its_time_a_gap() -> None:
    series, signs = fed(
        (0, reading(output=1000, counters={Figure.PROMPT: 50})),
        (15, reading(output=7, counters={Figure.PROMPT: 5})),
        (30, reading(output=9, counters={Figure.PROMPT: 6})),
    )
    assert signs == [[], ["restart"], []]
    (record,) = records(series)
    assert (record.start_us, record.output_tokens, record.prompt_tokens) == (T0 + 15 * S, 9, 6)
    assert record.gap_us == 15 * S


def test_a_counter_that_fell_alone_is_skipped_and_never_negative() -> None:
    series, signs = fed(
        (0, reading(output=1000, counters={Figure.PROMPT: 50}, started_us=T0 - S)),
        (15, reading(output=400, counters={Figure.PROMPT: 55}, started_us=T0 - S)),
    )
    assert signs == [[], ["reset:output_tokens"]]
    (record,) = records(series)
    assert (record.output_tokens, record.prompt_tokens) == (None, 5)


def test_a_renamed_and_a_vanished_metric_are_recognised() -> None:
    old = {Figure.KV_ACTIVE: "vllm:gpu_cache_usage_perc", Figure.OUTPUT: "vllm:generation_tokens_total"}
    new = {Figure.KV_ACTIVE: "vllm:kv_cache_usage_perc"}
    _, signs = fed((0, reading(origins=old)), (15, reading(origins=new)), (30, reading(origins=new)))
    assert signs == [[], ["renamed:kv_active", "vanished:output_tokens"], []]


def test_a_running_gauge_that_says_none_while_requests_take_their_time_is_dead_and_absent() -> None:
    # Each stretch had 4 requests running on average; however many, 16 looks are needed.
    series, signs = fed(*((15 * k, reading(running=0, output=100 * k, end_to_end_us=60 * S * k)) for k in range(19)))
    assert signs == [[]] * 16 + [["dead_gauge:running"]] * 3
    made = records(series)
    assert all(record.running_us is None for record in made)
    assert all(record.busy_us == 15 * S for record in made)
    assert Figure.RUNNING in series.dead


def test_requests_that_come_in_clumps_kill_no_gauge() -> None:
    # Ten ran on average, and a look in eight meets one: as when a busy front-end answers a scrape between two clumps.
    told = ((15 * k, reading(running=3 * (k % 8 == 7), output=100 * k, end_to_end_us=150 * S * k)) for k in range(64))
    _, signs = fed(*told)
    assert not any(signs)


def test_time_in_which_requests_waited_is_no_evidence_that_they_ran() -> None:
    def waited(k: int) -> Reading:
        took = {f: Latency(buckets=(), count=k, total_us=60 * S * k) for f in (Figure.END_TO_END, Figure.QUEUE)}
        return replace(reading(running=0, output=0), latencies=took)

    _, signs = fed(*((15 * k, waited(k)) for k in range(40)))
    assert not any(signs)


def test_short_requests_that_no_scrape_met_kill_no_gauge() -> None:
    # One request of half a second in each stretch: 1 in 30 scrapes would meet it.
    _, signs = fed(*((15 * k, reading(running=0, output=k, end_to_end_us=S // 2 * k)) for k in range(40)))
    assert all(not each for each in signs[:DEAD_SCRAPES])
    _, signs = fed(*((15 * k, reading(running=int(k == 7), output=k)) for k in range(DEAD_SCRAPES + 4)))
    assert not any(signs)


def test_a_gauge_that_speaks_again_is_believed_again() -> None:
    dead = [(15 * k, reading(running=0, output=100 * k)) for k in range(DEAD_SCRAPES + 1)]
    series, signs = fed(*dead, (15 * len(dead), reading(running=2, output=9999)))
    assert signs[-2] == ["dead_gauge:running"]
    assert signs[-1] == []
    assert not series.dead


def test_a_kv_gauge_at_zero_while_requests_run_is_dead_unless_it_is_rounded() -> None:
    scrapes = [(15 * k, reading(running=2, output=k, kv_ppm=0)) for k in range(DEAD_KV_SCRAPES + 2)]
    series, signs = fed(*scrapes)
    assert signs[-1] == ["dead_gauge:kv_active"]
    assert records(series)[-1].kv_active_ppm is None
    assert not any(fed(*scrapes, rounded=True)[1])


def test_the_kv_share_is_the_mean_over_time() -> None:
    series, _ = fed((0, reading(kv_ppm=100_000)), (5, reading(kv_ppm=400_000)), (15, reading(kv_ppm=0)))
    assert records(series)[0].kv_active_ppm == 300_000


def test_a_histogram_is_parted_bucket_by_bucket() -> None:
    series, _ = fed((0, reading(end_to_end_us=5 * S)), (15, reading(end_to_end_us=9 * S)))
    (record,) = records(series)
    assert record.latencies == (ScrapedLatency(name="end_to_end", buckets=(), over=0, total_us=4 * S),)


def test_values_that_cannot_be_are_a_sign_of_the_period() -> None:
    odd = Reading(kind="vllm", running=1, nonsense=("vllm:x is -1 in line 3",))
    series, signs = fed((0, reading()), (5, odd), (20, reading()))
    assert signs[1] == ["nonsense"]
    assert records(series)[0].signs == (("nonsense", 1),)


def test_an_answer_that_is_not_later_is_left_out() -> None:
    series, _ = fed((10, reading(output=5)), (10, reading(output=7)), (3, reading(output=9)), (20, reading(output=9)))
    assert [record.output_tokens for record in records(series)] == [2, 2]


def test_failures_are_counted_in_their_period() -> None:
    series, _ = fed((0, reading()), (30, reading()))
    series.failed(T0 + 15 * S)
    first, second = records(series)
    assert (first.failures, second.failures) == (0, 1)


def test_what_was_not_asked_for_is_forgotten() -> None:
    series, _ = fed(*((15 * k, reading(output=k)) for k in range(limits.SCRAPE_STRETCHES_MAX * 2)))
    assert len(series._stretches) == limits.SCRAPE_STRETCHES_MAX


@dataclass
class Life:
    """What a simulated engine's counter says at a time, and since when it lives."""

    at_us: int
    started_us: int
    output: int
    running: int


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    found = [Life(T0 + draw(st.integers(0, 14 * S)), T0 - S, draw(st.integers(0, 9)), draw(st.integers(0, 2)))]
    for _ in range(draw(st.integers(1, 12))):
        last = found[-1]
        at_us = last.at_us + draw(st.integers(1, 70 * S))
        if draw(st.integers(0, 5)) == 0:
            started_us = draw(st.integers(last.at_us + 2 * S, at_us + 2 * S))
            if started_us < at_us and started_us - last.started_us > 2 * S:
                found.append(Life(at_us, started_us, draw(st.integers(0, 50)), draw(st.integers(0, 2))))
                continue
        found.append(Life(at_us, last.started_us, last.output + draw(st.integers(0, 50)), draw(st.integers(0, 2))))
    return found


@given(lives())
def test_records_cover_what_was_watched_once_and_count_what_moved_once(told: list[Life]) -> None:
    series = Series("e")
    for life in told:
        series.add(life.at_us, reading(running=life.running, output=life.output, started_us=life.started_us))
    made = [record for start in periods(T0, told[-1].at_us + 1) for record in series.period(start)]
    moved = watched = pending = 0
    for before, after in pairwise(told):
        again = after.started_us != before.started_us
        delta = after.output if again else after.output - before.output
        if after.at_us - before.at_us > limits.SCRAPE_BRIDGED_US:
            pending += delta
            continue
        watched += after.at_us - (max(before.at_us, after.started_us) if again else before.at_us)
        moved, pending = moved + delta + pending, 0
    assert sum(record.end_us - record.start_us for record in made) == watched
    assert sum(record.output_tokens or 0 for record in made) == moved
    for record in made:
        assert record.start_us // PERIOD_US == (record.end_us - 1) // PERIOD_US
        assert 0 <= record.busy_us <= record.end_us - record.start_us
        assert (record.output_tokens or 0) >= 0
    for one, other in pairwise(made):
        assert one.end_us <= other.start_us


@pytest.mark.parametrize("sign", list(Sign))
def test_every_sign_is_on_the_page(sign: Sign) -> None:
    from ledger.collectors.document import PAGE  # noqa: PLC0415

    assert f"`{sign.value}`" in PAGE.read_text()
