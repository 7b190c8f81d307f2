"""The hook is a guest: whatever happens to it, to its service or to its disk, the engine answers as without it.

Every server here answers the same greedy requests, one at a time, and must give the tokens that one without the hook
gives; and a crowd, of which every request must be answered in full.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from load import Answer, Ask, drive, name_of, plan
from server import Program, vllm_server, wait_for
from service import PRICE_PER_HOUR, Service, prepared
from test_books import post, prompt_tokens

from ledger.commands.drill_way import Relay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OPTIONS = [
    "--max-model-len", "1024", "--num-gpu-blocks-override", "41", "--max-num-seqs", "16",
    "--max-num-batched-tokens", "512",
]  # fmt: skip
CROWD = 60

Tokens = list[tuple[str, ...]]


def greedy(prefix: str) -> list[Ask]:
    """Requests whose answers are the model's alone: greedy, one sample each."""
    return [replace(ask, samples=1, prompts=ask.prompts[:1]) for ask in plan(prefix, 12, seed=4)]


def alone(server: Program, prefix: str) -> Tokens:
    """The texts of the greedy requests, one at a time."""
    answers = drive(server.url, greedy(prefix), at_once=1)
    assert [answer.status for answer in answers] == [200] * len(answers)
    return [answer.texts for answer in answers]


def crowd(server: Program, prefix: str) -> list[Answer]:
    """More than the pool holds, at once; every one is answered in full."""
    answers = drive(server.url, plan(prefix, CROWD, seed=5), at_once=24)
    assert [answer.status for answer in answers] == [200] * CROWD
    # None of them ends before its length.
    expected = {ask.name: ask.max_tokens * ask.samples * len(ask.prompts) for ask in plan(prefix, CROWD, seed=5)}
    assert {answer.ask.name: answer.output_tokens for answer in answers} == expected
    return answers


def said_of_us(server: Program) -> list[str]:
    """What it has logged of the hook."""
    return [
        line
        for line in server.text().splitlines()
        if re.search(r"kvledger[: ]|identity:|takes no batch|batches wait|dropped", line)
    ]


@pytest.fixture(scope="module")
def without(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    """The tokens of a server that has the hook switched off, which is as it was in every way that is looked at."""
    folder = tmp_path_factory.mktemp("without")
    arrivals = folder / "arrivals"
    environ = {"KVLEDGER_ENABLED": "0", "KVLEDGER_URL": "http://127.0.0.1:9", "SPY_ARRIVALS": str(arrivals)}
    with vllm_server(llama, folder=folder, options=OPTIONS, environ=environ) as server:
        texts = alone(server, "w")
        crowd(server, "x")
        assert said_of_us(server) == []
    assert not (folder / "spool").exists()
    arrived = [json.loads(line) for line in arrivals.read_text().splitlines()]
    assert {row["caller"]["tenant"] for row in arrived} == {"unattributed"}
    assert {row["session_id"] for row in arrived} <= {f"session-{number}" for number in range(40)}
    assert len({text for (text,) in texts}) > len(texts) // 2, "texts that tell one from another"
    return texts


@pytest.fixture
def books(tmp_path: Path) -> Service:
    found = prepared(tmp_path / "service")
    found.ask("assets", "add", "gpu-0", "--price", PRICE_PER_HOUR)
    found.ask("assets", "assign", "gpu-0", "tiny")
    return found


@pytest.fixture
def way(books: Service) -> Iterator[Relay]:
    """The network between the engine and the service."""
    relay = Relay(int(books.url.rpartition(":")[2]))
    yield relay
    relay.close()


def booked(books: Service, prefix: str) -> Callable[[], bool]:
    """Whether every greedy request of this prefix has its record."""
    return lambda: sum(name_of(row["request"]).startswith(prefix) for row in books.requests()) >= len(greedy(prefix))


def test_service_dead_then_dying_then_slow_and_a_disk_that_is_full(
    llama: Path, tmp_path: Path, books: Service, way: Relay, without: Tokens
) -> None:
    full = tmp_path / "full"
    full.touch()
    environ = books.engine_side | {"KVLEDGER_URL": way.url, "KVLEDGER_ENGINE": "tiny", "DISK_FULL": str(full)}
    way.refuse()
    with vllm_server(llama, folder=tmp_path, options=OPTIONS, environ=environ) as server:
        # Nobody answers from the start, and the disk takes nothing: batches wait in memory.
        assert alone(server, "a") == without
        wait_for(lambda: "No space left on device" in server.text(), server, "a batch that the disk does not take")
        assert "tried again" in server.text(), "that nobody answers is told"
        way.admit()
        with books.running() as service:
            wait_for(booked(books, "a"), service, "what waited in memory")
            full.unlink()
            # The service dies under way.
            with ThreadPoolExecutor(1) as pool:
                busy = pool.submit(crowd, server, "b")
                os.kill(service.pid, signal.SIGKILL)
                busy.result()
            assert alone(server, "c") == without
        with books.running() as service:
            wait_for(booked(books, "c"), service, "what waited on the disk", 90)
            # It takes 10 seconds for each answer.
            way.hold_answers(10.0)
            began_s = time.monotonic()
            assert alone(server, "d") == without
            assert len(crowd(server, "e")) == CROWD
            wait_for(booked(books, "d"), service, "delivery to a slow service", 90)
            assert time.monotonic() - began_s > 10
            way.hold_answers(0.0)
            told = [line for line in said_of_us(server) if "No space left" in line]
            assert len(told) == 1, "once, not for every batch"
            server.stop()
            whole(books, server)
            every = Counter(name_of(row["request"])[0] for row in books.requests())
            assert [every[prefix] for prefix in "acd"] == [len(without)] * 3
            assert every["b"] == every["e"] >= CROWD


def whole(books: Service, server: Program) -> None:
    """Nothing missing, nothing twice, no law broken."""
    wait_for(lambda: books.rows("sources", "list")[0]["state"] == "closed", server if False else None, "the close")
    (source,) = books.rows("sources", "list")
    assert (source["missing"], source["dropped"], source["faults"], source["hook_off"]) == (0, 0, 0, "")
    names = [row["request"] for row in books.requests()]
    assert len(set(names)) == len(names)
    assert books.ask("audit") == ""


@pytest.mark.parametrize("mode", ["once", "always"])
def test_a_hook_that_raises_at_each_of_its_entry_points(
    llama: Path, tmp_path: Path, books: Service, without: Tokens, mode: str
) -> None:
    environ = books.engine_side | {"KVLEDGER_ENGINE": "tiny", "BREAK": mode}

    def told(source: dict[str, Any]) -> bool:
        return bool(source["faults"] > 5 if mode == "once" else source["hook_off"])

    with books.running():
        with vllm_server(llama, folder=tmp_path, options=OPTIONS, environ=environ) as server:
            assert alone(server, "a") == without
            crowd(server, "b")
            assert post(f"{server.url}/reset_prefix_cache")["success"]
            assert alone(server, "c") == without
            # They travel with the batch of the period, which may be over only when the requests are.
            wait_for(lambda: any(told(row) for row in books.rows("sources", "list")), server, "what the hook met", 60)
        text = server.text()
    places = Counter(re.findall(r"a fault of the hook's own in (\w+), kept away", text))
    assert set(places.values()) == {1}, "each place is told once in the process that it is in"
    if mode == "once":
        assert places.keys() == {
            "received", "preempted", "ended", "scheduling", "scheduled", "updating", "updated", "closed", "releasing",
            "free_blocks", "reset_prefix_cache", "_resolve", "send", "receive", "began", "returned", "resumed", "write",
        }  # fmt: skip
        assert "the hook lets go" not in text
        assert text.count("a fault of kvledger's own, kept away from the engine") >= 1, "the drain thread's"
    else:
        assert "the hook lets go of the engine after 8 faults" in text
        (source,) = books.rows("sources", "list")
        assert "faults of its own" in source["hook_off"]


def test_a_hook_that_cannot_attach(llama: Path, tmp_path: Path, without: Tokens) -> None:
    with vllm_server(llama, folder=tmp_path, options=OPTIONS, environ={"BREAK": "attach"}) as server:
        assert alone(server, "a") == without
        crowd(server, "b")
        server.stop()
        text = server.text()
    for said in (
        "the hook could not attach to the scheduler",
        "no middleware for this server",
        "workers could not attach",
        "the engine's books could not be waited for",
    ):
        assert said in text


def test_a_version_that_was_not_tested_gets_one_line_and_no_hook(llama: Path, tmp_path: Path, without: Tokens) -> None:
    arrivals = tmp_path / "arrivals"
    environ = {"BREAK": "version", "SPY_ARRIVALS": str(arrivals)}
    with vllm_server(llama, folder=tmp_path, options=OPTIONS, environ=environ) as server:
        assert alone(server, "a") == without
        (line,) = said_of_us(server)
        assert "WARNING" in line or line.startswith("kvledger:")
        assert "vLLM 0.32.0 is not among the versions that the hook was tested with (0.31.*)" in line
    assert not (tmp_path / "spool").exists()
    arrived = [json.loads(row) for row in arrivals.read_text().splitlines()]
    assert {row["session_id"] for row in arrived} <= {f"session-{number}" for number in range(40)}


def engine_core(server: Program) -> int:
    """The process of the engine core."""
    from pathlib import Path  # noqa: PLC0415

    found = [pid for pid in server.group() if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(found) == 1, found
    return found[0]


def test_an_engine_core_that_is_killed_is_unobserved_until_it_is_a_new_boot(
    llama: Path, tmp_path: Path, books: Service
) -> None:
    environ = books.engine_side | {"KVLEDGER_ENGINE": "tiny"}
    lives = []
    with books.running() as service:
        for life, name in enumerate(("a", "c")):
            given: dict[str, Any] = {"folder": tmp_path, "options": OPTIONS, "environ": environ, "name": f"life-{life}"}
            with vllm_server(llama, **given) as server:
                alone(server, name)
                wait_for(booked(books, name), server, "the first of its life")
                (source,) = books.rows("sources", "list")
                lives.append(source["boot_id"])
                if life:
                    break
                with ThreadPoolExecutor(1) as pool:
                    busy = pool.submit(drive, server.url, plan("b", CROWD, seed=6), at_once=24)
                    wait_for(lambda: b'"POST' in server.log.read_bytes(), server, "a request under way")
                    os.kill(engine_core(server), signal.SIGKILL)
                    assert {answer.status for answer in busy.result()} != {200}
                server.process.wait(60)
        assert len(set(lives)) == 2
        lines = books.get("/v1/statements/current")["lines"]
        assert sum(line["amount_nanos"] for line in lines if line["account"] == "unobserved") > 0
        rows = books.requests()
        assert len({row["request"] for row in rows}) == len(rows), "nothing twice"
        by_life = {prefix: [row for row in rows if name_of(row["request"]).startswith(prefix)] for prefix in "abc"}
        for prefix in "ac":
            assert [row["outcome"] for row in by_life[prefix]] == ["finished"] * len(greedy(prefix))
            assert all(prompt_tokens(row) and row["output_tokens"] for row in by_life[prefix])
        assert {row["outcome"] for row in by_life["b"]} <= {"finished", "lost"}
        assert books.ask("audit") == ""
        assert service.process.poll() is None
