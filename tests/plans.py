"""What a database plans for the statements that some work sends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import event

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.store.database import Database


def plans(db: Database, work: Callable[[], object]) -> list[str]:
    """Run ``work``, then ask for the plan of each SELECT it sent: one text each."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.lstrip().startswith(("SELECT", "WITH")):
            sent.append((statement, parameters))

    event.listen(db.engine, "before_cursor_execute", note)
    try:
        work()
    finally:
        event.remove(db.engine, "before_cursor_execute", note)
    how = "EXPLAIN QUERY PLAN " if db.dialect == "sqlite" else "EXPLAIN "
    with db.engine.connect() as connection:
        return [
            "\n".join(str(row[-1]) for row in connection.exec_driver_sql(how + statement, parameters))
            for statement, parameters in dict.fromkeys((s, _frozen(p)) for s, p in sent)
        ]


def _frozen(parameters: Any) -> Any:
    return tuple(parameters) if isinstance(parameters, list | tuple) else _Named(parameters)


class _Named(dict):
    """Named parameters that can be a key."""

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.items(), key=str)))
