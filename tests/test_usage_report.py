"""Usage by tenant, session, request, model and pool: every drill-down sums to its parent, settled or not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from batches import T0, Life
from booking import HOUR, MINUTE, A, B, book, change_price, deliver, give_asset, open_ledger, request, stretch
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.records import PERIOD_US, Dimensions
from ledger.errors import UsageError
from ledger.limits import SILENCE_US_MAX
from ledger.reports.usage import FIGURES, KEYS, By, columns, usage
from ledger.store.database import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ledger.reports.usage_rows import UsageRow
    from ledger.store.database import Database

END = T0 + 80 * MINUTE
OTHER = Dimensions(tenant="A", session="a2", model="n")


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Database]:
    """Eighty minutes on two engines, a price that changes, three requests; the first hour is settled."""
    path = tmp_path_factory.mktemp("usage") / "books.db"
    path.write_bytes(sqlite_template.read_bytes())
    db = connect(f"sqlite:///{path}", durable=False)
    open_ledger(db, kv_share_ppm=600_000)
    for engine, asset in (("engine-a", "gpu-0"), ("engine-b", "gpu-1")):
        give_asset(db, asset, engine, 3_599_999_999, from_us=T0, to_us=T0 + 2 * HOUR)
        change_price(db, asset, 5_000_000_001, T0 + 20 * MINUTE)
        life = Life(engine=engine)
        held = {A: (300, 0), B: (150, 77), OTHER: (3, 0)}
        batches = list(stretch(life, END, held, opens=True, closes=True))
        per_period = dict.fromkeys(range(T0 + 15 * MINUTE, T0 + 70 * MINUTE, PERIOD_US), (7 * PERIOD_US, 11))
        over_the_change = request("r1", A, per_period, ended_us=T0 + 70 * MINUTE, prompt=100)
        short = request("r2", A, {T0 + MINUTE: (PERIOD_US, 5)}, ended_us=T0 + MINUTE + 9)
        whole = request(
            "r3", OTHER, dict.fromkeys((b.start_us for b in batches), (3 * PERIOD_US, 3_000)), ended_us=END, prompt=20
        )
        batches[4] = replace(batches[4], requests=(short,))
        batches[280] = replace(batches[280], requests=(over_the_change,))
        batches[-1] = replace(batches[-1], requests=(whole,))
        deliver(db, life, batches)
    assert book(db, until_us=T0 + HOUR).booked
    yield db
    db.close()


def total(rows: tuple[UsageRow, ...], name: str) -> int:
    return sum(getattr(row, name) or 0 for row in rows)


def test_every_way_of_looking_at_a_range_sums_to_the_same(used: Database) -> None:
    looks = {by: usage(used, start_us=T0, end_us=END, by=by) for by in By}
    for name in FIGURES:
        assert len({total(rows, name) for rows in looks.values()}) == 1, name
    assert total(looks[By.TENANT], "active_nanos") > 0
    assert total(looks[By.TENANT], "compute_nanos") > 0


@given(cuts=st.lists(st.integers(0, 80 * 4), min_size=2, max_size=2, unique=True))
@settings(max_examples=8, deadline=None)
def test_requests_sum_to_their_session_wherever_the_range_is_cut(used: Database, cuts: list[int]) -> None:
    start_us, end_us = (T0 + cut * PERIOD_US for cut in sorted(cuts))
    sessions = usage(used, start_us=start_us, end_us=end_us, by=By.SESSION)
    requests = usage(used, start_us=start_us, end_us=end_us, by=By.REQUEST)
    tenants = usage(used, start_us=start_us, end_us=end_us, by=By.TENANT)
    for session in sessions:
        own = tuple(row for row in requests if (row.tenant, row.session) == (session.tenant, session.session))
        for name in FIGURES:
            assert total(own, name) == getattr(session, name), name
        assert all((getattr(row, name) or 0) >= 0 for row in own for name in ("active_nanos", "active_block_us"))
        assert len([row for row in own if row.request is None]) <= 1
    for tenant in tenants:
        own = tuple(row for row in sessions if row.tenant == tenant.tenant)
        for name in FIGURES:
            assert total(own, name) == getattr(tenant, name), name


def test_two_halves_of_a_range_sum_to_it_in_all_but_single_nanos(used: Database) -> None:
    whole = usage(used, start_us=T0, end_us=END)
    halves = [usage(used, start_us=T0, end_us=T0 + 33 * MINUTE), usage(used, start_us=T0 + 33 * MINUTE, end_us=END)]
    for name in FIGURES:
        off = total(whole, name) - sum(total(half, name) for half in halves)
        assert abs(off) <= (8 if name.endswith(("nanos", "milliunits")) else 0), name


def test_a_request_costs_what_its_blocks_cost_in_each_segment(used: Database) -> None:
    (row,) = [
        row
        for row in usage(used, start_us=T0, end_us=T0 + HOUR, by=By.REQUEST)
        if row.request == "r1" and row.engine == "engine-a"
    ]
    # 7 of 1000 blocks for 5 minutes at the first price and 40 at the second, six tenths of it by blocks.
    exact = (3_599_999_999 * 5 + 5_000_000_001 * 40) / 60 * 7 / 1000 * 0.6
    assert row.active_nanos == pytest.approx(exact, abs=2)
    assert row.computed_tokens is None, "the range cuts the request: its tokens are in the session's residual row"


def test_a_request_within_the_range_has_its_tokens(used: Database) -> None:
    rows = usage(used, start_us=T0, end_us=END, by=By.REQUEST)
    assert {row.computed_tokens for row in rows if row.request == "r1"} == {100}
    assert {row.computed_tokens for row in rows if row.request == "r2"} == {10}


def test_a_request_that_nobody_answered_for_is_lost_and_has_no_figures(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    life = Life()
    opened = life.period({A: (3, 0)}, opens=True, standing=True, admits=["gone"])
    deliver(sqlite_db, life, [opened])

    def rows(now_us: int) -> list[UsageRow]:
        return [
            row
            for row in usage(sqlite_db, start_us=T0, end_us=T0 + PERIOD_US, by=By.REQUEST, now_us=now_us)
            if row.request is not None
        ]

    assert rows(opened.end_us) == []
    (lost,) = rows(opened.end_us + SILENCE_US_MAX)
    assert (lost.request, lost.outcome) == ("gone", "lost")
    assert all(getattr(lost, name) is None for name in FIGURES)


def test_a_pool_shows_what_was_free_and_its_capacity(used: Database) -> None:
    for row in usage(used, start_us=T0, end_us=END, by=By.POOL):
        assert row.capacity_block_us == 1000 * 80 * MINUTE
        assert row.active_block_us is not None
        assert row.cached_block_us is not None
        assert row.free_block_us == row.capacity_block_us - row.active_block_us - row.cached_block_us


def test_the_columns_are_those_that_are_documented() -> None:
    assert columns(By.TENANT)[:10] == (
        "tenant",
        "active_block_us",
        "cached_block_us",
        "cached_charged_block_us",
        "unfilled_slot_us",
        "compute_us",
        "weighted_milliunits",
        "active_nanos",
        "cached_nanos",
        "compute_nanos",
    )
    assert columns(By.POOL)[-2:] == ("free_block_us", "capacity_block_us")
    assert all(KEYS[by] == columns(by)[: len(KEYS[by])] for by in By)


@pytest.mark.parametrize("ends", [(0, 1), (1, PERIOD_US)])
def test_a_range_off_the_grid_is_refused_since_no_period_can_be_cut(sqlite_db: Database, ends: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="off the 15-second grid"):
        usage(sqlite_db, start_us=T0 + ends[0], end_us=T0 + ends[1])


def test_a_range_without_length_is_refused(sqlite_db: Database) -> None:
    with pytest.raises(UsageError, match="no length"):
        usage(sqlite_db, start_us=T0, end_us=T0)
