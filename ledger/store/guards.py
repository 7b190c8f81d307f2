"""Triggers that refuse changes to what is append-only, on both databases.

PostgreSQL: row triggers on a partitioned table reach each of its partitions, also those attached later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FUNCTION = "kvledger_refuse_change"
MESSAGE = "is append-only"


def create_function(dialect: str) -> Iterable[str]:
    """DDL to run once before :func:`create_guard`: the trigger function of PostgreSQL; nothing on SQLite."""
    if dialect == "postgresql":
        yield (
            f"CREATE OR REPLACE FUNCTION {FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"RAISE EXCEPTION '% {MESSAGE}: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation'; "
            "END $$"
        )


def drop_function(dialect: str) -> Iterable[str]:
    """DDL that undoes :func:`create_function`."""
    if dialect == "postgresql":
        yield f"DROP FUNCTION IF EXISTS {FUNCTION}()"


def create_guard(dialect: str, table: str, *, update: bool = True, delete: bool = False) -> Iterable[str]:
    """DDL that makes ``table`` refuse UPDATE and, where asked, DELETE (TRUNCATE too, on PostgreSQL)."""
    operations = [name for name, wanted in (("UPDATE", update), ("DELETE", delete)) if wanted]
    for operation in operations:
        name = f"{table}_no_{operation.lower()}"
        if dialect == "sqlite":
            yield (
                f"CREATE TRIGGER {name} BEFORE {operation} ON {table} BEGIN "
                f"SELECT RAISE(ABORT, '{table} {MESSAGE}: {operation} refused'); END"
            )
        else:
            yield (f"CREATE TRIGGER {name} BEFORE {operation} ON {table} FOR EACH ROW EXECUTE FUNCTION {FUNCTION}()")
    if delete and dialect == "postgresql":
        yield (
            f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {FUNCTION}()"
        )
