"""The page in a real browser: it draws what the interface says, and executes nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from browser import browse, on_a_socket
from driven import VLLM, Driven
from serving import START, Clock, Served, open_books, serve

from ledger import ingest, wire
from ledger.collectors.fetch import Unfetched, Why
from ledger.core.records import (
    Batch,
    Boot,
    Dimensions,
    Group,
    Holding,
    Origin,
    PoolOpen,
    PoolPeriod,
    SessionPeriod,
    Shard,
    Source,
    StandingCount,
)
from ledger.settle import settle
from ledger.store import migrate
from ledger.store.database import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PERIOD = 15_000_000
HOSTILE = (
    "<img src=x onerror=\"document.title='pwned'\">",
    "<script>document.title='pwned'</script>",
    "\"><svg/onload=document.title='pwned'>",
    "javascript:document.title='pwned'",
    "{{constructor.constructor('document.title=1')()}}",
    "\u202egnp.exe",
    "${document.title='pwned'}",
    "x" * 512,
)
"""Ids that somebody may put into a header."""


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Served]:
    """A ledger whose every id is hostile."""
    path = tmp_path / "books.db"
    database = connect(f"sqlite:///{path}", durable=False)
    migrate.upgrade(database)
    open_books(database)
    engine, n = HOSTILE[0], len(HOSTILE)
    boot = Boot(boot_id=HOSTILE[1], anchor_us=START, started_us=START)
    rows = [
        SessionPeriod(
            pool=HOSTILE[2],
            dims=Dimensions(tenant=tenant, session=HOSTILE[-1 - number], model=HOSTILE[3], scenario=HOSTILE[4]),
            holding=Holding(active_block_us=(number + 1) * PERIOD, held_slot_us=16 * (number + 1) * PERIOD),
            cached_block_us=PERIOD,
            cached_blocks_end=1,
        )
        for number, tenant in enumerate(HOSTILE)
    ]
    active = n * (n + 1) // 2
    batch = Batch(
        source=Source(engine=engine, origin=Origin.SIMULATED, software=HOSTILE[1], host=HOSTILE[6]),
        boot=boot, seq=1, start_us=START, end_us=START + PERIOD,
        opens=(
            PoolOpen(
                pool=HOSTILE[2], at_us=START, blocks=1000, groups=(Group(block_size=16),), model=HOSTILE[3],
                shards=(Shard(gpu_uuid=HOSTILE[0], gpu_model=HOSTILE[1]),),
            ),
        ),
        pools=(
            PoolPeriod(
                pool=HOSTILE[2], blocks=1000, active_block_us=active * PERIOD, cached_block_us=n * PERIOD,
                free_block_us=(1000 - active - n) * PERIOD, held_slot_us=16 * active * PERIOD,
                active_blocks_end=active, cached_blocks_end=n,
            ),
        ),
        sessions=tuple(rows),
        standing=tuple(StandingCount(pool=HOSTILE[2], dims=row.dims, cached_blocks=1) for row in rows),
    )  # fmt: skip
    outcome = ingest.accept(database, wire.encode(batch), START + PERIOD)
    assert outcome.refusal is None, outcome.refusal
    ingest.accept(database, HOSTILE[0].encode(), START + PERIOD)  # refused, and quoted in quarantine
    settle(database, until_us=START, now_us=START + PERIOD)
    database.close()
    yield from serve(path, tmp_path, Clock(START + PERIOD + 2_000_000))


@pytest.fixture
def address(hostile: Served) -> Iterator[str]:
    """The service on a real socket."""
    with on_a_socket(hostile.service) as url:
        yield url


def test_ids_full_of_markup_are_shown_as_they_are_and_executed_by_nobody(
    chromium: str, hostile: Served, address: str, tmp_path: Path
) -> None:
    profile = tmp_path / "profile"
    # The link's token becomes a cookie, and the page is drawn.
    browse(chromium, profile, f"{address}/login#{hostile.tokens['admin']}")
    document = browse(chromium, profile, f"{address}/")
    assert "<title>kvledger</title>" in document
    assert "Bill of 2026-11" in document
    assert "&lt;img src=x onerror=" in document
    assert "&lt;script&gt;document.title=" in document
    assert '<img src="x"' not in document
    assert document.count("<script") == 2
    assert "<svg onload" not in document
    assert hostile.tokens["admin"] not in document


def test_an_engine_that_is_not_known_yet_is_awaited_and_one_that_fails_is_what_is_wrong(
    chromium: str, empty: Served, tmp_path: Path
) -> None:
    driven = Driven(empty, fresh=VLLM)
    driven.live(40)
    with on_a_socket(empty.service) as url:
        browse(chromium, tmp_path / "profile", f"{url}/login#{empty.tokens['admin']}")
        document = browse(chromium, tmp_path / "profile", f"{url}/")
        assert '<span class="state awaited">awaited</span>' in document
        assert "waiting for its first answers" in document
        assert "1 just added and not known yet, every other engine is heard" in document
        assert "not answering" not in document
        assert "· </span>" not in document

        driven.answers["bad"] = Unfetched(Why.UNREACHABLE, "refused")
        driven.add("bad")
        driven.live(40)
        empty.service.kept.forget()
        document = browse(chromium, tmp_path / "profile", f"{url}/")
        assert '<span class="state silent">silent</span>' in document
        assert "scraped, and cannot be read: bad (refused)" in document
        assert "engine is heard" not in document


def test_a_page_without_a_login_leads_to_the_login(chromium: str, address: str, tmp_path: Path) -> None:
    assert 'id="token"' in browse(chromium, tmp_path / "profile", f"{address}/")


def test_the_description_of_the_interface_is_drawn_without_any_foreign_file(
    chromium: str, address: str, tmp_path: Path
) -> None:
    document = browse(chromium, tmp_path / "profile", f"{address}/docs")
    for path in ("/v1/usage", "/v1/batches", "/v1/statements/{of_month}"):
        assert f"<code>{path}</code>" in document
