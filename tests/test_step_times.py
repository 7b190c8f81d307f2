"""How a step is timed: in the engine core, in a rank on the CPU, and in one on a GPU (a fake of it)."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ledger.hook.vllm import workers
from ledger.hook.vllm.device_times import EventTimes, SampledTimes, communication_us
from ledger.hook.vllm.timing import CoreTimes
from ledger.hook.vllm.workers import Scribe, WallTimes, communicating, executing, process, sampling
from ledger.limits import DEVICE_STEPS_PENDING_MAX, HOOK_FAULTS_MAX, RING_RECORDS, SLICE_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

# -- the core ------------------------------------------------------------------------------------------


class Told:
    """What a meter is told of parts of steps."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.parts: list[dict[str, int]] = []

    def phases(self, _t_us: int, parts: dict[str, int]) -> None:
        assert self.lock.locked()
        self.parts.append(parts)


def told_by(core: CoreTimes, rest: Callable[[], None] = lambda: None) -> list[dict[str, int]]:
    meter: Any = Told()
    core.drain(meter, 0, rest)
    return meter.parts


def test_a_step_in_the_core_has_its_schedule_its_update_and_the_wait_before_it() -> None:
    core = CoreTimes()
    core.stamp((0, 30, None))
    core.stamp((1000, 1050, True))
    core.stamp((1060, 1100, None))
    core.stamp((2000, 2010, True))
    assert told_by(core) == [{"schedule": 30, "update": 50}, {"schedule": 40, "wait": 10, "update": 10}]
    assert told_by(core) == []


def test_with_nothing_left_to_run_the_engine_does_not_wait() -> None:
    core = CoreTimes()
    core.stamp((0, 30, None))
    core.stamp((1000, 1050, False))
    core.stamp((9_000_000, 9_000_040, None))
    core.stamp((9_001_000, 9_001_010, True))
    assert told_by(core) == [{"schedule": 30, "update": 50}, {"schedule": 40, "update": 10}]


def test_steps_in_flight_are_paired_first_in_first_out_and_do_not_wait() -> None:
    core = CoreTimes()
    core.stamp((0, 1, None))
    core.stamp((10, 12, None))
    core.stamp((100, 104, True))
    core.stamp((110, 113, None))
    core.stamp((200, 205, True))
    core.stamp((300, 306, True))
    assert told_by(core) == [
        {"schedule": 1, "update": 4},
        {"schedule": 2, "update": 5},
        {"schedule": 3, "update": 6},
    ]


def test_an_update_without_a_step_is_an_update_alone() -> None:
    core = CoreTimes()
    core.stamp((0, 7, True))
    assert told_by(core) == [{"update": 7}]


def test_who_drains_rests_between_slices_and_steps_that_nobody_drains_are_bounded() -> None:
    core = CoreTimes()
    for at in range(2 * RING_RECORDS + 10):
        core.stamp((at, at + 1, True))
    rests: list[int] = []
    assert len(told_by(core, lambda: rests.append(1))) == 2 * RING_RECORDS
    assert len(rests) == 2 * RING_RECORDS // SLICE_ROWS - 1


# -- a rank on the CPU ---------------------------------------------------------------------------------


class Clock:
    """Nanoseconds that move when told."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns

    def work(self, us: int) -> None:
        self.ns += us * 1000


class Group:
    """vLLM's ``GroupCoordinator`` with collectives that take a time."""

    def __init__(self, clock: Clock, world_size: int = 2) -> None:
        self.clock = clock
        self.world_size = world_size

    def reduce(self, us: int) -> str:
        self.clock.work(us)
        return f"reduced {us}"

    def exchange(self, us: int) -> str:
        return self.reduce(us) + self.reduce(us)

    def break_off(self, us: int) -> None:
        self.clock.work(us)
        raise RuntimeError("peer is gone")


class Wrapper:
    """vLLM's ``WorkerWrapperBase``: ``run`` is what its worker does in a step."""

    def __init__(self, run: Callable[[], Any], sample: Callable[[], Any] = lambda: "sampled") -> None:
        self.run = run
        self.sample = sample

    def execute_model(self, *, output: Any = "output") -> Any:
        self.run()
        return output

    def sample_tokens(self) -> Any:
        return self.sample()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Classes as vLLM's, wrapped as vLLM's are, with a clock that moves when told and what was told."""
    clock, told = Clock(), []
    compiling = SimpleNamespace(now=False)
    times = WallTimes(told.append, sees_all=True, now_ns=clock)
    monkeypatch.setattr(workers, "_times", lambda _: times)
    made = type("Wrapped", (Wrapper,), {
        "execute_model": executing(Wrapper.execute_model), "sample_tokens": sampling(Wrapper.sample_tokens),
    })  # fmt: skip
    group = type("Grouped", (Group,), {
        name: communicating(getattr(Group, name), lambda: compiling.now) for name in ("reduce", "exchange", "break_off")
    })  # fmt: skip
    return SimpleNamespace(clock=clock, told=told, times=times, wrapper=made, group=group, compiling=compiling)


def test_a_step_has_what_it_executes_and_what_of_that_it_communicates(rig: SimpleNamespace) -> None:
    group = rig.group(rig.clock)

    def run() -> None:
        rig.clock.work(100)
        assert group.reduce(30) == "reduced 30"
        rig.clock.work(50)
        group.reduce(20)

    worker = rig.wrapper(run)
    assert worker.execute_model() == "output"
    assert rig.told == [(200, 50, "wall")]
    assert process.times is None


def test_sampling_belongs_to_the_step_and_the_time_between_does_not(rig: SimpleNamespace) -> None:
    group = rig.group(rig.clock)
    worker = rig.wrapper(lambda: rig.clock.work(100), lambda: (rig.clock.work(5), group.reduce(7))[1])
    assert worker.execute_model(output=None) is None
    assert rig.told == []
    rig.clock.work(10_000)
    assert worker.sample_tokens() == "reduced 7"
    assert rig.told == [(112, 7, "wall")]


def test_a_step_that_is_not_sampled_is_told_with_the_next(rig: SimpleNamespace) -> None:
    worker = rig.wrapper(lambda: rig.clock.work(100))
    worker.execute_model(output=None)
    rig.clock.work(10_000)
    worker.execute_model()
    assert rig.told == [(100, 0, "wall"), (100, 0, "wall")]


def test_a_collective_within_another_counts_once(rig: SimpleNamespace) -> None:
    group = rig.group(rig.clock)
    worker = rig.wrapper(lambda: group.exchange(10))
    worker.execute_model()
    assert rig.told == [(20, 20, "wall")]


def test_a_group_of_one_does_not_communicate(rig: SimpleNamespace) -> None:
    group = rig.group(rig.clock, world_size=1)
    worker = rig.wrapper(lambda: group.reduce(10))
    worker.execute_model()
    assert rig.told == [(10, 0, "wall")]


def test_outside_of_steps_collectives_are_not_timed(rig: SimpleNamespace) -> None:
    group = rig.group(rig.clock)
    assert group.reduce(10) == "reduced 10"
    rig.wrapper(lambda: rig.clock.work(5)).execute_model()
    assert rig.told == [(5, 0, "wall")]


def test_a_collective_of_another_thread_is_not_of_the_step(rig: SimpleNamespace) -> None:
    group = rig.group(rig.clock)

    def run() -> None:
        aside = threading.Thread(target=group.reduce, args=(10,))
        aside.start()
        aside.join()

    rig.wrapper(run).execute_model()
    assert rig.told == [(10, 0, "wall")]


def test_while_a_compiler_looks_on_there_is_nothing_to_see(rig: SimpleNamespace) -> None:
    group = rig.group(rig.clock)
    rig.compiling.now = True
    worker = rig.wrapper(lambda: group.reduce(10))
    worker.execute_model()
    assert rig.told == [(10, 0, "wall")]


def test_where_collectives_are_compiled_in_communication_is_not_known() -> None:
    told: list[Any] = []
    times = WallTimes(told.append, sees_all=False, now_ns=lambda: 0)
    times.began()
    times.entered()
    times.left()
    times.returned(done=True)
    assert told == [(0, None, "wall")]


def test_a_step_that_raises_raises_the_same_and_has_no_times(rig: SimpleNamespace) -> None:
    group = rig.group(rig.clock)
    worker = rig.wrapper(lambda: group.break_off(10))
    with pytest.raises(RuntimeError, match="peer is gone"):
        worker.execute_model()
    assert rig.told == []
    assert process.times is None
    rig.wrapper(lambda: group.reduce(3)).execute_model()
    assert rig.told == [(3, 3, "wall")]


def test_sampling_that_raises_raises_the_same(rig: SimpleNamespace) -> None:
    def sample() -> None:
        raise ValueError("no token")

    worker = rig.wrapper(lambda: None, sample)
    worker.execute_model(output=None)
    with pytest.raises(ValueError, match="no token"):
        worker.sample_tokens()
    assert rig.told == []


def test_sampling_without_a_step_is_none_of_ours(rig: SimpleNamespace) -> None:
    assert rig.wrapper(lambda: None).sample_tokens() == "sampled"
    assert rig.told == []


@pytest.mark.parametrize("broken", ["_now_ns", "_tell"])
def test_a_clock_that_fails_changes_no_answer_and_lets_go(rig: SimpleNamespace, broken: str) -> None:
    def fails(*_: object) -> int:
        raise OSError("gone")

    setattr(rig.times, broken, fails)
    group = rig.group(rig.clock)
    answers = []
    worker = rig.wrapper(lambda: answers.append(group.reduce(1)))
    for _ in range(HOOK_FAULTS_MAX + 2):
        assert worker.execute_model() == "output"
        worker.execute_model(output=None)
        assert worker.sample_tokens() == "sampled"
    assert answers == ["reduced 1"] * 2 * (HOOK_FAULTS_MAX + 2)
    assert rig.times.off
    assert rig.times.faults.total() == HOOK_FAULTS_MAX


class Ring:
    """Takes what a scribe writes."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.closed = False
        self.broken = False

    def write(self, *figures: object) -> None:
        if self.broken:
            raise OSError("gone")
        self.written.append(figures)

    def close(self) -> None:
        self.closed = True


def test_a_scribe_writes_what_lies_on_the_pile_and_the_rest_at_its_end() -> None:
    ring: Any = Ring()
    scribe = Scribe(ring)
    scribe.tell((1, 0, "wall"))
    scribe.tell((2, None, "wall"))
    assert ring.written == []
    scribe.write()
    assert ring.written == [(1, 0, "wall"), (2, None, "wall")]
    scribe.tell((3, 0, "wall"))
    scribe.close()
    assert len(ring.written) == 3
    assert ring.closed


def test_a_scribe_on_its_own_thread_writes_within_a_moment() -> None:
    ring: Any = Ring()
    scribe = Scribe(ring)
    scribe.start()
    scribe.tell((1, 0, "wall"))
    until_s = time.monotonic() + 30
    while not ring.written and time.monotonic() < until_s:
        time.sleep(0.01)
    assert ring.written == [(1, 0, "wall")]
    scribe.close()


def test_a_scribe_that_cannot_write_lets_go() -> None:
    ring: Any = Ring()
    ring.broken = True
    scribe = Scribe(ring)
    for _ in range(HOOK_FAULTS_MAX + 1):
        scribe.tell((1, 0, "wall"))
        scribe.write()
    assert scribe.off


def test_a_worker_whose_clock_cannot_be_made_works_on_and_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, rig: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    def none(_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(workers, "_times", none)
    worker = rig.wrapper(lambda: None)
    assert [worker.execute_model() for _ in range(3)] == ["output"] * 3
    assert worker.sample_tokens() == "sampled"
    assert caplog.text.count("cannot be timed") == 1


# -- a rank on a GPU, as far as a fake goes --------------------------------------------------------------


class Device:
    """What :class:`EventTimes` uses of ``torch.cuda``: a stream on which work is done later than it is called for."""

    def __init__(self) -> None:
        self.queued: list[Any] = []
        self.done_us = 0
        self.capturing = False
        self.made = 0

    def Event(self, *, enable_timing: bool) -> DeviceEvent:  # noqa: N802 - torch's name
        assert enable_timing
        self.made += 1
        return DeviceEvent(self)

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def work(self, us: int) -> None:
        self.queued.append(us)

    def catch_up(self, items: int | None = None) -> None:
        """The device does what is queued, or the first of it."""
        count = len(self.queued) if items is None else items
        for item in self.queued[:count]:
            if isinstance(item, int):
                self.done_us += item
            else:
                item.at_us = self.done_us
        del self.queued[:count]


class DeviceEvent:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_us: int | None = None

    def record(self) -> None:
        self.at_us = None
        self.device.queued.append(self)

    def query(self) -> bool:
        return self.at_us is not None

    def elapsed_time(self, other: DeviceEvent) -> float:
        assert self.at_us is not None
        assert other.at_us is not None, "asked before the device was there: it would have waited"
        return (other.at_us - self.at_us) / 1000


def events(device: Device, told: list[Any], *, sees_all: bool = True, apart: int = 1) -> EventTimes:
    return EventTimes(device, told.append, sees_all=sees_all, apart=apart)


def step(device: Device, times: EventTimes, *, compute: int = 100, collective: int = 20) -> None:
    times.began()
    device.work(compute)
    times.entered()
    times.entered()
    device.work(collective)
    times.left()
    times.left()
    times.returned(done=False)
    device.work(5000)
    times.resumed()
    device.work(10)
    times.returned(done=True)


def test_a_step_on_the_device_is_told_once_the_device_has_passed_it() -> None:
    device, told = Device(), []
    times = events(device, told)
    step(device, times)
    times.began()
    assert told == [], "nothing waits for the device"
    device.catch_up()
    times.failed()
    times.began()
    assert told == [(130, 20, "cuda_events")]
    assert not times.faults


def test_steps_that_the_device_has_passed_in_part_are_not_told() -> None:
    device, told = Device(), []
    times = events(device, told)
    for _ in range(3):
        step(device, times)
    device.catch_up(len(device.queued) // 3)
    times.began()
    assert len(told) == 1


def test_one_step_in_so_many_is_timed() -> None:
    device, told = Device(), []
    times = events(device, told, apart=4)
    for _ in range(12):
        step(device, times)
        device.catch_up()
    times.began()
    assert told == [(130, 20, "cuda_events")] * 3


def test_a_device_far_behind_is_left_alone_and_events_are_used_again() -> None:
    device, told = Device(), []
    times = events(device, told)
    for _ in range(3 * DEVICE_STEPS_PENDING_MAX):
        step(device, times)
    made = device.made
    assert made == 6 * DEVICE_STEPS_PENDING_MAX
    device.catch_up()
    for _ in range(DEVICE_STEPS_PENDING_MAX):
        step(device, times)
        device.catch_up()
    assert device.made == made
    assert len(told) >= DEVICE_STEPS_PENDING_MAX


def test_where_graphs_hide_collectives_communication_is_not_known() -> None:
    device, told = Device(), []
    times = events(device, told, sees_all=False)
    step(device, times)
    device.catch_up()
    times.began()
    assert told == [(130, None, "cuda_events")]


def test_no_event_gets_into_a_graph_that_is_being_captured() -> None:
    device, told = Device(), []
    times = events(device, told)
    times.began()
    before = device.made
    device.capturing = True
    times.entered()
    times.left()
    assert device.made == before


class Profile:
    def __init__(self, found: list[Any]) -> None:
        self.found = found
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def events(self) -> list[Any]:
        return self.found


def kernel(name: str, begin: float, end: float, device: str = "DeviceType.CUDA") -> SimpleNamespace:
    return SimpleNamespace(name=name, device_type=device, time_range=SimpleNamespace(start=begin, end=end))


def test_the_kernels_that_communicate_count_once_where_they_overlap() -> None:
    found = [
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0, 100),
        kernel("ncclDevKernel_AllGather_RING_LL", 50, 120),
        kernel("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", 200, 230),
        kernel("cutlass_80_tensorop_bf16_gemm", 0, 1000),
        kernel("nccl:all_reduce", 0, 1000, "DeviceType.CPU"),
    ]
    assert communication_us(found) == 150
    assert communication_us([]) == 0


def test_one_step_in_n_is_profiled_and_waits_for_the_device() -> None:
    clock, told, profiles, waits = Clock(), [], [], []

    def profile() -> Profile:
        profiles.append(Profile([kernel("ncclDevKernel_AllReduce", 0, 40)]))
        return profiles[-1]

    times = SampledTimes(profile, lambda: waits.append(1), told.append, every=3, now_ns=clock)
    for _ in range(6):
        times.began()
        clock.work(100)
        times.returned(done=False)
        times.resumed()
        clock.work(20)
        times.returned(done=True)
    assert told == [(120, 40, "sampled")] * 2
    assert [one.calls for one in profiles] == [["start", "stop"]] * 2
    assert len(waits) == 4


def test_a_profile_that_runs_when_the_step_fails_is_stopped() -> None:
    profiles: list[Profile] = []

    def profile() -> Profile:
        profiles.append(Profile([]))
        return profiles[-1]

    times = SampledTimes(profile, lambda: None, lambda *_: None, every=1)
    times.began()
    times.failed()
    times.began()
    times.let_go()
    assert [one.calls for one in profiles] == [["start", "stop"]] * 2
