"""Rows that answer for themselves: the digest of a row, and the writing of one that carries it.

Invariant: a digest covers the table's name and every other column of the row, in the order of the columns,
as canonical JSON; so a number that changes by one, or a row put into another table, no longer fits.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table, func, select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import RowMapping

Value = int | str | None


def canonical(value: object) -> str:
    """JSON with sorted keys and no spaces: one text for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256(text: str) -> str:
    """Hexadecimal SHA-256 of the text's UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def row_digest(table: Table, row: Mapping[str, Any] | RowMapping, *, below: Sequence[Sequence[Value]] = ()) -> str:
    """The digest of a row (its own ``digest`` apart) and of the rows ``below`` it that it answers for."""
    own = [row[column.name] for column in table.columns if column.name != "digest"]
    return sha256(canonical([table.name, own, [list(values) for values in below]]))


def append(connection: Connection, table: Table, values: Mapping[str, Value]) -> int:
    """Add a row with the next id and its digest; the id."""
    # Numbered by hand, since the digest covers the number; a writer that was faster makes the key collide.
    number = int(connection.execute(select(func.coalesce(func.max(table.c.id), 0))).scalar_one()) + 1
    row = {"id": number, **values}
    connection.execute(table.insert().values(**row, digest=row_digest(table, row)))
    return number
