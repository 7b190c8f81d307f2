"""Jobs: they lead alone, never overlap, fail alone, and say what they did."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.triggers.interval import IntervalTrigger
from batches import ALICE, Life
from serving import HOUR, START, Clock, Served, serve

from ledger import metrics as m
from ledger.core.records import HookReport
from ledger.jobs.runner import Job, Runner
from ledger.jobs.work import _after, aggregate, check, close_hours, forget, jobs_of, scan
from ledger.store.leader import Leadership

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.store.database import Database


def at_once() -> IntervalTrigger:
    return IntervalTrigger(days=1, start_date=datetime.now(UTC) + timedelta(seconds=0.3))


def runner(work: Callable[[], None], metrics: m.Metrics, outcomes: dict[str, str], **more: object) -> Runner:
    job = Job(name="work", trigger=more.get("trigger", IntervalTrigger(days=1)), late_s=60, work=work)  # type: ignore[arg-type]
    return Runner(
        [job],
        metrics=metrics,
        outcomes=outcomes,
        leads=more.get("leads", lambda: True),
        clock_us=lambda: 5_000_000,  # type: ignore[arg-type]
    )


def test_a_run_that_ended_well_is_counted_timed_and_dated() -> None:
    metrics, outcomes = m.Metrics(), {}
    assert runner(lambda: None, metrics, outcomes).run("work") == "done"
    assert metrics.value(m.JOB_RUNS, ("work", "done")) == 1
    assert metrics.count(m.JOB_TIME, ("work",)) == 1
    assert metrics.value(m.JOB_SUCCEEDED, ("work",)) == 5
    assert outcomes == {"work": "done"}


def test_an_exception_ends_that_run_alone_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    metrics, outcomes, calls = m.Metrics(), {}, []

    def work() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("planted")

    made = runner(work, metrics, outcomes)
    assert [made.run("work"), made.run("work")] == ["failed", "done"]
    assert metrics.value(m.JOB_RUNS, ("work", "failed")) == 1
    assert "planted" in caplog.text


@pytest.mark.parametrize(("code", "outcome"), [(EVENT_JOB_MISSED, "late"), (EVENT_JOB_MAX_INSTANCES, "overlapped")])
def test_a_run_that_was_skipped_is_counted_with_its_reason(code: int, outcome: str) -> None:
    metrics, outcomes = m.Metrics(), {}
    runner(lambda: None, metrics, outcomes)._skipped(JobEvent(code, "work", "default"))
    assert metrics.value(m.JOB_RUNS, ("work", outcome)) == 1
    assert outcomes == {"work": outcome}


def test_the_scheduler_runs_what_is_due_and_a_stop_waits_for_it() -> None:
    ran, may_end = threading.Event(), threading.Event()

    def work() -> None:
        ran.set()
        may_end.wait(10)

    metrics, outcomes = m.Metrics(), {}
    made = runner(work, metrics, outcomes, trigger=at_once())
    made.start()
    assert ran.wait(10)
    assert metrics.value(m.LEADER) == 1
    may_end.set()
    made.stop()
    assert outcomes == {"work": "done"}


def test_who_does_not_lead_runs_nothing() -> None:
    asked = threading.Event()

    def leads() -> bool:
        asked.set()
        return False

    metrics, ran = m.Metrics(), []
    made = runner(lambda: ran.append(1), metrics, {}, trigger=at_once(), leads=leads)
    made.start()
    assert asked.wait(10)
    made.stop()
    assert (ran, metrics.value(m.LEADER)) == ([], 0)


def test_one_of_two_leads_and_the_other_takes_over(db: Database) -> None:
    first, second = Leadership(db), Leadership(db)
    assert [first.held(), second.held(), first.held()] == [True, False, True]
    first.release()
    assert second.held()
    second.release()


def test_intervals_are_settled_a_grace_after_each_end() -> None:
    assert str(_after(3600, 120)) == "cron[minute='2', second='0']"
    assert str(_after(900, 90)) == "cron[minute='1,16,31,46', second='30']"


def test_the_minute_makes_the_bill_known_and_it_closes(served: Served) -> None:
    aggregate(served.service)
    bill = served.get("/v1/statements/current").json()
    family = next(f for f in served.service.metrics.collect() if f.name == m.MONTH_COST.name)
    assert sum(sample.value for sample in family.samples) == pytest.approx(bill["bill_nanos"] / 1e9)
    assert served.service.metrics.value(m.SETTLED_UNTIL) > 0


def test_tenants_beyond_the_bound_are_added_up(filled_books, tmp_path) -> None:
    path = tmp_path / "books.db"
    shutil.copyfile(filled_books[0], path)
    for few in serve(path, tmp_path, Clock(filled_books[1] + 2_000_000), metrics_tenants="2"):
        aggregate(few.service)
        family = next(f for f in few.service.metrics.collect() if f.name == m.MONTH_COST.name)
        tenants = {sample.labels["tenant"] for sample in family.samples if sample.labels["account"] == "tenant"}
        assert len(tenants) == 3
        assert m.OTHER in tenants
        bill = few.get("/v1/statements/current").json()["bill_nanos"]
        assert sum(sample.value for sample in family.samples) == pytest.approx(bill / 1e9)


def test_the_pass_hands_live_sessions_to_every_rule(served: Served) -> None:
    heard: list[int] = []
    scan(served.service, [lambda sessions, now_us: heard.append(now_us)])
    assert heard == [served.clock.us]
    assert sum(served.service.metrics.value(m.ENGINES_KNOWN, (state,)) for state in ("open", "closed", "silent")) == 2


def test_a_hook_that_is_off_is_counted_named_and_said_until_its_engine_starts_again(empty: Served) -> None:
    life = Life(start_us=START)
    report = HookReport(dropped=(("queue_full", 2),), off="8 faults in a row")
    sent = [life.send(life.announce()), life.send(replace(life.period({ALICE: (3, 1)}, opens=True), hook=report))]
    for raw in sent:
        assert empty.client.post("/v1/batches", content=raw, headers=empty.headers("ingest")).status_code == 200
    assert empty.service.metrics.value(m.HOOK_DROPPED, ("engine-a", "queue_full")) == 2
    scan(empty.service, [])
    assert empty.service.metrics.value(m.HOOK_OFF, ("engine-a",)) == 1
    assert empty.service.metrics.value(m.ENGINES_KNOWN, ("off",)) == 1
    (source,) = empty.get("/v1/sources").json()["rows"]
    assert (source["state"], source["hook_off"], source["dropped"], source["faults"]) == ("off", report.off, 2, 0)
    (engine,) = empty.get("/v1/engines").json()["rows"]
    assert (engine["state"], engine["hook_off"]) == ("off", report.off)
    said = [trouble["what"] for trouble in empty.get("/v1/troubles").json()]
    assert "hooks have switched themselves off: engine-a (8 faults in a row)" in said
    assert "2 batches were dropped by hooks in the last 24 hours (queue_full): engine-a" in said
    again = Life(boot_id="boot-2", start_us=life.now_us)
    raw = again.send(again.announce())
    assert empty.client.post("/v1/batches", content=raw, headers=empty.headers("ingest")).status_code == 200
    empty.service.kept.forget()
    scan(empty.service, [])
    assert empty.service.metrics.value(m.HOOK_OFF, ("engine-a",)) == 0


def test_hours_are_closed_and_a_second_time_changes_nothing(served: Served) -> None:
    served.clock.us += 2 * HOUR
    close_hours(served.service)
    before = served.get("/v1/statements/current").json()
    close_hours(served.service)
    served.service.kept.forget()
    assert served.get("/v1/statements/current").json() == before
    assert before["lines"]


def test_the_night_audits_and_forgets(served: Served) -> None:
    check(served.service)
    assert served.service.metrics.value(m.LAWS_BROKEN) == 0
    assert served.service.metrics.value(m.AUDITED) == served.clock.us / 1e6
    forget(served.service)
    assert served.get("/v1/sources").json()["rows"]


def test_every_job_can_be_made_and_has_a_name_of_its_own(served: Served) -> None:
    names = [job.name for job in jobs_of(served.service)]
    assert names == ["scan", "aggregate", "settle", "retention", "audit"]
