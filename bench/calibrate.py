"""Fit the latency model to a recorded vLLM run, and print how far a replay of it is from the record.

    python -m bench.calibrate [TRACES]           the error with the committed coefficients
    python -m bench.calibrate --fit [TRACES]     search coefficients first (minutes)

``TRACES`` is the folder with ``runs/`` and ``traces/`` (default: ``KVLEDGER_TRACES``, or where the tests look).
The requests are those of the run, with their token ids; pool, limits and arrivals are those of its configuration.
What is fitted is everything but the attention term, which prompts of at most 2 400 tokens do not show: that one
follows from the model's arithmetic.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.reference.latency import RTX_4090_LLAMA_8B, LatencyModel
from ledger.reference.replay import replay
from ledger.reference.traces import open_trace

if TYPE_CHECKING:
    from ledger.core.records import Batch, RequestRecord

TRACES = Path(os.environ.get("KVLEDGER_TRACES", Path(__file__).parents[2] / "shared" / "data"))
RUN = "runs/RTX4090_Llama-3.1-8B__"
BLOCKS = 2588
SECOND_US = 1_000_000
QUANTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Curves:
    """A run as both sides tell it: KV use per second (percent of blocks), and latencies (s) in order of arrival."""

    kv_percent: list[float]
    latencies: dict[str, list[float]]
    preemptions: int | None


def recorded(traces: Path) -> Curves:
    """The run as vLLM reported it; its clock starts with the first request's arrival in the engine."""
    with (traces / f"{RUN}timeseries.csv").open() as rows:
        kv = [float(row["kv_cache_pct"]) for row in csv.DictReader(rows)]
    latencies: dict[str, list[float]] = {"queue": [], "first token": [], "per token": [], "end to end": []}
    with (traces / f"{RUN}requests.jsonl").open() as lines:
        for line in lines:
            row = json.loads(line)
            first = row["first_token_ts"] - row["queued_ts"]
            last = row["last_token_ts"] - row["queued_ts"]
            latencies["queue"].append(row["scheduled_ts"] - row["queued_ts"])
            latencies["first token"].append(first)
            latencies["per token"].append((last - first) / max(1, row["output_toks"] - 1))
            latencies["end to end"].append(last)
    return Curves(kv, latencies, None)


def replayed(traces: Path, latency: LatencyModel) -> Curves:
    """The same requests through the reference engine; arrivals are those that the run's engine saw."""
    records: list[RequestRecord] = []
    marks: list[tuple[int, int]] = []

    def emit(batch: Batch) -> None:
        records.extend(record for record in batch.requests if record.dims.tenant != "system")

    def event(line: str) -> None:
        entry = json.loads(line)
        if entry.get("ev") == "acquire":
            held.update((block, held.get(block, 0) + 1) for block in entry["hit"] + entry["new"])
        elif entry.get("ev") == "release":
            for block in entry["blocks"]:
                held[block] -= 1
                if not held[block]:
                    del held[block]
        else:
            return
        marks.append((entry["t_us"], len(held)))

    held: dict[int, int] = {}
    requests = open_trace(traces / "traces/sharegpt_300_token_ids.jsonl.gz").requests()
    summary = replay(
        requests,
        blocks=BLOCKS,
        block_size=16,
        start_us=0,
        load_us=0,
        warmup_requests=0,
        latency=latency,
        emit=emit,
        events=event,
    )
    first_us = min(record.arrived_us for record in records)
    last_us = max(record.ended_us for record in records)
    kv = []
    position = used = 0
    for at_us in range(first_us + SECOND_US, last_us + SECOND_US, SECOND_US):
        while position < len(marks) and marks[position][0] <= at_us:
            used = marks[position][1]
            position += 1
        kv.append(100 * used / BLOCKS)
    latencies: dict[str, list[float]] = {"queue": [], "first token": [], "per token": [], "end to end": []}
    records.sort(key=lambda record: int(record.request.rpartition("-")[2]))
    for record in records:
        assert record.scheduled_us is not None
        assert record.first_token_us is not None
        assert record.last_token_us is not None
        latencies["queue"].append((record.scheduled_us - record.arrived_us) / SECOND_US)
        latencies["first token"].append((record.first_token_us - record.arrived_us) / SECOND_US)
        decode = (record.last_token_us - record.first_token_us) / SECOND_US
        latencies["per token"].append(decode / max(1, record.tokens.output - 1))
        latencies["end to end"].append((record.last_token_us - record.arrived_us) / SECOND_US)
    return Curves(kv, latencies, summary.preemptions)


def quantile(values: list[float], percent: int) -> float:
    """The smallest value with at least so many percent at or below it."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def kv_error(real: Curves, ours: Curves) -> float:
    """Mean absolute difference of KV use over all seconds of the longer run, in points of percent."""
    seconds = max(len(real.kv_percent), len(ours.kv_percent))

    def at(curve: list[float], second: int) -> float:
        return curve[second] if second < len(curve) else 0.0

    return sum(abs(at(real.kv_percent, s) - at(ours.kv_percent, s)) for s in range(seconds)) / seconds


def request_error(real: Curves, ours: Curves, name: str) -> tuple[float, float]:
    """Median and 90th percentile, over requests, of the relative error of one request's latency."""
    pairs = zip(real.latencies[name], ours.latencies[name], strict=True)
    errors = [abs(got / wanted - 1) for wanted, got in pairs if wanted > 0.05 or name == "per token"]
    return quantile(errors, 50), quantile(errors, 90)


def loss(real: Curves, ours: Curves) -> float:
    """What the fit minimises: relative errors of the quantiles, and the KV curve."""
    total = kv_error(real, ours) / 100
    for name, values in real.latencies.items():
        for percent in QUANTILES:
            wanted = quantile(values, percent)
            if wanted > 0.05 or name == "per token":
                total += abs(quantile(ours.latencies[name], percent) / wanted - 1)
    total += 4 * abs(len(ours.kv_percent) / len(real.kv_percent) - 1)
    return total


def fit(traces: Path, real: Curves) -> LatencyModel:
    """Coordinate descent from the committed coefficients; steps shrink from 20 % to 1 %."""
    model = RTX_4090_LLAMA_8B
    best = loss(real, replayed(traces, model))
    step = 0.2
    while step > 0.01:
        better = False
        for name in ("fixed_ns", "per_prefill_token_ns", "per_sequence_ns", "per_kv_token_ps"):
            for factor in (1 + step, 1 / (1 + step)):
                trial = replace(model, **{name: round(getattr(model, name) * factor)})
                found = loss(real, replayed(traces, trial))
                if found < best:
                    best, model, better = found, trial, True
        print(f"step {step:.3f}: loss {best:.4f} {model}", flush=True)
        if not better:
            step /= 2
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="?", type=Path, default=TRACES)
    parser.add_argument("--fit", action="store_true")
    arguments = parser.parse_args()
    traces = arguments.traces
    if not traces.is_dir():
        parser.error(f"{traces} is not a folder: give the folder of traces, or set KVLEDGER_TRACES")
    real = recorded(traces)
    model = fit(traces, real) if arguments.fit else RTX_4090_LLAMA_8B
    ours = replayed(traces, model)
    print(model)
    print(f"length {len(real.kv_percent)} s, replayed {len(ours.kv_percent)} s; preemptions {ours.preemptions}")
    mean = sum(real.kv_percent) / len(real.kv_percent), sum(ours.kv_percent) / len(ours.kv_percent)
    print(f"KV use: mean {mean[0]:.1f} % against {mean[1]:.1f} %, mean difference {kv_error(real, ours):.1f} points")
    for name, values in real.latencies.items():
        cells = []
        for percent in QUANTILES:
            wanted = quantile(values, percent)
            got = quantile(ours.latencies[name], percent)
            cells.append(f"p{percent} {wanted:8.3f} {got:8.3f} ({100 * (got / wanted - 1):+5.1f} %)")
        median, tail = request_error(real, ours, name)
        print(f"{name:12s}", *cells, f"| request by request: median {100 * median:.1f} %, p90 {100 * tail:.1f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
