"""GPUs as the service shows them: what leaks is unexplained in /metrics and on the page, what fills is not."""

from __future__ import annotations

import csv
import io
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from browser import browse, on_a_socket
from leaks import MIB, NAMES, POOL, STEP, WEIGHTS
from nvml.stub import GIB
from sampled import GPUS, AgentLife
from serving import START, Clock, Served, serve

from ledger import metrics_gpu as g
from ledger.ingest import Status, accept
from ledger.jobs.work import scan
from ledger.store import fact_audit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MINUTE = 60_000_000


@pytest.fixture
def leaking(leaked: tuple[Path, int], tmp_path: Path) -> Iterator[Served]:
    """A service on a copy of it, two seconds later."""
    path = tmp_path / "books.db"
    shutil.copyfile(leaked[0], path)
    yield from serve(path, tmp_path, Clock(leaked[1] + 2_000_000))


def parts(served: Served) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in served.get("/v1/memory?limit=1000").json()["rows"]:
        of = found.setdefault(row["gpu"], {})
        of[row["part"]] = of.get(row["part"], 0) + row["bytes"]
    return found


def test_what_leaks_is_unexplained_and_what_fills_is_not(leaking: Served) -> None:
    served = leaking
    found = parts(served)
    for gpu in served.get("/v1/gpus").json()["rows"]:
        assert sum(piece["bytes"] for piece in gpu["parts"]) == gpu["total_bytes"] == 80 * GIB
        assert gpu["unexplained_bytes"] == found[gpu["gpu"]]["unexplained"]
        assert gpu["processes"][1]["engine"] == NAMES[gpu["index"]]
        assert gpu["processes"][0] == {"pid": 7, "name": "", "engine": "", "shard": "", "used_bytes": GIB}
    assert found["GPU-0"]["weights"] == WEIGHTS
    assert found["GPU-0"]["kv_pool"] == POOL
    assert found["GPU-0"]["other_processes"] == GIB
    # The rest of each device is 1 GiB from the start; what is beyond has grown since the engine was warm.
    grown = {name: found[f"GPU-{number}"]["unexplained"] - GIB for number, name in enumerate(NAMES)}
    assert grown["steady-kv-leak"] == pytest.approx(300 * MIB, abs=12 * MIB), "10 MiB a minute for half an hour"
    assert abs(grown["kv-grows"]) <= 45 * MIB, "a block of this pool is 41 MiB"
    assert grown["step-leak"] == 3 * STEP
    assert found["GPU-1"]["kv_pool"] > 18 * GIB

    scan(served.service, ())
    text = served.client.get("/metrics").text
    for number in range(3):
        value = served.service.metrics.value(g.UNEXPLAINED, (f"GPU-{number}",))
        assert value == found[f"GPU-{number}"]["unexplained"]
        assert f'kvledger_gpu_memory_unexplained_bytes{{gpu="GPU-{number}"}}' in text
    assert served.service.metrics.value(g.MEMORY, ("GPU-1", "total")) == 80 * GIB
    key = ("GPU-2", "step-leak", "dp0pp0tp0", "")
    assert served.service.metrics.value(g.PROCESS_MEMORY, key) == WEIGHTS + POOL + 2 * GIB + 3 * STEP
    assert served.service.metrics.value(g.AGENT_HEARD, ("agent:h",)) == (START + 40 * MINUTE) / 1e6
    served.clock.us += 10 * MINUTE
    scan(served.service, ())
    assert "kvledger_gpu_memory_unexplained_bytes{" not in served.client.get("/metrics").text, "nobody sees them now"
    with served.service.database.read() as connection:
        assert list(fact_audit.fact_breaches(connection)) == []


def test_the_history_has_each_change_and_the_kv_beside_it(leaking: Served) -> None:
    rows = leaking.get("/v1/memory/history?gpu=GPU-1&from=2026-11-03T00:00:00Z&limit=1000").json()["rows"]
    process = [row for row in rows if row["of"] == "process" and row["pid"] == 101]
    kv = {row["start_us"]: row["mean_bytes"] for row in rows if row["of"] == "kv"}
    assert len(process) > 100, "it moves in most periods"
    assert all(len(row["marks_bytes"]) == 3 for row in process)
    beside = [row["mean_bytes"] - kv[row["start_us"]] for row in process if row["start_us"] in kv]
    assert max(beside) - min(beside) < 90 * MIB, "what it has beside KV stays as it is"
    steady = leaking.get("/v1/memory/history?gpu=GPU-0&from=2026-11-03T00:00:00Z&limit=1000").json()["rows"]
    figures = [row["mean_bytes"] for row in steady if row["of"] == "process" and row["pid"] == 100]
    assert figures == sorted(figures)
    assert {row["engine"] for row in steady if row["of"] == "kv"} == {"steady-kv-leak"}
    answer = leaking.get("/v1/memory/history?gpu=GPU-0&format=csv&limit=100000")
    assert len(list(csv.DictReader(io.StringIO(answer.text)))) == len(steady)


@pytest.mark.parametrize(
    ("query", "status"),
    [("gpu=GPU-9", 404), ("", 422), ("gpu=GPU-0&from=2026-11-01T00:00:00Z&to=2026-11-09T00:00:00Z", 422)],
)
def test_a_history_that_cannot_be_had_says_why(empty: Served, query: str, status: int) -> None:
    answer = empty.get(f"/v1/memory/history?{query}")
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_the_page_shows_what_each_gpus_memory_is_used_for(leaking: Served, chromium: str, tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    with on_a_socket(leaking.service) as url:
        browse(chromium, profile, f"{url}/login#{leaking.tokens['admin']}")
        document = browse(chromium, profile, f"{url}/")
    assert "GPU memory" in document
    assert "NVIDIA A100-SXM4-80GB" in document
    for text in ("weights 15.0 GiB", "KV pool 40.0 GiB", "unexplained 1.6 GiB", "free", "step-leak"):
        assert text in document, text


def test_nobody_but_overseers_sees_gpus(empty: Served) -> None:
    for path in ("/v1/gpus", "/v1/memory", "/v1/processes", "/v1/agents", "/v1/memory/history?gpu=x"):
        assert empty.get(path, "acme").status_code == 403
        assert empty.client.get(path).status_code == 401


def test_a_service_without_agents_answers_with_nothing(empty: Served) -> None:
    for path in ("/v1/gpus", "/v1/memory", "/v1/processes", "/v1/agents"):
        assert empty.get(path).json() == {"rows": [], "next": None}
    scan(empty.service, ())


def deliver(served: Served, life: AgentLife, *periods: Any) -> None:
    for batch in periods:
        assert accept(served.service.database, life.send(batch), life.now_us).status is Status.ACCEPTED
    served.clock.us = life.now_us


def test_a_gpu_that_is_listed_and_does_not_answer_is_there_without_figures(empty: Served) -> None:
    life = AgentLife(start_us=START)
    deliver(empty, life, life.period({"GPU-1": {7: GIB}}, gpus=GPUS))
    rows = {row["gpu"]: row for row in empty.get("/v1/gpus").json()["rows"]}
    assert rows["GPU-1"]["end_us"] == life.now_us
    assert (rows["GPU-2"]["end_us"], rows["GPU-2"]["used_bytes"], rows["GPU-2"]["parts"]) == (None, None, [])


def test_rows_hold_for_a_minute_and_an_agent_that_fell_silent_shows_nothing(empty: Served) -> None:
    life = AgentLife(start_us=START)
    first = life.period({"GPU-1": {7: GIB}}, gpus=GPUS[:1])
    deliver(empty, life, first, *[life.period() for _ in range(3)])
    (row,) = empty.get("/v1/gpus").json()["rows"]
    assert (row["end_us"], row["processes_bytes"]) == (first.end_us, GIB)
    empty.clock.us += 2 * MINUTE
    assert empty.get("/v1/gpus").json()["rows"] == []
    (agent,) = empty.get("/v1/agents").json()["rows"]
    assert (agent["agent"], agent["state"], agent["gpus"]) == ("agent:h1", "quiet", 0)
