"""A real vLLM seen in two ways at once: by its hook, and by its `/metrics` as another engine that has no hook.

The service scrapes the same server twice: as `tiny`, the engine of the hook, and as `outside`. Counters agree to the
token, gauges within one scrape interval of a steady load.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from exposition import Samples, scrape
from load import Answer, drive, plan
from server import Program, vllm_server, wait_for
from service import PRICE_PER_HOUR, Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCKS = 60
AT_ONCE = 24
STEP_S = 0.05
"""What each step takes longer, so that requests are in the engine and not on their way to it and back."""
INTERVAL_S = 15
LOAD_S = 8 * INTERVAL_S
ASKS = 4000
"""More than are answered in that time."""
ROUND_S = 90
"""From an answer to its record: a period, 52 s, and what it takes to write."""
OPTIONS = [
    "--max-model-len", "1600", "--num-gpu-blocks-override", str(BLOCKS + 1), "--max-num-seqs", "32",
    "--max-num-batched-tokens", "512",
]  # fmt: skip
US = 1_000_000
PROMPT = ("computed_tokens", "cached_own_tokens", "cached_others_tokens", "transferred_tokens")


@dataclass
class Run:
    """Everything that was seen of one load."""

    service: Service
    answers: list[Answer] = field(default_factory=list)
    load_s: float = 0.0
    counters: Samples | None = None
    """vLLM's own, after the load."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """The hook's."""
    pool: dict[str, Any] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What was scraped, by engine."""
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: Samples | None = None
    bill: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def run(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("scraped")
    with service(folder / "service") as books:
        for asset, engine in (("gpu-0", "tiny"), ("gpu-1", "outside")):
            books.ask("assets", "add", asset, "--price", PRICE_PER_HOUR)
            books.ask("assets", "assign", asset, engine)
        run = Run(service=books)
        environ = books.engine_side | {"KVLEDGER_ENGINE": "tiny", "STEP_S": str(STEP_S)}
        with vllm_server(llama, folder=folder, options=OPTIONS, environ=environ) as server:
            for engine in ("tiny", "outside"):
                books.ask("collect", "add", "--engine", engine, "--url", server.url)
            wait_for(lambda: both_answered(books), server, "both targets answered", 60)
            loaded(run, server)
            wait_for(lambda: all(tokens(found) >= output(run) for found in read(run)), server, "every record", ROUND_S)
            run.engines = {row["engine"]: row for row in books.get("/v1/engines")["rows"]}
            run.metrics = scrape(books.url)
            # Worked out now: the interface may show one from before the load was over.
            month = time.strftime("%Y-%m", time.gmtime())
            run.bill = json.loads(books.ask("report", "--month", month, "--format", "json"))
            (run.pool,) = [row for row in books.rows("usage", "--by", "pool") if row["engine"] == "tiny"]
            run.requests = books.requests()
            yield run


def loaded(run: Run, server: Program) -> None:
    """A steady load: as many requests as ever until the time is over."""
    asks = [
        replace(ask, prompts=ask.prompts[:1], samples=1, stream=False, chat=False) for ask in plan("s", ASKS, seed=1)
    ]
    began_s = time.monotonic()
    run.answers = drive(server.url, (ask for ask in asks if time.monotonic() - began_s < LOAD_S), at_once=AT_ONCE)
    run.load_s = time.monotonic() - began_s
    run.counters = scrape(server.url)


def both_answered(books: Service) -> bool:
    by_engine = scrape(books.url).by("kvledger_scrapes_total", "engine")
    return by_engine.keys() == {"tiny", "outside"} and all(by_engine.values())


def output(run: Run) -> int:
    return sum(answer.output_tokens for answer in run.answers)


def read(run: Run) -> list[list[dict[str, Any]]]:
    """The records as they lie in the ledger."""
    (path,) = run.service.folder.glob("*.db")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(
            "SELECT t.engine, p.* FROM scraped_periods p JOIN scrape_targets t ON t.id = p.target ORDER BY p.start_us"
        ).fetchall()
    run.records = {engine: [dict(row) for row in rows if row["engine"] == engine] for engine in ("tiny", "outside")}
    return list(run.records.values())


def tokens(records: list[dict[str, Any]]) -> int:
    return total(records, "output_tokens")


def total(records: list[dict[str, Any]], figure: str) -> int:
    return sum(record[figure] or 0 for record in records)


@pytest.fixture(params=["tiny", "outside"])
def records(request: pytest.FixtureRequest, run: Run) -> list[dict[str, Any]]:
    return run.records[request.param]


def test_the_load_was_steady_and_long_enough_to_judge(run: Run) -> None:
    assert {answer.status for answer in run.answers} == {200}
    assert len(run.answers) < ASKS
    assert LOAD_S <= run.load_s < 1.5 * LOAD_S, "the last ones are answered while others are not asked any more"


def test_counters_agree_with_the_hook_to_the_token(run: Run, records: list[dict[str, Any]]) -> None:
    hook = {name: sum(row[name] for row in run.requests) for name in (*PROMPT, "output_tokens")}
    assert total(records, "output_tokens") == hook["output_tokens"] == output(run)
    assert total(records, "prompt_tokens") == sum(hook[name] for name in PROMPT)
    assert total(records, "computed_tokens") == hook["computed_tokens"]
    assert total(records, "cached_tokens") == hook["cached_own_tokens"] + hook["cached_others_tokens"]


def test_counters_agree_with_vllms_own(run: Run, records: list[dict[str, Any]]) -> None:
    assert run.counters
    assert total(records, "preemptions") == run.counters.total("vllm:num_preemptions_total")
    assert total(records, "prefix_queries") == run.counters.total("vllm:prefix_cache_queries_total")
    assert total(records, "prefix_hits") == run.counters.total("vllm:prefix_cache_hits_total")
    finished: Counter[str] = Counter()
    for record in records:
        finished.update(dict(json.loads(record["finished"] or "[]")))
    assert finished["length"] == sum(finished.values()) == len(run.answers)


def test_requests_in_flight_agree_with_the_clients_within_an_interval(run: Run, records: list[dict[str, Any]]) -> None:
    in_flight_us = total(records, "running_us") + total(records, "waiting_us")
    assert abs(in_flight_us - AT_ONCE * run.load_s * US) <= AT_ONCE * INTERVAL_S * US


def test_kv_use_agrees_with_the_hook_within_an_interval(run: Run, records: list[dict[str, Any]]) -> None:
    held = sum(record["kv_active_ppm"] * (record["end_us"] - record["start_us"]) for record in records) * BLOCKS / 1e6
    assert run.pool["active_block_us"] > 0.5 * BLOCKS * run.load_s * US, "under pressure"
    assert abs(held - run.pool["active_block_us"]) <= BLOCKS * INTERVAL_S * US


def test_nothing_odd_is_found_in_a_well_engine(records: list[dict[str, Any]]) -> None:
    assert {record["signs"] for record in records} == {"[]"}
    assert total(records, "failures") == total(records, "gap_us") == 0
    assert {(record["kind"], record["model"]) for record in records} == {("vllm", "tiny")}
    assert {record["block_size"] for record in records} == {32}


def test_no_name_of_this_vllm_is_a_stranger(run: Run) -> None:
    assert run.metrics
    assert not any(run.metrics.by("kvledger_scrape_unknown_families", "engine").values())


def test_the_hook_speaks_for_its_engine_and_the_other_is_scraped(run: Run) -> None:
    assert run.engines["tiny"]["method"] == "hook"
    assert run.engines["outside"]["method"] == "scraped"
    assert run.engines["tiny"]["scraped"]["kind"] == run.engines["outside"]["scraped"]["kind"] == "vllm"


def test_money_of_the_hook_is_its_tenants_and_of_the_other_unattributed_compute(run: Run) -> None:
    assert run.service.ask("audit") == "", "a line is a breach"
    lines = run.bill["lines"]
    assert run.bill["bill_nanos"] == sum(line["amount_nanos"] for line in lines)
    tenants = sum(line["amount_nanos"] for line in lines if (line["tenant"] or "").startswith("tenant-"))
    (unattributed,) = [line["amount_nanos"] for line in lines if line["tenant"] == "unattributed"]
    assert tenants > 0
    busy_s = unattributed / 1e9 / float(PRICE_PER_HOUR) * 3600
    # The load begins and ends somewhere within an interval, and each of these two counts as busy whole.
    assert abs(busy_s - run.load_s) <= 2 * INTERVAL_S
