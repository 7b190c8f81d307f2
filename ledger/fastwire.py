"""Decoding as :mod:`ledger.wire` does it, in compiled code, for batches that are written exactly as they should be.

Invariant: what :func:`decode` answers is what :func:`ledger.wire.decode` answers, for any bytes. It takes the short way
only with bytes that are proven to be canonical: they are read into structs that go by the tables of
:mod:`ledger.wire.fields` (names, defaults, bounds), these are written again, and the bytes are compared whole; the
digest is made from the bytes and compared. Whatever is not proven so (an unknown field, an escape, any fault at all) is
decoded by :mod:`ledger.wire`, which finds the reason. So the short way accepts and never refuses.

A struct has the fields of the record of its name in :mod:`ledger.core.records`, so whoever only reads fields (the laws,
the rows of the store) takes either, and :func:`read` leaves out what takes longest: making the records.

Samples of agents are few and small, and go the long way.

The hook's side of the wire has the standard library only; this is the service's.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from itertools import islice, pairwise
from operator import lt
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from ledger import limits, wire
from ledger.core import records
from ledger.wire import fields
from ledger.wire.fields import ABSENT, Ints

if TYPE_CHECKING:
    from ledger.errors import Refusal

_Field = tuple[str, Any] | tuple[str, Any, Any]

_TAIL: Final = re.compile(
    rb',"digest":"([0-9a-f]{64})",("kvledger":%d,"prev":"([0-9a-f]{64}|)"\})' % wire.VERSION, re.DOTALL
)
_TAIL_BYTES_MAX: Final = 220
_HEAD: Final = b'{"batch":'

_EMPTY: Final = re.compile(rb":\{\}")
"""An inner record written out though it is empty, which comparing the bytes does not show. (For more than one byte
``find`` takes twice as long as ``re``.)"""

_IN_NO_TEXT: Final = (b"\\", b"\x7f")
"""Nor does it show what no text may have, or what can be written in several ways. All of it is rare or wrong;
:mod:`ledger.wire` looks at it."""

_NAME: Any = Annotated[str, Meta(min_length=1, max_length=limits.TEXT_CHARS_MAX)]
_TEXT: Any = Annotated[str, Meta(max_length=limits.TEXT_CHARS_MAX)]


def _int(low: int, high: int) -> Any:
    return Annotated[int, Meta(ge=low, le=high)]


def _ints(*tables: Ints) -> list[_Field]:
    return [
        (name, _int(low, high)) if default is ABSENT else (name, _int(low, high), default)
        for table in tables
        for name, default, low, high in table
    ]


def _texts(*names: str) -> list[_Field]:
    return [(name, _TEXT, "") for name in names]


def _list(entry: Any, most: int) -> Any:
    return Annotated[tuple[entry, ...], Meta(max_length=most)]


def _pair(first: Any, second: Any) -> Any:
    return tuple[first, second]


def _struct(name: str, *parts: _Field, frozen: bool = True, **methods: Any) -> Any:
    """A struct that is written with its keys sorted and its defaults left out, as the wire wants it."""
    return msgspec.defstruct(
        name,
        sorted(parts, key=lambda field: field[0]),
        namespace=methods,
        kw_only=True,
        omit_defaults=True,
        frozen=frozen,
        gc=False,  # a tree has no cycles, and thousands of its leaves would make the collector run
    )


_Tokens: Final = _struct("_Tokens", *_ints(fields.TOKENS))
_Preemptions: Final = _struct("_Preemptions", *_ints(fields.PREEMPTIONS))
_Holding: Final = _struct("_Holding", *_ints(fields.HOLDING))
_Dimensions: Final = _struct(
    "_Dimensions",
    ("tenant", _NAME),
    ("session", _NAME, records.NO_SESSION),
    *_texts(*fields.DIMENSION_TEXTS),
    *_ints((fields.PRIORITY,)),
)
_USED: Final[list[_Field]] = [
    ("tokens", _Tokens, _Tokens()),
    ("preemptions", _Preemptions, _Preemptions()),
    ("holding", _Holding, _Holding()),
]
_DIMS: Final[_Field] = ("dims", _int(0, limits.DIMENSIONS_MAX))
"""A number as it is read; :func:`_placed` puts the dimension set itself in its place."""

_Session: Final = _struct("_Session", ("pool", _NAME), _DIMS, *_USED, *_ints(fields.SESSION), frozen=False)
_Standing: Final = _struct(
    "_Standing", ("pool", _NAME), _DIMS, ("cached_blocks", _int(0, limits.BLOCKS_MAX), 0), frozen=False
)
_Admission: Final = _struct(
    "_Admission", ("request", _NAME), ("parent", _NAME | None, None), _DIMS, *_ints(fields.ADMISSION), frozen=False
)
_OtherHolding: Final = _struct("_OtherHolding", ("pool", _NAME), ("holding", _Holding))
_Request: Final = _struct(
    "_Request",
    ("request", _NAME),
    ("parent", _NAME | None, None),
    _DIMS,
    *_texts("pool", "finish_reason"),
    ("outcome", records.Outcome),
    *_USED,
    *_ints(fields.REQUEST),
    *[(name, _int(*fields.TIME) | None, None) for name in fields.MILESTONES],
    ("uses", _list(_struct("_Use", *_ints(fields.USE)), limits.USES_MAX), ()),
    ("other_holdings", _list(_OtherHolding, limits.POOLS_MAX), ()),
    frozen=False,
)
_Group: Final = _struct(
    "_Group", ("block_size", _int(1, limits.BLOCK_SIZE_MAX)), ("kind", records.GroupKind, records.GroupKind.FULL)
)
_Shard: Final = _struct(
    "_Shard",
    *_texts("gpu_uuid", "gpu_model"),
    *[(name, _int(low, high) | None, None) for name, low, high in fields.SHARD_FACTS],
    *_ints(fields.SHARD),
)
_Open: Final = _struct(
    "_Open",
    ("pool", _NAME),
    ("groups", _list(_Group, limits.GROUPS_MAX)),
    ("shards", _list(_Shard, limits.SHARDS_MAX), ()),
    *_texts("model"),
    ("paying", bool, True),
    *_ints(fields.OPEN),
)
_Close: Final = _struct("_Close", ("pool", _NAME), *_texts("reason"), ("at_us", _int(*fields.TIME)))
_Pool: Final = _struct(
    "_Pool",
    ("pool", _NAME),
    ("groups", _list(_struct("_GroupPeriod", *_ints(fields.GROUP)), limits.GROUPS_MAX), ()),
    *_ints(fields.POOL),
)
_Histogram: Final = _struct(
    "_Histogram",
    ("name", _NAME),
    ("labels", _list(_pair(_NAME, _TEXT), limits.LABELS_MAX), ()),
    (
        "buckets",
        _list(_pair(_int(-limits.BUCKETS_MAX, limits.BUCKETS_MAX), _int(1, limits.TOKENS_MAX)), limits.BUCKETS_MAX),
        (),
    ),
    ("count", _int(0, limits.TOKENS_MAX), 0),
    ("total", _int(0, limits.BLOCK_US_MAX), 0),
)
_Source: Final = _struct("_Source", ("engine", _NAME), ("origin", records.Origin), *_texts(*fields.SOURCE_TEXTS))
_Reasons: Final = _list(_pair(_NAME, _int(1, limits.TOKENS_MAX)), limits.HOOK_REASONS_MAX)
_Hook: Final = _struct("_Hook", ("dropped", _Reasons, ()), ("faults", _Reasons, ()), *_texts("off"))


def _equals_record(batch: Any, other: object) -> bool:
    return msgspec.convert(batch, records.Batch, from_attributes=True) == other


_Batch: Final = _struct(
    "_Batch",
    ("source", _Source),
    ("boot", _struct("_Boot", ("boot_id", _NAME), *_ints(fields.BOOT))),
    ("dims", _list(_Dimensions, limits.DIMENSIONS_MAX), ()),
    ("opens", _list(_Open, limits.POOLS_MAX), ()),
    ("closes", _list(_Close, limits.POOLS_MAX), ()),
    ("admissions", _list(_Admission, limits.ROWS_MAX), ()),
    ("pools", _list(_Pool, limits.POOLS_MAX), ()),
    ("sessions", _list(_Session, limits.ROWS_MAX), ()),
    ("standing", _list(_Standing, limits.ROWS_MAX) | None, None),
    ("requests", _list(_Request, limits.ROWS_MAX), ()),
    ("histograms", _list(_Histogram, limits.ROWS_MAX), ()),
    ("hook", _Hook, _Hook()),
    *_ints(fields.HEAD),
    frozen=False,
    __eq__=_equals_record,
)

_parse: Final = msgspec.json.Decoder(_Batch).decode
_write: Final = msgspec.json.Encoder().encode

_COMPARED: Final = (("source", records.Source), ("boot", records.Boot), ("hook", records.HookReport))
"""What :func:`read` does make into records, since it is compared with others."""


def decode(raw: bytes) -> wire.Decoded | wire.DecodedSamples | Refusal:
    """The batch or the samples in ``raw``, every field validated, or why there is none. Never raises."""
    return _proven(raw) or wire.decode(raw)


def read(raw: bytes) -> wire.Decoded | wire.DecodedSamples | Refusal:
    """:func:`decode` for who reads fields and no more: source, boot and hook are records, the rest may be structs.

    Rows share the objects that are their dimension sets. It takes half the time.
    """
    return _canonical(raw) or wire.decode(raw)


def _proven(raw: bytes) -> wire.Decoded | None:
    """The batch in ``raw``, as records, where it is proven to be canonical and whole; None where it may be anything."""
    found = _canonical(raw)
    if found is None:
        return None
    parsed: Any = found.batch
    dims = {id(one): msgspec.convert(one, records.Dimensions, from_attributes=True) for one in parsed.dims}
    for rows in (parsed.sessions, parsed.admissions, parsed.requests, parsed.standing or ()):
        for row in rows:
            row.dims = dims[id(row.dims)]
    return replace(found, batch=msgspec.convert(parsed, records.Batch, from_attributes=True))


def _canonical(raw: bytes) -> wire.Decoded | None:
    """:func:`_proven` without making the records."""
    tail = _TAIL.search(raw, max(0, len(raw) - _TAIL_BYTES_MAX))
    if len(raw) > limits.BATCH_BYTES_MAX or tail is None or tail.end() != len(raw) or not raw.startswith(_HEAD):
        return None
    # The bytes are looked at where they lie: they are a hundred kilobytes and more.
    begin, end = len(_HEAD), tail.start()
    sha = hashlib.sha256(memoryview(raw)[: end + 1])
    sha.update(tail[2])
    parsed = _parsed(raw, begin, end) if sha.hexdigest().encode() == tail[1] else None
    if parsed is None:
        return None
    for name, kind in _COMPARED:
        setattr(parsed, name, msgspec.convert(getattr(parsed, name), kind, from_attributes=True))
    digest = sha.digest()
    return wire.Decoded(batch=parsed, digest=digest, prev=bytes.fromhex(tail[3].decode()), kept_digest=digest)


def _parsed(raw: bytes, begin: int, end: int) -> Any:
    """The batch that is written between ``begin`` and ``end``; None where it is not written as it should be."""
    if any(raw.find(sign, begin, end) >= 0 for sign in _IN_NO_TEXT) or _EMPTY.search(raw, begin, end):
        return None
    try:
        parsed = _parse(memoryview(raw)[begin:end])
        # Before dimension sets take the place of their numbers.
        again = _write(parsed)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    same = len(again) == end - begin and raw.startswith(again, begin)
    return parsed if same and _placed(parsed) and _is_sorted(parsed) else None


def _placed(parsed: Any) -> bool:
    """Whether the dimension sets are listed as they should be (sorted, each once, each used); rows get theirs."""
    dims = parsed.dims
    if any(one.session == records.NO_SESSION and one.session is not records.NO_SESSION for one in dims):
        return False  # written out, and told from the default by its identity alone
    keys = [(one.tenant, one.session, one.model, one.adapter, one.scenario, one.priority) for one in dims]
    if not all(map(lt, keys, islice(keys, 1, None))):
        return False
    rows = [*parsed.sessions, *parsed.admissions, *parsed.requests, *(parsed.standing or ())]
    used = {row.dims for row in rows}
    if len(used) != len(dims) or max(used, default=-1) >= len(dims):
        return False
    for row in rows:
        row.dims = dims[row.dims]
    return True


def _is_sorted(parsed: Any) -> bool:
    """Whether every list of pairs rises by its first, each once."""
    lists = [parsed.hook.dropped, parsed.hook.faults]
    for histogram in parsed.histograms:
        lists += (histogram.labels, histogram.buckets)
    return all(before[0] < after[0] for pairs in lists for before, after in pairwise(pairs))
