"""The meter against the offline auditor, on slices of every recorded trace; and the auditor against errors."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from sweep import Sweep, main

from ledger import wire
from ledger.core.records import PERIOD_US, Batch, StandingCount
from ledger.reference.engine import Engine, EngineConfig
from ledger.reference.policy import Policy
from ledger.reference.replay import ReplaySummary, replay
from ledger.reference.traces import open_trace
from ledger.reference.workload import HOUR_US, mixed_day

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ledger.reference.request import TraceRequest
    from ledger.reference.scheduler import CoreRequest

START_US = 1_793_664_000_000_000

LARGE = partial(pytest.param, marks=pytest.mark.slow)


def swept(
    requests: Iterable[TraceRequest],
    *,
    change: Callable[[Batch], Batch] = lambda batch: batch,
    start_us: int = START_US,
    **keys: object,
) -> tuple[Sweep, ReplaySummary]:
    """Replay, and compare every batch with the events as they come."""
    sweep = Sweep()

    def emit(batch: Batch) -> None:
        sweep.batch(change(batch))

    def event(line: str) -> None:
        sweep.event(line)
        sweep.compare()

    summary = replay(requests, start_us=start_us, emit=emit, events=event, **keys)  # type: ignore[arg-type]
    sweep.finish()
    return sweep, summary


@pytest.mark.parametrize(
    ("file", "limit", "keys"),
    [
        ("traces/dynamo_request_trace.jsonl.gz", None, {"blocks": 700, "block_size": 16, "engines": 2}),
        ("traces/sharegpt_300_token_ids.jsonl.gz", 80, {"blocks": 900, "block_size": 16}),
        ("traces/azure_2023_conv.csv", 350, {"blocks": 700, "block_size": 16}),
        ("traces/lmsys_27_tenants_fcfs.jsonl", 300, {"blocks": 900, "block_size": 16}),
        ("traces/mooncake_conversation.jsonl", 120, {"blocks": 12_000, "block_size": 16}),
        ("traces/agent_sessions.jsonl.gz", 1, {"blocks": 4000, "block_size": 64}),
        ("runs/RTX4090_Llama-3.1-8B__requests.jsonl", 100, {"blocks": 800, "block_size": 32}),
        LARGE("traces/sharegpt_300_token_ids.jsonl.gz", None, {"blocks": 2588, "block_size": 16}),
        LARGE("traces/azure_2023_conv.csv", 6000, {"blocks": 2588, "block_size": 16, "engines": 2}),
        LARGE("traces/lmsys_27_tenants_fcfs.jsonl", None, {"blocks": 1500, "block_size": 16}),
        LARGE("traces/mooncake_conversation.jsonl", 1500, {"blocks": 20_000, "block_size": 16, "engines": 2}),
        LARGE("traces/agent_sessions.jsonl.gz", 12, {"blocks": 12_000, "block_size": 64, "engines": 2}),
    ],
)
def test_batches_equal_a_recount_of_the_events_on_a_slice_of_each_trace(
    traces_dir: Path, file: str, limit: int | None, keys: dict[str, int]
) -> None:
    trace = open_trace(traces_dir / file, limit=limit)
    sweep, summary = swept(trace.requests(), **keys)
    assert sweep.breaches == []
    assert sweep.records == summary.received
    assert summary.faults == 0


def busy_minutes() -> Iterator[TraceRequest]:
    return mixed_day(7, load=60.0, duration_us=HOUR_US // 120).requests()


class Eager(Policy):
    """Begins prompts that may not fit: those who run pay for it."""

    def must_fit_whole(self, request: CoreRequest) -> bool:
        return False


@pytest.mark.parametrize("start_us", [START_US, START_US + 7_000_001])
def test_batches_equal_a_recount_under_pressure_with_drafts_samples_and_aborts(start_us: int) -> None:
    day = mixed_day(7)
    sweep, summary = swept(
        busy_minutes(),
        start_us=start_us,
        engines=2,
        blocks=1200,
        latency=day.latency,
        acceptance_ratio=0.5,
        policy=Eager,
    )
    assert sweep.breaches == []
    assert sweep.records == summary.received
    assert summary.faults == 0
    # Else the test would not show what its name says.
    assert summary.preemptions >= 5
    assert summary.evictions > 0
    assert summary.refused > 0
    assert summary.aborted > 0
    assert summary.abandoned > 0


def test_batches_equal_a_recount_when_the_cache_is_reset_under_running_requests() -> None:
    day = mixed_day(3, load=8.0, duration_us=6 * PERIOD_US)
    sweep = Sweep()
    config = EngineConfig(
        name="engine-0",
        blocks=4200,
        block_size=16,
        start_us=START_US,
        load_us=0,
        model="m",
        gpu_model="g",
        latency=day.latency,
        warmup_requests=1,
        acceptance_ratio=0.7,
        seed=1,
    )
    engine = Engine(config, Policy(), sweep.batch, sweep.event)
    for request in day.requests():
        engine.submit(request, request.arrival_us)
    for horizon in range(1, 40):
        engine.run_until(horizon * 5_000_000)
        if horizon % 3 == 0:
            engine.scheduler.reset(engine.now_us)
    engine.close(engine.now_us)
    sweep.finish()
    assert sweep.breaches == []
    assert engine.meter.faults == {}
    assert engine.scheduler.preemptions > 3


def _first(batch: Batch, field: str, **changes: int) -> Batch:
    rows = getattr(batch, field)
    row = rows[0]
    return replace(
        batch, **{field: (replace(row, **{key: getattr(row, key) + by for key, by in changes.items()}), *rows[1:])}
    )


def _holding(batch: Batch, key: str) -> Batch:
    row = batch.sessions[0]
    holding = replace(row.holding, **{key: getattr(row.holding, key) + 2})
    return replace(batch, sessions=(replace(row, holding=holding), *batch.sessions[1:]))


def _tokens(batch: Batch) -> Batch:
    row = batch.sessions[0]
    return replace(
        batch, sessions=(replace(row, tokens=replace(row.tokens, output=row.tokens.output + 1)), *batch.sessions[1:])
    )


def _standing(batch: Batch) -> Batch:
    one = (
        batch.standing[0] if batch.standing else StandingCount(pool="kv", dims=batch.sessions[0].dims, cached_blocks=0)
    )
    return replace(batch, standing=(replace(one, cached_blocks=one.cached_blocks + 1), *(batch.standing or ())[1:]))


@pytest.mark.parametrize(
    "plant",
    [
        lambda batch: _first(batch, "pools", active_block_us=1, free_block_us=-1),
        lambda batch: _first(batch, "pools", cached_block_us=1, free_block_us=-1),
        lambda batch: _first(batch, "pools", unfilled_slot_us=1),
        lambda batch: _first(batch, "pools", steps=1),
        lambda batch: _first(batch, "pools", step_us=1),
        lambda batch: _first(batch, "sessions", cached_block_us=1),
        lambda batch: _first(batch, "sessions", cached_blocks_end=1),
        lambda batch: _first(batch, "sessions", compute_us=1),
        lambda batch: _holding(batch, "active_block_us"),
        lambda batch: _holding(batch, "unfilled_slot_us"),
        _tokens,
        _standing,
        lambda batch: replace(batch, sessions=batch.sessions[1:]),
        lambda batch: replace(batch, requests=batch.requests[1:]),
        lambda batch: replace(batch, admissions=batch.admissions[1:]),
        lambda batch: _first(batch, "requests", peak_blocks=1),
        lambda batch: _first(batch, "requests", ended_us=1),
        lambda batch: replace(batch, end_us=batch.end_us + 1),
    ],
)
def test_the_auditor_notices_a_planted_error(plant: Callable[[Batch], Batch]) -> None:
    planted = 0

    def change(batch: Batch) -> Batch:
        nonlocal planted
        if planted or len(batch.sessions) < 2 or not batch.requests or not batch.admissions:
            return batch
        planted += 1
        return plant(batch)

    day = mixed_day(3, load=4.0, duration_us=4 * PERIOD_US)
    sweep, _summary = swept(day.requests(), change=change, blocks=4200, latency=day.latency)
    assert planted == 1
    assert sweep.breaches


def test_the_auditor_notices_a_batch_that_never_came() -> None:
    seen = 0
    sweep = Sweep()

    def emit(batch: Batch) -> None:
        nonlocal seen
        seen += 1
        if seen != 5:
            sweep.batch(batch)

    day = mixed_day(3, duration_us=6 * PERIOD_US, load=3.0)
    replay(day.requests(), blocks=4200, start_us=START_US, latency=day.latency, emit=emit, events=sweep.event)
    sweep.finish()
    assert any("no batch for the period" in breach for breach in sweep.breaches)


def test_the_command_audits_two_files_and_its_exit_code_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    day = mixed_day(3, load=4.0, duration_us=4 * PERIOD_US)
    events, batches = tmp_path / "events.jsonl.gz", tmp_path / "batches.jsonl"
    with gzip.open(events, "wt", encoding="utf-8") as log, batches.open("w") as wires:
        replay(
            day.requests(),
            blocks=4200,
            start_us=START_US,
            latency=day.latency,
            emit=lambda batch: wires.write(wire.encode(batch).decode() + "\n"),
            events=log.write,
        )
    monkeypatch.setattr("sys.argv", ["sweep", str(events), str(batches)])
    assert main() == 0
    assert " 0 breaches" in capsys.readouterr().out
    lines = batches.read_text().splitlines(keepends=True)
    batches.write_text("".join(lines[:6] + lines[7:]))
    assert main() == 1
    assert "no batch for the period" in capsys.readouterr().out


def test_the_log_has_every_event_with_its_documented_keys_and_only_those() -> None:
    lines: list[str] = []
    replay(
        busy_minutes(),
        blocks=1200,
        policy=Eager,
        start_us=START_US,
        latency=mixed_day().latency,
        emit=lambda batch: None,
        events=lines.append,
    )
    head = {"t_us", "engine", "pool", "ev"}
    keys = {
        "open": {"blocks", "block_size", "kinds", "shards", "model", "paying", "cached", "lookahead_tokens"},
        "request": {
            "request", "parent", "tenant", "session", "scenario", "priority", "model", "adapter", "prompt_tokens",
            "arrived_us",
        },
        "acquire": {"request", "group", "hit", "loaded", "new"},
        "release": {"request", "blocks", "cached", "freed"},
        "evict": {"blocks"},
        "step": {"start_us", "duration_us", "scheduled", "accepted"},
        "preempt": {"request", "reason"},
        "finish": {"request", "reason", "finish_reason", "tokens", "output_tokens", "drafted", "rejected"},
        "close": {"reason"},
    }  # fmt: skip
    seen = set()
    for line in lines:
        assert line.endswith("\n")
        event = json.loads(line)
        seen.add(event["ev"])
        assert set(event) == head | keys[event["ev"]]
    assert seen == set(keys)
