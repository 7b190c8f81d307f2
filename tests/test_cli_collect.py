"""`kvledger collect`: which engines are read from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from endpoints import endpoint, text

if TYPE_CHECKING:
    from commandline import CommandLine

VLLM = 'vllm:num_requests_running{model_name="m"} 3\nvllm:generation_tokens_total{model_name="m"} 9\n'


@pytest.fixture
def ledger(kvledger: CommandLine) -> CommandLine:
    assert kvledger("db", "upgrade").code == 0
    return kvledger


def test_a_target_is_added_looked_at_listed_and_removed(ledger: CommandLine) -> None:
    with endpoint(text(VLLM)) as engine:
        answer = ledger("collect", "add", "--engine", "chat-0", "--url", engine.url)
    assert answer.code == 0
    assert f"chat-0 is scraped at {engine.url}" in answer.out
    assert "vLLM: 2 figures of m" in answer.out
    assert "kvledger assets assign ASSET chat-0" in answer.err
    (row,) = ledger("collect", "list", "--format", "json").json
    assert (row["engine"], row["url"], row["kind"], row["last_us"]) == ("chat-0", engine.url, "auto", None)
    assert "is not scraped any more" in ledger("collect", "remove", "chat-0").out
    assert "is not scraped" in ledger("collect", "remove", "chat-0").out
    assert "nothing is scraped" in ledger("collect", "list").out


def test_saying_it_twice_changes_nothing(ledger: CommandLine) -> None:
    with endpoint(text(VLLM)) as engine:
        ledger("collect", "add", "--engine", "chat-0", "--url", engine.url)
        assert "there already" in ledger("collect", "add", "--engine", "chat-0", "--url", engine.url).out
    assert len(ledger("collect", "list", "--format", "json").json) == 1


def test_an_engine_with_an_asset_gets_no_word_about_money(ledger: CommandLine) -> None:
    ledger("assets", "add", "gpu-0", "--price", "2.95")
    ledger("assets", "assign", "gpu-0", "chat-0")
    with endpoint(text(VLLM)) as engine:
        assert ledger("collect", "add", "--engine", "chat-0", "--url", engine.url).err == ""


def test_an_address_that_does_not_answer_or_says_nothing_known_is_kept_with_a_word(ledger: CommandLine) -> None:
    with endpoint(text("", status=503)) as engine:
        answer = ledger("collect", "add", "--engine", "a", "--url", engine.url)
    assert answer.code == 0
    assert "does not answer now (it answers 503" in answer.err
    with endpoint(text("node_load1 1\n")) as engine:
        answer = ledger("collect", "add", "--engine", "b", "--url", engine.url)
    assert "1 families, and none is known" in answer.err
    assert len(ledger("collect", "list", "--format", "json").json) == 2


def test_an_address_with_a_password_is_not_kept(ledger: CommandLine) -> None:
    said = ledger.fails("collect", "add", "--engine", "a", "--url", "http://me:secret@engine/")
    assert "leave it out" in said
    assert "secret" not in said


def test_a_simulated_ledger_scrapes_nobody(replayed: CommandLine) -> None:
    assert "simulated" in replayed.fails("collect", "add", "--engine", "a", "--url", "http://127.0.0.1:1/")
