"""A real vLLM under pressure on the books of a real service, over HTTP: what the clients saw, what vLLM counted, what
`kvledger usage` says.

One server for the whole file: its first load is undisturbed, so that figures can be compared to the unit; the second
one has clients that hang up, requests that are refused, resets of the prefix cache and a nap.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from exposition import Samples, scrape
from load import Answer, Ask, drive, name_of, plan
from server import Program, vllm_server, wait_for
from service import PRICE_PER_HOUR, Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCKS = 60
OPTIONS = [
    "--max-model-len", "1600", "--num-gpu-blocks-override", str(BLOCKS + 1), "--max-num-seqs", "32",
    "--max-num-batched-tokens", "512", "--scheduling-policy", "priority",
]  # fmt: skip
PERIOD_S = 15
PROMPT = ("computed_tokens", "cached_own_tokens", "cached_others_tokens", "transferred_tokens", "unprocessed_tokens")

Row = dict[str, Any]


@dataclass
class Run:
    """Everything that was seen from outside, in its order."""

    service: Service
    arrivals: Path
    quiet: list[Answer] = field(default_factory=list)
    """Answers of the undisturbed load."""
    usage_after_s: float = 0.0
    """From the last answer of it to the usage that has all of it."""
    usage: list[Row] = field(default_factory=list)
    quiet_requests: list[Row] = field(default_factory=list)
    quiet_counters: Samples | None = None
    quiet_metrics: Samples | None = None
    """The service's own."""
    rough: list[Answer] = field(default_factory=list)
    resets: list[bool] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    cached_after_reset: int = -1
    requests: list[Row] = field(default_factory=list)
    """Every terminal record, after the end."""
    counters: Samples | None = None
    metrics: Samples | None = None
    """The service's own, with the server still open."""
    log: str = ""
    spooled: int = -1
    """Bytes in the spool after the end."""


def post(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as answer:
        return json.loads(answer.read())


def prompt_tokens(row: Row) -> int:
    return sum(row[name] for name in PROMPT)


@pytest.fixture(scope="module")
def run(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("books")
    arrivals = folder / "arrivals.jsonl"
    arrivals.touch()
    with service(folder / "service") as books:
        books.ask("assets", "add", "gpu-0", "--price", PRICE_PER_HOUR)
        books.ask("assets", "assign", "gpu-0", "tiny")
        run = Run(service=books, arrivals=arrivals)
        environ = books.engine_side | {"SPY_ARRIVALS": str(arrivals), "KVLEDGER_ENGINE": "tiny"}
        with vllm_server(llama, folder=folder, options=OPTIONS, environ=environ) as server:
            undisturbed(run, server)
            disturbed(run, server)
            wait_for(lambda: len(books.requests()) == len(arrived(run)), server, "every record", 40)
            run.counters = scrape(server.url)
            run.metrics = scrape(books.url)
        run.requests = books.requests()
        run.log = server.text()
        run.spooled = sum(path.stat().st_size for path in (folder / "spool").rglob("*.seg"))
        yield run


def undisturbed(run: Run, server: Program) -> None:
    run.quiet = drive(server.url, plan("a", 400, seed=1, answers=360), at_once=64)
    answered_s = time.monotonic()
    expected = sum(answer.output_tokens for answer in run.quiet)

    def complete() -> bool:
        run.usage = run.service.rows("usage", "--by", "session")
        return sum(row["output_tokens"] for row in run.usage) >= expected

    wait_for(complete, server, "usage of the undisturbed load", 60)
    run.usage_after_s = time.monotonic() - answered_s
    run.quiet_requests = run.service.requests()
    run.quiet_counters, run.quiet_metrics = scrape(server.url), scrape(run.service.url)


def disturbed(run: Run, server: Program) -> None:
    too_long = Ask(name="long", tenant="tenant-0", session="session-0", prompts=((5,) * 2000,), max_tokens=4)
    asks = plan("b", 160, seed=2, hang_up_ratio=0.3)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(drive, server.url, [*asks[:80], too_long, *asks[80:]], at_once=32)
        while not loading.done():
            # In the middle of it: all that runs is preempted and the cache is gone.
            run.resets.append(post(f"{server.url}/reset_prefix_cache?reset_running_requests=true")["success"])
            time.sleep(2)
        run.rough = loading.result()
    # Those that hung up are let go a moment later.
    wait_for(lambda: scrape(server.url).total("vllm:num_requests_running") == 0, server, "quiet", 60)
    assert post(f"{server.url}/reset_prefix_cache")["success"]
    # Scheduling is off for a while: of those who ask meanwhile some wait, and some lose their patience in the queue.
    post(f"{server.url}/sleep?level=0&mode=wait")
    asks = [replace(ask, samples=1, stream=False, chat=False) for ask in plan("c", 6, seed=3)]
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(drive, server.url, asks[:3], at_once=3)
        run.rough += drive(server.url, [replace(ask, patience_s=4.0) for ask in asks[3:]], at_once=3)
        post(f"{server.url}/wake_up")
        run.rough += patient.result()


def arrived(run: Run) -> list[Row]:
    return [json.loads(line) for line in run.arrivals.read_text().splitlines()]


def of_names(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[name_of(row["request"])].append(row)
    return found


def test_eight_tenants_and_forty_sessions_were_under_pressure(run: Run) -> None:
    assert run.quiet_counters
    assert len({answer.ask.tenant for answer in run.quiet}) == 8
    assert len({answer.ask.session for answer in run.quiet}) == 40
    assert {answer.status for answer in run.quiet} == {200}
    assert run.quiet_counters.total("vllm:num_preemptions_total") > 100
    assert run.quiet_counters.total("vllm:prefix_cache_hits_total") > 5000


def test_usage_by_session_is_right_within_one_period(run: Run) -> None:
    assert run.usage_after_s < PERIOD_S + 5, "a period, and what it takes to deliver and to ask"
    prompts: Counter[tuple[str, str]] = Counter()
    outputs: Counter[tuple[str, str]] = Counter()
    for answer in run.quiet:
        prompts[answer.ask.tenant, answer.ask.session] += answer.prompt_tokens
        outputs[answer.ask.tenant, answer.ask.session] += answer.output_tokens
    booked = {(row["tenant"], row["session"]): row for row in run.usage if row["tenant"] != "system"}
    assert {who: prompt_tokens(row) for who, row in booked.items()} == dict(prompts)
    assert {who: row["output_tokens"] for who, row in booked.items()} == dict(outputs)
    assert all(row["active_block_us"] > 0 and row["compute_us"] > 0 for row in booked.values())


def test_each_answer_is_a_record_to_the_token(run: Run) -> None:
    booked = of_names(run.quiet_requests)
    assert booked.keys() == {answer.ask.name for answer in run.quiet}
    for answer in run.quiet:
        rows = booked[answer.ask.name]
        assert len(rows) == len(answer.ask.prompts) * answer.ask.samples
        assert {(row["tenant"], row["session"]) for row in rows} == {(answer.ask.tenant, answer.ask.session)}
        assert {row["outcome"] for row in rows} == {"finished"}
        assert sum(map(prompt_tokens, rows)) == answer.prompt_tokens
        assert sum(row["output_tokens"] for row in rows) == answer.output_tokens


def test_the_totals_are_vllms_own(run: Run) -> None:
    theirs, ours = run.quiet_counters, run.quiet_requests
    assert theirs
    sums = {name: sum(row[name] for row in ours) for name in (*PROMPT, "output_tokens")}
    cached = sums["cached_own_tokens"] + sums["cached_others_tokens"]
    sources = theirs.by("vllm:prompt_tokens_by_source_total", "source")
    assert sum(map(prompt_tokens, ours)) == theirs.total("vllm:prompt_tokens_total")
    assert sums["output_tokens"] == theirs.total("vllm:generation_tokens_total")
    assert sums["transferred_tokens"] == sources["external_kv_transfer"] == 0
    assert cached == theirs.total("vllm:prefix_cache_hits_total")
    # A prompt that is preempted half way finds its own blocks again, which vLLM takes for cached ones. Here a position
    # is classified once, and what is computed again stands apart.
    found_again = sources["local_cache_hit"] - cached
    assert found_again == sums["computed_tokens"] - sources["local_compute"]
    assert 0 <= found_again <= sum(row["recomputed_tokens"] + row["computed_tokens"] for row in ours) // 10
    finished = theirs.by("vllm:request_success_total", "finished_reason")
    assert sum(finished.values()) == finished["length"] == len(ours)


def test_preemptions_are_vllms_own_by_reason(run: Run) -> None:
    assert run.quiet_metrics
    assert run.quiet_counters
    by_reason = run.quiet_metrics.by("kvledger_engine_preemptions_total", "reason")
    assert sum(by_reason.values()) == run.quiet_counters.total("vllm:num_preemptions_total")
    assert by_reason["kv_full"] > 0
    assert by_reason["priority"] > 0
    assert by_reason.get("reset", 0) == 0


def test_a_reset_of_the_cache_preempts_by_its_own_reason(run: Run) -> None:
    assert run.metrics
    assert run.counters
    assert True in run.resets
    by_reason = run.metrics.by("kvledger_engine_preemptions_total", "reason")
    assert by_reason["reset"] > 0
    # vLLM counts a preemption with the request's next token: not that of one whose client has gone by then.
    missed = sum(by_reason.values()) - run.counters.total("vllm:num_preemptions_total")
    assert 0 <= missed <= sum(by_reason.values()) // 4


def test_every_admitted_request_has_one_terminal_record(run: Run) -> None:
    admitted = [row["request"] for row in arrived(run)]
    assert len(set(admitted)) == len(admitted)
    assert sorted(row["request"] for row in run.requests) == sorted(admitted)
    assert {row["outcome"] for row in run.requests} == {"finished", "aborted"}


def test_those_that_hung_up_are_booked_with_what_they_took(run: Run) -> None:
    booked = of_names(run.requests)
    given_up = [answer for answer in run.rough if answer.hung_up]
    aborted = [row for row in run.requests if row["outcome"] == "aborted"]
    assert len(given_up) > 20
    assert {name_of(row["request"]) for row in aborted} <= {answer.ask.name for answer in given_up}
    running = [row for row in aborted if row["output_tokens"]]
    queued = [row for row in aborted if row["unprocessed_tokens"] == prompt_tokens(row)]
    assert len(running) > 5
    assert {name_of(row["request"]) for row in queued} & {"c3", "c4", "c5"}
    assert all(row["active_block_us"] > 0 and row["compute_us"] > 0 for row in running)
    assert all(row["active_block_us"] == row["compute_us"] == row["output_tokens"] == 0 for row in queued)
    for answer in given_up:
        # What a client has seen is booked; several samples may have given it.
        seen = answer.ask.give_up_after or 0
        assert sum(row["output_tokens"] for row in booked.get(answer.ask.name, [])) >= seen


def test_the_others_beside_them_are_right_to_the_token(run: Run) -> None:
    booked = of_names(run.requests)
    for answer in run.rough:
        if answer.status == 200 and not answer.hung_up:
            rows = booked[answer.ask.name]
            assert sum(map(prompt_tokens, rows)) == answer.prompt_tokens
            assert sum(row["output_tokens"] for row in rows) == answer.output_tokens


def test_a_request_that_is_refused_for_its_length_holds_nothing(run: Run) -> None:
    # The connection of one that hangs up may break on the client's side, which is no answer of the server's.
    answered = [answer for answer in run.rough if not answer.hung_up]
    assert [(answer.ask.name, answer.status) for answer in answered if answer.status != 200] == [("long", 400)]
    assert "long" not in of_names(run.requests)


def test_totals_with_hang_ups_differ_by_what_vllm_had_still_in_flight(run: Run) -> None:
    assert run.counters
    aborted = [row for row in run.requests if row["outcome"] == "aborted"]
    # vLLM counts a prompt with its first token, and no token that comes after the client has gone.
    never_begun = sum(prompt_tokens(row) for row in aborted if not row["output_tokens"])
    prompts = sum(map(prompt_tokens, run.requests)) - run.counters.total("vllm:prompt_tokens_total")
    assert 0 <= prompts <= never_begun + sum(prompt_tokens(row) for row in aborted if row["output_tokens"] < 3)
    outputs = sum(row["output_tokens"] for row in run.requests) - run.counters.total("vllm:generation_tokens_total")
    assert 0 <= outputs <= sum(row["output_tokens"] for row in aborted)


def test_the_bill_closes_and_every_law_holds(run: Run) -> None:
    assert run.service.ask("audit") == "", "a line is a breach"
    bill = run.service.get("/v1/statements/current")
    assert 0 < bill["bill_nanos"] == sum(line["amount_nanos"] for line in bill["lines"])
    sessions = run.service.rows("usage", "--by", "session")
    active = sum(line["amount_nanos"] for line in bill["lines"] if line["kind"] == "active")
    assert 0 < active == sum(row["active_nanos"] for row in sessions)
    (pool,) = run.service.rows("usage", "--by", "pool")
    assert pool["active_block_us"] == sum(row["active_block_us"] for row in sessions)
    assert pool["capacity_block_us"] == pool["active_block_us"] + pool["cached_block_us"] + pool["free_block_us"]
    assert pool["capacity_block_us"] % BLOCKS == 0


def test_an_ordinary_stop_closes_the_books_and_leaves_nothing_behind(run: Run) -> None:
    (source,) = run.service.rows("sources", "list")
    assert source["state"] == "closed"
    assert (source["missing"], source["dropped"], source["faults"], source["hook_off"]) == (0, 0, 0, "")
    assert not run.spooled, "every batch was sent"


def test_the_log_has_nothing_to_say_of_the_hook(run: Run) -> None:
    assert [line for line in run.log.splitlines() if "kvledger" in line and ("WARN" in line or "ERROR" in line)] == []


def test_no_prompt_and_no_token_leaves_the_engine(run: Run) -> None:
    ledger = b"".join(path.read_bytes() for path in run.service.folder.glob("*.db*"))
    for answer in run.quiet[:50]:
        assert str(list(answer.ask.prompts[0][:8])).encode()[1:-1] not in ledger
        assert not answer.texts or len(answer.texts[0]) < 12 or answer.texts[0].encode() not in ledger
