"""The guest rule: whatever an engine says, nothing raises, it is counted, and the account still closes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_meter import ALICE, BOB, NOON, SECOND, SOURCE, Engine

from ledger import wire
from ledger.core.records import NO_REPORT, PERIOD_US, Boot, Dimensions, Group, HookReport, Outcome, PreemptionReason
from ledger.hook.meter import Meter


def closes(engine):
    """Every batch obeys law 1, and its rows sum to its pools."""
    for batch in engine.batches:
        for pool in batch.pools:
            length = batch.end_us - batch.start_us
            assert pool.active_block_us + pool.cached_block_us + pool.free_block_us == pool.blocks * length
            assert min(pool.active_block_us, pool.cached_block_us, pool.free_block_us, pool.unfilled_slot_us) >= 0
            rows = [row for row in batch.sessions if row.pool == pool.pool]
            assert sum(row.holding.active_block_us for row in rows) == pool.active_block_us
            assert sum(row.compute_us for row in rows) == pool.step_us


def held(engine, blocks=(1, 2)):
    engine.start("a", ALICE, prompt=16, new=list(blocks))
    return engine


CASES = {
    "release_not_held": lambda e: e.pool.release(SECOND, "a", [3], freed=[3]),
    "unknown_request": lambda e: e.pool.release(SECOND, "nobody", [1], freed=[1]),
    "block_twice": lambda e: e.pool.acquire(SECOND, "a", 0, new=[5, 5]),
    "new_is_held": lambda e: e.pool.acquire(SECOND, "a", 0, new=[1]),
    "held_already": lambda e: e.pool.acquire(SECOND, "a", 0, hit=[1]),
    "hit_without_content": lambda e: e.pool.acquire(SECOND, "a", 0, hit=[7]),
    "evict_not_cached": lambda e: e.pool.evict(SECOND, [1]),
    "release_state_unclear": lambda e: e.pool.release(SECOND, "a", [1, 2], freed=[1]),
    "request_twice": lambda e: e.meter.request(SECOND, "a", BOB, prompt_tokens=1),
    "step_without_schedule": lambda e: e.meter.stepped(SECOND),
    "total_differs": lambda e: e.meter.scheduled(SECOND, {"a": 3}, 5),
    "negative_tokens": lambda e: e.meter.scheduled(SECOND, {"a": -3}, -3),
    "clock_leap": lambda e: e.meter.advance(10**18),
    "pool_is_open": lambda e: e.meter.open(SECOND, "gpu", blocks=5, groups=(Group(block_size=1),)),
    "second_paying_pool": lambda e: e.meter.open(SECOND, "other", blocks=5, groups=(Group(block_size=1),)),
    "phase_unclear": lambda e: e.meter.phases(SECOND, {"thinking": 5}),
    "internal": lambda e: e.pool.acquire(SECOND, "a", 0, new=["one"]),
}


@pytest.mark.parametrize("reason", CASES)
def test_what_cannot_be_is_a_fault_with_a_reason(reason):
    engine = held(Engine())
    CASES[reason](engine)
    assert engine.meter.faults[reason] >= 1
    engine.meter.close(20 * SECOND)
    closes(engine)


def test_blocks_are_not_let_go_in_a_pool_that_another_pools_ids_are_named_to():
    engine = held(Engine())
    other = engine.meter.open(SECOND, "other", blocks=5, groups=(Group(block_size=4),), paying=False)
    other.release(SECOND, "a", [2, 1], freed=[1, 2])
    assert engine.meter.faults["release_not_held"] >= 1
    assert (engine.pool.counts[0], other.counts[0]) == (2, 0)
    engine.meter.close(20 * SECOND)
    closes(engine)


def test_a_departure_that_names_a_wrong_block_as_cached_still_lets_all_go():
    engine = held(Engine())
    engine.pool.release(SECOND, "a", [2, 1], cached=[3], freed=[1])
    assert engine.meter.faults == {"release_state_unclear": 1}
    assert engine.pool.counts == (0, 0, 100)
    engine.pool.acquire(SECOND, "a", 0, new=[1, 2, 3])
    assert engine.pool.counts == (3, 0, 97)
    assert engine.meter.faults == {"release_state_unclear": 1}


def test_the_last_holder_of_a_shared_block_lets_it_go_though_the_engine_does_not_say_so():
    engine = held(Engine())
    engine.start("b", BOB, prompt=17, hit=[1], new=[3])
    engine.pool.release(SECOND, "a", [1, 2], freed=[2])
    engine.pool.release(SECOND, "b", [3, 1], freed=[3])
    assert engine.meter.faults == {"release_state_unclear": 1}
    assert engine.pool.counts == (0, 0, 100)


@pytest.mark.parametrize(
    "bad",
    [
        Dimensions(tenant=""),
        Dimensions(tenant="\ud800"),
        Dimensions(tenant="t" * 513),
        Dimensions(tenant="a", session=""),
        Dimensions(tenant="a", session="two\nlines"),
        Dimensions(tenant="a", model="m" * 600, adapter="\0", scenario="\x7f"),
        Dimensions(tenant="a", priority=2**40),
    ],
)
def test_names_that_may_not_travel_cost_no_batch_and_stay_apart(bad: Dimensions):
    engine = Engine()
    engine.start("a", ALICE, prompt=16, new=[1])
    engine.start("b", bad, prompt=16, new=[2])
    engine.meter.advance(PERIOD_US)
    assert engine.meter.faults == {"name_cannot_travel": 1}
    batch = engine.batches[-1]
    assert len({row.dims for row in batch.sessions}) == 2
    assert isinstance(wire.decode(wire.encode(batch, b"")), wire.Decoded)


def test_a_clock_that_runs_backwards_stands_still():
    engine = held(Engine())
    engine.meter.advance(5 * SECOND)
    engine.pool.release(2 * SECOND, "a", [1, 2], freed=[1, 2])
    engine.meter.advance(PERIOD_US)
    assert engine.meter.faults == {"clock_backwards": 1}
    assert engine.last.pools[0].active_block_us == 2 * 5 * SECOND


def test_an_eviction_that_nobody_told_of_is_tolerated():
    engine = held(Engine())
    engine.end(SECOND, "a", blocks=[1, 2], cached=[1, 2])
    engine.start("b", BOB, prompt=16, new=[1], t=3 * SECOND)
    engine.meter.advance(PERIOD_US)
    assert not engine.meter.faults
    assert engine.row(ALICE).cached_block_us == 2 * 2 * SECOND + 12 * SECOND


def test_blocks_of_an_unknown_request_belong_to_nobody_until_it_lets_go():
    engine = Engine()
    engine.pool.acquire(0, "stranger", 0, new=[1])
    engine.pool.release(SECOND, "stranger", [1], freed=[1])
    engine.meter.close(2 * SECOND)
    record = engine.records()["stranger"]
    assert record.dims == Dimensions(tenant="unattributed")
    assert (record.outcome, record.holding.active_block_us) == (Outcome.FAILED, SECOND)
    closes(engine)


def test_tokens_of_an_unknown_request_are_computed_for_nobody():
    engine = held(Engine())
    engine.step(0, 4 * SECOND, {"a": 1, "stranger": 3})
    engine.meter.advance(PERIOD_US)
    assert engine.row(Dimensions(tenant="unattributed")).compute_us == 3 * SECOND
    closes(engine)


def test_ids_0_to_n_together_are_one_block_too_many():
    engine = Engine(blocks=3)
    engine.start("a", prompt=1, new=[0, 1, 2])
    engine.pool.acquire(0, "a", 0, new=[3])
    assert engine.meter.faults == {"pool_overfull": 1}
    assert engine.pool.counts == (3, 0, 0)


def test_a_receiver_that_raises_does_not_reach_the_engine():
    def refuse(_batch):
        raise OSError

    meter = Meter(SOURCE, Boot(boot_id="b", anchor_us=NOON, started_us=NOON), refuse)
    meter.open(0, "gpu", blocks=4, groups=(Group(block_size=16),))
    meter.advance(PERIOD_US)
    assert meter.faults == {"internal": 2}


names = st.sampled_from(["a", "b", "c"])
ids = st.lists(st.integers(-2, 9), max_size=4)
calls = st.one_of(
    st.tuples(st.just("acquire"), names, st.integers(-1, 2), ids, ids, ids),
    st.tuples(st.just("grow"), st.integers(-1, 2), st.lists(names, max_size=4), ids),
    st.tuples(st.just("release"), names, ids, ids, ids),
    st.tuples(st.just("evict"), ids),
    st.tuples(st.just("request"), names, st.integers(-1, 40)),
    st.tuples(st.just("scheduled"), st.dictionaries(names, st.integers(-1, 9)), st.integers(-1, 20)),
    st.tuples(st.just("stepped"), st.dictionaries(names, st.integers(-1, 3))),
    st.tuples(st.just("finish"), names),
    st.tuples(st.just("preempt"), names),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1), st.lists(st.tuples(st.integers(-3, 6_000_000), calls), max_size=40))
def test_nonsense_is_counted_and_the_account_closes(lookahead, events):
    engine = Engine(blocks=8, block_size=4, lookahead_tokens=lookahead)
    t = 0
    for step, (what, *args) in events:
        t += step
        if what == "acquire":
            name, group, hit, loaded, new = args
            engine.pool.acquire(t, name, group, hit=hit, loaded=loaded, new=new)
        elif what == "grow":
            engine.pool.grow(t, *args)
        elif what == "release":
            name, blocks, cached, freed = args
            engine.pool.release(t, name, blocks, cached=cached, freed=freed)
        elif what == "evict":
            engine.pool.evict(t, *args)
        elif what == "request":
            engine.meter.request(t, args[0], ALICE, prompt_tokens=args[1])
        elif what == "finish":
            engine.meter.finish(t, args[0], Outcome.FAILED)
        elif what == "scheduled":
            engine.meter.scheduled(t, *args)
        else:
            getattr(engine.meter, what)(t, *args)
        active, cached, free = engine.pool.counts
        assert min(active, cached, free) >= 0
    engine.meter.close(t + 60 * SECOND)
    assert engine.last.closes
    closes(engine)


def test_each_batch_says_what_the_meter_could_not_make_sense_of_since_it_began():
    engine = held(Engine())
    engine.meter.stepped(SECOND)
    engine.meter.advance(PERIOD_US)
    assert engine.last.hook == HookReport(faults=(("step_without_schedule", 1),))
    engine.meter.stepped(PERIOD_US + SECOND)
    engine.pool.evict(PERIOD_US + SECOND, [1])
    engine.meter.advance(2 * PERIOD_US)
    assert engine.last.hook == HookReport(faults=(("evict_not_cached", 1), ("step_without_schedule", 2)))


def test_a_clock_that_is_set_anew_sets_no_count_back():
    engine = held(Engine())
    engine.meter.stepped(SECOND)
    meter = engine.meter.successor(2 * SECOND, Boot(boot_id="b2", anchor_us=NOON + 9, started_us=NOON + 9 + 2 * SECOND))
    meter.advance(PERIOD_US)
    assert engine.last.boot.boot_id == "b2"
    assert engine.last.hook.faults == (("step_without_schedule", 1),)


def test_a_meter_without_a_fault_has_nothing_to_say():
    engine = held(Engine())
    engine.meter.advance(PERIOD_US)
    assert engine.last.hook == NO_REPORT


@pytest.mark.parametrize("pools", [True, False])
def test_a_hook_that_gives_up_says_why_in_its_last_batch(pools):
    engine = held(Engine())
    if not pools:
        engine.meter.close(SECOND, "sleep")
    engine.meter.close(2 * SECOND, "off", because="64 faults\nin a row: " + "x" * 1_000)
    assert engine.last.hook.off.startswith("64 faults in a row: xxx")
    assert len(engine.last.hook.off) == 512
    assert [close.reason for close in engine.last.closes] == ["off"] * pools
    closes(engine)


def test_a_hook_that_gives_up_without_a_word_is_off_all_the_same():
    engine = held(Engine())
    engine.meter.close(SECOND, "off")
    assert engine.last.hook.off == "it does not say why"


@pytest.mark.parametrize("name", ["r" * 5000, "a\nb\x1b[31m", "\ud800", ""])
def test_a_name_that_may_not_travel_is_shortened_and_stays_different_from_others(name):
    batches = []
    boot = Boot(boot_id="b", anchor_us=1_800_000_000_000_000, started_us=1_800_000_000_000_000)
    meter = Meter(SOURCE, boot, batches.append)
    meter.open(0, "gpu", blocks=4, groups=[Group(block_size=16)])
    for one in (name, name + "'"):
        meter.request(0, one, Dimensions(tenant="a"), prompt_tokens=1, parent=name or None)
        meter.finish(1, one, Outcome.ABORTED)
    meter.close(2)
    read = [wire.decode(wire.encode(batch, b"")) for batch in batches]
    assert all(isinstance(one, wire.Decoded) for one in read), read
    assert len({record.request for batch in batches for record in batch.requests}) == 2


def test_output_that_a_preemption_drops_is_not_waited_for():
    """As after a reset of the cache: the request is scheduled again before the step that it was in has ended."""
    engine = Engine()
    engine.start("a", ALICE, prompt=16, new=[1, 2])
    meter = engine.meter
    meter.scheduled(SECOND, {"a": 16}, 16)
    meter.stepped(2 * SECOND)  # the first token
    meter.scheduled(2 * SECOND, {"a": 1}, 1)
    meter.preempt(3 * SECOND, "a", PreemptionReason.RESET, drops_output=True)
    engine.pool.release(3 * SECOND, "a", [1, 2], freed=[1, 2])
    engine.pool.acquire(3 * SECOND, "a", 0, new=[3, 4])
    meter.scheduled(3 * SECOND, {"a": 17}, 17)
    meter.stepped(4 * SECOND, {"a": 0})
    for second in range(4, 8):
        meter.scheduled(second * SECOND, {"a": 1}, 1)
        meter.stepped(second * SECOND + 1)
    meter.stepped(9 * SECOND)
    meter.finish(9 * SECOND, "a", Outcome.FINISHED)
    engine.pool.release(9 * SECOND, "a", [3, 4], freed=[3, 4])
    meter.close(10 * SECOND)
    (record,) = [record for batch in engine.batches for record in batch.requests]
    assert (record.tokens.output, record.tokens.computed, record.tokens.recomputed) == (6, 16, 17)
    assert not meter.faults
