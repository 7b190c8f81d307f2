"""The short way of decoding: it answers as the long one does, for any bytes, and takes what senders of ours write."""

from __future__ import annotations

import json
from operator import attrgetter

import pytest
from batches import Life, arbitrary, lawful
from hypothesis import given, settings
from hypothesis import strategies as st
from test_wire import GOLDEN, PREV, json_values, signed, told

from ledger import fastwire, limits, wire
from ledger.core.records import Dimensions, GroupPeriod, Origin, Outcome
from ledger.laws import breach
from ledger.store.fact_rows import dimensions_in, rows_of

EXAMPLE = wire.encode(told(), PREV)
in_order = attrgetter(*Dimensions.__slots__)


def example() -> dict:
    return json.loads(EXAMPLE)


def same(raw: bytes) -> wire.Decoded | object:
    found = fastwire.decode(raw)
    assert found == wire.decode(raw)
    return found


@given(arbitrary, st.one_of(st.just(b""), st.binary(min_size=32, max_size=32)))
def test_a_batch_as_it_was_written_is_read_the_same(batch, prev) -> None:
    found = same(wire.encode(batch, prev))
    assert isinstance(found, wire.Decoded)
    assert repr(found.batch) == repr(batch), "the same kinds of values too: enums are enums, tuples are tuples"


def test_the_short_way_is_taken_for_what_engines_send() -> None:
    life = Life()
    sent = [life.announce(), life.period({}, opens=True, standing=True), lawful(), told()]
    for batch in sent:
        found = fastwire._proven(wire.encode(batch, PREV))
        assert found is not None
        assert found.batch == batch
        assert found.batch.source.origin is Origin.SIMULATED
        assert all(record.outcome is Outcome.FINISHED for record in found.batch.requests)
    assert fastwire._proven(GOLDEN.read_bytes()) is not None


def test_rows_share_the_dimension_sets_of_their_batch() -> None:
    found = fastwire._proven(wire.encode(lawful(), PREV))
    assert found is not None
    by_value = {row.dims: row.dims for row in found.batch.sessions}
    assert all(row.dims is by_value[row.dims] for row in found.batch.requests)


def places(node: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The path of every value in a document."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def put(document: dict, path: tuple[object, ...], value: object) -> None:
    for part in path[:-1]:
        document = document[part]
    document[path[-1]] = value


VALUES = (
    None, True, 0, 1, -1, 1.0, "", "-", "x", "\x7f", "\n", '"', "é", [], {}, [[]], limits.BLANK_INT64, 2**63, 2**64,
    limits.TOKENS_MAX, limits.TOKENS_MAX + 1, limits.BLOCK_US_MAX + 1, "e" * limits.TEXT_CHARS_MAX,
    "é" * (limits.TEXT_CHARS_MAX + 1),
)  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_any_of_these_values_in_any_place_is_judged_the_same(value) -> None:
    for path in places(example()):
        if path:
            document = example()
            put(document, path, value)
            same(signed(document))


NESTED = ("rejected", "kv_full", "active_block_us", "kind", "share_ppm", "group", "tp", "later")
FIELDS = sorted(
    {path[-1] for path in places(example()) if path and isinstance(path[-1], str)}
    | {"skew_us", "session", "adapter", "priority", "rejected", "kv_full", "share_ppm", "kind", "later", "shards"}
)


@pytest.mark.parametrize("value", [0, "", "-", [], {}, "full"], ids=repr)
def test_a_field_that_is_added_anywhere_is_judged_the_same(value) -> None:
    """Defaults that are written out above all: they are good, and make the digest of what is kept another."""
    objects = [path for path in places(example()) if isinstance(value_at(example(), path), dict)]
    for path in objects:
        for name in FIELDS:
            document = example()
            inner = value_at(document, path)
            known = "pool" in inner or "tenant" in inner or "seq" in inner or name in NESTED
            if known and name not in inner:
                inner[name] = value
                same(signed(document))


def value_at(document: object, path: tuple[object, ...]) -> object:
    for part in path:
        document = document[part]  # type: ignore[index]
    return document


@settings(max_examples=200)
@given(st.data(), json_values)
def test_any_value_in_any_place_of_any_batch_is_judged_the_same(data, value) -> None:
    document = json.loads(wire.encode(data.draw(arbitrary), PREV))
    put(document, data.draw(st.sampled_from([path for path in places(document) if path])), value)
    try:
        raw = signed(document)
    except UnicodeEncodeError:
        raw = json.dumps(document).encode()
    same(raw)


@given(arbitrary, st.data())
def test_any_byte_changed_or_lost_is_judged_the_same(batch, data) -> None:
    raw = wire.encode(batch, PREV)
    position = data.draw(st.integers(0, len(raw) - 1))
    same(raw[:position] + data.draw(st.binary(max_size=3)) + raw[position + 1 :])


@given(st.binary(max_size=200))
def test_no_bytes_raise(raw) -> None:
    same(raw)


def test_other_orders_of_dimension_sets_and_ones_that_nobody_uses_are_judged_the_same() -> None:
    for change in (
        lambda dims: dims.reverse(),
        lambda dims: dims.append({"tenant": "zzz"}),
        lambda dims: dims.append(dict(dims[0])),
        lambda dims: dims.pop(),
    ):
        document = example()
        change(document["batch"]["dims"])
        same(signed(document))


@pytest.mark.parametrize("text", [*map(chr, range(0x20)), '"', "\\", "/", "\x7f", "\x80", "\u2028", "\U0001f600", "é"])
def test_a_text_with_any_character_is_judged_the_same(text) -> None:
    for name in ("tenant", "session", "model"):
        document = example()
        document["batch"]["dims"][-1][name] = f"z{text}z"
        same(signed(document))
        same(signed(document).replace(b"\\u", b"\\U"))


def test_an_idle_pool_whose_group_held_nothing_is_read_the_same() -> None:
    batch = Life().period({}, opens=True)
    assert batch.pools[0].groups == (GroupPeriod(group=0, active_block_us=0),)
    assert fastwire._proven(wire.encode(batch)) == wire.decode(wire.encode(batch))


@given(arbitrary)
def test_what_only_reads_fields_finds_the_same_in_a_batch_that_was_not_made_into_records(batch) -> None:
    raw = wire.encode(batch, PREV)
    short, whole = fastwire.read(raw), wire.decode(raw)
    assert isinstance(short, wire.Decoded)
    assert isinstance(whole, wire.Decoded)
    assert short == whole
    compared = attrgetter("source", "boot", "hook")
    assert compared(short.batch) == compared(whole.batch)
    assert breach(short.batch) == breach(whole.batch)
    assert stored(short.batch) == stored(whole.batch)


def stored(batch) -> list[object]:
    """The rows of a batch, its dimension sets by number, and these sets."""
    sets = dimensions_in(batch)
    numbers = {values: number for number, values in enumerate(sorted({in_order(one) for one in sets.values()}))}
    ids = {identity: numbers[in_order(one)] for identity, one in sets.items()}
    return [numbers, *rows_of(batch, 1, ids)]
