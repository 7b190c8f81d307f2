"""A replay as a whole: who lands where, when what follows begins, how everybody ends, and what it costs to keep."""

from __future__ import annotations

import gc
import gzip
import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from ledger.core.records import PERIOD_US, SYSTEM, Batch, Dimensions, Outcome, RequestRecord
from ledger.errors import UsageError
from ledger.reference.engine import Flow, engine_of
from ledger.reference.replay import ReplaySummary, replay
from ledger.reference.request import TraceRequest
from ledger.reference.scheduler import CoreRequest
from ledger.reference.traces import open_trace
from ledger.reference.workload import mixed_day

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

START_US = 1_793_664_000_000_000
LOAD_US = 20_000_000


def ask(name: str, at_us: int = 0, **keys: object) -> TraceRequest:
    told: dict[str, object] = {"prompt_tokens": 100, "output_tokens": 10, "dims": Dimensions(tenant="t", session=name)}
    return TraceRequest(request=name, arrival_us=at_us, **(told | keys))  # type: ignore[arg-type]


def played(
    requests: Iterable[TraceRequest], **keys: object
) -> tuple[ReplaySummary, list[Batch], dict[str, RequestRecord]]:
    """Summary, batches, and records of all but the warm-up."""
    batches: list[Batch] = []
    told: dict[str, object] = {"blocks": 200, "start_us": START_US}
    summary = replay(requests, emit=batches.append, **(told | keys))  # type: ignore[arg-type]
    records = [record for batch in batches for record in batch.requests]
    assert len({record.request for record in records}) == len(records) == summary.received
    assert summary.faults == 0
    return summary, batches, {record.request: record for record in records if record.dims.tenant != SYSTEM}


def test_a_request_is_answered_with_its_tokens_and_milestones_in_order() -> None:
    _summary, _batches, records = played([ask("a", 5_000_000)])
    record = records["a"]
    assert record.outcome is Outcome.FINISHED
    assert record.finish_reason == "length"
    assert (record.tokens.computed, record.tokens.output) == (100, 10)
    assert record.arrived_us == START_US + LOAD_US + 5_000_000
    assert record.scheduled_us is not None
    assert record.first_token_us is not None
    assert record.last_token_us is not None
    assert record.arrived_us <= record.scheduled_us < record.first_token_us < record.last_token_us == record.ended_us


def test_what_follows_begins_after_the_answer_and_the_think_time() -> None:
    then = iter([ask("b", 7_000_000), ask("c", 0)])
    _summary, _batches, records = played([ask("a", then=then)])
    assert records["b"].arrived_us == records["a"].ended_us + 7_000_000
    assert records["c"].arrived_us == records["b"].ended_us


def test_a_sub_agent_runs_beside_the_session_that_called_it() -> None:
    sub = ask("sub-0", 1_000_000, output_tokens=200, then=iter([ask("sub-1", 0)]), forks=True)
    then = iter([sub, ask("b", 2_000_000)])
    _summary, _batches, records = played([ask("a", then=then)])
    assert records["sub-0"].arrived_us == records["a"].ended_us + 1_000_000
    assert records["b"].arrived_us == records["a"].ended_us + 2_000_000
    assert records["b"].arrived_us < records["sub-0"].ended_us
    assert records["sub-1"].arrived_us == records["sub-0"].ended_us


def test_samples_are_children_with_the_whole_prompt_that_share_its_full_blocks() -> None:
    _summary, _batches, records = played([ask("a", samples=3, then=iter([ask("b")]))])
    children = [records[f"{number}_a"] for number in range(3)]
    assert {child.parent for child in children} == {"a"}
    assert [child.prompt_tokens for child in children] == [100] * 3
    assert [child.tokens.cached_own for child in children] == [0, 96, 96]
    assert records["b"].parent is None
    assert records["b"].arrived_us == max(child.ended_us for child in children)


def test_a_request_longer_than_the_pool_is_refused_and_its_session_goes_on() -> None:
    summary, _batches, records = played([ask("a", prompt_tokens=3192, then=iter([ask("b")]))], blocks=200)
    assert records["a"].outcome is Outcome.REFUSED
    assert records["a"].tokens.unprocessed == 3192
    assert records["a"].scheduled_us is None
    assert records["b"].outcome is Outcome.FINISHED
    assert summary.refused == 1


def test_a_request_that_just_fits_the_pool_runs() -> None:
    _summary, _batches, records = played([ask("a", prompt_tokens=3191, output_tokens=10)], blocks=200)
    assert records["a"].outcome is Outcome.FINISHED


@pytest.mark.parametrize(("abandons", "outcome"), [(False, Outcome.ABORTED), (True, Outcome.ABANDONED)])
def test_a_client_that_leaves_ends_its_request_with_the_tokens_so_far(abandons: bool, outcome: Outcome) -> None:
    request = ask("a", output_tokens=1000, leaves_after_us=2_000_000, abandons=abandons)
    _summary, _batches, records = played([request])
    record = records["a"]
    assert record.outcome is outcome
    assert 0 < record.tokens.output < 1000
    assert 0 <= record.ended_us - record.arrived_us - 2_000_000 < 100_000


def test_a_client_that_would_leave_later_than_its_answer_comes_does_not() -> None:
    _summary, _batches, records = played([ask("a", leaves_after_us=3_600_000_000)])
    assert records["a"].outcome is Outcome.FINISHED


def test_a_client_that_leaves_while_waiting_was_never_scheduled() -> None:
    big = ask("big", prompt_tokens=3000, output_tokens=150)
    _summary, _batches, records = played([big, ask("a", 1, prompt_tokens=600, leaves_after_us=500_000)])
    assert records["a"].outcome is Outcome.ABORTED
    assert records["a"].scheduled_us is None
    assert records["a"].tokens.unprocessed == 600


def test_warm_up_belongs_to_the_system_and_can_be_left_out() -> None:
    summary, batches, _records = played([ask("a")], warmup_requests=5)
    tenants = Counter(record.dims.tenant for batch in batches for record in batch.requests)
    assert tenants == {SYSTEM: 5, "t": 1}
    assert summary.received == 6
    assert played([ask("a")], warmup_requests=0)[0].received == 1


def test_a_session_stays_on_one_engine_and_sessions_spread() -> None:
    requests = [ask(f"s{number}", number * 1000, then=iter([ask(f"s{number}-next")])) for number in range(60)]
    for request in requests:
        assert engine_of(request, 3) == engine_of(ask(request.request), 3)
    _summary, batches, _records = played(requests, engines=3)
    homes: dict[str, set[str]] = {}
    for batch in batches:
        for record in batch.requests:
            if record.dims.tenant != SYSTEM:
                homes.setdefault(record.request.removesuffix("-next"), set()).add(batch.source.engine)
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) == 3


def test_batches_of_each_engine_have_no_gap_and_come_in_order_of_periods() -> None:
    _summary, batches, _records = played([ask("a"), ask("b", 100_000_000)], engines=2)
    for engine in ("engine-0", "engine-1"):
        own = [batch for batch in batches if batch.source.engine == engine]
        assert [batch.seq for batch in own] == list(range(1, len(own) + 1))
        timed = [batch for batch in own if batch.pools]
        assert timed[0].start_us == START_US + LOAD_US
        assert all(a.end_us == b.start_us for a, b in pairwise(timed))
    # One engine is never ahead of another by more than the step that crosses a boundary.
    assert all(b.start_us >= a.start_us - PERIOD_US for a, b in pairwise(batches) if a.pools and b.pools)


def test_all_engines_close_at_the_same_instant() -> None:
    summary, batches, _records = played([ask("a")], engines=3)
    closes = [(batch.source.engine, one.at_us) for batch in batches for one in batch.closes]
    assert closes == [(f"engine-{number}", summary.closed_us) for number in range(3)]


def test_engines_that_are_told_when_to_close_do_so_with_what_is_under_way() -> None:
    until_us = START_US + LOAD_US + 10_000_000
    asked = [ask("runs", 9_000_000, output_tokens=500), ask("later", 10_000_000)]
    batches: list[Batch] = []
    summary = replay(asked, engines=2, blocks=200, start_us=START_US, until_us=until_us, emit=batches.append)
    assert {batch.end_us for batch in batches[-2:]} == {summary.closed_us}
    assert until_us <= summary.closed_us < until_us + 1_000_000  # the step that it was in
    assert summary.received - summary.finished == 1  # admitted, and lost with its engine
    assert {row.dims.session for batch in batches for row in batch.sessions} == {"runs", "warm-up"}


def test_engines_that_are_told_when_to_close_are_there_until_then_without_any_work() -> None:
    until_us = START_US + LOAD_US + 3_600_000_000
    summary, _batches, _records = played([ask("a")], engines=2, until_us=until_us)
    assert summary.closed_us == until_us


def test_the_same_requests_and_seed_give_the_same_batches() -> None:
    def run(seed: int) -> list[Batch]:
        day = mixed_day(5, load=5.0, duration_us=8 * PERIOD_US)
        return played(day.requests(), blocks=4000, latency=day.latency, seed=seed)[1]

    assert run(1) == run(1)


def test_progress_is_told_and_never_falls() -> None:
    told: list[tuple[int, int]] = []
    summary, _batches, _records = played(
        [ask(f"a{number}", number * 1_000_000) for number in range(100)],
        progress=lambda ended, at_us: told.append((ended, at_us)),
    )
    assert told[-1] == (summary.received, summary.closed_us)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(told))
    assert 3 <= len(told) <= 100 // 64 + (summary.closed_us - START_US) // PERIOD_US + 2


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"blocks": 0}, "blocks is 0"),
        ({"blocks": -3}, "blocks is -3"),
        ({"blocks": 10**9}, "blocks is 1000000000"),
        ({"block_size": 0}, "block_size is 0"),
        ({"engines": 0}, "engines is 0"),
        ({"engines": 65}, "engines is 65: give a whole number from 1 to 64"),
        ({"acceptance_ratio": 1.5}, "acceptance_ratio is 1.5"),
    ],
)
def test_arguments_that_make_no_engine_are_refused_before_anything_is_told(keys: dict[str, object], said: str) -> None:
    batches: list[Batch] = []
    with pytest.raises(UsageError, match=said):
        replay([ask("a")], emit=batches.append, **({"blocks": 10, "start_us": START_US} | keys))  # type: ignore[arg-type]
    assert batches == []


def test_requests_out_of_order_are_refused() -> None:
    with pytest.raises(UsageError, match="request b arrives at 3 us, after one at 5 us"):
        played([ask("a", 5), ask("b", 3)])


def test_nothing_of_a_request_is_kept_once_it_has_ended() -> None:
    alive: list[int] = []

    def requests() -> Iterator[TraceRequest]:
        for number in range(1500):
            if number % 500 == 499:
                gc.collect()
                kinds = (TraceRequest, CoreRequest, Flow)
                alive.append(sum(isinstance(one, kinds) for one in gc.get_objects()))
            yield ask(f"r{number}", number * 400_000, leaves_after_us=2_000_000 if number % 3 else None)

    replay(requests(), blocks=200, start_us=START_US, emit=lambda batch: None)
    assert len(alive) == 3
    assert max(alive) < 60


def test_cached_tokens_are_those_that_a_real_router_counted_but_for_answers(traces_dir: Path) -> None:
    """The recorded engine also hit blocks of its own answers, whose content the trace does not tell."""
    path = traces_dir / "traces/dynamo_request_trace.jsonl.gz"
    _summary, _batches, records = played(open_trace(path).requests(), blocks=20_000)
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line)["event"]["request"] for line in lines if '"request_end"' in line]
    answers: dict[str, int] = {}
    workers: dict[str, int] = {}
    compared = 0
    for row in sorted(rows, key=lambda row: row["request_received_ms"]):
        record = records[row["request_id"]]
        ours = record.tokens.cached_own + record.tokens.cached_others
        session, worker = record.dims.session, row["worker"]["decode_worker_id"]
        assert ours == record.prompt_tokens - record.tokens.computed
        if workers.get(session) == worker:
            # It found its own cache again; a session that was routed elsewhere found another's.
            assert ours <= row["cached_tokens"] <= ours + answers[session] + 16
            compared += 1
        workers[session] = worker
        answers[session] = answers.get(session, 0) + row["output_tokens"]
    assert compared >= 8
