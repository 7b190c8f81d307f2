"""Kill a child process at the n-th thing that it does to a database: each statement, copy, begin and commit.

``os._exit`` runs no cleanup, so what a crash leaves is what is found. Points are counted before *and* after
each step, so "committed, but nobody was told" is among them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from ledger.store import facts
from ledger.store.database import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.store.database import Database

KILLED = 137


def run_killed_at(
    point: int, url: str, work: Callable[[Database, Callable[[str], None]], None]
) -> tuple[bool, list[str]]:
    """Run ``work(db, acknowledge)`` in a child that dies at ``point`` (from 1).

    Returns whether it was killed (False: it came to its end before), and what it had acknowledged until then.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            db = connect(url, durable=False)
            _arm(db, point)
            work(db, lambda word: os.write(writer, f"{word}\n".encode()) and None)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as heard:
        acknowledged = heard.read().split()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED), f"the child failed by itself (exit code {code})"
    return code == KILLED, acknowledged


def _arm(db: Database, point: int) -> None:
    left = point

    def step(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os._exit(KILLED)

    event.listen(db.engine, "before_cursor_execute", step)
    event.listen(db.engine, "after_cursor_execute", step)
    event.listen(db.engine, "begin", step)
    dialect: Any = db.engine.dialect
    commit = dialect.do_commit

    def do_commit(connection: Any) -> None:
        step()
        commit(connection)
        step()

    dialect.do_commit = do_commit
    for name in ("write_rows", "write_few"):
        setattr(facts, name, _stepped(getattr(facts, name), step))


def _stepped(write: Any, step: Any) -> Any:
    def stepped(*args: Any) -> None:
        step()
        write(*args)
        step()

    return stepped
