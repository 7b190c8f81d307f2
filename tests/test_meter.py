"""What the meter says of small cases that can be worked out on paper; several are faults reported in the field."""

from __future__ import annotations

import pytest

from ledger.core.records import (
    PERIOD_US,
    Boot,
    Dimensions,
    Group,
    GroupKind,
    Origin,
    Outcome,
    PreemptionReason,
    Source,
    Tokens,
)
from ledger.hook.meter import Meter

SOURCE = Source(engine="engine-0", origin=Origin.SIMULATED)
NOON = 1_793_707_200_000_000
SECOND = 1_000_000
ALICE = Dimensions(tenant="alice", session="chat-1", scenario="chat")
BOB = Dimensions(tenant="bob", session="doc-7", scenario="doc")


class Engine:
    """A meter whose clock starts at noon, and the batches that came out of it."""

    def __init__(self, blocks=100, block_size=16, **more):
        self.batches = []
        boot = Boot(boot_id="boot-1", anchor_us=NOON, started_us=NOON)
        self.meter = Meter(SOURCE, boot, self.batches.append)
        groups = more.pop("groups", (Group(block_size=block_size),))
        self.pool = self.meter.open(0, "gpu", blocks=blocks, groups=groups, **more)

    def start(self, name, dims=ALICE, *, prompt, new=(), hit=(), t=0, **more):
        """A request arrives, gets blocks, and its whole prompt (or the rest) is scheduled and computed by ``t``."""
        self.meter.request(t, name, dims, prompt_tokens=prompt)
        self.pool.acquire(t, name, 0, hit=hit, new=new, **more)

    def step(self, start, end, tokens, accepted=None):
        self.meter.scheduled(start, tokens, sum(tokens.values()))
        self.meter.stepped(end, accepted or {})

    def end(self, t, name, outcome=Outcome.FINISHED, *, blocks=(), cached=(), freed=()):
        self.meter.finish(t, name, outcome)
        self.pool.release(t, name, blocks, cached=cached, freed=freed)

    @property
    def last(self):
        return self.batches[-1]

    def pools(self):
        return [pool for batch in self.batches for pool in batch.pools]

    def records(self):
        return {record.request: record for batch in self.batches for record in batch.requests}

    def row(self, dims, batch=None):
        return next(row for row in (batch or self.last).sessions if row.dims == dims)


@pytest.fixture
def engine():
    made = Engine()
    yield made
    assert not made.meter.faults


# -- time held ---------------------------------------------------------------------------------------


def test_a_pool_is_active_cached_and_free_and_they_fill_it(engine):
    """B1, B3: three states; cached blocks are neither used nor free."""
    engine.start("r", prompt=32, new=[1, 2, 3])
    engine.end(5 * SECOND, "r", blocks=[3, 2, 1], cached=[1, 2], freed=[3])
    engine.meter.advance(PERIOD_US)
    pool = engine.last.pools[0]
    assert pool.active_block_us == 3 * 5 * SECOND
    assert pool.cached_block_us == 2 * 10 * SECOND
    assert pool.active_block_us + pool.cached_block_us + pool.free_block_us == 100 * PERIOD_US


def test_a_shared_block_costs_each_holder_its_part(engine):
    engine.start("a", ALICE, prompt=16, new=[1])
    engine.start("b", BOB, prompt=16, hit=[1], t=5 * SECOND)
    engine.meter.advance(PERIOD_US)
    assert engine.row(ALICE).holding.active_block_us == 5 * SECOND + 5 * SECOND
    assert engine.row(BOB).holding.active_block_us == 5 * SECOND


def test_what_cannot_be_divided_goes_to_the_largest_fraction(engine):
    """Three holders of one block for 10 µs: 3⅓ each, so 4, 3 and 3, and the sum is exact."""
    for name, tenant in (("r1", "t1"), ("r2", "t2"), ("r3", "t3")):
        dims = Dimensions(tenant=tenant)
        new, hit = ([1], []) if name == "r1" else ([], [1])
        engine.start(name, dims, prompt=16, new=new, hit=hit, t=PERIOD_US - 10)
    engine.meter.advance(PERIOD_US)
    held = [engine.row(Dimensions(tenant=f"t{i}")).holding.active_block_us for i in (1, 2, 3)]
    assert held == [4, 3, 3]


def test_a_cached_block_belongs_to_whom_held_it_last(engine):
    """B19: by physical id. Two sessions computed the same content; each owns its own copy."""
    engine.start("a", ALICE, prompt=16, new=[1])
    engine.start("b", BOB, prompt=16, new=[2])
    engine.end(0, "a", blocks=[1], cached=[1])
    engine.end(0, "b", blocks=[2], cached=[2])
    engine.start("a2", ALICE, prompt=16, hit=[2], t=SECOND)
    engine.end(2 * SECOND, "a2", blocks=[2], cached=[2])
    engine.meter.advance(PERIOD_US)
    assert engine.row(ALICE).cached_blocks_end == 2
    assert engine.row(BOB).cached_block_us == SECOND


def test_content_from_before_the_meter_belongs_to_nobody():
    engine = Engine(cached=[4, 5])
    engine.meter.advance(PERIOD_US)
    assert engine.row(Dimensions(tenant="unattributed")).cached_block_us == 2 * PERIOD_US


def test_a_quiet_session_has_no_row_and_a_standing_count_when_asked(engine):
    engine.start("a", prompt=16, new=[1])
    engine.end(0, "a", blocks=[1], cached=[1])
    engine.meter.advance(PERIOD_US)
    assert engine.last.standing is not None, "the first batch with pools"
    engine.meter.advance(2 * PERIOD_US)
    assert engine.last.sessions == ()
    assert engine.last.standing is None
    engine.meter.resend_standing()
    engine.meter.advance(3 * PERIOD_US)
    assert [(count.dims, count.cached_blocks) for count in engine.last.standing] == [(ALICE, 1)]
    engine.meter.advance(3_600 * SECOND)
    assert engine.last.standing is None
    engine.meter.advance(3_600 * SECOND + PERIOD_US)
    assert engine.last.standing is not None, "the first batch of an hour"


def test_a_request_is_charged_until_it_has_let_go_and_only_then_has_its_record(engine):
    engine.start("r", prompt=16, new=[1])
    engine.meter.finish(SECOND, "r", Outcome.FINISHED)
    engine.meter.advance(PERIOD_US)
    assert not engine.records()
    engine.pool.release(PERIOD_US + SECOND, "r", [1], freed=[1])
    engine.meter.advance(2 * PERIOD_US)
    record = engine.records()["r"]
    assert record.holding.active_block_us == PERIOD_US + SECOND
    assert [use.active_block_us for use in record.uses] == [PERIOD_US, SECOND]
    assert record.ended_us == NOON + SECOND


def test_a_close_lets_pending_records_go(engine):
    engine.start("r", prompt=16, new=[1])
    engine.meter.finish(SECOND, "r", Outcome.ABORTED)
    engine.meter.close(2 * SECOND)
    assert engine.records()["r"].holding.active_block_us == 2 * SECOND
    assert engine.last.closes[0].reason == "shutdown"


# -- slots -------------------------------------------------------------------------------------------


def test_seventeen_tokens_in_blocks_of_sixteen_leave_fifteen_slots_empty(engine):
    """B2: two blocks are held for 17 tokens; the gauge says 2 of 2, the slots say 17 of 32."""
    engine.start("r", prompt=17, new=[1, 2])
    engine.step(0, 0, {"r": 17})
    engine.meter.advance(PERIOD_US)
    pool = engine.last.pools[0]
    assert pool.held_slot_us == 32 * PERIOD_US
    assert pool.unfilled_slot_us == 15 * PERIOD_US


def test_each_decode_step_fills_a_slot_and_a_new_block_brings_sixteen(engine):
    engine.start("r", prompt=16, new=[1])
    engine.step(0, SECOND, {"r": 16})
    for second in range(1, 4):
        if second == 1:
            engine.pool.acquire(second * SECOND, "r", 0, new=[2])
        engine.step(second * SECOND, (second + 1) * SECOND, {"r": 1})
    engine.meter.advance(PERIOD_US)
    # 15 empty in the second second, 14 in the third, 13 from then on.
    assert engine.last.pools[0].unfilled_slot_us == (15 + 14 + 13 * 12) * SECOND


def test_look_ahead_slots_are_apart():
    engine = Engine(lookahead_tokens=4)
    engine.start("r", prompt=16, new=[1, 2])
    engine.step(0, 0, {"r": 16})
    engine.meter.advance(PERIOD_US)
    pool = engine.last.pools[0]
    assert (pool.lookahead_slot_us, pool.unfilled_slot_us) == (4 * PERIOD_US, 12 * PERIOD_US)


def test_a_shared_partial_block_is_filled_as_far_as_any_holder_has_it(engine):
    """n > 1: the samples share the last, half-full block; one of them writes on."""
    engine.meter.request(0, "r-0", ALICE, prompt_tokens=20, parent="r")
    engine.pool.acquire(0, "r-0", 0, new=[1, 2])
    engine.step(0, 0, {"r-0": 20})
    engine.meter.request(0, "r-1", ALICE, prompt_tokens=20, parent="r")
    engine.pool.acquire(0, "r-1", 0, hit=[1, 2], covered_tokens=19)
    engine.meter.advance(PERIOD_US)
    assert engine.last.pools[0].unfilled_slot_us == 12 * PERIOD_US
    engine.step(PERIOD_US, PERIOD_US, {"r-0": 1})
    engine.meter.advance(2 * PERIOD_US)
    assert engine.last.pools[0].unfilled_slot_us == 11 * PERIOD_US


def test_state_groups_have_no_slots():
    engine = Engine(groups=(Group(block_size=16), Group(block_size=512, kind=GroupKind.STATE)))
    engine.start("r", prompt=16, new=[1])
    engine.pool.acquire(0, "r", 1, new=[2])
    engine.step(0, 0, {"r": 16})
    engine.meter.advance(PERIOD_US)
    pool = engine.last.pools[0]
    assert [group.active_block_us for group in pool.groups] == [PERIOD_US, PERIOD_US]
    assert (pool.held_slot_us, pool.unfilled_slot_us) == (16 * PERIOD_US, 0)


# -- tokens ------------------------------------------------------------------------------------------


def test_every_stream_that_is_closed_by_its_client_has_one_record_with_its_prefill(engine):
    """A1, A2: five streams, 602 tokens each, closed: five records, 3010 tokens, all of their block time."""
    for i in range(5):
        blocks = list(range(i * 19, i * 19 + 19))
        engine.start(f"r{i}", prompt=602, new=blocks[:15])
        engine.pool.acquire(0, f"r{i}", 0, new=blocks[15:])
    engine.step(0, SECOND, {f"r{i}": 602 for i in range(5)})
    for i in range(5):
        blocks = list(range(i * 19, i * 19 + 19))
        engine.end(2 * SECOND, f"r{i}", Outcome.ABORTED, blocks=blocks, freed=blocks)
    engine.meter.close(3 * SECOND)
    records = list(engine.records().values())
    assert [record.outcome for record in records] == [Outcome.ABORTED] * 5
    assert sum(record.tokens.computed for record in records) == 3010
    assert sum(record.holding.active_block_us for record in records) == 5 * 19 * 2 * SECOND


def test_an_abort_after_k_tokens_carries_k_tokens(engine):
    """F1: three tokens were out when the client went; they are billed, and so is the time."""
    engine.start("r", prompt=5, new=[1])
    engine.step(0, SECOND, {"r": 5})
    engine.step(SECOND, 2 * SECOND, {"r": 1})
    engine.step(2 * SECOND, 3 * SECOND, {"r": 1})
    engine.end(4 * SECOND, "r", Outcome.ABORTED, blocks=[1], freed=[1])
    engine.meter.close(5 * SECOND)
    record = engine.records()["r"]
    assert record.tokens == Tokens(computed=5, output=3)
    assert record.holding.active_block_us == 4 * SECOND
    assert record.compute_us == 3 * SECOND
    assert record.last_token_us == NOON + 3 * SECOND


def test_an_abort_in_the_middle_of_the_prompt_leaves_the_rest_unprocessed(engine):
    engine.start("r", prompt=100, new=[1, 2])
    engine.step(0, SECOND, {"r": 32})
    engine.end(SECOND, "r", Outcome.ABORTED, blocks=[1, 2], freed=[1, 2])
    engine.meter.close(2 * SECOND)
    record = engine.records()["r"]
    assert record.tokens == Tokens(computed=32, unprocessed=68)
    assert record.first_token_us is None


def test_own_hits_after_a_preemption_are_no_cache_hits(engine):
    """A4: random prompts under pressure; what comes back from the cache was classified when it was computed."""
    engine.start("r", prompt=40, new=[1, 2, 3])
    engine.step(0, SECOND, {"r": 40})
    engine.meter.preempt(SECOND, "r")
    engine.pool.release(SECOND, "r", [3, 2, 1], cached=[1, 2], freed=[3])
    engine.pool.acquire(2 * SECOND, "r", 0, hit=[1, 2], new=[3])
    engine.step(2 * SECOND, 3 * SECOND, {"r": 9})
    engine.end(3 * SECOND, "r", blocks=[3, 2, 1], freed=[1, 2, 3])
    engine.meter.close(4 * SECOND)
    assert engine.records()["r"].tokens == Tokens(computed=40, recomputed=8, output=2)


def test_recomputed_tokens_are_counted_each_time_and_preemptions_by_reason(engine):
    """A7, A8: the work thrown away is known exactly, and the reasons sum to the preemptions."""
    engine.start("r", prompt=16, new=[1])
    engine.step(0, SECOND, {"r": 16})
    for i, reason in enumerate([PreemptionReason.KV_FULL, PreemptionReason.PRIORITY, PreemptionReason.RESET]):
        engine.meter.preempt((i + 1) * SECOND, "r", reason)
        engine.pool.release((i + 1) * SECOND, "r", [1], freed=[1])
        engine.pool.acquire((i + 1) * SECOND, "r", 0, new=[1])
        engine.step((i + 1) * SECOND, (i + 2) * SECOND, {"r": 16})
    engine.end(5 * SECOND, "r", blocks=[1], freed=[1])
    engine.meter.close(6 * SECOND)
    record = engine.records()["r"]
    assert record.tokens.recomputed == 3 * 16
    assert record.tokens.computed == 16
    reasons = record.preemptions
    assert (reasons.kv_full, reasons.priority, reasons.reset, reasons.other) == (1, 1, 1, 0)


def test_speculation_counts_accepted_tokens_only(engine):
    """A11: four drafts, two accepted, and the token that the model adds itself."""
    engine.start("r", prompt=16, new=[1, 2])
    engine.step(0, SECOND, {"r": 16})
    engine.step(SECOND, 2 * SECOND, {"r": 5}, {"r": 3})
    engine.end(2 * SECOND, "r", blocks=[1, 2], freed=[1, 2])
    engine.meter.close(3 * SECOND)
    assert engine.records()["r"].tokens == Tokens(computed=16, output=4, drafted=4, rejected=2)


def test_transferred_content_is_not_a_cache_hit(engine):
    """A14, A15: a decode node gets the prompt over the wire and computes its last token itself."""
    engine.meter.request(0, "r", ALICE, prompt_tokens=33)
    engine.pool.acquire(0, "r", 0, loaded=[1, 2], new=[3])
    engine.step(0, SECOND, {"r": 1})
    engine.end(SECOND, "r", blocks=[1, 2, 3], freed=[1, 2, 3])
    engine.meter.close(2 * SECOND)
    assert engine.records()["r"].tokens == Tokens(transferred=32, computed=1, output=1)


def test_hits_are_told_apart_by_who_computed_the_block(engine):
    engine.start("a", ALICE, prompt=16, new=[1])
    engine.step(0, 0, {"a": 16})
    engine.start("b", BOB, prompt=17, hit=[1], new=[2])
    engine.step(0, 0, {"b": 1})
    engine.end(0, "b", blocks=[2, 1], cached=[2])
    engine.start("a2", ALICE, prompt=33, hit=[1], new=[3, 4], t=SECOND)
    engine.meter.close(2 * SECOND)
    row = engine.row(ALICE)
    assert row.tokens.cached_own == 16
    assert engine.records()["b"].tokens.cached_others == 16


def test_cached_content_stays_with_who_computed_it_whoever_held_it_last(engine):
    """Alice computes a block, Bob reuses it and is its last holder; once it is evicted it is the next one's work."""
    hits = []
    engine.start("a", ALICE, prompt=17, new=[1, 2])
    engine.end(0, "a", blocks=[2, 1], cached=[1], freed=[2])
    for i, dims in enumerate((BOB, ALICE, BOB)):
        engine.start(f"r{i}", dims, prompt=17, hit=[1], new=[2])
        engine.end(0, f"r{i}", blocks=[2, 1], cached=[1], freed=[2])
    engine.pool.evict(0, [1])
    engine.start("b", BOB, prompt=17, new=[1, 2])
    engine.end(0, "b", blocks=[2, 1], cached=[1], freed=[2])
    for i, dims in enumerate((ALICE, BOB)):
        engine.start(f"s{i}", dims, prompt=17, hit=[1], new=[2])
        engine.end(0, f"s{i}", blocks=[2, 1], cached=[1], freed=[2])
    engine.meter.close(SECOND)
    records = engine.records()
    for name in ("r0", "r1", "r2", "s0", "s1"):
        tokens = records[name].tokens
        hits.append((tokens.cached_own, tokens.cached_others))
    assert hits == [(0, 16), (16, 0), (0, 16), (0, 16), (16, 0)]


def test_content_from_outside_is_nobodys_work_once_it_is_cached(engine):
    engine.start("a", ALICE, prompt=17, loaded=[1], new=[2])
    engine.end(0, "a", blocks=[1, 2], cached=[1], freed=[2])
    engine.start("b", ALICE, prompt=17, hit=[1], new=[2])
    engine.end(0, "b", blocks=[1, 2], freed=[1, 2])
    engine.start("c", ALICE, prompt=17, new=[1, 2])
    engine.start("d", ALICE, prompt=17, hit=[1], new=[3])
    engine.end(0, "c", blocks=[2, 1], freed=[2])
    engine.end(0, "d", blocks=[3, 1], freed=[3, 1])
    engine.meter.close(SECOND)
    records = engine.records()
    assert (records["b"].tokens.cached_own, records["b"].tokens.cached_others) == (0, 16)
    assert (records["d"].tokens.cached_own, records["d"].tokens.cached_others) == (16, 0)


# -- steps -------------------------------------------------------------------------------------------


def test_a_step_is_divided_by_tokens_and_one_without_any_goes_to_the_system(engine):
    engine.start("a", ALICE, prompt=30, new=[1, 2])
    engine.start("b", BOB, prompt=10, new=[3])
    engine.step(0, 4 * SECOND, {"a": 30, "b": 10})
    engine.step(5 * SECOND, 6 * SECOND, {})
    engine.meter.advance(PERIOD_US)
    assert engine.row(ALICE).compute_us == 3 * SECOND
    assert engine.row(BOB).compute_us == SECOND
    assert engine.row(Dimensions(tenant="system")).compute_us == SECOND
    assert (engine.last.pools[0].steps, engine.last.pools[0].step_us) == (2, 5 * SECOND)


def test_steps_in_flight_never_overlap(engine):
    """Asynchronous scheduling: the second step is scheduled before the first has ended, and begins where it ends."""
    engine.start("a", prompt=16, new=[1, 2])
    engine.meter.scheduled(0, {"a": 16}, 16)
    engine.meter.scheduled(SECOND, {"a": 1}, 1)
    engine.meter.stepped(3 * SECOND)
    engine.meter.scheduled(3 * SECOND, {"a": 1}, 1)
    engine.meter.stepped(4 * SECOND)
    engine.meter.stepped(5 * SECOND)
    engine.meter.advance(PERIOD_US)
    assert engine.last.pools[0].step_us == 5 * SECOND
    assert engine.row(ALICE).tokens == Tokens(computed=16, output=3)


def test_who_leaves_in_mid_step_keeps_its_share(engine):
    engine.start("a", ALICE, prompt=8, new=[1])
    engine.start("b", BOB, prompt=8, new=[2])
    engine.meter.scheduled(0, {"a": 8, "b": 8}, 16)
    engine.end(SECOND, "a", Outcome.ABORTED, blocks=[1], freed=[1])
    engine.meter.stepped(2 * SECOND)
    engine.meter.advance(PERIOD_US)
    record = engine.records()["a"]
    assert record.compute_us == SECOND
    assert record.tokens == Tokens(computed=8)


def test_a_step_belongs_whole_to_the_period_in_which_it_ends(engine):
    engine.start("a", prompt=8, new=[1])
    engine.step(PERIOD_US - SECOND, PERIOD_US, {"a": 8})
    engine.meter.advance(2 * PERIOD_US)
    assert [pool.step_us for pool in engine.pools()] == [0, SECOND]


def test_histograms_count_a_first_token_and_one_gap_for_each_other(engine):
    engine.start("a", prompt=16, new=[1, 2])
    engine.step(0, SECOND, {"a": 16})
    for second in range(1, 6):
        engine.step(second * SECOND, (second + 1) * SECOND, {"a": 1}, {"a": 0} if second == 4 else None)
    engine.end(6 * SECOND, "a", blocks=[1, 2], freed=[1, 2])
    engine.meter.close(7 * SECOND)
    named = {(one.name, dict(one.labels).get("direction")): one for one in engine.last.histograms}
    assert named["first_token_us", None].total == SECOND
    gaps = named["inter_token_us", None]
    assert (gaps.count, gaps.total) == (4, 5 * SECOND), "the token that did not come makes the next gap longer"
    assert named["end_to_end_us", None].total == 6 * SECOND
    assert named["request_length_tokens", "out"].total == 5
    assert named["step_latency_us", None].count == 6
    assert dict(gaps.labels) == {"scenario": "chat", "priority": "0"}


# -- periods, boots, pools ---------------------------------------------------------------------------


def test_periods_lie_on_the_grid_and_the_first_and_last_are_cut():
    batches = []
    boot = Boot(boot_id="b", anchor_us=NOON, started_us=NOON + SECOND)
    meter = Meter(SOURCE, boot, batches.append)
    meter.open(2 * SECOND, "gpu", blocks=10, groups=(Group(block_size=16),))
    meter.close(50 * SECOND)
    assert [(b.start_us - NOON, b.end_us - NOON) for b in batches] == [
        (SECOND, SECOND),
        (2 * SECOND, PERIOD_US),
        (PERIOD_US, 2 * PERIOD_US),
        (2 * PERIOD_US, 3 * PERIOD_US),
        (3 * PERIOD_US, 50 * SECOND),
    ]
    assert [b.seq for b in batches] == [1, 2, 3, 4, 5]
    assert batches[1].opens[0].at_us == NOON + 2 * SECOND


def test_a_second_pool_cuts_the_period_since_all_pools_of_a_batch_share_its_length(engine):
    host = engine.meter.open(4 * SECOND, "host", blocks=8, groups=(Group(block_size=16),), paying=False)
    engine.start("r", prompt=16, new=[1], t=5 * SECOND)
    host.acquire(5 * SECOND, "r", 0, new=[1])
    host.close(6 * SECOND, "off")
    engine.end(7 * SECOND, "r", blocks=[1], freed=[1])
    engine.meter.advance(PERIOD_US)
    spans = [(b.end_us - b.start_us) // SECOND for b in engine.batches]
    assert spans == [0, 4, 2, 9]
    record = engine.records()["r"]
    assert record.holding.active_block_us == 2 * SECOND
    assert record.other_holdings[0].holding.active_block_us == SECOND


def test_a_new_anchor_carries_owners_holders_and_requests_over(engine):
    """§1: a step of the wall clock ends the boot, not what is held."""
    engine.start("held", ALICE, prompt=33, new=[1, 2, 3])
    engine.step(0, SECOND, {"held": 33})
    engine.start("gone", BOB, prompt=16, new=[4], t=SECOND)
    engine.end(SECOND, "gone", blocks=[4], cached=[4])
    second = engine.meter.successor(
        20 * SECOND, Boot(boot_id="boot-2", anchor_us=NOON + 7, started_us=NOON + 20_000_007)
    )
    closing = engine.batches[-2]
    assert [close.reason for close in closing.closes] == ["clock"]
    assert "held" not in engine.records()
    engine.meter = second
    engine.step(21 * SECOND, 22 * SECOND, {"held": 1})
    engine.end(22 * SECOND, "held", blocks=[3, 2, 1], cached=[1, 2], freed=[3])
    second.close(23 * SECOND)
    mine = [batch for batch in engine.batches if batch.boot.boot_id == "boot-2"]
    assert [batch.seq for batch in mine] == [1, 2]
    assert mine[1].start_us == NOON + 20 * SECOND + 7
    assert [admission.request for admission in mine[1].admissions] == ["held"]
    record = engine.records()["held"]
    assert record.holding.active_block_us == 3 * 22 * SECOND
    assert record.tokens == Tokens(computed=33, output=2)
    assert {count.dims for count in mine[1].standing} == {ALICE, BOB}
    assert engine.row(ALICE, mine[1]).cached_blocks_end == 2


def test_settling_later_gives_the_same_batches():
    def run(later):
        batches = []
        rests = []
        boot = Boot(boot_id="b", anchor_us=NOON, started_us=NOON)
        meter = Meter(SOURCE, boot, batches.append, settle_later=later)
        pool = meter.open(0, "gpu", blocks=40, groups=(Group(block_size=4),))
        for i in range(20):
            meter.request(0, f"c{i}", Dimensions(tenant=f"t{i}"), prompt_tokens=1)
            pool.acquire(0, f"c{i}", 0, new=[10 + i])
        meter.request(0, "a", ALICE, prompt_tokens=9)
        pool.acquire(0, "a", 0, new=[1, 2, 3])
        meter.request(0, "b", BOB, prompt_tokens=9)
        pool.acquire(3, "b", 0, hit=[1, 2], new=[4])
        for i in range(40):
            meter.scheduled(i * SECOND + 3, {"a": 1, "b": 1} if i > 8 else {"a": 1}, 2 if i > 8 else 1)
            meter.stepped(i * SECOND + 7)
        pool.release(41 * SECOND, "a", [3, 2, 1], cached=[3])
        meter.finish(41 * SECOND, "a", Outcome.FINISHED)
        meter.close(50 * SECOND)
        if later:
            assert not batches
            assert meter.settle(1) == 1
            assert meter.settle(rest=lambda: rests.append(1)) == 4
            assert rests, "some periods have more than a few rows"
        assert not meter.faults
        return batches

    assert run(later=True) == run(later=False)


def test_nothing_is_kept_of_requests_that_are_gone(engine):
    """Memory is bounded by what lives: two hundred requests, sharing and evicting, leave no trace."""
    t = 0
    engine.start("first", prompt=32, new=[1, 2])
    engine.step(0, 1, {"first": 32})
    for i in range(200):
        t += SECOND
        name = f"r{i}"
        dims = Dimensions(tenant=f"tenant-{i}", session=name)
        own = 10 + i % 50
        engine.start(name, dims, prompt=33, hit=[1, 2], new=[own], t=t)
        engine.step(t, t + 10, {name: 1, "first": 1})
        engine.step(t + 20, t + 30, {name: 1, "first": 1})
        engine.end(t + 40, name, blocks=[own, 2, 1], cached=[own])
        engine.pool.evict(t + 50, [own])
    engine.end(t + 60, "first", blocks=[2, 1], freed=[1, 2])
    engine.meter.advance(t + 10 * PERIOD_US)
    boot = engine.meter._boot
    (pool,) = boot.pools
    assert not boot.steps.requests
    assert not boot.steps.partial
    assert not boot.steps.steady
    assert not any(pool.tables)
    assert not pool.accounts.accounts
    assert not pool.accounts.leaves
    assert not any(pool.tables)
    assert not pool.accounts.fills
    assert boot.settler.cached == {"gpu": {}}
    assert not any(any(wheel.values()) for wheel in pool.accounts.wheels.values())


def test_a_cut_visits_neither_held_blocks_nor_sessions_that_merely_own_cached_ones():
    boot = Boot(boot_id="b", anchor_us=NOON, started_us=NOON)
    meter = Meter(SOURCE, boot, lambda _batch: None, settle_later=True)
    pool = meter.open(0, "gpu", blocks=5_000, groups=(Group(block_size=16),))
    for i in range(500):
        meter.request(0, f"q{i}", Dimensions(tenant="t", session=f"s{i}"), prompt_tokens=16)
        pool.acquire(0, f"q{i}", 0, new=[i + 1])
        meter.finish(0, f"q{i}", Outcome.FINISHED)
        pool.release(0, f"q{i}", [i + 1], cached=[i + 1])
    meter.request(0, "r", ALICE, prompt_tokens=64_000)
    pool.acquire(0, "r", 0, new=list(range(1_000, 5_000)))
    meter.advance(2 * PERIOD_US)
    (quiet,) = meter._boot.cuts[-1].pools
    assert (quiet.cached_us, quiet.active_us) == (500 * PERIOD_US, 4_000 * PERIOD_US)
    assert len(quiet.tables) == 1
    assert quiet.accounts == []
    assert quiet.nodes == {}


def test_a_request_that_waits_and_holds_nothing_has_no_row(engine):
    engine.start("r", prompt=16, new=[1])
    engine.meter.preempt(SECOND, "r")
    engine.pool.release(SECOND, "r", [1], freed=[1])
    engine.meter.advance(2 * PERIOD_US)
    assert [len(batch.sessions) for batch in engine.batches] == [0, 1, 0]


def test_a_request_that_grows_by_several_blocks_in_one_call_keeps_their_order():
    """The last id of a pool is not the simple case (it may be one block too many), the block after it is."""
    engine = Engine(blocks=3, block_size=4)
    engine.start("r", prompt=3, new=[1])
    engine.step(0, SECOND, {"r": 3})
    engine.pool.grow(SECOND, 0, ["r", "r"], [3, 2])
    (table,) = engine.pool._pool.tables[0].values()
    assert table.order == [1, 3, 2]
