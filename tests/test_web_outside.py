"""Engines seen from outside: in the interface, among the troubles, and to doctor."""

from __future__ import annotations

import pytest
from batches import Life
from booking import A
from booking import stretch as hooked_periods
from driven import DCGM, VLLM, Driven
from scraped import S
from serving import START, Served

from ledger import ingest
from ledger.collectors.fetch import Unfetched, Why
from ledger.core.records import Origin
from ledger.web.outside import LATE_US


def engines(served: Served) -> dict[str, dict]:
    served.service.kept.forget()
    return {row["engine"]: row for row in served.get("/v1/engines").json()["rows"]}


def troubles(served: Served) -> list[str]:
    served.service.kept.forget()
    return [row["what"] for row in served.get("/v1/troubles").json()]


def test_an_engine_that_is_only_scraped_has_a_row_of_which_nothing_is_made_up(empty: Served) -> None:
    driven = Driven(empty, engine=VLLM, gpus=DCGM)
    driven.add("gpus", "dcgm")
    driven.live(120)
    found = engines(empty)
    assert set(found) == {"engine"}  # an exporter is no engine
    row = found["engine"]
    assert (row["method"], row["state"], row["software"]) == ("scraped", "open", "vLLM")
    assert row["boot_id"] == ""
    assert [row[name] for name in ("last_seq", "received_us", "skew_us", "missing")] == [None] * 4
    assert row["pools"] == []
    said = row["scraped"]
    assert (said["url"], said["kind"], said["model"], said["answers"]) == ("http://engine/", "vllm", "m", True)
    assert (said["running"], said["waiting"], said["busy_ratio"]) == (2, 1, 1)
    assert (said["kv_active_ratio"], said["kv_cached_ratio"], said["capacity_tokens"]) == (0.25, None, 16_000)
    assert said["output_tokens"] == 150
    assert said["last_us"] <= empty.clock.us - 52 * S
    assert said["signs"] == []


def test_one_that_was_just_added_is_awaited_and_neither_silent_nor_a_trouble(empty: Served) -> None:
    driven = Driven(empty, engine=VLLM)
    for _ in range(3):
        driven.live(10)
        row = engines(empty)["engine"]
        assert (row["state"], row["last_end_us"]) == ("awaited", None)
        assert (row["scraped"]["awaited"], row["scraped"]["since_us"]) == (True, driven.began_us)
        assert troubles(empty) == []
    driven.live(90)
    row = engines(empty)["engine"]
    assert (row["state"], row["scraped"]["awaited"]) == ("open", False)


def test_one_that_nobody_asks_is_awaited_for_two_minutes_and_then_silent_and_a_trouble(empty: Served) -> None:
    Driven(empty, engine=VLLM)
    empty.clock.us += LATE_US
    assert engines(empty)["engine"]["state"] == "awaited"
    assert troubles(empty) == []
    empty.clock.us += 1
    assert engines(empty)["engine"]["state"] == "silent"
    assert troubles(empty) == ["scraped, and cannot be read: engine (nothing for two minutes)"]


@pytest.mark.parametrize("kind", ["vllm", "dcgm", "auto"])
def test_one_that_was_just_added_and_fails_is_a_trouble_at_once(empty: Served, kind: str) -> None:
    driven = Driven(empty)
    driven.answers["bad"] = Unfetched(Why.UNREACHABLE, "refused")
    driven.add("bad", kind)
    driven.live(40)
    assert troubles(empty) == ["scraped, and cannot be read: bad (refused)"]
    assert [row["state"] for row in engines(empty).values()] == ([] if kind == "dcgm" else ["silent"])


def test_one_that_never_answered_is_silent_and_a_trouble(empty: Served) -> None:
    driven = Driven(empty, engine=Unfetched(Why.UNREACHABLE, "refused"))
    driven.live(180)
    row = engines(empty)["engine"]
    assert (row["state"], row["scraped"]["answers"], row["scraped"]["last_us"]) == ("silent", False, None)
    assert row["scraped"]["running"] is None
    assert troubles(empty) == ["scraped, and cannot be read: engine (refused)"]
    said = row["scraped"]
    assert (said["why"], said["detail"]) == ("unreachable", "refused")
    assert driven.began_us < said["failing_us"] <= driven.began_us + 16 * S


def test_one_that_stopped_answering_is_a_trouble_after_two_minutes(empty: Served) -> None:
    driven = Driven(empty, engine=VLLM)
    driven.live(120)
    assert troubles(empty) == []
    driven.answers["engine"] = Unfetched(Why.TIMEOUT, "hangs")
    driven.live(30)
    assert troubles(empty) == []
    assert engines(empty)["engine"]["state"] == "open"
    driven.live(120)
    assert troubles(empty) == ["scraped, and cannot be read: engine (hangs)"]
    assert engines(empty)["engine"]["state"] == "silent"


@pytest.mark.parametrize("kind", ["dcgm", "auto"])
def test_an_exporter_that_answers_is_no_engine_and_no_trouble_and_one_that_does_not_is_one(
    empty: Served, kind: str
) -> None:
    driven = Driven(empty)
    driven.answers["gpus"] = DCGM
    driven.add("gpus", kind)
    driven.live(200)
    assert troubles(empty) == []
    assert engines(empty) == {}
    driven.answers["gpus"] = Unfetched(Why.STATUS, "it answers 500")
    driven.live(200)
    assert troubles(empty) == ["scraped, and cannot be read: gpus (it answers 500)"]


def test_a_dead_gauge_is_a_trouble_and_its_figure_is_absent(empty: Served) -> None:
    dead = VLLM.replace('m"} 2', 'm"} 0').replace('_sum{engine="0",model_name="m"} %(one)d', "_sum %(ten)d")
    driven = Driven(empty, engine=dead)
    driven.live(345)
    said = engines(empty)["engine"]["scraped"]
    assert "dead_gauge:running" in said["signs"]
    assert (said["running"], said["busy_ratio"]) == (None, 1)
    assert troubles(empty) == ["gauges say 0 while requests run: engine (running)"]


def test_a_hooked_engine_keeps_its_row_with_what_was_scraped_beside_it(empty: Served) -> None:
    empty.clock.us = START
    driven = Driven(empty)
    driven.answers["engine-a"] = VLLM
    driven.add("engine-a")
    life = Life(start_us=START, origin=Origin.LIVE)
    ingest.accept(empty.service.database, life.send(life.announce()), START)
    for batch in hooked_periods(life, START + 120 * S, {A: (400, 0)}, opens=True):
        ingest.accept(empty.service.database, life.send(batch), batch.end_us)
    driven.live(120)
    (row,) = engines(empty).values()
    assert (row["method"], row["state"], row["pools"][0]["active_blocks"]) == ("hook", "open", 400)
    assert row["scraped"]["kv_active_ratio"] == 0.25


def test_the_list_is_csv_as_well(empty: Served) -> None:
    driven = Driven(empty, engine=VLLM)
    driven.live(120)
    text = empty.get("/v1/engines?format=csv").text
    assert text.splitlines()[0].startswith("engine,method,state")
    assert text.splitlines()[1].startswith("engine,scraped,open")
