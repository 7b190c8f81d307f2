"""The memory of a GPU: parts that sum to the whole, whoever says how much of it; and what grows if something leaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from batches import T0
from hypothesis import given
from hypothesis import strategies as st
from sampled import GIB, GPUS, device, flat

from ledger.core.records import Origin
from ledger.core.samples import Agent, Gpu, GpuPeriod, GpuProcess, GpuRest, ProcessPeriod
from ledger.memory import Budget, Held, Part, Warm, budgets, warm_of
from ledger.store.gpu_reads import AgentNow, GpuNow, HealthNow
from ledger.store.shard_reads import ShardNow

ONE, TWO = GPUS
MIB = 1024**2


def shard(**more) -> ShardNow:
    given_ = {
        "engine": "e", "boot": 1, "opened_us": T0, "dp": 0, "pp": 0, "tp": 0, "gpu_uuid": "GPU-1", "pid": 7,
        "weights_bytes": 15 * GIB, "kv_bytes": 40 * GIB, "kv_held_bytes": 4 * GIB, "pools": (("gpu", 10, 40 * GIB),),
    }  # fmt: skip
    return ShardNow(**{**given_, **more})


def gpu(processes: dict[int, int | None], *, rest: int | None = GIB, of: Gpu = ONE) -> GpuNow:
    used = sum(value or 0 for value in processes.values()) + (rest or 0)
    return GpuNow(
        gpu=of,
        end_us=T0,
        sample=device(of.uuid, used),
        processes=tuple(
            GpuProcess(gpu=of.uuid, pid=pid, readings=15, used_bytes=None if value is None else flat(value))
            for pid, value in processes.items()
        ),
        rest=GpuRest(gpu=of.uuid, rest_bytes=None if rest is None else flat(rest)),
    )


def seen(*gpus: GpuNow, health: tuple[ProcessPeriod, ...] = (), name: str = "agent:h") -> AgentNow:
    rows = tuple(HealthNow(row=row, length_us=15_000_000) for row in health)
    return AgentNow(
        source=Agent(source_id=name, origin=Origin.LIVE, host="h"), boot=1, boot_id="b", started_us=T0, last_seq=1,
        last_end_us=T0, received_us=T0, quiet=False, gpus=gpus, health=rows,
    )  # fmt: skip


def budget(now: GpuNow, *shards: ShardNow, warm: Warm | None = None, **more) -> Budget:
    (found,) = budgets([seen(now, **more)], shards, lambda _agent, _held: warm)
    if found.total_bytes is not None:
        assert sum(piece.bytes for piece in found.pieces) == found.total_bytes, "the budget closes"
    return found


def parts(found: Budget) -> dict[str, int]:
    return {part.value: size for part in Part if (size := found.sum_of(part)) is not None}


def test_an_engine_that_says_what_it_takes_is_weights_pool_and_activations() -> None:
    found = budget(gpu({7: 58 * GIB, 8: 2 * GIB}), shard())
    assert parts(found) == {
        "weights": 15 * GIB, "kv_pool": 40 * GIB, "activations": 3 * GIB, "other_processes": 2 * GIB,
        "unexplained": GIB, "reserved": GIB // 2, "free": 80 * GIB - 61 * GIB - GIB // 2,
    }  # fmt: skip
    assert [(p.engine, p.shard) for p in found.pieces[:3]] == [("e", "dp0pp0tp0")] * 3


def test_what_a_process_has_grown_by_since_it_was_warm_is_unexplained() -> None:
    warm = Warm(level_bytes=3 * GIB, grows=False)
    found = budget(gpu({7: 58 * GIB + 200 * MIB}), shard(), warm=warm)
    assert parts(found)["activations"] == 3 * GIB
    assert parts(found)["unexplained"] == GIB + 200 * MIB
    less = budget(gpu({7: 57 * GIB}), shard(), warm=warm)
    assert (parts(less)["activations"], parts(less)["unexplained"]) == (2 * GIB, GIB)


def test_a_pool_that_fills_as_it_goes_counts_with_what_is_held() -> None:
    found = budget(gpu({7: 20 * GIB}), shard(kv_held_bytes=4 * GIB))
    assert (parts(found)["kv_pool"], parts(found)["activations"]) == (4 * GIB, GIB)
    later = budget(gpu({7: 46 * GIB}), shard(kv_held_bytes=30 * GIB), warm=Warm(level_bytes=GIB, grows=True))
    assert (parts(later)["kv_pool"], parts(later)["activations"], parts(later)["unexplained"]) == (30 * GIB, GIB, GIB)


def test_an_engine_that_does_not_say_is_one_part_that_can_grow_too() -> None:
    silent = shard(weights_bytes=None, kv_bytes=None, kv_held_bytes=None, pools=())
    assert parts(budget(gpu({7: 50 * GIB}), silent))["engine"] == 50 * GIB
    grown = parts(budget(gpu({7: 51 * GIB}), silent, warm=Warm(level_bytes=50 * GIB, grows=False)))
    assert (grown["engine"], grown["unexplained"]) == (50 * GIB, 2 * GIB)
    half = parts(budget(gpu({7: 50 * GIB}), replace(silent, weights_bytes=15 * GIB)))
    assert (half["weights"], half["engine"]) == (15 * GIB, 35 * GIB)
    assert "activations" not in half


def test_where_a_process_has_no_figure_the_rest_is_undivided_and_nobodys() -> None:
    found = budget(gpu({7: 58 * GIB, 8: None}, rest=None), shard())
    assert parts(found)["unexplained"] == 0
    assert parts(found)["undivided"] == 0
    exporter = replace(gpu({}), rest=None)
    assert parts(budget(exporter))["undivided"] == GIB


def test_a_device_that_says_nothing_of_itself_has_no_total_and_nothing_is_made_up() -> None:
    silent = replace(gpu({7: 58 * GIB}), sample=GpuPeriod(gpu="GPU-1", readings=15))
    found = budget(silent, shard())
    assert found.total_bytes is None
    assert parts(found) == {"weights": 15 * GIB, "kv_pool": 40 * GIB, "activations": 3 * GIB}
    nothing = budget(GpuNow(gpu=ONE))
    assert (nothing.total_bytes, nothing.pieces) == (None, ())


def test_an_old_driver_has_no_reserved_part_and_still_closes() -> None:
    sample = replace(device("GPU-1", 60 * GIB, reserved=0), reserved_bytes=None)
    found = budget(replace(gpu({7: 58 * GIB}, rest=2 * GIB), sample=sample), shard())
    assert "reserved" not in parts(found)
    assert parts(found)["unexplained"] == 2 * GIB


def test_a_device_that_is_cut_has_its_instances_and_each_of_them_a_budget() -> None:
    cut = Gpu(uuid="MIG-1", index=0, parent="GPU-1", instance=3)
    whole = replace(gpu({}, rest=GIB), sample=device("GPU-1", 21 * GIB))
    small = replace(gpu({7: 19 * GIB}, of=cut), sample=device("MIG-1", 20 * GIB, total=40 * GIB, reserved=0))
    rank = shard(weights_bytes=15 * GIB, kv_bytes=3 * GIB)
    first, second = budgets([seen(whole, small)], [rank], lambda *_: None)
    assert (first.sum_of(Part.INSTANCES), first.sum_of(Part.UNEXPLAINED)) == (20 * GIB, GIB)
    assert (second.sum_of(Part.WEIGHTS), second.sum_of(Part.UNEXPLAINED)) == (15 * GIB, GIB)
    for each in (first, second):
        assert sum(piece.bytes for piece in each.pieces) == each.total_bytes


@pytest.mark.parametrize(
    ("pid", "inner", "said", "joined"),
    [(7, None, 7, True), (4711, 7, 7, True), (4711, 8, 7, False), (4711, None, None, True), (4711, 7, 4711, True)],
)
def test_a_process_is_a_shard_by_its_id_out_or_inside_or_alone(pid, inner, said, joined) -> None:
    health = (ProcessPeriod(pid=pid, inner_pid=inner),)
    found = budget(gpu({pid: 58 * GIB}), shard(pid=said), health=health)
    assert (found.held[0].shard is not None) == joined


def test_ids_that_say_two_things_say_nothing() -> None:
    both = (ProcessPeriod(pid=100, inner_pid=7), ProcessPeriod(pid=200, inner_pid=7))
    found = budget(gpu({100: GIB, 200: GIB}), shard(pid=7), health=both)
    assert [one.shard for one in found.held] == [None, None], "two containers with a process 7"
    two = budget(gpu({7: GIB}), shard(pid=7), shard(pid=7, engine="f"))
    assert two.held[0].shard is None
    alone = budget(gpu({100: GIB, 200: GIB}), shard(pid=None))
    assert [one.shard for one in alone.held] == [None, None], "of two processes either could be it"


def test_a_gpu_that_two_see_is_there_once_from_the_one_who_knows_its_processes() -> None:
    exporter = replace(gpu({}, rest=None), rest=None, end_us=T0 + 1)
    found = budgets([seen(exporter, name="a"), seen(gpu({7: GIB}), name="b")], [], lambda *_: None)
    assert [each.agent.source.source_id for each in found] == ["b"]


def test_a_process_was_warm_at_the_largest_of_its_first_ten_minutes() -> None:
    levels = [(T0, 56 * GIB), (T0 + 1, 58 * GIB), (T0 + 2, 57 * GIB)]
    assert warm_of(shard(), levels, {}) == Warm(level_bytes=3 * GIB, grows=False)
    assert warm_of(shard(), [], {}) is None
    fills = [(T0, 16 * GIB), (T0 + 1, 25 * GIB)]
    assert warm_of(shard(), fills, {T0: 0, T0 + 1: 9 * GIB}) == Warm(level_bytes=GIB, grows=True)


sizes = st.integers(0, 60 * GIB)


@given(
    st.dictionaries(st.integers(1, 9), st.one_of(st.none(), sizes), max_size=5),
    st.integers(-GIB, GIB), st.one_of(st.none(), sizes), st.one_of(st.none(), sizes), sizes,
    st.one_of(st.none(), st.builds(Warm, level_bytes=sizes, grows=st.booleans())),
)  # fmt: skip
def test_whatever_is_said_the_parts_sum_to_the_whole(processes, rest, weights, pool, held, warm) -> None:
    now = gpu(processes, rest=rest if None not in processes.values() else None)
    rank = shard(pid=1, weights_bytes=weights, kv_bytes=pool, kv_held_bytes=held)
    found = budget(now, rank, warm=warm)
    assert found.total_bytes == 80 * GIB
    assert isinstance(found.held, tuple)
    assert all(isinstance(one, Held) for one in found.held)


def test_gpus_come_by_host_and_place() -> None:
    found = budgets([seen(gpu({}, of=TWO), gpu({}))], [], lambda *_: None)
    assert [each.gpu.index for each in found] == [0, 1]
