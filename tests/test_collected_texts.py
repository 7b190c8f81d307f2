"""What the recorded texts say, spelled out: every figure of every text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from scraped import T0

from ledger.collectors import document
from ledger.collectors.inspection import inspect
from ledger.collectors.known import AUTO, KINDS, read_text
from ledger.collectors.readings import COUNTERS, LATENCIES, Figure, Gpu, Latency, Pool
from ledger.collectors.series import Series
from ledger.commands import collecting_arguments
from ledger.core.records import PERIOD_US
from ledger.core.scraped import ScrapedLatency, ScrapedPeriod

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Text:
    """``latencies``: count, sum in µs, buckets, and the first bucket that holds anything (bound in µs, values)."""

    file: str
    kind: str
    models: tuple[str, ...] = ()
    started_us: int | None = None
    running: int | None = None
    waiting: int | None = None
    pools: tuple[Pool, ...] = ()
    counters: dict[Figure, int] = field(default_factory=dict)
    finished: dict[str, int] | None = None
    latencies: dict[Figure, tuple[int, int, int, tuple[int, int] | None]] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    bad: tuple[int, ...] = ()
    repeated: int = 0
    unknown: int = 0


TEXTS = (
    Text(
        file="vllm_v1_engine_full_Qwen2.5-0.5B_2026-03.prom",
        kind="vllm",
        models=("Qwen/Qwen2.5-0.5B-Instruct",),
        started_us=1_774_011_384_600_000,
        running=0,
        waiting=0,
        # 101 625 blocks of 16 tokens, less the null block.
        pools=(Pool(rank="0", active_ppm=0, capacity=101_624 * 16, block_size=16),),
        counters=dict.fromkeys(COUNTERS, 0),
        finished={"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0},
        latencies={
            Figure.QUEUE: (0, 0, 21, None),
            Figure.FIRST_TOKEN: (0, 0, 22, None),
            Figure.INTER_TOKEN: (0, 0, 19, None),
            Figure.END_TO_END: (0, 0, 21, None),
        },
    ),
    Text(
        file="sglang_2024-11_name-label.prom",
        kind="sglang",
        models=("google/gemma-2-9b-it",),
        running=0,
        waiting=0,
        pools=(Pool(active_ppm=10_000, capacity=161_721, block_size=1),),
        counters={Figure.PROMPT: 506_780, Figure.OUTPUT: 424_549},
        latencies={
            Figure.QUEUE: (2104, 24_885_007_263, 16, (1_000_000, 421)),
            Figure.FIRST_TOKEN: (2124, 656_078_084, 20, (40_000, 207)),
            Figure.INTER_TOKEN: (422_425, 29_846_539_395, 18, (20_000, 9602)),
            Figure.END_TO_END: (2104, 70_517_999_345, 16, (1_000_000, 2)),
        },
        unknown=5,
    ),
    Text(
        file="sglang_2025_loaded_8M_tokens.prom",
        kind="sglang",
        models=("meta-llama/Llama-3.1-8B-Instruct",),
        running=162,
        waiting=2826,
        # How many tokens fit is not said, so the 123 859 that are held make no share; the rounded one is there.
        pools=(Pool(active_ppm=280_000),),
        counters={Figure.PROMPT: 8_128_902, Figure.OUTPUT: 7_557_572},
        latencies={
            Figure.FIRST_TOKEN: (11_008, 2_351_897_947_412, 20, (40_000, 1)),
            Figure.INTER_TOKEN: (7_400_757, 866_964_579_155, 18, (5000, 1)),
            Figure.END_TO_END: (11_228, 3_116_093_850_020, 15, (500_000, 6)),
        },
        unknown=1,
    ),
    Text(
        file="triton_trtllm_backend.prom",
        kind="triton_trtllm",
        models=("tensorrt_llm",),
        running=1,
        waiting=1,
        # 1 of 6 239 blocks; `fraction` says 0.4875, which is no quotient of any two of them.
        pools=(Pool(active_ppm=160, capacity=6239 * 64, block_size=64),),
        finished={"success": 0, "error": 0},
    ),
    Text(
        file="dcgm_exporter_L4_kops.prom",
        kind="dcgm",
        gpus=(
            Gpu(
                uuid="GPU-c2f76b33-7953-256e-8f33-1343419b1a1c", index="0", model="NVIDIA L4",
                host="i-030791dc5a37cd257", used_bytes=0, free_bytes=22_563 * MIB, reserved_bytes=470 * MIB,
                utilization_ppm=0, power_mw=16_365, temperature_c=31,
            ),
        ),
        repeated=23,
        unknown=17,
    ),
    Text(
        file="dcgm_exporter_upcloud.prom",
        kind="dcgm",
        gpus=(
            Gpu(
                uuid="GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43", index="0", model="NVIDIA L40S", host="gpu1-wl8sg",
                used_bytes=0, free_bytes=45_459 * MIB, reserved_bytes=608 * MIB, utilization_ppm=0,
                power_mw=35_686, temperature_c=32,
            ),
        ),
        unknown=17,
    ),
    Text(
        # Three fields that are no figures of ours, one of them a blank; twice, with other labels.
        file="dcgm_exporter_readme.prom",
        kind="dcgm",
        gpus=(Gpu(uuid="GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52", index="0"),),
        repeated=3,
        unknown=3,
    ),
    Text(
        file="malformed_dcgm_elided_labels_viettel_L40S.prom",
        kind="dcgm",
        gpus=(
            Gpu(uuid="GPU-72ad4d20-cfed-f08d-c894-f620962ca3e4", index="1", model="NVIDIA L40S", host="ubuntu-sv16"),
            Gpu(uuid="GPU-a8affe7e-7930-ae20-3fc6-4b0edf3ebbf3", index="0", model="NVIDIA L40S", host="ubuntu-sv16"),
        ),
        bad=tuple(range(3, 21)),
        unknown=1,
    ),
)  # fmt: skip


@pytest.mark.parametrize("said", TEXTS, ids=lambda said: said.file)
@pytest.mark.parametrize("told", [True, False], ids=["told", "auto"])
def test_a_recorded_text_says_exactly_this(traces_dir: Path, said: Text, *, told: bool) -> None:
    raw = (traces_dir / "metrics" / said.file).read_bytes()
    _, reading = read_text(raw, said.kind if told else AUTO)
    assert reading is not None
    assert reading.kind == said.kind
    assert reading.models == said.models
    assert reading.started_us == said.started_us
    assert (reading.running, reading.waiting) == (said.running, said.waiting)
    assert reading.pools == said.pools
    assert reading.counters == said.counters
    assert reading.finished == said.finished
    assert {figure: _short(latency) for figure, latency in reading.latencies.items()} == said.latencies
    assert reading.gpus == said.gpus
    assert reading.nonsense == ()
    assert reading.copies == 0


@pytest.mark.parametrize("said", [text for text in TEXTS if not text.gpus], ids=lambda said: said.file)
def test_a_text_that_is_told_twice_is_a_record_of_what_holds_and_of_nothing_that_moved(
    traces_dir: Path, said: Text
) -> None:
    _, reading = read_text((traces_dir / "metrics" / said.file).read_bytes(), AUTO)
    assert reading is not None
    series = Series("e")
    for at_us in (T0, T0 + PERIOD_US):
        series.add(at_us, reading)
    pool = said.pools[0]
    assert series.period(T0) == (
        ScrapedPeriod(
            engine="e", start_us=T0, end_us=T0 + PERIOD_US, kind=said.kind, model=said.models[0], scrapes=1,
            busy_us=PERIOD_US if said.running else 0,
            started_us=said.started_us,
            running_us=None if said.running is None else said.running * PERIOD_US,
            waiting_us=None if said.waiting is None else said.waiting * PERIOD_US,
            kv_active_ppm=pool.active_ppm, kv_cached_ppm=pool.cached_ppm,
            capacity_tokens=pool.capacity, block_size=pool.block_size,
            finished=None if said.finished is None else tuple(sorted((reason, 0) for reason in said.finished)),
            latencies=tuple(
                ScrapedLatency(name=figure.value, buckets=(), over=0, total_us=0)
                for figure in LATENCIES if figure in said.latencies
            ),
            **{figure.value: 0 for figure in said.counters},
        ),
    )  # fmt: skip


@pytest.mark.parametrize("said", TEXTS, ids=lambda said: said.file)
def test_an_inspection_names_what_is_bad_and_what_is_not_recognised(traces_dir: Path, said: Text) -> None:
    seen = inspect((traces_dir / "metrics" / said.file).read_bytes(), AUTO)
    assert tuple(line.line for line in seen.bad) == said.bad
    assert seen.bad_lines == len(said.bad)
    assert seen.repeated == said.repeated
    assert len(seen.unknown) == said.unknown
    assert not {name for name, _ in seen.unused} & set(seen.unknown)


def test_every_recorded_text_is_in_the_table(traces_dir: Path) -> None:
    assert {path.name for path in (traces_dir / "metrics").iterdir()} == {said.file for said in TEXTS}


def test_the_page_has_what_the_rules_say() -> None:
    assert document.PAGE.read_text() == document.page(), "run: make generated"


def test_the_command_line_knows_every_kind() -> None:
    assert (AUTO, *KINDS) == collecting_arguments.KINDS


def _short(latency: Latency) -> tuple[int, int | None, int, tuple[int, int] | None]:
    first = next(((bound, count) for bound, count in latency.buckets if count), None)
    return latency.count, latency.total_us, len(latency.buckets), first
