"""The schema's versions: bring a database up to date, say where it stands, compare it with what is declared.

The migrations lie beside the package in a checkout and inside it (``ledger/migrations``) once installed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError

import ledger
from ledger.errors import StoreError
from ledger.store import tables
from ledger.store.database import Database, lock

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData

_PARTITION: Final = re.compile(r"_d\d+$")


def upgrade(db: Database, revision: str = "head") -> tuple[str | None, str]:
    """Migrate to ``revision``, in one transaction; the revisions before and after come back."""
    before = current(db)
    known = {script.revision for script in _scripts().walk_revisions()}
    if before is not None and before not in known:
        raise StoreError(
            f"the database has revision {before}, which this version ({ledger.__version__}) does not know; "
            "upgrade kvledger itself first"
        )

    def work(connection: Connection) -> None:
        lock(connection, "migrations")
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    try:
        db.write(work)
    except CommandError as error:
        raise StoreError(f"cannot migrate to {revision!r}: {error}") from error
    after = current(db)
    assert after is not None, "a migration that succeeded leaves a revision"
    return before, after


def current(db: Database) -> str | None:
    """The revision of the database; None where nothing was ever migrated."""
    with db.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def head() -> str:
    """The newest revision that this version knows."""
    found = _scripts().get_current_head()
    assert found is not None, "there are migrations"
    return found


def check(db: Database) -> tuple[str, ...]:
    """Every difference between the database and the declared schema, one sentence each; empty is good."""
    at, newest = current(db), head()
    if at != newest:
        return (f"revision is {at or 'none'}, newest is {newest}; run: kvledger db upgrade",)
    with db.read() as connection:
        context = MigrationContext.configure(connection, opts=configured(connection))
        return tuple(str(difference) for difference in compare_metadata(context, declared()))


def declared() -> MetaData:
    """The metadata of every table that the store declares."""
    import ledger.store.book_tables  # noqa: PLC0415 - imported for its tables
    import ledger.store.sample_tables  # noqa: PLC0415
    import ledger.store.scrape_tables  # noqa: PLC0415
    import ledger.store.tokens  # noqa: F401, PLC0415 - and this for its own

    return tables.metadata


def configured(connection: Connection) -> dict[str, Any]:
    """Options of Alembic that env.py and :func:`check` share."""

    def include(name: str | None, kind: str, _parents: object) -> bool:
        return not (kind == "table" and name is not None and _PARTITION.search(name))

    return {
        "include_name": include,
        "compare_type": True,
        "transaction_per_migration": False,
        "render_as_batch": connection.dialect.name == "sqlite",
    }


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_location()).replace("%", "%%"))
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _location() -> Path:
    package = Path(ledger.__file__).parent
    for folder in (package / "migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise StoreError(f"no migrations in {package} nor beside it; install kvledger again")
