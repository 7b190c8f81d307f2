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
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from ledger import limits
from ledger.store import sample_tables, scrape_tables, tables
from ledger.store.fact_rows import day_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Table

    from ledger.store.database import Connection, Database

_KINDS: Final[tuple[tuple[Table, Sequence[Table]], ...]] = (
    (tables.batches, tables.PARTITIONED),
    (sample_tables.agent_batches, sample_tables.SAMPLES),
    (scrape_tables.scrape_rounds, scrape_tables.SCRAPED),
)
"""Keys of batches and the tables of their rows: what engines sent, what agents did, and what was scraped."""


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
        for keys, rows in _KINDS:
            while deleted := db.write(partial(_delete_some, first_kept=first_kept, keys=keys, rows=rows)):
                gone += deleted
    db.write(_delete_what_ended)
    hours = scrape_tables.scraped_hours
    db.write(lambda c: c.execute(hours.delete().where(hours.c.start_us < first_kept * limits.DAY_US)))
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
    return sum(int(connection.execute(keys.delete().where(keys.c.day < first_kept)).rowcount) for keys, _ in _KINDS)


def _old_partitions(db: Database, first_kept: int) -> list[str]:
    found = []
    with db.read() as connection:
        for table in (table for _, rows in _KINDS for table in rows):
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


def _delete_some(connection: Connection, *, first_kept: int, keys: Table, rows: Sequence[Table]) -> int:
    """Delete a run of batches of one boot and day with at most ``DELETE_ROWS_MAX`` rows (or one batch)."""
    oldest = connection.execute(
        text(f"SELECT day, boot FROM {keys.name} WHERE day < :first_kept ORDER BY day, boot, seq LIMIT 1"),  # noqa: S608
        {"first_kept": first_kept},
    ).one_or_none()
    if oldest is None:
        return 0
    key: dict[str, Any] = {"day": oldest[0], "boot": oldest[1]}
    seqs = (
        connection.execute(
            text(f"SELECT seq FROM {keys.name} WHERE day = :day AND boot = :boot ORDER BY seq LIMIT 256"),  # noqa: S608
            key,
        )
        .scalars()
        .all()
    )
    number = len(seqs)
    while True:
        key |= {"first": seqs[0], "last": seqs[number - 1]}
        if number == 1 or _rows_in(connection, key, rows) <= limits.DELETE_ROWS_MAX:
            break
        number = (number + 1) // 2
    for table in (*rows, keys):
        connection.execute(
            text(
                f"DELETE FROM {table.name} WHERE day = :day AND boot = :boot AND seq BETWEEN :first AND :last"  # noqa: S608
            ),
            key,
        )
    if keys is tables.batches:
        connection.execute(
            text("DELETE FROM lost_periods WHERE boot = :boot AND seq BETWEEN :first AND :last"),
            {name: key[name] for name in ("boot", "first", "last")},
        )
    return number


def _rows_in(connection: Connection, key: dict[str, Any], rows: Sequence[Table]) -> int:
    counts = " + ".join(
        f"(SELECT count(*) FROM {table.name} WHERE day = :day AND boot = :boot AND seq BETWEEN :first AND :last)"  # noqa: S608
        for table in rows
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
