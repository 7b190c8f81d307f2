"""The reference scheduler: what it schedules, whom it preempts, and that its calendar loses nobody."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_fakes import Bench

from ledger.core.records import Outcome, PreemptionReason
from ledger.reference.policy import BatchLimits, Policy

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.reference.scheduler import CoreRequest


class Narrow(Policy):
    """Small steps, so that prompts are cut."""

    def limits(self, now_us: int, running: int, waiting: int) -> BatchLimits:
        return BatchLimits(sequences=3, tokens=8)


def test_a_request_alone_is_prefilled_once_and_then_decodes_a_token_a_step() -> None:
    bench = Bench(blocks=10, block_size=4)
    bench.add("a", 6, 5)
    assert [bench.step() for _ in range(5)] == [{"a": 6}, {"a": 1}, {"a": 1}, {"a": 1}, {"a": 1}]
    assert bench.hook.outcomes == {"a": Outcome.FINISHED}
    assert bench.hook.scheduled_tokens["a"] == 6 + 5 - 1


def test_a_long_prompt_is_cut_into_chunks_beside_those_who_decode() -> None:
    bench = Bench(blocks=20, block_size=4, policy=Narrow())
    bench.add("a", 4, 9)
    bench.step()
    bench.add("b", 20, 2)
    chunks = [bench.step().get("b", 0) for _ in range(3)]
    assert chunks == [7, 7, 6]


def test_no_more_than_the_policy_allows_run_at_once() -> None:
    bench = Bench(blocks=50, block_size=4, policy=Narrow())
    for name in "abcde":
        bench.add(name, 2, 4)
    for _ in range(8):
        bench.step()
        assert len(bench.scheduler.running) <= 3
    bench.run()
    assert len(bench.hook.outcomes) == 5


def test_when_blocks_run_out_the_last_one_admitted_is_preempted_and_recomputes() -> None:
    bench = Bench(blocks=6, block_size=2)
    bench.add("a", 4, 8)
    bench.add("b", 4, 8)
    bench.run()
    assert bench.hook.preemptions[PreemptionReason.KV_FULL] > 0
    assert bench.hook.scheduled_tokens["a"] == 4 + 8 - 1
    assert bench.hook.scheduled_tokens["b"] > 4 + 8 - 1 - 2 * bench.hook.hits["b"]
    assert set(bench.hook.outcomes.values()) == {Outcome.FINISHED}


def test_the_least_urgent_is_preempted_for_a_more_urgent_one_and_the_reason_says_so() -> None:
    bench = Bench(blocks=6, block_size=2)
    bench.add("background", 4, 8, priority=5)
    bench.add("urgent", 4, 8, priority=0)
    bench.run()
    assert bench.hook.preemptions[PreemptionReason.PRIORITY] > 0
    assert bench.hook.preemptions[PreemptionReason.KV_FULL] == 0
    assert bench.hook.scheduled_tokens["urgent"] == 4 + 8 - 1


def test_the_urgent_are_admitted_before_those_who_came_first() -> None:
    bench = Bench(blocks=20, block_size=2, policy=Narrow())
    for name in "abc":
        bench.add(name, 2, 6)
    bench.add("late", 2, 6)
    bench.add("urgent", 2, 6, priority=-1)
    first = bench.step()
    assert "urgent" in first
    assert "late" not in first


def test_a_reset_preempts_all_and_leaves_nothing_to_hit() -> None:
    bench = Bench(blocks=20, block_size=2)
    bench.add("a", 6, 8, hashes=[1, 2, 3])
    for _ in range(3):
        bench.step()
    bench.scheduler.reset(bench.now)
    assert bench.hook.preemptions[PreemptionReason.RESET] == 1
    assert bench.pool.cached_blocks() == 0
    bench.run()
    assert bench.hook.hits["a"] == 0


def test_a_second_request_hits_the_blocks_of_the_first_but_computes_its_last_token() -> None:
    bench = Bench(blocks=20, block_size=2)
    bench.add("a", 6, 2, hashes=[1, 2, 3])
    bench.run()
    bench.add("b", 6, 2, hashes=[1, 2, 3])
    bench.run()
    assert bench.hook.hits["b"] == 2
    assert bench.hook.scheduled_tokens["b"] == 6 + 2 - 1 - 4


def test_blocks_scheduled_in_this_step_can_be_hit_in_it_as_in_vllm() -> None:
    bench = Bench(blocks=20, block_size=2)
    bench.add("a", 5, 1, hashes=[1, 2])
    bench.add("b", 5, 1, hashes=[1, 2])
    assert bench.step() == {"a": 5, "b": 1}


def test_an_aborted_request_lets_go_at_once_waiting_or_running() -> None:
    bench = Bench(blocks=40, block_size=2, policy=Narrow())
    running = bench.add("running", 4, 50)
    bench.step()
    bench.step()
    waiting = bench.add("waiting", 30, 5)
    for request in (running, waiting):
        bench.scheduler.end(bench.now, request, Outcome.ABORTED, "abort")
    assert bench.hook.outcomes == {"running": Outcome.ABORTED, "waiting": Outcome.ABORTED}
    assert bench.scheduler.tokens == {}
    assert bench.scheduler.waiting_count == 0
    assert bench.pool.available == 40
    assert bench.scheduler.schedule(bench.now) == 0


@pytest.mark.parametrize(("ratio", "steps"), [(1.0, 1 + 4), (0.0, 1 + 16)])
def test_drafts_are_accepted_up_to_the_first_wrong_one(ratio: float, steps: int) -> None:
    bench = Bench(blocks=20, block_size=4, acceptance_ratio=ratio)
    bench.add("a", 4, 17, draft=3)
    assert bench.run() == steps


def test_admission_waits_for_blocks_of_the_whole_prompt_unless_the_policy_lets_it_begin() -> None:
    class Eager(Narrow):
        def must_fit_whole(self, request: CoreRequest) -> bool:
            return False

    for policy, begins in ((Narrow(), False), (Eager(), True)):
        bench = Bench(blocks=12, block_size=2, policy=policy)
        bench.add("a", 8, 4)
        bench.step()
        bench.add("b", 18, 2)
        assert ("b" in bench.step()) is begins


def test_a_policy_that_names_the_one_who_wants_a_block_preempts_it_itself() -> None:
    class Unselfish(Policy):
        def victim(self, running: Collection[CoreRequest], wanting: CoreRequest) -> CoreRequest:
            return wanting

    bench = Bench(blocks=6, block_size=2, policy=Unselfish())
    bench.add("a", 4, 8)
    bench.add("b", 4, 8)
    bench.run()
    assert sum(bench.hook.preemptions.values()) > 0


@given(
    seed=st.integers(0, 2**32),
    blocks=st.integers(8, 40),
    block_size=st.sampled_from([1, 2, 4, 16]),
    narrow=st.booleans(),
)
def test_everybody_is_answered_in_full_and_every_position_is_scheduled(
    seed: int, blocks: int, block_size: int, narrow: bool
) -> None:
    random = Random(seed)
    bench = Bench(blocks=blocks, block_size=block_size, policy=Narrow() if narrow else None, seed=seed)
    slots = blocks * block_size
    aborted = set()
    for number in range(random.randint(1, 12)):
        prompt = random.randint(1, max(1, slots // 2))
        answer = random.randint(1, max(1, slots - prompt))
        stem = random.randint(1, 3)
        hashes = [100 * stem + position for position in range(prompt // block_size)]
        bench.add(
            f"r{number}",
            prompt,
            min(answer, 30),
            priority=random.randint(0, 1),
            draft=random.choice([0, 0, 3]),
            hashes=hashes,
        )
        for _ in range(random.randint(0, 6)):
            if random.random() < 0.1:
                name = random.choice(list(bench.requests))
                if not bench.requests[name].ended:
                    bench.scheduler.end(bench.now, bench.requests[name], Outcome.ABORTED, "abort")
                    aborted.add(name)
            bench.step()
        if random.random() < 0.05:
            bench.scheduler.reset(bench.now)
    bench.run()
    assert set(bench.hook.outcomes) == set(bench.requests)
    assert bench.pool.available == blocks
    assert not any(bench.hook.tables.values())
    if not bench.hook.preemptions:
        for name, request in bench.requests.items():
            if name not in aborted and not request.draft_tokens:
                expected = request.prompt_tokens + request.output_tokens - 1 - block_size * bench.hook.hits[name]
                assert bench.hook.scheduled_tokens[name] == expected
