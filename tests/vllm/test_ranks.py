"""Several ranks: each data-parallel one is an engine, tensor-parallel ones are shards of one.

Pipeline-parallel ranks cannot be tried: vLLM 0.32 on the CPU fails in their first step, with the hook and without it.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
from server import vllm_server

HERE = Path(__file__).parent
REQUESTS = 60
POOL = ("--num-gpu-blocks-override", "24", "--max-model-len", "512", "--max-num-batched-tokens", "256")
ENDING = ("--shutdown-timeout", "30")
"""Without it vLLM kills its engine cores in the instant in which it asks them to end, and nobody could say anything."""
TWO_CORES = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


def walked(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a server whose engine cores are walked."""
    return TWO_CORES | {
        "PYTHONPATH": f"{HERE / 'walked'}:{HERE.parents[1]}",
        "KVLEDGER_WALKED": str(folder),
        "KVLEDGER_ENGINE": "ranks",
        **more,
    }


def served(model: Path, folder: Path, *options: str, **more: str) -> tuple[list[dict[str, Any]], int, int]:
    """What each engine core of a server found after some traffic; and the tokens, in and out, that its clients saw."""
    environ = walked(folder, **more)
    rng = random.Random(7)
    prompts = [[rng.randrange(10, 500) for _ in range(rng.randrange(40, 200))] for _ in range(REQUESTS)]
    shared = [rng.randrange(10, 500) for _ in range(64)]

    def ask(place: int) -> Any:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=600)
        prompt = shared + prompts[place]
        return client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=20 + place % 60,
            temperature=0,
            extra_headers={"X-Tenant-ID": f"t{place % 3}"},
        ).usage

    with vllm_server(model, folder=folder, options=[*POOL, *ENDING, *options], environ=environ) as server:
        ask(0)  # the first step of several ranks takes long
        with ThreadPoolExecutor(12) as pool:
            used = list(pool.map(ask, range(1, REQUESTS)))
        used.append(ask(0))
        first = used[-1]
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return found, sum(one.prompt_tokens for one in [*used, first]), sum(one.completion_tokens for one in [*used, first])


def hold(found: list[dict[str, Any]], prompt: int, output: int) -> None:
    assert [one["differences"] for one in found] == [[]] * len(found)
    assert [one["faults"] for one in found] == [{}] * len(found)
    assert min(one["steps"] for one in found) > 50
    # Once for all ranks together, however many there are.
    assert sum(one["requests"] for one in found) == REQUESTS + 1
    assert sum(one["prompt"] for one in found) == prompt
    assert sum(one["output"] for one in found) == output


def hold_times(one: dict[str, Any], shards: list[str], *, talk: bool) -> None:
    """Every step was timed once in the core and once in each rank, and the parts of a rank's time sum to it."""
    parts = {key: tuple(value) for key, value in one["parts"].items()}
    steps, _ = parts.pop("total")
    assert steps == one["steps"]
    assert [parts.pop(f"{phase} wall")[0] for phase in ("schedule", "update")] == [steps, steps]
    waits, _ = parts.pop("wait wall", (0, 0))
    assert waits < steps
    for shard in shards:
        count, execute_us = parts.pop(f"execute {shard} wall")
        assert count == steps
        count, compute_us = parts.pop(f"compute {shard} wall")
        assert count == steps
        count, communication_us = parts.pop(f"communication {shard} wall") if talk else (steps, 0)
        assert count == steps
        assert compute_us + communication_us == execute_us
        assert compute_us > 0
        assert (0 < communication_us < execute_us) == talk
    assert not parts, "these are all"


def test_tensor_parallel_ranks_are_shards_of_one_engine(llama: Path, tmp_path: Path) -> None:
    found, prompt, output = served(llama, tmp_path, "--tensor-parallel-size", "2")
    hold(found, prompt, output)
    assert [(one["engine"], one["shards"]) for one in found] == [("ranks", [[0, 0, 0], [0, 0, 1]])]
    hold_times(found[0], ["dp0pp0tp0", "dp0pp0tp1"], talk=True)


def test_tensor_parallel_ranks_with_asynchronous_scheduling(llama: Path, tmp_path: Path) -> None:
    found, prompt, output = served(llama, tmp_path, "--tensor-parallel-size", "2", WALKED_ASYNC="1")
    hold(found, prompt, output)
    hold_times(found[0], ["dp0pp0tp0", "dp0pp0tp1"], talk=True)


def test_data_parallel_ranks_are_engines_of_their_own(llama: Path, tmp_path: Path) -> None:
    found, prompt, output = served(llama, tmp_path, "--data-parallel-size", "2")
    hold(found, prompt, output)
    assert sorted((one["engine"], one["shards"]) for one in found) == [
        ("ranks", [[0, 0, 0]]),
        ("ranks/dp1", [[1, 0, 0]]),
    ]
    for one in found:
        hold_times(one, [f"dp{one['shards'][0][0]}pp0tp0"], talk=False)


def test_workers_whose_clock_fails_answer_as_before_and_let_go(llama: Path, tmp_path: Path) -> None:
    options = [*POOL, *ENDING, "--tensor-parallel-size", "2", "--no-enable-prefix-caching"]
    environ = walked(tmp_path, WALKED_CLOCK_FAILS="1500")
    with vllm_server(llama, folder=tmp_path, options=options, environ=environ) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=600)

        def ask() -> str:
            given = client.completions.create(model="tiny", prompt=[11, 12, 13], max_tokens=60, temperature=0)
            return str(given.choices[0].text)

        before = ask()
        for _ in range(20):
            assert ask() == before
            if server.text().count("lets go of the engine") >= 2:
                break
        assert [ask() for _ in range(3)] == [before] * 3
        assert server.text().count("lets go of the engine") == 2, "each of the two ranks, once"
    (one,) = [json.loads(file.read_text()) for file in tmp_path.glob("*.json")]
    parts = one["parts"]
    assert 0 < parts["execute dp0pp0tp1 wall"][0] < parts["total"][0]
    assert parts["update wall"][0] == parts["total"][0] == one["steps"]
    assert (one["differences"], one["faults"]) == ([], {})
