"""The seeded workload: repeatable, in order, and as varied as it claims to be."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from ledger.reference.content import block_hashes
from ledger.reference.workload import DAY_US, HOUR_US, TENANTS, Scenario, mixed_day

if TYPE_CHECKING:
    from ledger.reference.request import TraceRequest


def session(first: TraceRequest, turns: int = 12) -> list[TraceRequest]:
    return [first, *islice(first.then or (), turns - 1)]


def test_the_same_seed_gives_the_same_day_and_another_seed_another() -> None:
    def head(seed: int) -> list[TraceRequest]:
        firsts = islice(mixed_day(seed).requests(), 30)
        return [request for first in firsts for request in session(first)]

    def told(seed: int) -> list[tuple[str, int, int, list[int]]]:
        return [(one.request, one.arrival_us, one.output_tokens, list(one.content)) for one in head(seed)]

    assert told(1) == told(1)
    assert told(1) != told(2)


def test_sessions_of_ten_tenants_arrive_in_order_all_day() -> None:
    firsts = list(mixed_day(1).requests())
    assert all(a.arrival_us <= b.arrival_us for a, b in pairwise(firsts))
    assert firsts[0].arrival_us >= 0
    assert firsts[-1].arrival_us < DAY_US
    assert {first.dims.tenant for first in firsts} == {habit.tenant for habit in TENANTS}
    assert len(TENANTS) == 10
    assert {first.dims.scenario for first in firsts} == set(map(str, Scenario))
    assert len({first.request for first in firsts}) == len(firsts)


def test_afternoons_are_busier_than_nights() -> None:
    hours = Counter(first.arrival_us // HOUR_US for first in mixed_day(1).requests())
    night = sum(hours[hour] for hour in range(1, 6))
    afternoon = sum(hours[hour] for hour in range(13, 18))
    assert afternoon > 2 * night


def test_a_conversation_grows_and_shares_all_of_what_went_before() -> None:
    first = next(one for one in mixed_day(1).requests() if one.dims.tenant == "birch")
    turns = session(first, 4)
    assert len(turns) > 1
    for before, after in pairwise(turns):
        shared = (before.prompt_tokens + before.output_tokens) // 16
        assert after.prompt_tokens > before.prompt_tokens + before.output_tokens - 16
        assert after.shared_ids == shared
        assert block_hashes(after, 16)[:shared] == block_hashes(before, 16)[:shared]


def test_sessions_of_a_tenant_share_its_system_prompt_and_those_of_others_nothing() -> None:
    firsts: dict[str, list[TraceRequest]] = {}
    for first in mixed_day(1).requests():
        firsts.setdefault(first.dims.tenant, []).append(first)
    hashes = [block_hashes(one, 16) for one in (*firsts["birch"][:2], firsts["alder"][0])]
    system = 1600 // 16
    assert hashes[0][:system] == hashes[1][:system]
    assert not set(hashes[0][system:]) & set(hashes[1][system:])
    assert not set(hashes[0]) & set(hashes[2])


def test_some_clients_leave_some_requests_have_samples_and_some_speculate() -> None:
    requests = [one for first in mixed_day(1).requests() for one in session(first, 3)]
    assert any(one.leaves_after_us is not None and one.abandons for one in requests)
    assert any(one.leaves_after_us is not None and not one.abandons for one in requests)
    assert any(one.samples > 1 for one in requests)
    assert any(one.draft_tokens for one in requests)
    assert {one.dims.priority for one in requests} == {-1, 0, 1, 2}
    assert all(one.prompt_tokens > 0 and one.output_tokens > 0 for one in requests)


def test_load_multiplies_the_sessions() -> None:
    count = [sum(1 for _ in mixed_day(1, load=load).requests()) for load in (0.5, 1.0)]
    assert 0.4 < count[0] / count[1] < 0.6
