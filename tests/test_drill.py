"""`kvledger drill outage`: it runs, and what it says of the books is bad wherever they are not whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_service import FakeService

from ledger import ingest, wire
from ledger.cli import FOUND, INTERRUPTED, main
from ledger.commands import drill
from ledger.commands.checks import Verdict
from ledger.commands.drill_books import Metered, whole
from ledger.commands.drill_way import Relay, ServiceProcess
from ledger.commands.opening import opened_or_made
from ledger.core.periods import HOUR_US
from ledger.errors import LedgerError
from ledger.outbox.post import HttpPost, Unreachable
from ledger.reference.engine import Engine, EngineConfig
from ledger.reference.policy import Policy
from ledger.reference.workload import mixed_day
from ledger.store.database import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.records import Batch
    from ledger.store.database import Database

ROOT = Path(__file__).parents[1]
START = 1_793_664_000_000_000  # 2026-11-03T00:00:00Z
LOST = 100
"""The batch of the first engine that never arrives, where one does not."""


def drilled(folder: Path, script: str = "") -> subprocess.CompletedProcess[str]:
    """The drill in a process of its own, after ``script``, beside a file of settings that is not for it."""
    (folder / "tmp").mkdir()
    (folder / "kvledger.toml").write_text(f'database = "sqlite:///{folder}/precious.db"\nbasis = "full"\n')
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KVLEDGER_")}
    code = f"{script}\nimport sys; from ledger.cli import main; sys.exit(main(['drill', 'outage']))"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environ
        | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), "KVLEDGER_DATABASE": f"sqlite:///{folder}/too.db"},
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip


@pytest.mark.slow
def test_after_every_outage_the_books_are_whole_and_nobody_elses_were_touched(tmp_path: Path) -> None:
    began_s = time.monotonic()
    done = drilled(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "the books are whole after 4 outages" in done.stdout
    assert "bad " not in done.stdout.replace("0 bad", "")
    assert time.monotonic() - began_s < 120
    assert {path.name for path in tmp_path.iterdir()} == {"tmp", "kvledger.toml"}
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_one_batch_that_gets_lost_on_the_way_is_noticed(tmp_path: Path) -> None:
    done = drilled(
        tmp_path,
        """
from ledger.outbox.spool import Spool
append, calls = Spool.append, []
def losing(self, payload):
    calls.append(None)
    return True if len(calls) == 100 else append(self, payload)
Spool.append = losing
from ledger.commands import drill
drill.DRAIN_S = 15.0
""",
    )
    assert done.returncode == FOUND, done.stdout + done.stderr
    assert "the books are NOT whole" in done.stdout
    assert {line.split()[1] for line in done.stdout.splitlines() if line.startswith("bad ")} == {
        "sent", "batches", "gaps", "figures", "bill",
    }  # fmt: skip
    (kept,) = (tmp_path / "tmp").iterdir()
    assert f"are kept in {kept}" in done.stdout
    assert {"kvledger.db", "service.log", "engines.log", "spool"} <= {path.name for path in kept.iterdir()}


def test_a_drill_that_is_interrupted_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(drill, "_live", interrupted)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["drill", "outage"]) == INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert list(tmp_path.iterdir()) == []


def test_the_service_of_a_drill_that_is_killed_ends_by_itself(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from ledger.commands.drill_way import ServiceProcess
service = ServiceProcess(Path({str(tmp_path)!r}), "sqlite:///{tmp_path}/books.db")
service.start()
service.wait()
print(service._process.pid, flush=True)
sys.stdin.read()
"""
    drilling = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with drilling:
        assert drilling.stdout is not None
        service = int(drilling.stdout.readline())
        assert alive(service)
        drilling.kill()
    until_s = time.monotonic() + 30
    while alive(service):
        assert time.monotonic() < until_s, (tmp_path / "service.log").read_text()
        time.sleep(0.05)
    assert "the books are whole" in (tmp_path / "service.log").read_text()


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody asked after does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


# --- what is said of the books ----------------------------------------------------------------------------


class Books:
    """A ledger that two idle engines filled for an hour, what they metered, and a copy of both for each test."""

    def __init__(self, folder: Path, *, lost: int = 0) -> None:
        self.folder = folder
        settings = drill._settings(folder)
        end_us = START + HOUR_US
        self.metered = Metered(start_us=START, end_us=end_us, bill_nanos=drill.ENGINES * drill.PRICE_NANOS)
        with opened_or_made(settings, durable=False) as ledger:
            drill._open_books(ledger, self.metered)
            waiting: list[bytes] = []
            for number in range(drill.ENGINES):
                self._live(number, waiting, lost if not number else 0)
            for at in range(0, len(waiting), 64):
                for outcome in ingest.accept_several(ledger.database, waiting[at : at + 64], end_us):
                    assert outcome.refusal is None, outcome

    def _live(self, number: int, waiting: list[bytes], lost: int) -> None:
        chain = b""

        def emit(batch: Batch) -> None:
            nonlocal chain
            self.metered.add(batch)
            raw = wire.encode(batch, chain)
            chain = wire.digest_of(raw)
            if batch.seq != lost:
                waiting.append(raw)

        load = mixed_day()
        engine = Engine(
            EngineConfig(
                name=f"drill-{number}", blocks=500, block_size=16, start_us=START, load_us=drill.LOAD_US, model="m",
                gpu_model="simulated", latency=load.latency, warmup_requests=3, acceptance_ratio=0.7, seed=1,
            ),
            Policy(),
            emit,
        )  # fmt: skip
        engine.run_until(HOUR_US - drill.STEP_US_MAX)
        engine.close(HOUR_US)

    def copy(self, folder: Path) -> tuple[Database, Metered]:
        shutil.copyfile(self.folder / "kvledger.db", folder / "kvledger.db")
        return connect(f"sqlite:///{folder / 'kvledger.db'}", durable=False), deepcopy(self.metered)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Books:
    return Books(tmp_path_factory.mktemp("complete"))


@pytest.fixture
def filled(complete: Books, tmp_path: Path) -> Iterator[tuple[Database, Metered]]:
    database, metered = complete.copy(tmp_path)
    with closing(database):
        yield database, metered


def bad(database: Database, metered: Metered) -> dict[str, str]:
    return {check.what: check.found for check in whole(database, metered) if check.verdict is not Verdict.OK}


def test_of_books_that_are_whole_nothing_is_bad(filled: tuple[Database, Metered]) -> None:
    assert bad(*filled) == {}


def test_a_batch_that_never_arrived_is_missed_everywhere(tmp_path: Path) -> None:
    books = Books(tmp_path, lost=LOST)
    with closing(connect(f"sqlite:///{tmp_path / 'kvledger.db'}", durable=False)) as database:
        found = bad(database, books.metered)
    assert set(found) == {"batches", "gaps", "figures", "bill"}
    assert f"missing drill-0 {LOST}; never metered none" in found["batches"]
    assert "0.012291667 of it unobserved" in found["bill"]


def test_a_batch_that_nobody_metered_is_noticed(filled: tuple[Database, Metered]) -> None:
    database, metered = filled
    metered.keys.remove(("drill-1", f"drill-1@{START}", LOST))
    assert f"never metered drill-1 {LOST}" in bad(database, metered)["batches"]


def test_figures_and_a_bill_that_differ_by_one_unit_are_noticed(filled: tuple[Database, Metered]) -> None:
    database, metered = filled
    metered.sums["free_block_us"] += 1
    metered.bill_nanos += 1
    assert set(bad(database, metered)) == {"figures", "bill"}


def test_a_refused_batch_is_noticed(filled: tuple[Database, Metered]) -> None:
    database, metered = filled
    assert ingest.accept(database, b"no batch", START).refusal is not None
    found = bad(database, metered)
    assert set(found) == {"refused"}
    assert "not_json" in found["refused"]


def test_what_was_changed_behind_the_ledgers_back_is_noticed(filled: tuple[Database, Metered]) -> None:
    def tamper(connection: Any) -> None:
        triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'batches'"
        for (name,) in connection.exec_driver_sql(triggers).fetchall():
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        connection.exec_driver_sql("UPDATE batches SET skew_us = skew_us + 1 WHERE seq = 9")

    database, metered = filled
    database.write(tamper)
    assert set(bad(database, metered)) == {"audit"}


# --- the way ----------------------------------------------------------------------------------------------


def test_the_relay_carries_refuses_and_is_there_again_at_the_same_address() -> None:
    with FakeService("503", "503", "503") as service:
        relay = Relay(int(service.url.rpartition(":")[2]))
        post = HttpPost(relay.url, token=lambda: "t", timeout_s=20)
        assert post(b"", "").status == 503
        relay.refuse()
        with pytest.raises(Unreachable):
            post(b"", "")
        relay.admit()
        assert post(b"", "").status == 503
        post.close()
        relay.close()


def test_answers_that_are_held_back_come_when_they_are_let_go() -> None:
    with FakeService("503", "503") as service:
        relay = Relay(int(service.url.rpartition(":")[2]))
        relay.hold_answers(3600)
        hasty = HttpPost(relay.url, token=lambda: "t", timeout_s=0.2)
        with pytest.raises(Unreachable):
            hasty(b"", "")
        relay.hold_answers(0)
        assert hasty(b"", "").status == 503
        hasty.close()
        relay.close()


def test_a_service_that_does_not_come_up_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path, f"sqlite:///{tmp_path}")
    service.start()
    with pytest.raises(LedgerError, match=r"did not come up .* it said: kvledger: "):
        service.wait()
    assert service.stop() != 0
