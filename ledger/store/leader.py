"""Which process of several on one ledger runs the jobs.

Invariant: at most one holds the lock, and it ends with the process however that ends: on PostgreSQL an advisory lock
of a connection that is kept for it, on SQLite the kernel's lock on a file beside the database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from ledger.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ledger.store.database import Database

NAME: Final = "kvledger jobs"


class Leadership:
    """One process's claim. Not thread-safe: one thread asks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._file: int | None = None

    def held(self) -> bool:
        """Whether this process leads, after trying to if nobody does."""
        return self._held_file() if self._database.dialect == "sqlite" else self._held_connection()

    def release(self) -> None:
        """Let another one lead."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            # The server would let go by itself, once it notices that nobody is there any more.
            with contextlib.suppress(SQLAlchemyError):
                self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
                self._connection.invalidate()
                self._connection.close()
            self._connection = None

    def _held_file(self) -> bool:
        if self._file is not None:
            return True
        path = f"{self._database.engine.url.database}.leader"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"{path} cannot be made ({error.strerror}); see that the folder can be written") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        return True

    def _held_connection(self) -> bool:
        try:
            if self._connection is not None:
                self._connection.execute(text("SELECT 1"))
                return True
            connection = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            query = text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))")
            if connection.execute(query, {"name": NAME}).scalar_one():
                self._connection = connection
                return True
            connection.close()
        except SQLAlchemyError:
            # A connection that broke took the lock along; the next attempt asks for it anew.
            self.release()
        return False
