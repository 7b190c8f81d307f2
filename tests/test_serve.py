"""Starting the service: one on an SQLite ledger, and hints that can be pasted."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ledger import config
from ledger.commands import serve
from ledger.commands.opening import Ledger
from ledger.commands.serve import _demo_books, _ready, _which
from ledger.core.periods import HOUR_US, SECOND_US, parse_time
from ledger.errors import LedgerError
from ledger.store import fleet
from ledger.store.alone import alone

if TYPE_CHECKING:
    from pathlib import Path

    from commandline import CommandLine

    from ledger.store.database import Database


def test_a_second_service_on_an_sqlite_ledger_is_told_who_has_it_before_it_touches_anything(
    kvledger: CommandLine,
) -> None:
    file = kvledger.folder / "state" / "service.db"
    file.parent.mkdir()
    with alone(file) as note:
        note("http://127.0.0.1:8790")
        answer = kvledger.child("", "serve", "--demo")
    assert (answer.returncode, answer.stdout) == (3, "")
    assert f"process {os.getpid()} at http://127.0.0.1:8790" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not file.exists()


def test_whoever_served_before_is_in_nobodys_way_and_another_name_is_the_same_ledger(tmp_path: Path) -> None:
    file, link = tmp_path / "books.db", tmp_path / "link.db"
    link.symlink_to(file)
    for one, other in ((file, link), (link, file)):
        with alone(one), pytest.raises(LedgerError, match="served already by process"), alone(other):
            pass


def test_the_hint_for_another_token_can_be_pasted_and_shows_no_password(tmp_path: Path, sqlite_db: Database) -> None:
    settings = config.load(environ={"KVLEDGER_STATE_DIR": str(tmp_path / "my books")})
    named = shlex.split(_which(Ledger(settings=settings, database=sqlite_db)))
    assert named == ["--database", settings.database]
    secret = replace(settings, database="postgresql://me:pass@host/books")
    assert _which(Ledger(settings=secret, database=sqlite_db)) == ", with the settings of this service"
    plain = replace(settings, database="postgresql://me@host/books")
    assert shlex.split(_which(Ledger(settings=plain, database=sqlite_db))) == ["--database", plain.database]


def test_the_back_filled_hours_end_where_the_engines_of_now_begin_and_are_as_many_as_is_said(
    sqlite_db: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_us = parse_time("2026-12-01T02:52:07Z")
    assert isinstance(at_us, int)
    monkeypatch.setattr(serve, "now_us", lambda: at_us)
    ledger = Ledger(settings=config.load(environ={}), database=sqlite_db)
    _ready(ledger)
    _demo_books(ledger, hours=1)
    assert "back-filling 1 simulated hour up to now" in capsys.readouterr().out
    until_us = at_us - 7 * SECOND_US
    with sqlite_db.read() as connection:
        engines = fleet.engine_states(connection, at_us, all_of_them=True)
    assert [engine.started_us for engine in engines] == [until_us - HOUR_US] * 2
    # A step that is under way is ended.
    assert all(until_us <= engine.last_end_us < until_us + 3 * SECOND_US for engine in engines)
    assert {engine.state for engine in engines} == {fleet.State.CLOSED}
    assert sum(engine.missing for engine in engines) == 0

    _demo_books(ledger, hours=1)  # started again, it goes on with the same books
    assert capsys.readouterr().out == ""
    with sqlite_db.read() as connection:
        assert fleet.engine_states(connection, at_us, all_of_them=True) == engines
