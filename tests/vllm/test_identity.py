"""Who a request belongs to, from a header at the API server to the scheduler in the engine core; no flag is set."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from server import Program, vllm_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPTIONS = [
    "--max-model-len",
    "1024",
    "--num-gpu-blocks-override",
    "200",
    "--scheduling-policy",
    "priority",
    "--enable-scale-out",
]
KEY = "key-of-birch"
_numbers = itertools.count()


@dataclass
class Spied:
    """A server, and what its cores admitted."""

    server: Program
    arrivals: Path

    def client(self, headers: dict[str, str] | None = None, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.server.url}/v1", api_key=api_key, default_headers=headers or {}, max_retries=0
        )

    def since(self, before: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.arrivals.read_text().splitlines()[before:]]

    def count(self) -> int:
        return len(self.arrivals.read_text().splitlines())


def as_who(tenant: str, session: str, **more: str) -> dict[str, str]:
    return {"X-Tenant-ID": tenant, "X-Session-ID": session} | more


def callers(arrivals: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(arrival["caller"]["tenant"], arrival["caller"]["session"]) for arrival in arrivals}


@contextlib.contextmanager
def spied(model: Path, folder: Path, *options: str, **environ: str) -> Iterator[Spied]:
    arrivals = folder / "arrivals.jsonl"
    arrivals.touch()
    keys = folder / "keys"
    keys.write_text(f"birch sha256:{hashlib.sha256(KEY.encode()).hexdigest()}\n")
    given = {"SPY_ARRIVALS": str(arrivals), "KVLEDGER_KEYS": str(keys), "OMP_NUM_THREADS": "1"} | environ
    with vllm_server(model, folder=folder, options=[*OPTIONS, *options], environ=given) as server:
        yield Spied(server=server, arrivals=arrivals)


@pytest.fixture(scope="module")
def plain(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spied]:
    with spied(llama, tmp_path_factory.mktemp("plain")) as found:
        yield found


def complete(client: openai.OpenAI, **more: Any) -> Any:
    given = {"model": "tiny", "prompt": f"prompt {next(_numbers)}", "max_tokens": 4, "temperature": 0}
    return client.completions.create(**(given | more))


def test_headers_name_the_caller_of_a_completion(plain: Spied) -> None:
    before = plain.count()
    complete(plain.client(as_who("acme", "s-1", **{"X-Scenario": "chat", "X-Priority": "7"})))
    (arrived,) = plain.since(before)
    assert arrived["caller"] == {"tenant": "acme", "session": "s-1", "scenario": "chat", "priority": 7}


def test_a_request_without_headers_is_unattributed(plain: Spied) -> None:
    before = plain.count()
    complete(plain.client())
    assert callers(plain.since(before)) == {("unattributed", "-")}


def test_an_api_key_names_the_tenant_against_the_header(plain: Spied) -> None:
    before = plain.count()
    complete(plain.client(as_who("acme", "s-2"), api_key=KEY))
    assert callers(plain.since(before)) == {("birch", "s-2")}


def test_each_sample_and_each_prompt_of_a_batch_has_the_caller(plain: Spied) -> None:
    before = plain.count()
    complete(plain.client(as_who("acme", "s-3")), prompt=["one", "two", "three"], n=2, temperature=1.0)
    arrivals = plain.since(before)
    assert len(arrivals) == 6
    assert callers(arrivals) == {("acme", "s-3")}


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_has_the_caller_streaming_or_not(plain: Spied, stream: bool) -> None:
    before = plain.count()
    client = plain.client(as_who("acme", f"chat-{stream}"))
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": f"hello {next(_numbers)}"}], max_tokens=5, stream=stream
    )
    if stream:
        assert len(list(answer)) > 1
    assert callers(plain.since(before)) == {("acme", f"chat-{stream}")}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "tiny", "prompt": "hi", "n": 2, "use_beam_search": True, "max_tokens": 3}),
        ("/v1/responses", {"model": "tiny", "input": "hello", "max_output_tokens": 4}),
        ("/v1/messages", {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}),
        ("/inference/v1/generate", {"model": "tiny", "token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4}}),
    ],
)
def test_every_endpoint_that_generates_has_the_caller(plain: Spied, path: str, body: dict[str, Any]) -> None:
    before = plain.count()
    answer = httpx.post(plain.server.url + path, json=body, headers=as_who("acme", path), timeout=60)
    assert answer.status_code == 200, answer.text
    assert callers(plain.since(before)) == {("acme", path)}


@pytest.mark.parametrize(
    "body", [{"session_id": "kvl1/other/s/-/0/00"}, {"session_id": "mine"}, {"vllm_xargs": {"session_id": "mine"}}]
)
def test_a_session_id_in_the_body_does_not_hide_the_caller(plain: Spied, body: dict[str, Any]) -> None:
    before = plain.count()
    complete(plain.client(as_who("acme", "s-4")), extra_body=body)
    (arrived,) = plain.since(before)
    assert callers([arrived]) == {("acme", "s-4")}
    # And vLLM's own use of it is what it would be without the hook: the body's over the header's.
    expected = body.get("session_id", "s-4")
    assert arrived["session_id"] == expected


def test_the_priority_is_the_one_that_the_engine_schedules_by(plain: Spied) -> None:
    before = plain.count()
    complete(plain.client(as_who("acme", "s-5", **{"X-Priority": "7", "X-Vllm-Priority": "3"})))
    complete(plain.client(as_who("acme", "s-5", **{"X-Priority": "7"})), extra_body={"priority": 2})
    assert [arrived["caller"]["priority"] for arrived in plain.since(before)] == [3, 2]
    assert [arrived["priority"] for arrived in plain.since(before)] == [3, 2]


def test_headers_of_an_untrusted_peer_name_nobody_and_the_log_says_so(plain: Spied) -> None:
    # uvicorn makes the caller's address of this header, since its own peer is this machine.
    stranger = {"X-Forwarded-For": "192.0.2.7"}
    before = plain.count()
    complete(plain.client(as_who("acme", "s-6") | stranger))
    complete(plain.client(as_who("acme", "s-6") | stranger, api_key=KEY))
    assert callers(plain.since(before)) == {("unattributed", "-"), ("birch", "s-6")}
    (told,) = [line for line in plain.server.text().splitlines() if "identity: untrusted_peer, 1 so far" in line]
    assert "WARNING" in told, "where vLLM's own lines go, and in their form"


def test_two_api_servers_and_two_engines_share_the_signature(llama: Path, tmp_path: Path) -> None:
    options = ["--data-parallel-size", "2", "--api-server-count", "2"]
    with spied(llama, tmp_path, *options, VLLM_CPU_OMP_THREADS_BIND="0|1") as found:
        for number in range(24):
            # A connection for each, so that both API servers get some.
            request = urllib.request.Request(
                f"{found.server.url}/v1/completions",
                json.dumps({"model": "tiny", "prompt": f"a {number}", "max_tokens": 4}).encode(),
                {"Content-Type": "application/json"} | as_who("acme", f"s-{number}"),
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 200
        arrivals = found.since(0)
        assert callers(arrivals) == {("acme", f"s-{number}") for number in range(24)}
        assert {arrived["rank"] for arrived in arrivals} == {0, 1}
