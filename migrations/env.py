"""What Alembic runs. The connection comes from ledger.store.migrate, or from KVLEDGER_DATABASE on its own."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection  # noqa: TC002 - a signature that people read here

from ledger.store.database import connect
from ledger.store.migrate import configured, declared


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=declared(), **configured(connection))
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    url = os.environ.get("KVLEDGER_DATABASE", "sqlite:///kvledger.db")
    connect(url).write(run)
