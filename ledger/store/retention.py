"""Facts are deleted by age, and by nothing else.

Invariant: a batch goes whole, its key not after its rows, so that no reader meets a part of one. On SQLite
both go in one bounded transaction. On PostgreSQL the keys of a day go first and its partitions are dropped
after them, one table at a time, so that nobody who reads several can be locked in a ring; a run that was cut
short is finished by the next.
What a boot's pools are (opens, closes, shards) stays until the last batch of the boot is gone: a pool that was
opened before the retention may still be running. Boots, sources and dimension sets stay for good.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from ledger import limits
from ledger.store import tables
from ledger.store.fact_rows import day_of

if TYPE_CHECKING:
    from ledger.store.database import Connection, Database


def delete_old_facts(db: Database, now_us: int) -> int:
    """Delete the facts of every day that ended ``retention_days`` ago or longer; how many batches went."""
    first_kept = day_of(now_us - db.retention_days * limits.DAY_US)
    gone = 0
    if db.dialect == "postgresql":
        gone = db.write(lambda connection: _delete_keys(connection, first_kept))
        for name in _old_partitions(db, first_kept):
            db.write(partial(_drop, name=name))
        db.known.pop("days", None)
    else:
        while deleted := db.write(lambda connection: _delete_some(connection, first_kept)):
            gone += deleted
    db.write(_delete_what_ended)
    db.write(
        lambda connection: connection.execute(
            text("DELETE FROM quarantine WHERE received_us < :first_kept"),
            {"first_kept": first_kept * limits.DAY_US},
        )
    )
    return gone


def _delete_keys(connection: Connection, first_kept: int) -> int:
    connection.execute(
        text(
            "DELETE FROM lost_periods WHERE EXISTS (SELECT 1 FROM batches b WHERE b.boot = lost_periods.boot "
            "AND b.seq = lost_periods.seq AND b.day < :first_kept)"
        ),
        {"first_kept": first_kept},
    )
    deleted = connection.execute(text("DELETE FROM batches WHERE day < :first_kept"), {"first_kept": first_kept})
    return int(deleted.rowcount)


def _old_partitions(db: Database, first_kept: int) -> list[str]:
    found = []
    with db.read() as connection:
        for table in tables.PARTITIONED:
            names = connection.execute(
                text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass(:parent)"),
                {"parent": table.name},
            ).scalars()
            for name in names:
                day = re.search(r"_d(\d+)$", name)
                if day is not None and int(day[1]) < first_kept:
                    found.append(name)
    return sorted(found)


def _drop(connection: Connection, *, name: str) -> None:
    connection.exec_driver_sql(f'DROP TABLE IF EXISTS "{name}"')


def _delete_some(connection: Connection, first_kept: int) -> int:
    """Delete a run of batches of one boot and day with at most ``DELETE_ROWS_MAX`` rows (or one batch)."""
    oldest = connection.execute(
        text("SELECT day, boot FROM batches WHERE day < :first_kept ORDER BY day, boot, seq LIMIT 1"),
        {"first_kept": first_kept},
    ).one_or_none()
    if oldest is None:
        return 0
    key: dict[str, Any] = {"day": oldest[0], "boot": oldest[1]}
    seqs = (
        connection.execute(
            text("SELECT seq FROM batches WHERE day = :day AND boot = :boot ORDER BY seq LIMIT 256"), key
        )
        .scalars()
        .all()
    )
    number = len(seqs)
    while True:
        key |= {"first": seqs[0], "last": seqs[number - 1]}
        if number == 1 or _rows_in(connection, key) <= limits.DELETE_ROWS_MAX:
            break
        number = (number + 1) // 2
    for table in (*tables.PARTITIONED, tables.batches):
        connection.execute(
            text(
                f"DELETE FROM {table.name} WHERE day = :day AND boot = :boot AND seq BETWEEN :first AND :last"  # noqa: S608
            ),
            key,
        )
    connection.execute(
        text("DELETE FROM lost_periods WHERE boot = :boot AND seq BETWEEN :first AND :last"),
        {name: key[name] for name in ("boot", "first", "last")},
    )
    return number


def _rows_in(connection: Connection, key: dict[str, Any]) -> int:
    counts = " + ".join(
        f"(SELECT count(*) FROM {table.name} WHERE day = :day AND boot = :boot AND seq BETWEEN :first AND :last)"  # noqa: S608
        for table in tables.PARTITIONED
    )
    return int(connection.execute(text(f"SELECT {counts}"), key).scalar_one())


def _delete_what_ended(connection: Connection) -> None:
    for table in tables.OF_BOOTS:
        connection.execute(
            text(
                f"DELETE FROM {table.name} WHERE NOT EXISTS "  # noqa: S608
                f"(SELECT 1 FROM batches b WHERE b.boot = {table.name}.boot)"
            )
        )
