"""Samples for tests: those of a small host with two GPUs, and arbitrary ones that only have valid fields."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from batches import T0, few, maybe, names, times
from hypothesis import strategies as st

from ledger import limits, wire
from ledger.core.records import PERIOD_US, Boot, Origin
from ledger.core.samples import (
    Agent,
    Engagement,
    Gpu,
    GpuPeriod,
    GpuProcess,
    GpuRest,
    ProcessPeriod,
    SampleBatch,
    Spread,
    Trouble,
    Watch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 1024**3
GPUS = (
    Gpu(uuid="GPU-1", index=0, model="A100", memory_bytes=80 * GIB),
    Gpu(uuid="GPU-2", index=1, model="A100", memory_bytes=80 * GIB),
)


def flat(value: int) -> Spread:
    return Spread(least=value, mean=value, most=value)


@dataclass
class AgentLife:
    """One boot of an agent that delivers a batch for each period, chained as its sender would."""

    source_id: str = "agent:h1"
    boot_id: str = "life-1"
    start_us: int = T0
    origin: Origin = Origin.SIMULATED
    seq: int = 0
    prev: bytes = b""
    now_us: int = field(init=False)

    def __post_init__(self) -> None:
        self.now_us = self.start_us

    def send(self, batch: SampleBatch) -> bytes:
        raw = wire.encode(batch, self.prev)
        self.prev = wire.digest_of(raw)
        return raw

    def period(
        self, used: dict[str, dict[int, int]] | None = None, *, gpus: Sequence[Gpu] | None = None, rest: int = GIB
    ) -> SampleBatch:
        """A period in which processes (by GPU and pid) use so many bytes, and ``rest`` nobody's."""
        self.seq += 1
        start = self.now_us
        self.now_us += PERIOD_US
        return SampleBatch(
            source=Agent(source_id=self.source_id, origin=self.origin, host="h1", software="kvledger 1", driver="550"),
            boot=Boot(boot_id=self.boot_id, anchor_us=self.start_us - 5, started_us=self.start_us),
            seq=self.seq,
            start_us=start,
            end_us=self.now_us,
            gpus=None if gpus is None else tuple(gpus),
            samples=tuple(device(gpu, sum(by.values()) + rest) for gpu, by in (used or {}).items()),
            processes=tuple(
                GpuProcess(gpu=gpu, pid=pid, readings=15, used_bytes=flat(each), used_marks=(each,) * 3)
                for gpu, by in (used or {}).items()
                for pid, each in by.items()
            ),
            rests=tuple(GpuRest(gpu=gpu, rest_bytes=flat(rest)) for gpu in used or {}),
        )


def device(gpu: str, used: int, *, total: int = 80 * GIB, reserved: int = GIB // 2) -> GpuPeriod:
    return GpuPeriod(
        gpu=gpu,
        readings=15,
        used_bytes=flat(used),
        free_bytes=flat(total - used - reserved),
        total_bytes=flat(total),
        reserved_bytes=flat(reserved),
        used_marks=(used,) * 3,
        busy_ppm=Spread(least=0, mean=430_000, most=1_000_000),
        power_mw=Spread(least=100_000, mean=250_000, most=400_000),
    )


def lawful_samples() -> SampleBatch:
    """Samples that have something of everything, and keep every rule."""
    life = AgentLife()
    batch = life.period({"GPU-1": {4711: 40 * GIB, 4712: GIB}}, gpus=GPUS)
    first = replace(
        batch.samples[0],
        memory_busy_ppm=flat(7),
        occupancy_ppm=flat(8),
        ecc_corrected=3,
        ecc_uncorrected=0,
        throttles=(("hw_thermal", 2), ("sw_power_cap", 15)),
    )
    mig = Gpu(uuid="MIG-9", index=1, model="A100 MIG 1g.10gb", parent="GPU-2", instance=7, memory_bytes=10 * GIB)
    return replace(
        batch,
        skew_us=-4,
        gpus=(*GPUS, mig),
        samples=(first, GpuPeriod(gpu="MIG-9", readings=15, throttles=())),
        processes=(*batch.processes, GpuProcess(gpu="MIG-9", pid=9, engagement=Engagement.MPS, readings=3)),
        rests=(*batch.rests, GpuRest(gpu="MIG-9", unmeasured=1)),
        health=(
            ProcessPeriod(
                pid=4711, inner_pid=7, name="VLLM::EngineCor", started_us=T0, threads=120, rss_bytes=GIB,
                cpu_us=15_100_000, busiest="python3", busiest_us=14_900_000, waiting_threads=2,
            ),
            ProcessPeriod(pid=1, name="kvledger", watch=Watch.OWN, workers=40, workers_busy=40, queued=12),
        ),
        troubles=(Trouble(reason="gpu_is_lost", gpu="GPU-2", count=15), Trouble(reason="hanging", count=1)),
    )  # fmt: skip


# --- arbitrary samples ----------------------------------------------------------------------------------

numbers = st.one_of(st.none(), st.integers(0, 9), st.integers(0, limits.TOKENS_MAX))
memory = st.one_of(st.just(0), st.integers(0, limits.MEMORY_BYTES_MAX))
pids = st.integers(1, limits.PID_MAX)
some_pids = st.one_of(st.none(), st.integers(0, limits.PID_MAX))
readings = st.integers(1, limits.READINGS_MAX)
marks = st.lists(memory, max_size=3).map(tuple)


def spreads(values: st.SearchStrategy[int]) -> st.SearchStrategy[Spread | None]:
    made = st.tuples(values, values, values).map(sorted).map(lambda v: Spread(least=v[0], mean=v[1], most=v[2]))
    return st.one_of(st.none(), made)


ppm = spreads(st.integers(0, limits.PPM_MAX))
arbitrary_samples = st.builds(
    SampleBatch,
    source=st.builds(
        Agent, source_id=names, origin=st.sampled_from(Origin), cluster=maybe, namespace=maybe, pod=maybe, host=maybe,
        software=maybe, driver=maybe,
    ),
    boot=st.builds(Boot, boot_id=names, anchor_us=times, started_us=times),
    seq=st.integers(1, limits.SEQ_MAX), start_us=times, end_us=times,
    skew_us=st.integers(-limits.SKEW_US_MAX, limits.SKEW_US_MAX),
    gpus=st.one_of(
        st.none(),
        few(
            st.builds(
                Gpu, uuid=names, index=st.integers(0, limits.GPUS_MAX), model=maybe, parent=maybe,
                instance=st.one_of(st.none(), st.integers(0, limits.GPUS_MAX)),
                memory_bytes=st.one_of(st.none(), memory),
            )
        ),
    ),
    samples=few(
        st.builds(
            GpuPeriod, gpu=names, readings=readings, used_bytes=spreads(memory), free_bytes=spreads(memory),
            total_bytes=spreads(memory), reserved_bytes=spreads(memory), used_marks=marks, busy_ppm=ppm,
            memory_busy_ppm=ppm, occupancy_ppm=ppm, power_mw=spreads(st.integers(0, limits.POWER_MW_MAX)),
            ecc_corrected=numbers, ecc_uncorrected=numbers,
            throttles=st.one_of(
                st.none(), st.dictionaries(names, readings, max_size=2).map(lambda d: tuple(sorted(d.items())))
            ),
        )
    ),
    processes=few(
        st.builds(
            GpuProcess, gpu=names, pid=pids, engagement=st.sampled_from(Engagement), readings=readings,
            used_bytes=spreads(memory), used_marks=marks,
        )
    ),
    rests=few(
        st.builds(
            GpuRest, gpu=names, rest_bytes=spreads(st.integers(-limits.MEMORY_BYTES_MAX, limits.MEMORY_BYTES_MAX)),
            unmeasured=st.integers(0, limits.GPU_PROCESSES_MAX),
        )
    ),
    health=few(
        st.builds(
            ProcessPeriod, pid=pids, inner_pid=st.one_of(st.none(), pids), name=maybe,
            watch=st.sampled_from(Watch), started_us=st.one_of(st.none(), times), threads=some_pids,
            rss_bytes=st.one_of(st.none(), memory), cpu_us=numbers, busiest=maybe, busiest_us=numbers,
            waiting_threads=some_pids, workers=some_pids, workers_busy=some_pids, queued=numbers,
        )
    ),
    troubles=few(st.builds(Trouble, reason=names, gpu=maybe, count=st.integers(1, limits.TOKENS_MAX))),
)  # fmt: skip
"""Any samples whose fields are valid by themselves; hardly any keep the rules."""
