"""How records are read: every field validated, the first fault located and named.

Nothing below trusts the sender: a bool is no integer, a text is bounded and can be stored, a list is bounded.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ledger import limits
from ledger.core.records import (
    NO_REPORT,
    Admission,
    Batch,
    Boot,
    Dimensions,
    Group,
    GroupKind,
    GroupPeriod,
    Histogram,
    Holding,
    HookReport,
    PeriodUse,
    PoolClose,
    PoolHolding,
    PoolOpen,
    PoolPeriod,
    Preemptions,
    RequestRecord,
    SessionPeriod,
    Shard,
    Source,
    StandingCount,
    Tokens,
)
from ledger.refusals import Reason
from ledger.wire.fields import (
    ABSENT,
    ADMISSION,
    BOOT,
    DIMENSION_TEXTS,
    GROUP,
    HEAD,
    HOLDING,
    KINDS,
    MILESTONES,
    NO_HOLDING,
    NO_PREEMPTIONS,
    NO_TOKENS,
    OPEN,
    ORIGINS,
    OUTCOMES,
    POOL,
    PREEMPTIONS,
    PRIORITY,
    REQUEST,
    SESSION,
    SHARD,
    SOURCE_TEXTS,
    TIME,
    TOKENS,
    USE,
    Ints,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Object = dict[str, Any]

_UNWRITABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""PostgreSQL stores no NUL, UTF-8 no lone surrogate, and no identifier needs another control character."""


class Bad(Exception):  # noqa: N818 - it never leaves the wire: it becomes a Refusal there
    """The first fault found in a batch."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail

    def within(self, where: str) -> Bad:
        """The same fault, seen from one level further out."""
        return Bad(self.reason, f"{where}.{self.detail}")


def _fault(name: str, value: object, low: int, high: int) -> Bad:
    if value is ABSENT:
        return Bad(Reason.MISSING_FIELD, f"{name}: missing")
    if type(value) is not int:
        return Bad(Reason.WRONG_TYPE, f"{name} = {str(value)[:40]!r}: must be an integer")
    if value == limits.BLANK_INT64:
        return Bad(Reason.SENTINEL, f"{name} = {value}: a blank value; leave the field out instead")
    if value < 0 <= low:
        return Bad(Reason.NEGATIVE, f"{name} = {_short(value)}: must be {low} … {high}")
    return Bad(Reason.OUT_OF_BOUNDS, f"{name} = {_short(value)}: must be {low} … {high}")


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**40 else "a number of more than 40 digits"


def _ints(item: _Object, fields: Ints) -> dict[str, Any]:
    """The integers of one object; a field's default is ``ABSENT`` where it has to be there."""
    found = {}
    for name, default, low, high in fields:
        value = item.get(name, default)
        if type(value) is not int or not low <= value <= high:
            raise _fault(name, value, low, high)
        found[name] = value
    return found


def _int_or_none(item: _Object, name: str, low: int, high: int) -> int | None:
    value = item.get(name)
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise _fault(name, value, low, high)
    return value


def _text(item: _Object, name: str, *, default: str | None = "") -> str:
    """A text; ``default=None`` asks for one that is there and not empty."""
    value = item.get(name, default)
    if not isinstance(value, str):
        if value is None and name not in item:
            raise Bad(Reason.MISSING_FIELD, f"{name}: missing")
        raise Bad(Reason.WRONG_TYPE, f"{name} = {str(value)[:40]!r}: must be a text")
    if len(value) > limits.TEXT_CHARS_MAX:
        raise Bad(Reason.TOO_LONG, f"{name}: {len(value)} characters; at most {limits.TEXT_CHARS_MAX}")
    if _UNWRITABLE.search(value):
        raise Bad(Reason.BAD_TEXT, f"{name} = {value[:40]!a}: has a control character or a lone surrogate")
    if not value and default is None:
        raise Bad(Reason.BAD_TEXT, f"{name}: must not be empty")
    return value


def _texts(item: _Object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _text(item, name) for name in names}


def _flag(item: _Object, name: str, *, default: bool) -> bool:
    value = item.get(name, default)
    if not isinstance(value, bool):
        raise Bad(Reason.WRONG_TYPE, f"{name} = {str(value)[:40]!r}: must be true or false")
    return value


def _word(item: _Object, name: str, words: Mapping[str, Any], default: str | None = None) -> Any:
    value = _text(item, name, default=default)
    if value not in words:
        raise Bad(Reason.UNKNOWN_WORD, f"{name} = {value[:40]!r}: must be one of {', '.join(words)}")
    return words[value]


def object_of(item: _Object, name: str) -> _Object:
    """The object in a field that has to be there."""
    value = item.get(name, ABSENT)
    if value is ABSENT:
        raise Bad(Reason.MISSING_FIELD, f"{name}: missing")
    if not isinstance(value, dict):
        raise Bad(Reason.WRONG_TYPE, f"{name}: must be an object")
    return value


def _inner(item: _Object, name: str, fields: Ints, make: type[Any], empty: Any) -> Any:
    """A record of integers within a row; left out where all are zero."""
    value = item.get(name)
    if value is None and name not in item:
        return empty
    if not isinstance(value, dict):
        raise Bad(Reason.WRONG_TYPE, f"{name}: must be an object")
    try:
        return make(**_ints(value, fields))
    except Bad as bad:
        raise bad.within(name) from None


def _list(item: _Object, name: str, read: Callable[[Any], Any], most: int) -> tuple[Any, ...]:
    value = item.get(name, ())
    if value == () and name not in item:
        return ()
    if not isinstance(value, list):
        raise Bad(Reason.WRONG_TYPE, f"{name}: must be a list")
    if len(value) > most:
        raise Bad(Reason.TOO_MANY, f"{name}: {len(value)} entries; at most {most}")
    found = []
    try:
        for entry in value:
            if not isinstance(entry, dict):
                raise Bad(Reason.WRONG_TYPE, "must be an object")  # noqa: TRY301 - located by the handler below
            found.append(read(entry))
    except Bad as bad:
        raise bad.within(f"{name}[{len(found)}]") from None
    return tuple(found)


class _Reader:
    """Reads the rows of one batch, whose dimension sets it knows."""

    def __init__(self, dims: tuple[Dimensions, ...]) -> None:
        self.dims = dims

    def dims_of(self, item: _Object) -> Dimensions:
        value = item.get("dims", ABSENT)
        if type(value) is not int or not 0 <= value < len(self.dims):
            if type(value) is int:
                raise Bad(Reason.BAD_INDEX, f"dims = {_short(value)}: the batch lists {len(self.dims)}")
            raise _fault("dims", value, 0, len(self.dims))
        return self.dims[value]

    def session(self, item: _Object) -> SessionPeriod:
        return SessionPeriod(
            pool=_text(item, "pool", default=None),
            dims=self.dims_of(item),
            holding=_inner(item, "holding", HOLDING, Holding, NO_HOLDING),
            tokens=_inner(item, "tokens", TOKENS, Tokens, NO_TOKENS),
            preemptions=_inner(item, "preemptions", PREEMPTIONS, Preemptions, NO_PREEMPTIONS),
            **_ints(item, SESSION),
        )

    def standing(self, item: _Object) -> StandingCount:
        return StandingCount(
            pool=_text(item, "pool", default=None),
            dims=self.dims_of(item),
            **_ints(item, (("cached_blocks", 0, 0, limits.BLOCKS_MAX),)),
        )

    def admission(self, item: _Object) -> Admission:
        return Admission(
            request=_text(item, "request", default=None),
            parent=_parent(item),
            dims=self.dims_of(item),
            **_ints(item, ADMISSION),
        )

    def request(self, item: _Object) -> RequestRecord:
        return RequestRecord(
            request=_text(item, "request", default=None),
            parent=_parent(item),
            dims=self.dims_of(item),
            pool=_text(item, "pool"),
            outcome=_word(item, "outcome", OUTCOMES),
            finish_reason=_text(item, "finish_reason"),
            tokens=_inner(item, "tokens", TOKENS, Tokens, NO_TOKENS),
            preemptions=_inner(item, "preemptions", PREEMPTIONS, Preemptions, NO_PREEMPTIONS),
            holding=_inner(item, "holding", HOLDING, Holding, NO_HOLDING),
            uses=_list(item, "uses", lambda use: PeriodUse(**_ints(use, USE)), limits.USES_MAX),
            other_holdings=_list(item, "other_holdings", _other_holding, limits.POOLS_MAX),
            **_ints(item, REQUEST),
            **_milestones(item),
        )


def _milestones(item: _Object) -> dict[str, Any]:
    return {name: _int_or_none(item, name, *TIME) for name in MILESTONES}


def _parent(item: _Object) -> str | None:
    return None if item.get("parent") is None else _text(item, "parent", default=None)


def _other_holding(item: _Object) -> PoolHolding:
    return PoolHolding(
        pool=_text(item, "pool", default=None), holding=_inner(item, "holding", HOLDING, Holding, NO_HOLDING)
    )


def _dimensions(item: _Object) -> Dimensions:
    return Dimensions(
        tenant=_text(item, "tenant", default=None),
        session=_text(item, "session", default="-") or _empty("session"),
        **_texts(item, DIMENSION_TEXTS),
        **_ints(item, (PRIORITY,)),
    )


def _empty(name: str) -> str:
    raise Bad(Reason.BAD_TEXT, f"{name}: must not be empty; leave it out where there is none")


def _opened(item: _Object) -> PoolOpen:
    return PoolOpen(
        pool=_text(item, "pool", default=None),
        groups=_list(item, "groups", _group, limits.GROUPS_MAX),
        shards=_list(item, "shards", _shard, limits.SHARDS_MAX),
        model=_text(item, "model"),
        paying=_flag(item, "paying", default=True),
        **_ints(item, OPEN),
    )


def _group(item: _Object) -> Group:
    return Group(
        kind=_word(item, "kind", KINDS, GroupKind.FULL.value),
        **_ints(item, (("block_size", ABSENT, 1, limits.BLOCK_SIZE_MAX),)),
    )


def _shard(item: _Object) -> Shard:
    return Shard(
        gpu_uuid=_text(item, "gpu_uuid"),
        gpu_model=_text(item, "gpu_model"),
        share_ppm=_int_or_none(item, "share_ppm", 0, limits.PPM_MAX),
        **_ints(item, SHARD),
    )


def _closed(item: _Object) -> PoolClose:
    return PoolClose(
        pool=_text(item, "pool", default=None),
        reason=_text(item, "reason"),
        **_ints(item, (("at_us", ABSENT, *TIME),)),
    )


def _pool(item: _Object) -> PoolPeriod:
    return PoolPeriod(
        pool=_text(item, "pool", default=None),
        groups=_list(item, "groups", lambda group: GroupPeriod(**_ints(group, GROUP)), limits.GROUPS_MAX),
        **_ints(item, POOL),
    )


def _histogram(item: _Object) -> Histogram:
    return Histogram(
        name=_text(item, "name", default=None),
        labels=_pairs(item, "labels", limits.LABELS_MAX, _label),
        buckets=_pairs(item, "buckets", limits.BUCKETS_MAX, _bucket),
        **_ints(item, (("count", 0, 0, limits.TOKENS_MAX), ("total", 0, 0, limits.BLOCK_US_MAX))),
    )


def _pairs(item: _Object, name: str, most: int, read: Callable[[Any, Any], Any]) -> tuple[Any, ...]:
    value = item.get(name, [])
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise Bad(Reason.WRONG_TYPE, f"{name}: must be a list of pairs")
    if len(value) > most:
        raise Bad(Reason.TOO_MANY, f"{name}: {len(value)} entries; at most {most}")
    found = tuple(read(*pair) for pair in value)
    if any(before[0] >= after[0] for before, after in pairwise(found)):
        raise Bad(Reason.BAD_ORDER, f"{name}: must be sorted, each once")
    return found


def _label(name: object, value: object) -> tuple[str, str]:
    return _text({"labels": name}, "labels", default=None), _text({"labels": value}, "labels")


def _bucket(index: object, count: object) -> tuple[int, int]:
    bounds = (-limits.BUCKETS_MAX, limits.BUCKETS_MAX)
    found = _ints({"index": index}, (("index", ABSENT, *bounds),)) | _ints(
        {"count": count}, (("count", ABSENT, 1, limits.TOKENS_MAX),)
    )
    return found["index"], found["count"]


def _hook(item: _Object) -> HookReport:
    if "hook" not in item:
        return NO_REPORT
    said = object_of(item, "hook")
    try:
        return HookReport(
            dropped=_pairs(said, "dropped", limits.HOOK_REASONS_MAX, _reason),
            faults=_pairs(said, "faults", limits.HOOK_REASONS_MAX, _reason),
            off=_text(said, "off"),
        )
    except Bad as bad:
        raise bad.within("hook") from None


def _reason(name: object, count: object) -> tuple[str, int]:
    counted = _ints({"count": count}, (("count", ABSENT, 1, limits.TOKENS_MAX),))
    return _text({"reason": name}, "reason", default=None), counted["count"]


def batch_of(item: _Object) -> Batch:
    """The batch in a parsed document; :class:`Bad` at its first fault."""
    source, boot = object_of(item, "source"), object_of(item, "boot")
    dims = _list(item, "dims", _dimensions, limits.DIMENSIONS_MAX)
    if len(set(dims)) != len(dims):
        raise Bad(Reason.DUPLICATE_ROW, "dims: lists a dimension set twice")
    reader = _Reader(dims)
    standing = None if "standing" not in item else _list(item, "standing", reader.standing, limits.ROWS_MAX)
    return Batch(
        source=Source(
            engine=_text(source, "engine", default=None),
            origin=_word(source, "origin", ORIGINS),
            **_texts(source, SOURCE_TEXTS),
        ),
        boot=Boot(boot_id=_text(boot, "boot_id", default=None), **_ints(boot, BOOT)),
        opens=_list(item, "opens", _opened, limits.POOLS_MAX),
        closes=_list(item, "closes", _closed, limits.POOLS_MAX),
        admissions=_list(item, "admissions", reader.admission, limits.ROWS_MAX),
        pools=_list(item, "pools", _pool, limits.POOLS_MAX),
        sessions=_list(item, "sessions", reader.session, limits.ROWS_MAX),
        standing=standing,
        requests=_list(item, "requests", reader.request, limits.ROWS_MAX),
        histograms=_list(item, "histograms", _histogram, limits.ROWS_MAX),
        hook=_hook(item),
        **_ints(item, HEAD),
    )
