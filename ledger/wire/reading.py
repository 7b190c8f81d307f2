"""How a batch of an engine is read: every field validated (:mod:`ledger.wire.checks`), the first fault named."""

from __future__ import annotations

from typing import Any

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
from ledger.wire.checks import (
    Bad,
    Object,
    fault,
    figures_or_none,
    flag,
    inner,
    int_or_none,
    ints,
    listed,
    object_of,
    pairs,
    short,
    text,
    texts,
    word,
)
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
    SHARD_FACTS,
    SOURCE_TEXTS,
    TIME,
    TOKENS,
    USE,
)


class _Reader:
    """Reads the rows of one batch, whose dimension sets it knows."""

    def __init__(self, dims: tuple[Dimensions, ...]) -> None:
        self.dims = dims

    def dims_of(self, item: Object) -> Dimensions:
        value = item.get("dims", ABSENT)
        if type(value) is not int or not 0 <= value < len(self.dims):
            if type(value) is int:
                raise Bad(Reason.BAD_INDEX, f"dims = {short(value)}: the batch lists {len(self.dims)}")
            raise fault("dims", value, 0, len(self.dims))
        return self.dims[value]

    def session(self, item: Object) -> SessionPeriod:
        return SessionPeriod(
            pool=text(item, "pool", default=None),
            dims=self.dims_of(item),
            holding=inner(item, "holding", HOLDING, Holding, NO_HOLDING),
            tokens=inner(item, "tokens", TOKENS, Tokens, NO_TOKENS),
            preemptions=inner(item, "preemptions", PREEMPTIONS, Preemptions, NO_PREEMPTIONS),
            **ints(item, SESSION),
        )

    def standing(self, item: Object) -> StandingCount:
        return StandingCount(
            pool=text(item, "pool", default=None),
            dims=self.dims_of(item),
            **ints(item, (("cached_blocks", 0, 0, limits.BLOCKS_MAX),)),
        )

    def admission(self, item: Object) -> Admission:
        return Admission(
            request=text(item, "request", default=None),
            parent=_parent(item),
            dims=self.dims_of(item),
            **ints(item, ADMISSION),
        )

    def request(self, item: Object) -> RequestRecord:
        return RequestRecord(
            request=text(item, "request", default=None),
            parent=_parent(item),
            dims=self.dims_of(item),
            pool=text(item, "pool"),
            outcome=word(item, "outcome", OUTCOMES),
            finish_reason=text(item, "finish_reason"),
            tokens=inner(item, "tokens", TOKENS, Tokens, NO_TOKENS),
            preemptions=inner(item, "preemptions", PREEMPTIONS, Preemptions, NO_PREEMPTIONS),
            holding=inner(item, "holding", HOLDING, Holding, NO_HOLDING),
            uses=listed(item, "uses", lambda use: PeriodUse(**ints(use, USE)), limits.USES_MAX),
            other_holdings=listed(item, "other_holdings", _other_holding, limits.POOLS_MAX),
            **ints(item, REQUEST),
            **_milestones(item),
        )


def _milestones(item: Object) -> dict[str, Any]:
    return {name: int_or_none(item, name, *TIME) for name in MILESTONES}


def _parent(item: Object) -> str | None:
    return None if item.get("parent") is None else text(item, "parent", default=None)


def _other_holding(item: Object) -> PoolHolding:
    return PoolHolding(
        pool=text(item, "pool", default=None), holding=inner(item, "holding", HOLDING, Holding, NO_HOLDING)
    )


def _dimensions(item: Object) -> Dimensions:
    return Dimensions(
        tenant=text(item, "tenant", default=None),
        session=text(item, "session", default="-") or _empty("session"),
        **texts(item, DIMENSION_TEXTS),
        **ints(item, (PRIORITY,)),
    )


def _empty(name: str) -> str:
    raise Bad(Reason.BAD_TEXT, f"{name}: must not be empty; leave it out where there is none")


def _opened(item: Object) -> PoolOpen:
    return PoolOpen(
        pool=text(item, "pool", default=None),
        groups=listed(item, "groups", _group, limits.GROUPS_MAX),
        shards=listed(item, "shards", _shard, limits.SHARDS_MAX),
        model=text(item, "model"),
        paying=flag(item, "paying", default=True),
        **ints(item, OPEN),
    )


def _group(item: Object) -> Group:
    return Group(
        kind=word(item, "kind", KINDS, GroupKind.FULL.value),
        **ints(item, (("block_size", ABSENT, 1, limits.BLOCK_SIZE_MAX),)),
    )


def _shard(item: Object) -> Shard:
    return Shard(
        gpu_uuid=text(item, "gpu_uuid"),
        gpu_model=text(item, "gpu_model"),
        **ints(item, SHARD),
        **figures_or_none(item, SHARD_FACTS),
    )


def _closed(item: Object) -> PoolClose:
    return PoolClose(
        pool=text(item, "pool", default=None),
        reason=text(item, "reason"),
        **ints(item, (("at_us", ABSENT, *TIME),)),
    )


def _pool(item: Object) -> PoolPeriod:
    return PoolPeriod(
        pool=text(item, "pool", default=None),
        groups=listed(item, "groups", lambda group: GroupPeriod(**ints(group, GROUP)), limits.GROUPS_MAX),
        **ints(item, POOL),
    )


def _histogram(item: Object) -> Histogram:
    return Histogram(
        name=text(item, "name", default=None),
        labels=pairs(item, "labels", limits.LABELS_MAX, _label),
        buckets=pairs(item, "buckets", limits.BUCKETS_MAX, _bucket),
        **ints(item, (("count", 0, 0, limits.TOKENS_MAX), ("total", 0, 0, limits.BLOCK_US_MAX))),
    )


def _label(name: object, value: object) -> tuple[str, str]:
    return text({"labels": name}, "labels", default=None), text({"labels": value}, "labels")


def _bucket(index: object, count: object) -> tuple[int, int]:
    bounds = (-limits.BUCKETS_MAX, limits.BUCKETS_MAX)
    found = ints({"index": index}, (("index", ABSENT, *bounds),)) | ints(
        {"count": count}, (("count", ABSENT, 1, limits.TOKENS_MAX),)
    )
    return found["index"], found["count"]


def _hook(item: Object) -> HookReport:
    if "hook" not in item:
        return NO_REPORT
    said = object_of(item, "hook")
    try:
        return HookReport(
            dropped=pairs(said, "dropped", limits.HOOK_REASONS_MAX, _reason),
            faults=pairs(said, "faults", limits.HOOK_REASONS_MAX, _reason),
            off=text(said, "off"),
        )
    except Bad as bad:
        raise bad.within("hook") from None


def _reason(name: object, count: object) -> tuple[str, int]:
    counted = ints({"count": count}, (("count", ABSENT, 1, limits.TOKENS_MAX),))
    return text({"reason": name}, "reason", default=None), counted["count"]


def batch_of(item: Object) -> Batch:
    """The batch in a parsed document; :class:`Bad` at its first fault."""
    source, boot = object_of(item, "source"), object_of(item, "boot")
    dims = listed(item, "dims", _dimensions, limits.DIMENSIONS_MAX)
    if len(set(dims)) != len(dims):
        raise Bad(Reason.DUPLICATE_ROW, "dims: lists a dimension set twice")
    reader = _Reader(dims)
    standing = None if "standing" not in item else listed(item, "standing", reader.standing, limits.ROWS_MAX)
    return Batch(
        source=Source(
            engine=text(source, "engine", default=None),
            origin=word(source, "origin", ORIGINS),
            **texts(source, SOURCE_TEXTS),
        ),
        boot=Boot(boot_id=text(boot, "boot_id", default=None), **ints(boot, BOOT)),
        opens=listed(item, "opens", _opened, limits.POOLS_MAX),
        closes=listed(item, "closes", _closed, limits.POOLS_MAX),
        admissions=listed(item, "admissions", reader.admission, limits.ROWS_MAX),
        pools=listed(item, "pools", _pool, limits.POOLS_MAX),
        sessions=listed(item, "sessions", reader.session, limits.ROWS_MAX),
        standing=standing,
        requests=listed(item, "requests", reader.request, limits.ROWS_MAX),
        histograms=listed(item, "histograms", _histogram, limits.ROWS_MAX),
        hook=_hook(item),
        **ints(item, HEAD),
    )
