"""After every step of a real engine the meter says what a walk of vLLM's pool says, and each record what vLLM says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
OUTCOMES = {
    "FINISHED_STOPPED": ("finished", "stop"),
    "FINISHED_LENGTH_CAPPED": ("finished", "length"),
    "FINISHED_ABORTED": ("aborted", "abort"),
}


def driven(model: Path, steps: int, seed: int, *options: str) -> dict[str, Any]:
    """What one run of the driver found."""
    done = subprocess.run(
        [sys.executable, str(HERE / "driver.py"), str(model), str(steps), str(seed), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def hold(found: dict[str, Any], steps: int) -> None:
    """What must be so of every run; prints the figures of it."""
    counts = {key: found[key] for key in ("scheduler", "steps", "walks", "records", "resets", "naps", "peak_shared")}
    counts |= {key: total(found, "hook", key) for key in ("preemptions", "cached", "recomputed", "output")}
    print(f"\n{len(found['differences'])} differences:", *(f"{key} {value}," for key, value in counts.items()))
    assert found["differences"] == []
    assert found["faults"] == {}
    assert found["steps"] >= steps
    assert found["walks"] >= 2 * found["steps"]
    assert found["engine_references"] == 0
    assert found["closes"] == ["sleep"] * found["naps"] + ["shutdown"]
    requests = found["requests"]
    assert found["records"] == len(requests)
    for name, said in requests.items():
        theirs, ours = said["vllm"], said["hook"]
        assert ours is not None, name
        assert {key: ours[key] for key in ("prompt", "output", "preemptions")} == {
            key: theirs[key] for key in ("prompt", "output", "preemptions")
        }, (name, said)
        assert (ours["outcome"], ours["reason"]) == OUTCOMES[theirs["status"]], (name, said)
        assert ours["computed"] + ours["cached"] + ours["unprocessed"] == ours["prompt"], (name, said)
        if theirs["cached"] is not None and not theirs["preemptions"]:
            assert ours["cached"] == theirs["cached"], (name, said)
        assert ours["tenant"].startswith("t")
        assert (ours["parent"] is not None) == ("_" in name), (name, said)


def total(found: dict[str, Any], whose: str, key: str) -> int:
    return sum(said[whose][key] for said in found["requests"].values())


@pytest.mark.parametrize("caching", ["caching", "fresh"])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_walk_of_the_pool_finds_what_the_meter_says_after_every_step(
    llama: Path, steps: int, way: str, caching: str
) -> None:
    found = driven(llama, steps, 1, way, caching)
    hold(found, steps)
    assert found["scheduler"] == {"sync": "Scheduler", "async": "AsyncScheduler"}[way]
    assert total(found, "hook", "preemptions") > steps // 60
    assert total(found, "hook", "recomputed") > 0
    assert min(found["resets"], found["naps"]) > 0
    assert sum(said["hook"]["outcome"] == "aborted" for said in found["requests"].values()) > 5
    assert (total(found, "hook", "cached") > 0) == (caching == "caching")
    assert (found["peak_shared"] > 1) == (caching == "caching")


def test_a_request_that_gives_way_to_a_better_one_is_preempted_by_priority(llama: Path, steps: int) -> None:
    found = driven(llama, steps // 3, 2, "async", "caching", "priority")
    hold(found, steps // 3)
    assert total(found, "hook", "by_priority") > 0


def test_a_request_is_charged_until_its_deferred_blocks_are_really_free(llama: Path, steps: int) -> None:
    found = driven(llama, steps // 3, 5, "async", "caching", "deferred")
    hold(found, steps // 3)
    assert found["deferred"] > 0


@pytest.mark.parametrize("way", ["sync", "async"])
def test_groups_of_a_model_with_windows_hold_what_the_walk_finds(sliding_window: Path, steps: int, way: str) -> None:
    hold(driven(sliding_window, steps // 3, 3, way, "caching"), steps // 3)


def test_drafts_are_counted_as_the_scheduler_hands_them_out(llama: Path, steps: int) -> None:
    found = driven(llama, steps // 3, 4, "sync", "caching", "ngram")
    hold(found, steps // 3)
    assert total(found, "hook", "drafted") == found["totals"]["drafted"] > 100
    assert 0 < total(found, "hook", "rejected") <= total(found, "hook", "drafted")


def test_one_block_that_is_not_told_is_found(llama: Path) -> None:
    found = driven(llama, 30, 6, "sync", "caching", "planted")
    assert "is held by" in found["differences"][0]
