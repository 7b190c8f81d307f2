"""Scraping in the service: targets follow the ledger, what they say goes to the metrics and to the store."""

from __future__ import annotations

import pytest
from batches import Life
from booking import A
from booking import stretch as hooked_periods
from driven import DCGM, VLLM, Driven
from scraped import S
from serving import START, Served

from ledger import audit, ingest, limits
from ledger import metrics as m
from ledger import metrics_scraped as ms
from ledger.collectors.fetch import Unfetched, Why
from ledger.core.records import PERIOD_US, Origin
from ledger.errors import StoreError
from ledger.jobs.scraping import COMPARED_US, Scraping
from ledger.store import receipt, sample_reads, scrapes
from ledger.store.scrapes import Failing


def test_an_engine_without_a_hook_is_shown_by_its_own_words(empty: Served) -> None:
    driven = Driven(empty, engine=VLLM)
    driven.live(120)
    metrics = driven.metrics
    assert metrics.value(ms.TARGETS) == 1
    assert metrics.value(ms.METHOD, ("engine", "scraped")) == 1
    assert metrics.value(ms.REQUESTS_NOW, ("engine", "running")) == 2
    assert metrics.value(m.KV_UTILIZATION, ("engine", "scraped", "dp0")) == 0.25
    assert metrics.value(m.KV_BLOCKS, ("engine", "scraped", "dp0", "active")) == 250
    moved = metrics.value(m.ENGINE_TOKENS, ("engine", "output"))
    assert 900 <= moved <= 1200
    assert metrics.value(m.ENGINE_TOKENS, ("engine", "prompt")) == moved
    assert metrics.value(m.REQUESTS, ("", "finished")) == metrics.value(m.REQUESTS, ("", "aborted")) == moved / 10
    assert metrics.count(m.END_TO_END_TIME, ("", "")) == moved / 10
    assert metrics.value(ms.SCRAPES, ("engine", "answered")) == 8
    assert metrics.value(ms.ROUNDS_WAITING) == 0
    assert metrics.value(ms.SCRAPED, ("engine",)) > START / 1e6


TEXTS = {
    "vllm": VLLM,
    "vllm of before": VLLM.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "sglang": """\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 2
sglang:num_running_reqs{model_name="m",tp_rank="1"} 2
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1
sglang:token_usage{model_name="m",tp_rank="0"} 0.25
sglang:prompt_tokens_total{model_name="m"} %(ten)d
sglang:generation_tokens_total{model_name="m"} %(ten)d
""",
    "triton_trtllm": """\
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 2
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 1
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m",version="1"} 25
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 100
""",
    "llamacpp": """\
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:kv_cache_usage_ratio 0.25
llamacpp:prompt_tokens_total %(ten)d
llamacpp:tokens_predicted_total %(ten)d
""",
    "dynamo": """\
dynamo_frontend_inflight_requests{model="m"} 3
dynamo_frontend_queued_requests{model="m"} 1
dynamo_frontend_input_sequence_tokens_sum{model="m"} %(ten)d
dynamo_frontend_output_tokens_total{model="m"} %(ten)d
""",
}
"""Two requests run, one waits, a quarter of the KV memory is held, ten tokens a second come and go, as each says it."""

TELLS_NO_TOKENS, TELLS_NO_KV = {"triton_trtllm"}, {"dynamo"}


@pytest.mark.parametrize("engine", TEXTS)
def test_every_kind_of_engine_has_the_same_metrics_under_the_same_names(empty: Served, engine: str) -> None:
    driven = Driven(empty, engine=TEXTS[engine])
    driven.live(120)
    metrics = driven.metrics
    assert [metrics.value(ms.REQUESTS_NOW, ("engine", state)) for state in ("running", "waiting")] == [2, 1]
    ranks = [rank for rank in ("", "dp0") if metrics.value(m.KV_UTILIZATION, ("engine", "scraped", rank)) == 0.25]
    assert len(ranks) == (engine not in TELLS_NO_KV)
    output = metrics.value(m.ENGINE_TOKENS, ("engine", "output"))
    prompt = sum(metrics.value(m.ENGINE_TOKENS, ("engine", source)) for source in ("prompt", "computed", "cached"))
    assert prompt == output
    assert (output >= 900) == (engine not in TELLS_NO_TOKENS)
    assert driven.records("engine")[-1].busy_us == PERIOD_US


def test_what_an_engine_does_to_its_metrics_is_counted_by_sign_and_kept_with_the_records(empty: Served) -> None:
    told = f"process_start_time_seconds 1000\n{VLLM}"
    driven = Driven(empty, engine=told)
    driven.live(60)
    began_s = (empty.clock.us - driven.began_us) // S
    lower = 'vllm:generation_tokens_total{engine="0",model_name="m"}'
    for sign, text in (
        ("renamed:kv_active", told.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
        ("vanished:kv_active", told.replace("vllm:kv_cache_usage_perc", "vllm:something_else")),
        ("reset:output_tokens", told.replace(f"{lower} %(ten)d", f"{lower} {began_s}")),
        ("restart", told.replace("_seconds 1000", "_seconds 5000").replace("%(ten)d", "1").replace("%(one)d", "1")),
        ("nonsense", told.replace('m"} 2', 'm"} NaN')),
        ("bad_lines", f"{told}this line is broken\n"),
    ):
        before = driven.metrics.value(ms.SIGNS, ("engine", sign.partition(":")[0]))
        driven.answers["engine"] = text
        driven.live(15)
        assert driven.metrics.value(ms.SIGNS, ("engine", sign.partition(":")[0])) > before, sign
        driven.live(60)
        assert sign in {word for record in driven.records("engine") for word, _ in record.signs}
        driven.answers["engine"] = told
        driven.live(30)
    assert min(record.output_tokens or 0 for record in driven.records("engine")) >= 0
    assert audit.audit(empty.service.database) == ()


def test_what_is_said_is_kept_by_period_and_sums_to_what_the_counters_moved(empty: Served) -> None:
    driven = Driven(empty, engine=VLLM)
    driven.live(600)
    found = driven.records("engine")
    whole = [record for record in found if record.end_us - record.start_us == PERIOD_US]
    assert len(whole) >= 34
    assert all(record.output_tokens == 150 for record in whole[1:])
    assert all(record.finished == (("abort", 15), ("stop", 15)) for record in whole[1:])
    assert whole[3].running_us == 2 * PERIOD_US
    assert whole[3].kv_active_ppm == 250_000
    assert audit.audit(empty.service.database) == ()


def test_a_target_that_is_removed_is_left_alone_and_its_gauges_go(empty: Served) -> None:
    driven = Driven(empty, engine=VLLM)
    driven.live(60)
    empty.service.database.write(lambda c: scrapes.remove_target(c, "engine", now_us=empty.clock.us))
    driven.live(30)
    asked = driven.metrics.value(ms.SCRAPES, ("engine", "answered"))
    driven.live(60)
    assert driven.metrics.value(ms.SCRAPES, ("engine", "answered")) == asked
    assert driven.metrics.value(ms.REQUESTS_NOW, ("engine", "running")) == 0
    assert driven.metrics.value(ms.TARGETS) == 0
    driven.live(120)
    assert driven.metrics.value(ms.METHOD, ("engine", "scraped")) == 0


def test_who_does_not_lead_scrapes_nobody(empty: Served) -> None:
    driven = Driven(empty, engine=VLLM)
    driven.leads = False
    driven.live(60)
    assert driven.metrics.value(ms.SCRAPES, ("engine", "answered")) == 0
    driven.leads = True
    driven.live(60)
    assert driven.metrics.value(ms.SCRAPES, ("engine", "answered")) > 0


def test_a_ledger_that_turned_out_simulated_scrapes_nobody(empty: Served) -> None:
    driven = Driven(empty, engine=VLLM)
    empty.service.database.write(lambda c: receipt.fix_origin(c, Origin.SIMULATED, empty.clock.us))
    driven.live(60)
    assert driven.metrics.value(ms.SCRAPES, ("engine", "answered")) == 0


def test_a_failure_is_counted_by_reason_and_in_a_row(empty: Served) -> None:
    driven = Driven(empty, down=Unfetched(Why.UNREACHABLE, "refused"), page="<html>\n")
    driven.live(61)
    assert driven.metrics.value(ms.SCRAPES, ("down", "unreachable")) == 4
    assert driven.metrics.value(ms.SCRAPES, ("page", "not_metrics")) == 4
    assert driven.metrics.value(ms.FAILING, ("down",)) == 4
    assert driven.records("down") == ()


def test_the_ledger_knows_which_targets_cannot_be_read_since_when_and_why_until_they_can(empty: Served) -> None:
    driven = Driven(empty, down=Unfetched(Why.UNREACHABLE, "refused"), engine=VLLM)
    driven.live(61)

    def failing() -> dict[str, Failing]:
        with empty.service.database.read() as connection:
            kept = scrapes.failures(connection)
            return {t.engine: kept[t.number] for t in scrapes.list_targets(connection) if t.number in kept}

    first = failing()["down"]
    assert (first.why, first.detail) == ("unreachable", "refused")
    assert driven.began_us < first.since_us <= driven.began_us + 16 * S
    assert list(failing()) == ["down"]
    driven.answers["down"] = Unfetched(Why.STATUS, "it answers 503")
    driven.live(30)
    assert failing()["down"] == Failing(since_us=first.since_us, why="status", detail="it answers 503")
    driven.answers["down"] = VLLM
    driven.live(30)
    assert failing() == {}


def test_why_a_target_cannot_be_read_is_written_when_it_changes_and_by_who_leads(
    empty: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    real = scrapes.note_failures
    monkeypatch.setattr(scrapes, "note_failures", lambda c, kept: (written.append(dict(kept)), real(c, kept)))
    driven = Driven(empty, down=Unfetched(Why.UNREACHABLE, "refused"))
    driven.live(180)
    assert [len(kept) for kept in written] in ([0, 1], [1])
    driven.leads = False
    driven.live(60)
    assert len(written) <= 2
    driven.leads = True
    driven.live(60)
    assert [len(kept) for kept in written[-2:]] == [0, 1], "another may have written meanwhile"


def test_a_round_that_the_database_does_not_take_is_written_later(
    empty: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = Driven(empty, engine=VLLM)
    real = scrapes.write_round

    def refuse(*args: object, **more: object) -> None:
        raise StoreError("stayed locked")

    monkeypatch.setattr(scrapes, "write_round", refuse)
    driven.live(180)
    waiting = driven.metrics.value(ms.ROUNDS_WAITING)
    assert waiting >= 7
    assert driven.records("engine") == ()
    monkeypatch.setattr(scrapes, "write_round", real)
    driven.live(15)
    assert driven.metrics.value(ms.ROUNDS_WAITING) == 0
    assert len(driven.records("engine")) >= waiting


def test_rounds_that_cannot_wait_any_longer_are_counted(empty: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRAPE_ROUNDS_WAITING_MAX", 3)
    driven = Driven(empty, engine=VLLM)
    monkeypatch.setattr(Scraping, "_write", lambda self: None)
    driven.live(180)
    assert driven.metrics.value(ms.ROUNDS_DROPPED) >= 4
    assert len(driven.scraping._rounds) == 3


def test_what_an_exporter_says_is_booked_as_the_samples_of_an_agent(
    empty: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = Driven(empty)
    driven.answers["gpus"] = DCGM
    driven.add("gpus", "dcgm")
    real = scrapes.write_round
    failed = []

    def fail_once(*args: object, **more: object) -> None:
        if not failed:
            failed.append(True)
            raise StoreError("stayed locked")
        real(*args, **more)

    monkeypatch.setattr(scrapes, "write_round", fail_once)
    driven.live(180)
    with empty.service.database.read() as connection:
        (boot,) = sample_reads.agent_boots(connection)
        stored = list(sample_reads.stored_samples(connection, boot))
    assert failed
    assert [each.batch.seq for each in stored] == list(range(1, len(stored) + 1))
    assert len(stored) >= 7
    (gpu,) = stored[0].batch.samples
    assert (gpu.gpu, gpu.used_bytes.mean, gpu.free_bytes.mean) == ("GPU-1", 5 << 20, 7 << 20)
    assert stored[0].batch.gpus is not None
    assert stored[1].batch.gpus is None
    assert audit.audit(empty.service.database) == ()


def deliver(served: Served, life: Life, until_us: int, *, opens: bool = False) -> None:
    for batch in hooked_periods(life, until_us, {A: (400, 0)}, opens=opens):
        outcome = ingest.accept(served.service.database, life.send(batch), batch.end_us)
        assert outcome.refusal is None, outcome.refusal
        served.service.live.answered(outcome, batch.end_us)


def test_an_engine_with_a_hook_is_shown_by_it_and_the_difference_is_a_metric(empty: Served) -> None:
    empty.clock.us = START
    driven = Driven(empty)
    driven.answers["engine-a"] = VLLM
    life = Life(start_us=START, origin=Origin.LIVE)
    ingest.accept(empty.service.database, life.send(life.announce()), START)
    driven.add("engine-a")
    for number in range(8):
        deliver(empty, life, START + (number + 1) * 60 * S, opens=number == 0)
        driven.live(60)
        empty.service.kept.forget()
    metrics = driven.metrics
    assert metrics.value(ms.METHOD, ("engine-a", "hook")) == metrics.value(ms.METHOD, ("engine-a", "scraped")) == 1
    assert metrics.value(m.KV_UTILIZATION, ("engine-a", "scraped", "dp0")) == 0
    # 400 of the hook's 1 000 blocks against 25 % by the gauge.
    assert metrics.value(ms.DIFFERENCE, ("engine-a", "kv_active")) == pytest.approx((0.25 - 0.4) / 0.4)
    # 7 tokens a period by the hook against 150.
    assert metrics.value(ms.DIFFERENCE, ("engine-a", "output_tokens")) == pytest.approx(143 / 150, abs=0.01)
    assert COMPARED_US == 300 * S
