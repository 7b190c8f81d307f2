"""The hook for vLLM without a vLLM: what it does when things go wrong, on a block pool that is a fake of vLLM's."""

from __future__ import annotations

import logging
import subprocess
import sys
import types
from types import SimpleNamespace as Some

import pytest

import ledger.hook.vllm as plugin
from ledger.core.records import Boot, Group, Origin, Source
from ledger.hook.meter import Meter
from ledger.hook.vllm import sleep
from ledger.hook.vllm.guard import Guarded, guarded
from ledger.hook.vllm.pool import BlockWatch
from ledger.hook.vllm.recorder import Recorder, parent_of
from ledger.limits import HOOK_FAULTS_MAX

ANCHOR = 1_800_000_000_000_000


class FakePool:
    """As much of vLLM's ``BlockPool`` as is watched."""

    def __init__(self, blocks):
        self.enable_caching = True
        self.blocks = [Some(block_id=i, ref_cnt=0, block_hash=None, is_null=i == 0) for i in range(blocks + 1)]

    def take(self, *numbers, hashed=True):
        for number in numbers:
            self.blocks[number].ref_cnt += 1
            self.blocks[number].block_hash = "hash" if hashed else None
        return [self.blocks[number] for number in numbers]

    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1
        return "freed"

    def evict_blocks(self, block_ids):
        for number in block_ids:
            self.blocks[number].block_hash = None

    def reset_prefix_cache(self):
        if any(block.ref_cnt for block in self.blocks):
            return False
        for block in self.blocks:
            block.block_hash = None
        return True


class FullAttentionManager:
    """vLLM's name: the kind of a group is told by it."""

    def __init__(self):
        self.block_size = 16
        self.req_to_blocks = {}


class FakeScheduler:
    """A scheduler with one group; ``connector`` is what makes the engine keep references of its own."""

    def __init__(self, *, connector=None):
        self.connector = connector
        self.running = []
        self.num_spec_tokens = 0
        self.vllm_config = object()
        self.manager = FullAttentionManager()
        self.pool = FakePool(8)
        self.kv_cache_manager = types.SimpleNamespace(
            block_pool=self.pool,
            coordinator=types.SimpleNamespace(
                single_type_managers=[self.manager], allocate_new_computed_blocks=lambda **_: None
            ),
            free=self._free,
            pop_blocks_for_free=lambda request: self.manager.req_to_blocks.pop(request.request_id),
        )

    def _free(self, request):
        blocks = self.manager.req_to_blocks.pop(request.request_id)
        return self.kv_cache_manager.block_pool.free_blocks(reversed(blocks))

    def has_unfinished_requests(self):
        return False

    def schedules(self, recorder, name, *numbers):
        """A step in which ``name``, just admitted, gets blocks."""
        recorder.scheduling()
        self.manager.req_to_blocks[name] = self.pool.take(*numbers)
        recorder.scheduled(output(name, 16 * len(numbers)))


def output(name, tokens):
    return Some(
        scheduled_new_reqs=[Some(req_id=name)],
        scheduled_cached_reqs=Some(req_ids=[], new_block_ids=[], resumed_req_ids=set()),
        num_scheduled_tokens={name: tokens},
        total_num_scheduled_tokens=tokens,
    )


def request(name, **more):
    said = {
        "request_id": name,
        "session_id": None,
        "lora_request": None,
        "priority": 0,
        "arrival_time": ANCHOR / 1e6,
        "num_prompt_tokens": 64,
        "num_in_flight_tokens": 0,
        "status": Some(name="FINISHED_STOPPED"),
    }
    return Some(**(said | more))


class Clock:
    us = 0

    def __call__(self):
        return self.us


@pytest.fixture
def clock():
    return Clock()


def recorder_of(scheduler, clock, batches=None):
    source = Source(engine="vllm", origin=Origin.LIVE)
    meter = Meter(
        source, Boot(boot_id="b", anchor_us=ANCHOR, started_us=ANCHOR), (batches if batches is not None else []).append
    )
    made = Recorder(
        scheduler,
        meter,
        lambda meter, t: meter.open(t, "gpu", blocks=8, groups=[Group(block_size=16)]),
        order=[0],
        model="tiny",
        handover_key=b"k",
        now_us=clock,
        wall_us=lambda: ANCHOR + clock.us,
    )
    made.watch.watch()
    return made


def test_a_request_holds_its_blocks_until_they_are_freed_and_the_hashed_ones_stay_cached(clock):
    scheduler, batches = FakeScheduler(), []
    recorder = recorder_of(scheduler, clock, batches)
    recorder.received(request("r1"))
    scheduler.schedules(recorder, "r1", 1, 2, 3)
    assert recorder.pool.counts == (3, 0, 5)
    scheduler.pool.blocks[3].block_hash = None
    recorder.ended(request("r1"))
    assert scheduler.kv_cache_manager.free(request("r1")) == "freed"
    assert recorder.pool.counts == (0, 2, 6)
    scheduler.pool.evict_blocks({1})
    assert recorder.pool.counts == (0, 1, 7)
    assert scheduler.pool.reset_prefix_cache()
    assert recorder.pool.counts == (0, 0, 8)
    assert not recorder.meter.faults


def test_what_a_step_ends_is_told_after_the_step(clock):
    scheduler, batches = FakeScheduler(), []
    recorder = recorder_of(scheduler, clock, batches)
    recorder.received(request("r1"))
    scheduler.schedules(recorder, "r1", 1, 2, 3, 4)
    clock.us = 1000
    recorder.updating()
    recorder.ended(request("r1"))
    scheduler.kv_cache_manager.free(request("r1"))
    assert recorder.pool.counts == (4, 0, 4)
    recorder.updated({"r1": 64}, Some(sampled_token_ids=[[7]], req_id_to_index={"r1": 0}))
    assert recorder.pool.counts == (0, 4, 4)
    recorder.closed("shutdown")
    (record,) = [record for batch in batches for record in batch.requests]
    assert (record.tokens.output, record.compute_us, record.outcome) == (1, 1000, "finished")
    assert not recorder.meter.faults


def test_a_block_that_a_connector_still_reads_stays_charged_to_its_last_holder(clock):
    scheduler, batches = FakeScheduler(connector=object()), []
    recorder = recorder_of(scheduler, clock, batches)
    recorder.received(request("r1"))
    scheduler.schedules(recorder, "r1", 1, 2)
    pinned = scheduler.pool.blocks[2]
    pinned.ref_cnt += 1
    recorder.ended(request("r1"))
    scheduler.kv_cache_manager.free(request("r1"))
    assert recorder.pool.counts == (1, 1, 6)
    scheduler.pool.free_blocks([pinned])
    assert recorder.pool.counts == (0, 2, 6)
    assert not recorder.meter.faults


def test_blocks_whose_release_is_put_off_are_released_for_whom_they_were_popped_from(clock):
    scheduler = FakeScheduler()
    recorder = recorder_of(scheduler, clock)
    for name, number in (("r1", 1), ("r2", 2)):
        recorder.received(request(name))
        scheduler.schedules(recorder, name, number)
    deferred = [scheduler.kv_cache_manager.pop_blocks_for_free(request(name)) for name in ("r1", "r2")]
    assert recorder.pool.counts == (2, 0, 6)
    for blocks in deferred:
        recorder.watch.draining(lambda blocks=blocks: scheduler.pool.free_blocks(reversed(blocks)))
    assert recorder.pool.counts == (0, 2, 6)
    assert not recorder.meter.faults


def test_a_pool_is_closed_while_the_engine_sleeps(clock):
    scheduler, batches = FakeScheduler(), []
    recorder = recorder_of(scheduler, clock, batches)
    sleep.watch(recorder)

    class Executor:
        vllm_config = scheduler.vllm_config
        sleeping_tags = frozenset()

        def sleep(self):
            self.sleeping_tags = {"weights", "kv_cache"}

        def wake_up(self):
            self.sleeping_tags = {}

    executor = Executor()
    sleep._watched(Executor.sleep)(executor)
    clock.us = 1000
    sleep._watched(Executor.wake_up)(executor)
    recorder.closed("shutdown")
    assert [close.reason for batch in batches for close in batch.closes] == ["sleep", "shutdown"]
    assert [opened.at_us - ANCHOR for batch in batches for opened in batch.opens] == [0, 1000]


def test_a_fault_of_the_hook_is_told_once_and_after_a_few_it_lets_go(clock, caplog):
    scheduler, batches = FakeScheduler(), []
    recorder = recorder_of(scheduler, clock, batches)
    broken = Some(request_id="r1")  # without anything that a request has
    with caplog.at_level(logging.ERROR, "kvledger.hook"):
        for _ in range(HOOK_FAULTS_MAX + 3):
            recorder.received(broken)
    assert recorder.off
    assert recorder.faults == {"received": HOOK_FAULTS_MAX}
    assert len([one for one in caplog.records if one.exc_info]) == 1
    assert "lets go" in caplog.records[-1].getMessage()
    assert [close.reason for batch in batches for close in batch.closes] == ["off"]
    assert "received" in batches[-1].hook.off
    assert "free_blocks" not in scheduler.pool.__dict__  # the wrappers are gone


def test_a_listener_that_raises_does_not_keep_a_block_from_its_pool(clock):
    class Raising:
        told = ()

        def __getattr__(self, name):
            if name != "fault":
                raise ZeroDivisionError
            return lambda where: setattr(self, "told", (*self.told, where))

    scheduler, listener = FakeScheduler(), Raising()
    watch = BlockWatch(scheduler.kv_cache_manager, listener)
    watch.watch()
    scheduler.manager.req_to_blocks["r1"] = scheduler.pool.take(1, 2)
    assert scheduler.kv_cache_manager.free(request("r1")) == "freed"
    scheduler.pool.evict_blocks({1})
    assert scheduler.pool.reset_prefix_cache()
    assert [block.ref_cnt for block in scheduler.pool.blocks] == [0] * 9
    assert set(listener.told) == {"releasing", "free_blocks", "evict_blocks", "reset_prefix_cache"}


@pytest.mark.parametrize("call", ["scheduling", "scheduled", "updating", "updated"])
def test_what_goes_wrong_in_a_step_is_kept_from_the_engine_and_told(clock, caplog, call):
    def stopped():
        raise ZeroDivisionError

    recorder = recorder_of(FakeScheduler(), clock)
    recorder._now_us = stopped
    for _ in range(2):
        getattr(recorder, call)(*{"scheduled": [None], "updated": [{}, None]}.get(call, []))
    assert recorder.faults == {call: 2}
    assert recorder.meter.faults["hook_error"] == 2
    assert [one.getMessage() for one in caplog.records if call in one.getMessage()]


@pytest.mark.parametrize(("drafts", "sampled"), [(0, [[7], []]), (3, [[7], [8, 9]]), (3, [[7], []])])
def test_requests_that_give_other_than_one_token_are_told(clock, drafts, sampled):
    scheduler = FakeScheduler()
    scheduler.num_spec_tokens = drafts
    recorder = recorder_of(scheduler, clock)
    told = recorder._accepted({"a": 1, "b": 1}, Some(sampled_token_ids=sampled, req_id_to_index={"a": 0, "b": 1}))
    assert told == {"b": len(sampled[1])}


def test_a_guarded_call_never_raises_and_is_skipped_once_off():
    class Guest(Guarded):
        calls = 0

        @guarded
        def act(self):
            self.calls += 1
            raise RuntimeError

        def let_go(self):
            raise ValueError

    guest = Guest()
    for _ in range(HOOK_FAULTS_MAX + 5):
        guest.act()
    assert guest.calls == HOOK_FAULTS_MAX
    assert guest.off


@pytest.mark.parametrize(
    ("name", "parent"),
    [("0_cmpl-a-0-9f", "cmpl-a-0-9f"), ("12_x", "x"), ("cmpl-0_1", None), ("7", None), ("_x", None), ("3_", None)],
)
def test_a_sample_names_its_parent(name, parent):
    assert parent_of(name) == parent


def engine_of_version(monkeypatch, version):
    """``register()`` in a process that has this vLLM: the modules that were attached."""
    attached = []
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.version", Some(__version__=version))
    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setattr(plugin, "import_module", lambda name: Some(attach=lambda: attached.append(name)))
    plugin.register()
    plugin.register()
    return attached


def test_it_attaches_once_to_a_version_that_was_tested(monkeypatch, tmp_path):
    monkeypatch.setenv("KVLEDGER_SPOOL", str(tmp_path))
    attached = engine_of_version(monkeypatch, "0.32.0")
    assert len(attached) == len(set(attached)) > 0
    assert "ledger.hook.vllm.scheduler" in attached


@pytest.mark.parametrize("version", ["0.31.4", "0.320.0", "1.0.0", "0.33.0rc1"])
def test_it_leaves_another_version_alone_and_says_so_in_one_line(monkeypatch, caplog, version):
    with caplog.at_level(logging.WARNING):
        assert engine_of_version(monkeypatch, version) == []
    (line,) = caplog.records
    assert version in line.getMessage()


def test_switched_off_it_does_nothing_and_says_nothing(monkeypatch, caplog):
    monkeypatch.setenv("KVLEDGER_ENABLED", "0")
    with caplog.at_level(logging.INFO):
        assert engine_of_version(monkeypatch, "0.32.0") == []
    assert not caplog.records


def test_the_hook_loads_nothing_but_the_standard_library():
    names = ["engine", "guard", "pool", "recorder", "scheduler", "sleep", "timing", "workers"]
    code = f"""
import importlib, sys
for name in {names}: importlib.import_module("ledger.hook.vllm." + name)
tops = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(tops - set(sys.stdlib_module_names) - {{"ledger", "__main__"}}))
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    found = eval(done.stdout)
    assert [name for name in found if not name.startswith("_")] == []
