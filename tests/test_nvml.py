"""NVML behind the real binding: absent is absent, one GPU's trouble is its own, a driver may come and go."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from nvml.stub import DRIVER_NOT_LOADED, GIB, GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, Stub

from ledger import limits
from ledger.collectors.gpu_readings import GpuReading, Look, ProcessReading
from ledger.collectors.nvml import Nvml
from ledger.core.samples import Engagement, Gpu

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENOUGH_S = 10.0
"""For a look that should not take long, on a machine that does other things as well."""


@pytest.fixture
def nvml(stub: Stub, tmp_path: Path) -> Iterator[Nvml]:
    made = Nvml(proc_gpus=tmp_path / "gpus")
    yield made
    made.close()


def read(nvml: Nvml) -> dict[str, GpuReading]:
    return {reading.gpu.uuid: reading for reading in nvml.look(ENOUGH_S).readings}


def until(nvml: Nvml, what: str, holds, *, seconds: float = 20.0) -> Look:
    """Look again and again until ``holds(look)``."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        look = nvml.look(0.5)
        if holds(look):
            return look
    raise AssertionError(f"never happened: {what}")


def test_a_gpu_says_what_it_is_and_how_it_is(stub: Stub, nvml: Nvml) -> None:
    unit = stub[0]
    unit.put({4711: 30 * GIB, 12: 2 * GIB}, rest=GIB)
    unit.busy, unit.memory_busy, unit.corrected, unit.throttles = 97, 41, 3, 0x4 | 0x40
    look = nvml.look(ENOUGH_S)
    assert look.driver == "550.54.15"
    assert look.troubles == {}
    assert look.gpus == (
        Gpu(uuid="GPU-0", index=0, model="NVIDIA A100-SXM4-80GB", memory_bytes=80 * GIB),
        Gpu(uuid="GPU-1", index=1, model="NVIDIA A100-SXM4-80GB", memory_bytes=80 * GIB),
    )
    assert look.readings[0] == GpuReading(
        gpu=look.gpus[0],
        used_bytes=33 * GIB,
        free_bytes=80 * GIB - 33 * GIB - GIB // 2,
        total_bytes=80 * GIB,
        reserved_bytes=GIB // 2,
        busy_ppm=970_000,
        memory_busy_ppm=410_000,
        power_mw=250_000,
        ecc_corrected=3,
        ecc_uncorrected=0,
        throttles=("hw_thermal", "sw_power_cap"),
        processes=(ProcessReading(pid=12, used_bytes=2 * GIB), ProcessReading(pid=4711, used_bytes=30 * GIB)),
    )
    assert look.readings[1].processes == ()
    assert look.readings[1].throttles == ()


def test_what_an_old_driver_has_no_function_for_is_absent_and_used_then_has_the_reserved(
    old_stub: Stub, tmp_path: Path
) -> None:
    old_stub[0].put({7: 3 * GIB})
    nvml = Nvml(proc_gpus=tmp_path / "gpus")
    try:
        look = nvml.look(ENOUGH_S)
    finally:
        nvml.close()
    first = look.readings[0]
    assert look.troubles == {}, "that a driver is old is no trouble"
    assert (first.used_bytes, first.reserved_bytes) == (3 * GIB + GIB // 2, None)
    assert first.processes == (ProcessReading(pid=7, used_bytes=3 * GIB),)
    assert first.throttles == ()
    assert first.occupancy_ppm is None


def test_on_unified_memory_the_device_is_absent_and_never_the_sum_of_its_processes(stub: Stub, nvml: Nvml) -> None:
    stub[0].memory_error = NOT_SUPPORTED
    stub[0].put({7: 3 * GIB})
    first = read(nvml)["GPU-0"]
    assert (first.used_bytes, first.free_bytes, first.total_bytes) == (None, None, None)
    assert first.processes == (ProcessReading(pid=7, used_bytes=3 * GIB),)


def test_a_process_without_a_figure_has_none_and_not_the_devices(stub: Stub, nvml: Nvml) -> None:
    stub[0].put({7: None, 8: GIB}, rest=5 * GIB)
    assert read(nvml)["GPU-0"].processes == (ProcessReading(pid=7), ProcessReading(pid=8, used_bytes=GIB))


def test_blank_values_are_absent_and_nonsense_is_counted(stub: Stub, nvml: Nvml) -> None:
    unit = stub[0]
    unit.power, unit.busy, unit.corrected = -1, 101, -1
    unit.used = limits.BLANK_INT64
    first = nvml.look(ENOUGH_S)
    reading = first.readings[0]
    assert (reading.power_mw, reading.busy_ppm, reading.used_bytes, reading.ecc_corrected) == (None, None, None, None)
    assert reading.ecc_uncorrected == 0
    assert first.troubles["out_of_bounds", "GPU-0"] >= 1, "101 per cent is neither a figure nor a blank"


def test_what_may_not_be_asked_is_absent_and_said_once(stub: Stub, nvml: Nvml) -> None:
    stub[0].ecc_error = NO_PERMISSION
    stub[1].power_error = UNKNOWN
    looks = [nvml.look(ENOUGH_S) for _ in range(3)]
    assert all(look.readings[0].ecc_corrected is None for look in looks)
    assert [look.troubles.get(("no_permission", "GPU-0"), 0) for look in looks] == [1, 0, 0]
    assert [look.troubles.get(("unknown", "GPU-1"), 0) for look in looks] == [1, 1, 1]
    assert all(look.readings[1].power_mw is None for look in looks)


def test_processes_come_and_go_and_one_on_two_lists_is_there_once(stub: Stub, nvml: Nvml) -> None:
    stub[0].put({7: GIB})
    assert read(nvml)["GPU-0"].processes == (ProcessReading(pid=7, used_bytes=GIB),)
    stub[0].put({8: GIB, 9: GIB})
    stub[0].process[1].kind = 2
    stub[0].process[2] = type(stub[0].process[0])(8, GIB, 1)
    stub[0].processes = 3
    assert read(nvml)["GPU-0"].processes == (
        ProcessReading(pid=8, used_bytes=GIB),
        ProcessReading(pid=9, engagement=Engagement.MPS, used_bytes=GIB),
    )
    stub[0].put({})
    assert read(nvml)["GPU-0"].processes == ()


def test_instances_are_units_of_their_own_and_have_the_processes(stub: Stub, nvml: Nvml) -> None:
    first, second = stub.cut(1, 3), stub.cut(1, 5)
    first.put({7: 4 * GIB})
    second.put({8: GIB})
    stub[1].put({7: 4 * GIB, 8: GIB})
    stub[1].busy_error = NOT_SUPPORTED
    look = nvml.look(ENOUGH_S)
    by = {reading.gpu.uuid: reading for reading in look.readings}
    assert [gpu.uuid for gpu in look.gpus] == ["GPU-0", "GPU-1", "MIG-1-3", "MIG-1-5"]
    instance = by["MIG-1-3"].gpu
    assert (instance.parent, instance.instance, instance.memory_bytes) == ("GPU-1", 3, 10 * GIB)
    assert by["MIG-1-3"].processes == (ProcessReading(pid=7, used_bytes=4 * GIB),)
    assert by["MIG-1-5"].used_bytes == GIB
    assert by["GPU-1"].processes == (), "asked of the device as well they would count twice"
    assert (by["GPU-1"].used_bytes, by["GPU-1"].busy_ppm) == (5 * GIB, None)


def test_occupancy_is_there_from_the_second_look_on_where_the_device_counts_it(stub: Stub, nvml: Nvml) -> None:
    stub[0].occupancy = 432_100
    cut = stub.cut(1, 2)
    cut.occupancy, stub[1].occupancy = 250_000, 1
    assert read(nvml)["GPU-0"].occupancy_ppm is None
    found = read(nvml)
    assert (found["GPU-0"].occupancy_ppm, found["MIG-1-2"].occupancy_ppm) == (432_100, 250_000)


def test_a_gpu_that_hangs_does_not_keep_the_others_waiting(stub: Stub, nvml: Nvml) -> None:
    assert len(read(nvml)) == 2
    stub[0].hang_ms = 5_000
    began_s = time.monotonic()
    looks = [nvml.look(0.3) for _ in range(3)]
    assert time.monotonic() - began_s < 4.0
    for look in looks:
        assert [reading.gpu.uuid for reading in look.readings] == ["GPU-1"]
        assert look.troubles["hanging", "GPU-0"] == 1
        assert [gpu.uuid for gpu in look.gpus] == ["GPU-0", "GPU-1"], "it is still there"
    stub[0].hang_ms = 0
    until(nvml, "it comes back", lambda look: len(look.readings) == 2)


def test_a_gpu_that_hangs_from_the_start_does_not_either(stub: Stub, nvml: Nvml) -> None:
    stub[0].hang_ms = 3_000
    look = nvml.look(1.0)
    assert [reading.gpu.uuid for reading in look.readings] == ["GPU-1"]
    assert look.troubles["hanging", ""] == 1, "who it is nobody knows yet"
    stub[0].hang_ms = 0
    until(nvml, "it is known", lambda look: len(look.gpus) == 2)


def test_a_lost_gpu_is_gone_from_the_list_and_the_others_go_on(stub: Stub, nvml: Nvml) -> None:
    assert len(read(nvml)) == 2
    stub[1].error = GPU_IS_LOST
    look = nvml.look(ENOUGH_S)
    assert [gpu.uuid for gpu in look.gpus] == ["GPU-0"]
    assert look.troubles == {("gpu_is_lost", "GPU-1"): 1}
    for _ in range(20):
        look = nvml.look(ENOUGH_S)
        assert [reading.gpu.uuid for reading in look.readings] == ["GPU-0"]
    stub[1].error = 0
    until(nvml, "it is found again", lambda look: len(look.readings) == 2)


def test_a_driver_that_is_restarted_is_begun_with_anew(stub: Stub, nvml: Nvml) -> None:
    assert len(read(nvml)) == 2
    stub.restart()
    stub.control.driver = b"560.35.03"
    look = nvml.look(ENOUGH_S)
    assert look.readings == ()
    assert set(look.troubles) == {("uninitialized", "GPU-0"), ("uninitialized", "GPU-1")}
    look = until(nvml, "it reads again", lambda look: len(look.readings) == 2)
    assert look.driver == "560.35.03"


def test_a_driver_that_is_not_there_is_one_reason_a_look_and_is_found_when_it_comes(stub: Stub, nvml: Nvml) -> None:
    stub.control.begin_error = DRIVER_NOT_LOADED
    look = nvml.look(ENOUGH_S)
    assert (look.readings, look.gpus, look.troubles) == ((), (), {("driver_not_loaded", ""): 1})
    stub.control.begin_error = 0
    until(nvml, "it is found", lambda look: len(look.readings) == 2)


def test_a_driver_that_hangs_at_its_beginning_is_waited_for_in_the_background(stub: Stub, nvml: Nvml) -> None:
    stub.control.begin_hang_ms = 1_500
    began_s = time.monotonic()
    looks = [nvml.look(0.2) for _ in range(2)]
    assert time.monotonic() - began_s < 1.2
    assert looks[1].troubles == {("hanging", ""): 1}
    stub.control.begin_hang_ms = 0
    until(nvml, "it reads", lambda look: len(look.readings) == 2)


def test_a_gpu_that_is_added_is_seen_without_waiting_for_the_next_listing(
    stub: Stub, nvml: Nvml, tmp_path: Path
) -> None:
    assert len(read(nvml)) == 2
    (tmp_path / "gpus" / "0000:41:00.0").mkdir(parents=True)
    stub.add()
    assert len(read(nvml)) == 3
    (tmp_path / "gpus" / "0000:41:00.0").rmdir()
    stub.control.devices = stub.control.units = 1
    assert [gpu.uuid for gpu in nvml.look(ENOUGH_S).gpus] == ["GPU-0"]


def test_instances_that_are_cut_anew_show_with_the_next_listing(stub: Stub, tmp_path: Path) -> None:
    nvml = Nvml(proc_gpus=tmp_path / "gpus", relist_s=0.0)
    assert len(read(nvml)) == 2
    stub.cut(0, 1)
    assert set(read(nvml)) == {"GPU-0", "GPU-1", "MIG-0-1"}
    nvml.close()


@pytest.mark.parametrize(
    ("error", "reason"), [(ModuleNotFoundError("pynvml"), "binding_not_installed"), (RuntimeError("?"), "runtimeerror")]
)
def test_without_a_binding_there_is_one_reason_a_look_and_nothing_raises(error, reason, tmp_path) -> None:
    def missing() -> object:
        raise error

    nvml = Nvml(binding=missing, proc_gpus=tmp_path)
    assert nvml.look(ENOUGH_S) == Look(troubles=Counter({(reason, ""): 1}))
    nvml.close()
