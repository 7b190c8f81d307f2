"""The reference engine against a recorded vLLM run: the tolerances that docs/reference-engine.md states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.calibrate import QUANTILES, Curves, kv_error, quantile, recorded, replayed, request_error
from ledger.reference.latency import RTX_4090_LLAMA_8B

if TYPE_CHECKING:
    from pathlib import Path

QUANTILE_ERROR_MAX = 0.05
KV_POINTS_MAX = 3.0
LENGTH_ERROR_MAX = 0.02
REQUEST_ERROR_MAX = 0.05


@pytest.fixture(scope="module")
def both(traces_dir: Path) -> tuple[Curves, Curves]:
    return recorded(traces_dir), replayed(traces_dir, RTX_4090_LLAMA_8B)


def test_a_replay_of_the_recorded_run_takes_as_long(both: tuple[Curves, Curves]) -> None:
    real, ours = both
    assert len(ours.kv_percent) == pytest.approx(len(real.kv_percent), rel=LENGTH_ERROR_MAX)


def test_kv_use_per_second_is_that_of_the_recorded_run(both: tuple[Curves, Curves]) -> None:
    assert kv_error(*both) < KV_POINTS_MAX


@pytest.mark.parametrize("name", ["queue", "first token", "per token", "end to end"])
def test_latency_quantiles_are_those_of_the_recorded_run(both: tuple[Curves, Curves], name: str) -> None:
    real, ours = both
    for percent in QUANTILES:
        wanted = quantile(real.latencies[name], percent)
        assert quantile(ours.latencies[name], percent) == pytest.approx(wanted, rel=QUANTILE_ERROR_MAX), percent


def test_half_of_all_requests_end_when_they_did(both: tuple[Curves, Curves]) -> None:
    median, _tail = request_error(*both, "end to end")
    assert median < REQUEST_ERROR_MAX
