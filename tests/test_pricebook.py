"""What an asset costs and who has it: rules by precedence, stays by sights, shares that never pass the whole."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from batches import T0
from booking import DAY, HOUR, LATE, MINUTE, open_ledger
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.pricing import asset_segments
from ledger.errors import UsageError
from ledger.pricebook import WHOLE_PPM, Asset, Assignment, Price, PriceBook, Sight, unassigned
from ledger.store import prices
from ledger.store.prices import Tenant

if TYPE_CHECKING:
    from ledger.store.database import Database

GPU = Asset(asset_id="gpu-0", model="H200", uuid="GPU-0", cluster="east", capacity_type="spot", valid_from_us=T0)


def nanos(book: PriceBook, start_us: int = T0, end_us: int = T0 + HOUR) -> list[int | None]:
    (terms,) = book.terms(start_us, end_us)
    return [span.nanos_per_hour for span in terms.prices]


def sight(engine: str, start_us: int, end_us: int, **more: object) -> Sight:
    return Sight(engine=engine, gpu_uuid="GPU-0", gpu_model="H200", start_us=start_us, end_us=end_us, **more)  # type: ignore[arg-type]


# --- prices ---------------------------------------------------------------------------------------------


def test_the_assets_own_price_beats_rules_and_a_narrow_rule_a_wide_one() -> None:
    rules = [
        Price(price_id=1, nanos_per_hour=1, valid_from_us=T0),
        Price(price_id=2, capacity_type="spot", nanos_per_hour=2, valid_from_us=T0),
        Price(price_id=3, cluster="east", nanos_per_hour=3, valid_from_us=T0),
        Price(price_id=4, model="H200", nanos_per_hour=4, valid_from_us=T0),
        Price(price_id=5, model="H200", cluster="east", nanos_per_hour=5, valid_from_us=T0),
        Price(price_id=6, asset_id="gpu-0", nanos_per_hour=6, valid_from_us=T0),
        Price(price_id=7, model="A100", nanos_per_hour=7, valid_from_us=T0),
    ]
    for count in range(1, 7):
        assert nanos(PriceBook(assets=(GPU,), prices=(*rules[:count], rules[6]))) == [count]


def test_a_later_price_takes_over_from_its_validity_on_and_gives_way_at_its_end() -> None:
    book = PriceBook(
        assets=(GPU,),
        prices=(
            Price(price_id=1, nanos_per_hour=10, valid_from_us=T0 - DAY),
            Price(price_id=2, nanos_per_hour=20, valid_from_us=T0 + 15 * MINUTE, valid_to_us=T0 + 30 * MINUTE),
        ),
    )
    assert nanos(book) == [10, 20, 10]


def test_a_price_for_a_while_moves_no_nano_unit_outside_it() -> None:
    always = Price(price_id=1, asset_id="gpu-0", nanos_per_hour=1_234_567_891, valid_from_us=T0 - DAY)
    while_ = Price(
        price_id=2, asset_id="gpu-0", nanos_per_hour=7, valid_from_us=T0 + 15 * MINUTE, valid_to_us=T0 + 17 * MINUTE
    )
    before, after = PriceBook(assets=(GPU,), prices=(always,)), PriceBook(assets=(GPU,), prices=(always, while_))

    def bills(book: PriceBook, start_us: int, end_us: int) -> list[int]:
        (terms,) = book.terms(start_us, end_us)
        return [
            segment.nanos(None, at, at + MINUTE)
            for segment in asset_segments(terms, start_us, end_us)
            for at in range(segment.start_us, segment.end_us, MINUTE)
        ]

    first, second = bills(before, T0, T0 + HOUR), bills(after, T0, T0 + HOUR)
    assert [minute for minute in range(60) if first[minute] != second[minute]] == [15, 16]
    assert bills(before, T0 + HOUR, T0 + 2 * HOUR) == bills(after, T0 + HOUR, T0 + 2 * HOUR)


def test_an_asset_without_a_price_is_covered_and_unpriced() -> None:
    assert nanos(PriceBook(assets=(GPU,))) == [None]


def test_what_lies_outside_an_interval_leaves_its_terms_alone() -> None:
    first = Price(price_id=1, nanos_per_hour=10, valid_from_us=T0)
    later = Price(price_id=2, nanos_per_hour=20, valid_from_us=T0 + 2 * HOUR)
    shares = (Assignment(asset_id="gpu-0", engine="e", valid_from_us=T0),)
    before = PriceBook(assets=(GPU,), prices=(first,), assignments=shares).terms(T0, T0 + HOUR)
    retired = Asset(**{**{n: getattr(GPU, n) for n in Asset.__slots__}, "valid_to_us": T0 + 3 * HOUR})
    ended = (Assignment(asset_id="gpu-0", engine="e", valid_from_us=T0, valid_to_us=T0 + HOUR),)
    assert PriceBook(assets=(retired,), prices=(first, later), assignments=ended).terms(T0, T0 + HOUR) == before


@given(cuts=st.lists(st.integers(1, 239), max_size=6), rates=st.lists(st.integers(0, 10**10), min_size=3, max_size=3))
def test_any_partition_of_a_stay_sums_to_its_whole_bill(cuts: list[int], rates: list[int]) -> None:
    rows = tuple(
        Price(price_id=i, nanos_per_hour=rate, valid_from_us=T0 + i * 37 * 15_000_000) for i, rate in enumerate(rates)
    )
    book = PriceBook(assets=(GPU,), prices=rows)

    def bill(start_us: int, end_us: int) -> int:
        return sum(
            part.nanos(None, part.start_us, part.end_us)
            for terms in book.terms(start_us, end_us)
            for part in asset_segments(terms, start_us, end_us)
        )

    edges = [T0, *(T0 + cut * 15_000_000 for cut in sorted(set(cuts))), T0 + HOUR]
    assert sum(bill(a, b) for a, b in itertools.pairwise(edges)) == bill(T0, T0 + HOUR)


# --- stays ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap_us", "stays"), [(15 * MINUTE, 1), (15 * MINUTE + 15_000_000, 2)])
def test_sights_at_most_fifteen_minutes_apart_are_one_stay(gap_us: int, stays: int) -> None:
    seen = (sight("e", T0, T0 + MINUTE), sight("e", T0 + MINUTE + gap_us, T0 + 2 * MINUTE + gap_us))
    book = PriceBook(sights=seen)
    assert len([asset for asset in book.all_assets() if asset.discovered]) == stays


def test_a_gpu_that_is_registered_is_not_discovered_beside_it() -> None:
    registered = Asset(asset_id="gpu-0", uuid="GPU-0", valid_from_us=T0 + MINUTE)
    book = PriceBook(assets=(registered,), sights=(sight("e", T0, T0 + 2 * MINUTE),))
    assert [(a.asset_id, a.valid_from_us, a.valid_to_us) for a in book.all_assets()] == [
        ("GPU-0", T0, T0 + MINUTE),
        ("gpu-0", T0 + MINUTE, None),
    ]


# --- shares ---------------------------------------------------------------------------------------------


def shares(*seen: Sight, stated: tuple[Assignment, ...] = ()) -> list[tuple[str, int]]:
    (terms,) = PriceBook(assets=(GPU,), sights=seen, assignments=stated).terms(T0, T0 + MINUTE)
    return [(span.engine, span.share_ppm) for span in terms.shares]


def test_engines_that_see_one_asset_without_a_stated_share_have_it_equally() -> None:
    seen = [sight(name, T0, T0 + HOUR) for name in ("a", "b", "c")]
    assert shares(*seen) == [("a", 333_334), ("b", 333_333), ("c", 333_333)]


def test_four_quarters_are_one_gpu() -> None:
    seen = [sight(f"mig-{n}", T0, T0 + HOUR, share_ppm=250_000) for n in range(4)]
    assert sum(share for _, share in shares(*seen)) == WHOLE_PPM
    (terms,) = PriceBook(assets=(GPU,), sights=tuple(seen)).terms(T0, T0 + MINUTE)
    assert not unassigned(terms, T0, T0 + MINUTE)


def test_an_assignment_by_word_comes_before_what_was_seen() -> None:
    stated = (Assignment(asset_id="gpu-0", engine="a", share_ppm=700_000, valid_from_us=T0),)
    seen = (sight("a", T0, T0 + HOUR, share_ppm=250_000), sight("b", T0, T0 + HOUR))
    assert shares(*seen, stated=stated) == [("a", 700_000), ("b", 300_000)]


def test_a_crashed_engine_has_its_gpu_for_fifteen_minutes_more() -> None:
    (terms,) = PriceBook(assets=(GPU,), sights=(sight("a", T0, T0 + MINUTE, tail_us=15 * MINUTE),)).terms(T0, T0 + HOUR)
    assert [(s.valid_from_us, s.valid_to_us) for s in terms.shares] == [(T0, T0 + 16 * MINUTE)]
    assert unassigned(terms, T0, T0 + HOUR)


claims = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.one_of(st.none(), st.integers(1, WHOLE_PPM)),
        st.integers(0, 20),
        st.integers(1, 20),
        st.booleans(),
    ),
    max_size=8,
)


@given(claims=claims)
def test_shares_never_pass_the_whole_whatever_was_said_and_seen(claims: list[tuple]) -> None:
    said = tuple(
        Assignment(
            asset_id="gpu-0",
            engine=e,
            share_ppm=ppm or 1,
            valid_from_us=T0 + a * MINUTE,
            valid_to_us=T0 + (a + n) * MINUTE,
        )
        for e, ppm, a, n, stated in claims
        if stated
    )
    seen = tuple(
        sight(e, T0 + a * MINUTE, T0 + (a + n) * MINUTE, share_ppm=ppm) for e, ppm, a, n, stated in claims if not stated
    )
    for terms in PriceBook(assets=(GPU,), assignments=said, sights=seen).terms(T0, T0 + HOUR):
        for at_us in {share.valid_from_us for share in terms.shares}:
            held = [s for s in terms.shares if s.valid_from_us <= at_us and at_us < (s.valid_to_us or T0 + HOUR)]
            assert sum(share.share_ppm for share in held) <= 1_000_000
            assert len({share.engine for share in held}) == len(held)
            assert all(share.share_ppm > 0 for share in held)


# --- rows -----------------------------------------------------------------------------------------------


def test_stated_shares_above_the_whole_are_refused(sqlite_db: Database) -> None:
    half = Assignment(asset_id="gpu-0", engine="a", share_ppm=600_000, valid_from_us=T0)
    more = Assignment(asset_id="gpu-0", engine="b", share_ppm=600_000, valid_from_us=T0 + HOUR)
    sqlite_db.write(lambda connection: prices.assign(connection, half, now_us=T0))
    with pytest.raises(UsageError, match="1200000 millionths at 2026-11-03T01:00:00Z"):
        sqlite_db.write(lambda connection: prices.assign(connection, more, now_us=T0))
    sqlite_db.write(lambda connection: prices.end_assignment(connection, "gpu-0", "a", T0 + HOUR, now_us=T0))
    assert sqlite_db.write(lambda connection: prices.assign(connection, more, now_us=T0))


def test_saying_the_same_twice_writes_one_row(sqlite_db: Database) -> None:
    def say(connection) -> list[bool]:
        return [
            prices.add_asset(connection, GPU, now_us=T0),
            prices.add_price(connection, Price(nanos_per_hour=1, valid_from_us=T0), currency="USD", now_us=T0),
            prices.assign(connection, Assignment(asset_id="gpu-0", engine="e", valid_from_us=T0), now_us=T0),
            prices.add_tenant(connection, Tenant(tenant="A", labels={"team": "x"}), now_us=T0),
        ]

    assert sqlite_db.write(say) == [True] * 4
    assert sqlite_db.write(say) == [False] * 4


def test_a_superseded_price_does_not_count(sqlite_db: Database) -> None:
    def work(connection) -> None:
        prices.add_price(connection, Price(nanos_per_hour=1, valid_from_us=T0), currency="USD", now_us=T0)
        gone = Price(nanos_per_hour=1, valid_from_us=T0, valid_to_us=T0)
        prices.add_price(connection, gone, currency="USD", now_us=LATE, supersedes=1)
        prices.add_asset(connection, GPU, now_us=T0)

    sqlite_db.write(work)
    with sqlite_db.read() as connection:
        book = PriceBook(assets=prices.list_assets(connection), prices=prices.list_prices(connection))
    assert nanos(book) == [None]


def test_validity_off_the_grid_and_a_foreign_currency_are_refused(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    price = Price(nanos_per_hour=1, valid_from_us=T0 + 1)
    with pytest.raises(UsageError, match="15-second grid"):
        sqlite_db.write(lambda connection: prices.add_price(connection, price, currency="USD", now_us=T0))
    price = Price(nanos_per_hour=1, valid_from_us=T0)
    with pytest.raises(UsageError, match="USD and a price in EUR"):
        sqlite_db.write(lambda connection: prices.add_price(connection, price, currency="EUR", now_us=T0))


def test_one_gpu_is_not_registered_twice_for_the_same_time(sqlite_db: Database) -> None:
    twin = Asset(asset_id="gpu-1", uuid="GPU-0", valid_from_us=T0 + HOUR)
    sqlite_db.write(lambda connection: prices.add_asset(connection, GPU, now_us=T0))
    with pytest.raises(UsageError, match="registered as gpu-0"):
        sqlite_db.write(lambda connection: prices.add_asset(connection, twin, now_us=T0))
    sqlite_db.write(lambda connection: prices.retire_asset(connection, "gpu-0", T0 + HOUR, now_us=T0))
    assert sqlite_db.write(lambda connection: prices.add_asset(connection, twin, now_us=T0))
