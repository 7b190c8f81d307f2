"""`kvledger collect`: which engines are read from outside."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from endpoints import endpoint, text
from scraped import T0

from ledger.commands import collecting
from ledger.store import scrapes
from ledger.store.database import connect
from ledger.store.scrapes import Failing
from ledger.web.outside import LATE_US

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
    assert "what it answers now is no /metrics (it answers 503" in answer.err
    with endpoint(text("node_load1 1\n")) as engine:
        answer = ledger("collect", "add", "--engine", "b", "--url", engine.url)
    assert "1 family, and none is known" in answer.err
    assert "it does not answer now (" in ledger("collect", "add", "--engine", "c", "--url", "http://127.0.0.1:1").err
    assert len(ledger("collect", "list", "--format", "json").json) == 3


def test_one_that_is_not_scraped_cannot_be_removed_and_those_that_can_are_named(ledger: CommandLine) -> None:
    assert "nope is not scraped; nothing is" in ledger.fails("collect", "remove", "nope")
    with endpoint(text(VLLM)) as engine:
        ledger("collect", "add", "--engine", "chat-0", "--url", engine.url)
    assert "nope is not scraped; these are: chat-0 (" in ledger.fails("collect", "remove", "nope")
    assert ledger("collect", "remove", "chat-0").code == 0
    assert "is not scraped" in ledger.fails("collect", "remove", "chat-0")


def test_the_list_says_why_nothing_can_be_read(ledger: CommandLine) -> None:
    with endpoint(text(VLLM)) as engine:
        ledger("collect", "add", "--engine", "chat-0", "--url", engine.url)
    with closing(connect(f"sqlite:///{ledger.file}", durable=False)) as database:
        why = Failing(since_us=T0, why="status", detail="it answers 503 Service Unavailable")
        database.write(lambda c: scrapes.note_failures(c, {1: why, 99: why}))
        (row,) = ledger("collect", "list", "--format", "json").json
        assert (row["failing_us"], row["why"], row["detail"]) == (T0, why.why, why.detail)
        answer = ledger("collect", "list")
        assert "it answers 503 Service Unavailable" in " ".join(answer.out.split())
        assert answer.err == "", "it was added a moment ago"
        database.write(lambda c: scrapes.note_failures(c, {}))
    assert ledger("collect", "list", "--format", "json").json[0]["why"] is None


def test_the_list_says_that_nobody_asks(ledger: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(text(VLLM)) as engine:
        ledger("collect", "add", "--engine", "chat-0", "--url", engine.url)
    now_us = collecting.now_us()
    monkeypatch.setattr(collecting, "now_us", lambda: now_us + LATE_US + 1_000_000)
    assert "nobody has asked them yet; `kvledger serve` does" in ledger("collect", "list").err


def test_an_address_with_a_password_is_not_kept(ledger: CommandLine) -> None:
    said = ledger.fails("collect", "add", "--engine", "a", "--url", "http://me:secret@engine/")
    assert "leave it out" in said
    assert "secret" not in said


def test_a_simulated_ledger_scrapes_nobody(replayed: CommandLine) -> None:
    assert "simulated" in replayed.fails("collect", "add", "--engine", "a", "--url", "http://127.0.0.1:1/")
