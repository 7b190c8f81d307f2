"""A service for tests: a ledger that two reference engines filled, tokens, and clocks that the test moves."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from fastapi.testclient import TestClient

from ledger import config, ingest, wire
from ledger.core.settlement import Terms
from ledger.pricebook import Price
from ledger.reference.replay import replay
from ledger.reference.workload import mixed_day
from ledger.settle import settle
from ledger.store import migrate, prices, terms
from ledger.store.database import Database, connect
from ledger.store.tokens import Scope, add_token
from ledger.web.app import make_app
from ledger.web.service import Service, make_service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ledger.core.records import Batch

START = 1_793_664_000_000_000  # 2026-11-03T00:00:00Z
HOUR = 3_600_000_000


@dataclass
class Clock:
    """Wall time and monotonic seconds, both moved by the test."""

    us: int = START

    def wall(self) -> int:
        return self.us

    def mono(self) -> float:
        return self.us / 1e6


@dataclass
class Served:
    """A service, a client for it, and a token of each kind."""

    service: Service
    client: TestClient
    clock: Clock
    tokens: dict[str, str] = field(default_factory=dict)

    def headers(self, kind: str = "read") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[kind]}"}

    def get(self, path: str, kind: str = "read", **more: object):
        return self.client.get(path, headers=self.headers(kind), **more)


def fill(database: Database, *, minutes: int = 75, start_us: int = START) -> int:
    """Replay the mixed workload through two engines into the ledger and settle; the time at the end."""
    chains: dict[str, bytes] = {}
    last = start_us

    def emit(batch: Batch) -> None:
        nonlocal last
        raw = wire.encode(batch, chains.get(batch.source.engine, b""))
        chains[batch.source.engine] = wire.digest_of(raw)
        outcome = ingest.accept(database, raw, batch.end_us)
        assert outcome.refusal is None, outcome.refusal
        last = max(last, batch.end_us)

    load = mixed_day(7, duration_us=minutes * 60_000_000)
    requests = itertools.islice(load.requests(), 400)
    replay(requests, engines=2, blocks=4096, block_size=load.block_size, start_us=start_us, emit=emit)
    settle(database, until_us=last - last % HOUR, now_us=last)
    return last


def open_books(database: Database) -> None:
    database.write(lambda c: terms.ensure_terms(c, currency="USD", zone_name="UTC", terms=Terms(), now_us=START - HOUR))
    database.write(
        lambda c: prices.add_price(
            c,
            Price(nanos_per_hour=2_950_000_000, valid_from_us=START - START % 15_000_000),
            currency="USD",
            now_us=START,
        )
    )


@pytest.fixture(scope="session")
def filled_books(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A SQLite file with an hour and a quarter of two engines, and the time at its end."""
    path = tmp_path_factory.mktemp("filled") / "books.db"
    database = connect(f"sqlite:///{path}", durable=False)
    migrate.upgrade(database)
    open_books(database)
    last = fill(database)
    database.close()
    return path, last


def serve(path: Path, state: Path, clock: Clock, **settings: str) -> Iterator[Served]:
    given = {"KVLEDGER_STATE_DIR": str(state), "KVLEDGER_DATABASE": f"sqlite:///{path}"}
    given |= {f"KVLEDGER_{name.upper()}": value for name, value in settings.items()}
    database = connect(f"sqlite:///{path}", durable=False)
    service = make_service(config.load(environ=given), database, key=b"k" * 32, clock_us=clock.wall, clock_s=clock.mono)
    kinds = {
        "ingest": (Scope.INGEST, None), "read": (Scope.READ, None), "admin": (Scope.ADMIN, None),
        "acme": (Scope.READ, "acme"),
    }  # fmt: skip
    tokens = {
        kind: database.write(
            lambda c, kind=kind, scope=scope, tenant=tenant, n=number: add_token(
                c, name=kind, scope=scope, tenant=tenant, secret=bytes([n]) * 32, now_us=clock.us
            )
        )
        for number, (kind, (scope, tenant)) in enumerate(kinds.items(), start=1)
    }
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        yield Served(service=service, client=client, clock=clock, tokens=tokens)
    database.close()


@pytest.fixture
def served(filled_books: tuple[Path, int], tmp_path: Path) -> Iterator[Served]:
    """A service on a copy of the filled books, two seconds after their end."""
    path = tmp_path / "books.db"
    shutil.copyfile(filled_books[0], path)
    yield from serve(path, tmp_path, Clock(filled_books[1] + 2_000_000))


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Served]:
    """A service on a ledger that has its terms and nothing else."""
    path = tmp_path / "books.db"
    database = connect(f"sqlite:///{path}", durable=False)
    migrate.upgrade(database)
    open_books(database)
    database.close()
    yield from serve(path, tmp_path, Clock(START + 60_000_000))
