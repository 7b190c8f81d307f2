"""The schema: migrations make what is declared, on both databases, and what is append-only stays so."""

from __future__ import annotations

import re

import pytest
from batches import Life
from sqlalchemy import text

from ledger import wire
from ledger.errors import StoreError
from ledger.limits import DAY_US as DAY
from ledger.store import fact_audit, fact_reads, facts, migrate, sample_tables, scrape_tables, tables
from ledger.store.database import Database, connect


def test_migrations_make_the_declared_schema(db: Database) -> None:
    assert migrate.current(db) == migrate.head()
    assert migrate.check(db) == ()


def test_migrating_twice_changes_nothing(db: Database) -> None:
    assert migrate.upgrade(db) == (migrate.head(), migrate.head())


def test_a_ledger_of_before_hooks_told_of_themselves_is_brought_up_to_date_and_its_digests_hold(tmp_path) -> None:
    db = connect(f"sqlite:///{tmp_path / 'older.db'}")
    migrate.upgrade(db, "0003")
    raw = wire.encode(Life().announce())
    found = wire.decode(raw)
    assert isinstance(found, wire.Decoded)
    batch, digest = found.batch, found.digest.hex()

    def fill(connection) -> None:
        boot, source, at_us = batch.boot, batch.source, batch.start_us
        for table, values in (
            ("sources", f"1, '{source.engine}', 'simulated', '', '', '', 'h1', 'reference 1'"),
            ("boots", f"1, '{source.engine}', '{boot.boot_id}', {boot.anchor_us}, {boot.started_us}, 1"),
            ("batches", f"1, 1, {at_us // DAY}, 1, {at_us}, {at_us}, 0, 0, 1, 0, 0, x'{digest}', x'', x'{digest}'"),
        ):
            connection.exec_driver_sql(f"INSERT INTO {table} VALUES ({values})")

    db.write(fill)
    migrate.upgrade(db)
    with db.read() as connection:
        assert list(fact_audit.fact_breaches(connection)) == []
        (stored,) = fact_reads.stored_batches(connection, fact_reads.boots_of(connection)[0])
    assert stored.batch == batch
    db.close()


def test_sqlite_files_from_migrations_and_from_declarations_have_the_same_text(sqlite_db: Database, tmp_path) -> None:
    declared = connect(f"sqlite:///{tmp_path / 'declared.db'}")
    declared.write(migrate.declared().create_all)

    def schema(db: Database) -> dict[str, list[str]]:
        with db.read() as connection:
            rows = connection.execute(
                text("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'index') AND sql IS NOT NULL")
            )
            return {
                name: sorted(re.sub(r"\s+", " ", part).strip().strip('"') for part in re.split(r"[(),]", sql))
                for name, sql in rows
                if name != "alembic_version"
            }

    try:
        assert schema(sqlite_db) == schema(declared)
    finally:
        declared.close()


def test_large_tables_are_partitioned_by_day_on_postgresql(postgres_url: str) -> None:
    db = connect(postgres_url)
    with db.read() as connection:
        found = set(
            connection.execute(text("SELECT partrelid::regclass::text FROM pg_partitioned_table WHERE partstrat = 'l'"))
            .scalars()
            .all()
        )
    db.close()
    assert found == {table.name for table in (*tables.PARTITIONED, *sample_tables.SAMPLES, *scrape_tables.SCRAPED)}


def test_a_partition_that_is_there_already_is_left_alone(postgres_url: str) -> None:
    first, second = connect(postgres_url), connect(postgres_url)
    day_us = 20_000 * 86_400_000_000
    facts.ensure_day(first, day_us)
    facts.ensure_day(second, day_us + 1)
    assert migrate.check(first) == ()
    first.close()
    second.close()


def test_every_fact_table_refuses_updates(db: Database) -> None:
    facts.ensure_day(db, 0)
    for table in (*tables.APPEND_ONLY, *sample_tables.APPEND_ONLY, *scrape_tables.APPEND_ONLY):
        values = ", ".join(_literal(column, db.dialect) for column in table.columns)
        first = table.columns[0].name

        def update(connection, table=table, values=values, first=first) -> None:
            if db.dialect == "sqlite":
                connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
            else:
                connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.exec_driver_sql(f'INSERT INTO "{table.name}" VALUES ({values})')
            if db.dialect == "postgresql":
                connection.exec_driver_sql("SET LOCAL session_replication_role = origin")
            connection.exec_driver_sql(f'UPDATE "{table.name}" SET "{first}" = "{first}"')

        with pytest.raises(StoreError, match="append-only"):
            db.write(update)


def test_a_partition_refuses_updates_when_addressed_directly(postgres_url: str) -> None:
    db = connect(postgres_url)
    facts.ensure_day(db, 0)

    def update(connection) -> None:
        connection.exec_driver_sql("INSERT INTO standing_counts VALUES (0, 1, 1, 0, 'gpu', 1, 5)")
        connection.exec_driver_sql("UPDATE standing_counts_d0 SET cached_blocks = 6")

    with pytest.raises(StoreError, match="append-only"):
        db.write(update)
    db.close()


def test_every_table_is_either_append_only_or_named_as_one_that_is_not() -> None:
    fact_tables = {table.name for table in tables.metadata.sorted_tables if table.name in _OURS}
    assert fact_tables - {table.name for table in tables.APPEND_ONLY} == {"quarantine", "ingest_counts"}


def test_an_unknown_revision_is_refused_with_the_way_out(db: Database) -> None:
    db.write(lambda connection: connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"9999.*upgrade kvledger itself first"):
        migrate.upgrade(db)


def test_a_database_without_tables_names_the_command_that_makes_them(tmp_path) -> None:
    db = connect(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(StoreError, match="kvledger db upgrade"), db.read() as connection:
        connection.execute(text("SELECT * FROM batches"))
    assert migrate.check(db) == (f"revision is none, newest is {migrate.head()}; run: kvledger db upgrade",)
    db.close()


def _literal(column, dialect: str) -> str:
    kind = str(column.type.compile())
    if kind == "TEXT":
        return "'x'"
    if kind == "BLOB":
        return "x'00'" if dialect == "sqlite" else "'\\x00'"
    return "1" if column.name == "one" else "0"


_OURS = {
    *(table.name for table in (*tables.APPEND_ONLY, tables.quarantine, tables.ingest_counts)),
}
