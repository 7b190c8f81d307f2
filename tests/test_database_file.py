"""The file of an SQLite ledger under a process that has it open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from ledger.errors import StoreError
from ledger.store.database import Database, connect

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def ledger(sqlite_template: Path, tmp_path: Path) -> tuple[Path, Database]:
    file = tmp_path / "books.db"
    file.write_bytes(sqlite_template.read_bytes())
    db = connect(f"sqlite:///{file}")
    write(db)
    return file, db


def write(db: Database) -> None:
    db.write(lambda connection: connection.execute(text("SELECT 1")))


def test_nothing_is_written_to_or_read_from_a_file_that_was_deleted(ledger: tuple[Path, Database]) -> None:
    file, db = ledger
    file.unlink()
    with pytest.raises(StoreError, match="it was deleted, moved or replaced"):
        write(db)
    with pytest.raises(StoreError, match="put the file and its -wal back"), db.read():
        pass


def test_nothing_is_written_to_a_file_that_another_one_took_the_place_of(
    ledger: tuple[Path, Database], sqlite_template: Path
) -> None:
    file, db = ledger
    other = file.with_name("other.db")
    other.write_bytes(sqlite_template.read_bytes())
    other.replace(file)
    with pytest.raises(StoreError, match="replaced"):
        write(db)


def test_a_file_that_was_put_back_is_written_to_again(ledger: tuple[Path, Database]) -> None:
    file, db = ledger
    away = file.with_name("away.db")
    file.rename(away)
    with pytest.raises(StoreError):
        write(db)
    away.rename(file)
    write(db)
