"""The wire: what is encoded is decoded, what was changed is noticed, and nothing that arrives raises."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from batches import Life, arbitrary, lawful
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import limits, wire
from ledger.core.records import Batch, HookReport
from ledger.errors import Refusal
from ledger.refusals import Note, Reason

GOLDEN = Path(__file__).parent / "golden" / "batch_v1.json"
PREV = hashlib.sha256(b"the batch before").digest()


def canonical(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def signed(document: dict) -> bytes:
    """``document`` as another sender would write it: with its own digest."""
    document = {key: value for key, value in document.items() if key != "digest"}
    return canonical({**document, "digest": hashlib.sha256(canonical(document)).hexdigest()})


def example() -> dict:
    return json.loads(wire.encode(lawful(), PREV))


def refused(raw: bytes) -> str:
    found = wire.decode(raw)
    assert isinstance(found, Refusal), "this ought to be refused"
    assert len(found.detail) <= limits.QUARANTINE_DETAIL_CHARS_MAX
    return found.reason


@given(arbitrary, st.one_of(st.just(b""), st.binary(min_size=32, max_size=32)))
def test_every_batch_comes_back_as_it_was_sent(batch, prev) -> None:
    raw = wire.encode(batch, prev)
    decoded = wire.decode(raw)
    assert isinstance(decoded, wire.Decoded)
    assert decoded.batch == batch
    assert decoded.prev == prev
    assert decoded.digest == decoded.kept_digest == wire.digest(batch, prev) == wire.digest_of(raw)


@given(arbitrary, st.integers(1, 5))
def test_encoding_in_slices_is_the_same_bytes(batch, rows) -> None:
    assert b"".join(wire.encode_slices(batch, PREV, rows=rows)) == wire.encode(batch, PREV)


@given(arbitrary)
def test_what_is_written_is_canonical(batch) -> None:
    raw = wire.encode(batch, PREV)
    assert canonical(json.loads(raw)) == raw == signed(json.loads(raw))


def test_the_golden_batch_is_written_and_read_as_it_always_was() -> None:
    raw = GOLDEN.read_bytes()
    assert wire.encode(lawful(), PREV) == raw, "version 1 has changed: old senders and spools would be refused"
    decoded = wire.decode(raw)
    assert isinstance(decoded, wire.Decoded)
    assert decoded.batch == lawful()


def told() -> Batch:
    """A batch whose hook has something to say."""
    report = HookReport(
        dropped=(("queue_full", 2), ("spool_bytes", 31)),
        faults=(("unknown_request", 1),),
        off="64 faults in a row",
    )
    return replace(lawful(), hook=report)


def test_the_golden_report_of_a_hook_is_written_and_read_as_it_always_was() -> None:
    raw = GOLDEN.with_name("batch_v1_hook.json").read_bytes()
    assert wire.encode(told(), PREV) == raw
    decoded = wire.decode(raw)
    assert isinstance(decoded, wire.Decoded)
    assert decoded.batch == told()
    assert decoded.kept_digest == decoded.digest


def test_a_service_of_before_takes_what_a_hook_says_of_itself_for_a_field_that_it_does_not_know() -> None:
    """What it does with any such field is tested below; here that this is one, and that the rest stands as it was."""
    document = json.loads(wire.encode(told(), PREV))
    del document["batch"]["hook"]
    assert signed(document) == GOLDEN.read_bytes()


def test_what_a_shard_says_of_its_memory_is_written_and_read_as_it_always_was() -> None:
    raw = (GOLDEN.parent / "batch_v1_memory.json").read_bytes()
    before = lawful()
    (opened,) = before.opens
    first = replace(opened.shards[0], pid=4711, kv_bytes=30 * 2**30, weights_bytes=15 * 2**30)
    batch = replace(before, opens=(replace(opened, shards=(first, *opened.shards[1:])),))
    assert wire.encode(batch, PREV) == raw
    decoded = wire.decode(raw)
    assert isinstance(decoded, wire.Decoded)
    assert decoded.batch == batch


def test_a_slice_never_has_more_rows_than_asked_for() -> None:
    batch = Life().period({}, length_us=15_000_000, admits=[f"r{i}" for i in range(100)])
    pieces = list(wire.encode_slices(batch, rows=16))
    assert max(piece.count(b'"request"') for piece in pieces) == 16


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80])
def test_a_flipped_bit_is_noticed_wherever_it_is(flip) -> None:
    raw = wire.encode(lawful(), PREV)
    for position in range(len(raw)):
        broken = raw[:position] + bytes([raw[position] ^ flip]) + raw[position + 1 :]
        assert isinstance(wire.decode(broken), Refusal), f"byte {position} of {raw[position - 20 : position + 20]!r}"


def test_a_number_changed_by_one_is_noticed_wherever_it_is() -> None:
    text = wire.encode(lawful(), PREV).decode()
    for match in re.finditer(r"(?<=[:,\[])-?\d+(?=[,}\]])", text):
        for by in (1, -1):
            broken = f"{text[: match.start()]}{int(match[0]) + by}{text[match.end() :]}"
            assert isinstance(wire.decode(broken.encode()), Refusal), text[match.start() - 30 : match.end()]


@given(arbitrary, st.data())
def test_any_byte_changed_or_lost_is_noticed(batch, data) -> None:
    raw = wire.encode(batch, PREV)
    position = data.draw(st.integers(0, len(raw) - 1))
    other = data.draw(st.binary(max_size=3).filter(lambda b: b != raw[position : position + 1]))
    assert isinstance(wire.decode(raw[:position] + other + raw[position + 1 :]), Refusal)


@given(st.binary(max_size=200))
def test_no_bytes_raise(raw) -> None:
    assert isinstance(wire.decode(raw), Refusal)


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-1, 3),
        st.floats(),
        st.text(max_size=8),
        st.just(limits.BLANK_INT64),
        st.sampled_from(["\ud800", "\x00", "live", "full", "gpu"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
    max_leaves=10,
)


@settings(max_examples=400)
@given(st.data(), json_values)
def test_no_value_in_any_place_raises(data, value) -> None:
    """Replace a random part of a good document by anything; sign it, so that it is not refused for its digest."""
    document = example()
    node, key = document, "batch"
    while data.draw(st.booleans()) or node is document:
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner:
            break
        node, key = (
            inner,
            data.draw(st.sampled_from(sorted(inner)) if isinstance(inner, dict) else st.integers(0, len(inner) - 1)),
        )
    node[key] = value
    try:
        raw = signed(document)
    except UnicodeEncodeError:
        raw = json.dumps(document).encode()
    assert isinstance(wire.decode(raw), Refusal | wire.Decoded)
    wire.peek(raw)


def with_value(path: str, value: object) -> bytes:
    document = example()
    node: object = document["batch"]
    *inner, last = path.split(".")
    for part in inner:
        node = node[int(part) if isinstance(node, list) else part]  # type: ignore[index,call-overload]
    node[last] = value  # type: ignore[index,call-overload]
    return signed(document)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("seq", True, Reason.WRONG_TYPE),
        ("seq", "1", Reason.WRONG_TYPE),
        ("seq", None, Reason.WRONG_TYPE),
        ("seq", 0, Reason.OUT_OF_BOUNDS),
        ("seq", 1.0, Reason.NOT_AN_INTEGER),
        ("seq", float("nan"), Reason.NOT_A_NUMBER),
        ("seq", float("inf"), Reason.NOT_A_NUMBER),
        ("seq", 10**400, Reason.OUT_OF_BOUNDS),
        ("end_us", limits.TIME_US_MAX + 1, Reason.OUT_OF_BOUNDS),
        ("end_us", 12, Reason.OUT_OF_BOUNDS),
        ("sessions.0.compute_us", -1, Reason.NEGATIVE),
        ("sessions.0.compute_us", limits.BLANK_INT64, Reason.SENTINEL),
        ("sessions.0.tokens.output", -3, Reason.NEGATIVE),
        ("sessions.0.tokens", [], Reason.WRONG_TYPE),
        ("sessions.0.tokens", None, Reason.WRONG_TYPE),
        ("sessions.0.dims", 99, Reason.BAD_INDEX),
        ("sessions.0.dims", -1, Reason.BAD_INDEX),
        ("sessions.0.dims", False, Reason.WRONG_TYPE),
        ("sessions.0.pool", "", Reason.BAD_TEXT),
        ("sessions", {}, Reason.WRONG_TYPE),
        ("sessions", [1], Reason.WRONG_TYPE),
        ("standing", None, Reason.WRONG_TYPE),
        ("pools.0.blocks", 0, Reason.OUT_OF_BOUNDS),
        ("requests.0.outcome", "vanished", Reason.UNKNOWN_WORD),
        ("source.origin", "dreamt", Reason.UNKNOWN_WORD),
        ("source.engine", "", Reason.BAD_TEXT),
        ("source.engine", "a\x00b", Reason.BAD_TEXT),
        ("source.engine", "e" * (limits.TEXT_CHARS_MAX + 1), Reason.TOO_LONG),
        ("source", 3, Reason.WRONG_TYPE),
        ("opens.0.paying", 1, Reason.WRONG_TYPE),
        ("opens.0.groups", [{"block_size": 1}] * (limits.GROUPS_MAX + 1), Reason.TOO_MANY),
        ("dims.0.session", "", Reason.BAD_TEXT),
        ("dims", [{"tenant": "a"}, {"tenant": "a"}], Reason.DUPLICATE_ROW),
        ("histograms.0.buckets", [[3, 1], [3, 1]], Reason.BAD_ORDER),
        ("histograms.0.buckets", [[3, 0]], Reason.OUT_OF_BOUNDS),
        ("histograms.0.buckets", [3], Reason.WRONG_TYPE),
        ("hook", None, Reason.WRONG_TYPE),
        ("hook", {"off": 1}, Reason.WRONG_TYPE),
        ("hook", {"off": "a\nb"}, Reason.BAD_TEXT),
        ("hook", {"dropped": {"off": 1}}, Reason.WRONG_TYPE),
        ("hook", {"dropped": [["off", 0]]}, Reason.OUT_OF_BOUNDS),
        ("hook", {"dropped": [["", 1]]}, Reason.BAD_TEXT),
        ("hook", {"faults": [["b", 1], ["a", 1]]}, Reason.BAD_ORDER),
        ("hook", {"faults": [[f"{n:03}", 1] for n in range(limits.HOOK_REASONS_MAX + 1)]}, Reason.TOO_MANY),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_its_kind(path, value, reason) -> None:
    assert refused(with_value(path, value)) == reason


@pytest.mark.parametrize("path", ["seq", "start_us", "boot", "source"])
def test_a_missing_field_is_named(path) -> None:
    document = example()
    del document["batch"][path]
    found = wire.decode(signed(document))
    assert isinstance(found, Refusal)
    assert (found.reason, found.detail) == (Reason.MISSING_FIELD, f"{path}: missing")


def test_a_fault_says_where_it_stands() -> None:
    found = wire.decode(with_value("sessions.1.holding.active_block_us", -7))
    assert isinstance(found, Refusal)
    assert found.detail.startswith("sessions[1].holding.active_block_us = -7: must be 0 …")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xff{}", Reason.NOT_UTF8),
        (b"", Reason.NOT_JSON),
        (b"{", Reason.NOT_JSON),
        (b"[" * 100_000, Reason.NOT_JSON),
        (b'{"a":' * 100_000, Reason.NOT_JSON),
        (b"[]", Reason.WRONG_TYPE),
        (b"{}", Reason.WRONG_TYPE),
        (b'{"kvledger":"1"}', Reason.WRONG_TYPE),
        (b'{"kvledger":true}', Reason.WRONG_TYPE),
        (b'{"kvledger":2}', Reason.UNKNOWN_VERSION),
        (b'{"kvledger":1' + b"0" * 5000 + b"}", Reason.NOT_JSON),
        (b'{"kvledger":1}', Reason.WRONG_TYPE),
        (b" " * (limits.BATCH_BYTES_MAX + 1), Reason.TOO_LARGE),
    ],
)
def test_what_is_no_batch_at_all_is_refused_by_its_kind(raw, reason) -> None:
    assert refused(raw) == reason
    assert wire.peek(raw) == ("", "", None)


def test_other_ways_to_write_the_same_document_are_refused() -> None:
    document = example()
    spaced = json.dumps(document, sort_keys=True, ensure_ascii=False).encode()
    unsorted = json.dumps(dict(reversed(document.items())), separators=(",", ":"), ensure_ascii=False).encode()
    twice = canonical(document).replace(b'"seq":2', b'"seq":2,"seq":2')
    assert [refused(raw) for raw in (spaced, unsorted)] == [Reason.NOT_CANONICAL] * 2
    assert refused(twice) == Reason.DUPLICATE_KEY


def test_a_wrong_digest_is_refused_even_where_every_field_is_good() -> None:
    document = example()
    document["batch"]["sessions"][0]["compute_us"] += 1
    assert refused(canonical(document)) == Reason.DIGEST_MISMATCH
    document = example() | {"digest": "F" * 64}
    assert refused(canonical(document)) == Reason.WRONG_TYPE


def test_fields_of_a_newer_sender_are_ignored_and_its_digest_is_still_verified() -> None:
    document = example()
    document["later"] = {"x": [1, "y"]}
    document["batch"]["later"] = 5
    document["batch"]["sessions"][0]["later_us"] = 7
    document["batch"]["sessions"][0]["tokens"]["later"] = 8
    raw = signed(document)
    decoded = wire.decode(raw)
    assert isinstance(decoded, wire.Decoded)
    assert decoded.batch == lawful()
    assert decoded.digest == wire.digest_of(raw)
    assert decoded.kept_digest == wire.digest(lawful(), PREV) != decoded.digest
    assert isinstance(wire.decode(raw.replace(b'"later":5', b'"later":6')), Refusal)


def test_each_batch_names_the_one_before() -> None:
    life = Life()
    sent = [life.send(life.announce()), *[life.send(life.period({})) for _ in range(3)]]
    decoded = [wire.decode(raw) for raw in sent]
    assert all(isinstance(found, wire.Decoded) for found in decoded)
    assert decoded[0].prev == b""
    assert all(after.prev == before.digest for before, after in pairwise(decoded))


def test_refused_bytes_still_say_whose_they_claim_to_be() -> None:
    document = example() | {"kvledger": 2}
    assert wire.peek(canonical(document)) == ("engine-a", "boot-1", 2)


def test_the_documented_reasons_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[1] / "docs" / "wire.md").read_text()
    documented = re.findall(r"^\| `([a-z0-9_]+)` \|", page[page.index("## Why a batch is refused") :], re.MULTILINE)
    assert sorted(documented) == sorted([*Reason, *Note])


def test_every_bound_has_a_reason_beside_it() -> None:
    source = Path(limits.__file__).read_text().split("\n")
    bounds = [number for number, line in enumerate(source) if re.match(r"[A-Z][A-Z0-9_]+ =", line)]
    assert bounds
    assert [source[number] for number in bounds if not source[number + 1].startswith('"""')] == []
