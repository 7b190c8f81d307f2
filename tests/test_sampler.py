"""Looks become samples: spreads, marks, what is worth sending, and what is never made up."""

from __future__ import annotations

from dataclasses import replace

from batches import T0
from hypothesis import given
from hypothesis import strategies as st
from sampled import flat

from ledger import limits, wire
from ledger.collectors.gpu_readings import GpuReading, Look, ProcessReading
from ledger.collectors.sampler import Sampler
from ledger.core.records import PERIOD_US, Boot, Origin
from ledger.core.samples import Agent, Gpu, ProcessPeriod, SampleBatch, Spread
from ledger.sample_laws import sample_breach

MIB, GIB, SECOND = 1024**2, 1024**3, 1_000_000
ONE = Gpu(uuid="GPU-1", index=0, model="A100", memory_bytes=80 * GIB)
TWO = Gpu(uuid="GPU-2", index=1, model="A100", memory_bytes=80 * GIB)


def reading(gpu: Gpu = ONE, used: int | None = 10 * GIB, processes: dict[int, int | None] | None = None) -> GpuReading:
    listed = None if processes is None else tuple(ProcessReading(pid=p, used_bytes=u) for p, u in processes.items())
    free = None if used is None else 80 * GIB - used
    return GpuReading(gpu=gpu, used_bytes=used, free_bytes=free, total_bytes=80 * GIB, processes=listed)


def look(*readings: GpuReading, **more) -> Look:
    return Look(readings=readings, gpus=tuple(r.gpu for r in readings), driver="550", **more)


def sampler(start_us: int = T0) -> Sampler:
    source = Agent(source_id="agent:h", origin=Origin.LIVE, host="h")
    return Sampler(source, Boot(boot_id="b", anchor_us=start_us - 5, started_us=start_us))


def period(made: Sampler, *looks: Look, health: tuple[ProcessPeriod, ...] = ()) -> SampleBatch:
    """A period with these looks, the last one again until it is full."""
    start_us, end_us = made.start_us, made.end_us
    every = [looks[min(second, len(looks) - 1)] for second in range((end_us - start_us) // SECOND)]
    for second, one in enumerate(every):
        made.add(one, start_us + second * SECOND)
    return made.cut(end_us, health)


def test_a_period_has_the_smallest_mean_and_largest_of_its_readings_and_those_at_the_marks() -> None:
    looks = [look(reading(used=n * GIB, processes={7: n * GIB - 1})) for n in range(1, 16)]
    batch = period(sampler(), *looks)
    (own,), (process,), (rest,) = batch.samples, batch.processes, batch.rests
    assert own.readings == process.readings == 15
    assert own.used_bytes == Spread(least=GIB, mean=8 * GIB, most=15 * GIB)
    assert own.used_marks == (5 * GIB, 10 * GIB, 15 * GIB), "the last reading before each mark"
    assert process.used_marks == (5 * GIB - 1, 10 * GIB - 1, 15 * GIB - 1)
    assert rest.rest_bytes == flat(1)
    assert batch.source.driver == "550"
    assert sample_breach(batch) is None


def test_an_unmeasured_figure_stays_absent_and_its_device_is_not_divided() -> None:
    batch = period(sampler(), look(reading(used=None, processes={7: GIB}), reading(TWO, processes={8: None, 9: GIB})))
    first, second = batch.samples
    assert (first.used_bytes, first.used_marks, first.free_bytes) == (None, (), None)
    assert second.used_bytes == flat(10 * GIB)
    assert {p.pid: p.used_bytes for p in batch.processes} == {7: flat(GIB), 8: None, 9: flat(GIB)}
    assert [(rest.rest_bytes, rest.unmeasured) for rest in batch.rests] == [(None, 0), (None, 1)]


def test_the_rest_of_a_device_that_is_cut_is_what_its_instances_do_not_use() -> None:
    cut = Gpu(uuid="MIG-1", index=0, parent="GPU-1", instance=3)
    whole = look(reading(used=5 * GIB, processes={}), reading(cut, used=4 * GIB, processes={7: 3 * GIB}))
    assert [(r.gpu, r.rest_bytes) for r in period(sampler(), whole).rests] == [
        ("GPU-1", flat(GIB)),
        ("MIG-1", flat(GIB)),
    ]
    unknown = look(reading(used=5 * GIB, processes={}), reading(cut, used=None, processes={7: 3 * GIB}))
    assert [r.rest_bytes for r in period(sampler(), unknown).rests] == [None, None]


def test_rows_go_when_memory_moved_by_more_than_a_mebibyte_and_once_a_minute() -> None:
    made = sampler()
    sent = []
    for number, used in enumerate([0, 0, MIB, 0, 0, 0, 0, MIB + 1, MIB + 1]):
        batch = period(made, look(reading(used=10 * GIB + used, processes={7: GIB})))
        sent.append(len(batch.samples))
        assert batch.seq == number + 1, "a batch goes each period, rows or not: it says that somebody looked"
        assert len(batch.processes) == len(batch.rests) == len(batch.samples)
    assert sent == [1, 0, 0, 0, 1, 0, 0, 1, 0]


def test_a_peak_within_a_period_is_a_change() -> None:
    made = sampler()
    period(made, look(reading()))
    batch = period(made, look(reading()), look(reading(used=12 * GIB)), look(reading()))
    assert batch.samples[0].used_bytes == Spread(least=10 * GIB, mean=10 * GIB + 2 * GIB // 15, most=12 * GIB)


def test_a_process_that_comes_or_goes_is_a_change_and_is_there_for_as_long_as_it_was() -> None:
    made = sampler()
    alone, both = look(reading(processes={7: GIB})), look(reading(processes={7: GIB, 8: 1}))
    period(made, alone)
    batch = period(made, alone, both, alone)
    assert [(p.pid, p.readings) for p in batch.processes] == [(7, 15), (8, 1)]
    assert [p.pid for p in period(made, alone).processes] == [7], "it is gone"
    assert period(made, alone).processes == ()


def test_the_list_of_gpus_goes_first_when_it_changes_with_each_day_and_after_a_drop() -> None:
    made = sampler(T0 + limits.DAY_US - 3 * PERIOD_US)
    seen = ([ONE], [ONE], [ONE, TWO], [ONE, TWO], [ONE, TWO], [ONE])
    listed = [period(made, look(*map(reading, gpus))).gpus for gpus in seen]
    assert listed == [(ONE,), None, (ONE, TWO), (ONE, TWO), None, (ONE,)], "the fourth is the first of a day"
    made.resend()
    again = period(made, look(reading()))
    assert again.gpus == (ONE,)
    assert len(again.samples) == 1


def test_troubles_of_a_period_are_counted_and_a_period_without_readings_has_no_rows() -> None:
    made = sampler()
    lost = Look(gpus=(ONE,), driver="550", troubles={("hanging", "GPU-1"): 1})
    batch = period(made, lost)
    assert (batch.samples, batch.gpus) == ((), (ONE,))
    assert [(t.reason, t.gpu, t.count) for t in batch.troubles] == [("hanging", "GPU-1", 15)]
    assert period(made, look(reading())).troubles == ()


def test_throttles_count_readings_and_are_absent_where_the_device_does_not_say() -> None:
    idle, capped = replace(reading(), throttles=()), replace(reading(), throttles=("sw_power_cap",))
    assert period(sampler(), look(idle)).samples[0].throttles == ()
    assert period(sampler(), look(capped), look(idle)).samples[0].throttles == (("sw_power_cap", 1),)
    assert period(sampler(), look(reading())).samples[0].throttles is None


def test_health_goes_when_it_moves_when_a_thread_is_at_its_limit_and_once_a_minute() -> None:
    made = sampler()
    calm = ProcessPeriod(pid=7, threads=9, rss_bytes=GIB, cpu_us=1)
    rows = [calm, calm, replace(calm, rss_bytes=GIB + 2 * MIB), calm, calm, replace(calm, threads=10)]
    sent = [len(period(made, look(reading()), health=(row,)).health) for row in rows]
    assert sent == [1, 0, 1, 1, 0, 1]
    hot = replace(calm, threads=10, busiest="python", busiest_us=14_300_000)
    assert [len(period(made, look(reading()), health=(hot,)).health) for _ in range(2)] == [1, 1]
    full = replace(calm, threads=10, workers=40, workers_busy=40, queued=3)
    assert [len(period(made, look(reading()), health=(full,)).health) for _ in range(2)] == [1, 1]


used = st.one_of(st.none(), st.integers(0, 80 * GIB))


@given(st.lists(st.tuples(used, st.dictionaries(st.integers(1, 5), used, max_size=4)), min_size=1, max_size=15))
def test_whatever_was_read_goes_into_the_period_and_keeps_the_rules(readings) -> None:
    made = sampler()
    for second, (device, processes) in enumerate(readings):
        made.add(look(reading(used=device, processes=processes)), T0 + second * SECOND)
    batch = made.cut(made.end_us)
    assert sample_breach(batch) is None
    assert isinstance(wire.decode(wire.encode(batch)), wire.DecodedSamples)
    (own,) = batch.samples
    known = [device for device, _ in readings if device is not None]
    assert own.readings == len(readings)
    assert own.used_bytes == (
        Spread(least=min(known), mean=sum(known) // len(known), most=max(known)) if known else None
    )
    for row in batch.processes:
        values = [p[row.pid] for _, p in readings if p.get(row.pid) is not None]
        assert row.used_bytes == (
            Spread(least=min(values), mean=sum(values) // len(values), most=max(values)) if values else None
        )
        assert row.readings == sum(row.pid in p for _, p in readings)
