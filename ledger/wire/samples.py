"""The samples of an agent on the wire: how they are written and read, by the same tables.

Canonical as a batch is (:mod:`ledger.wire`): keys sorted, defaults left out. A spread is the list of its smallest,
mean and largest value, in this order.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ledger import limits
from ledger.core.records import Boot
from ledger.core.samples import (
    MARKS,
    Agent,
    Engagement,
    Gpu,
    GpuPeriod,
    GpuProcess,
    GpuRest,
    ProcessPeriod,
    SampleBatch,
    Spread,
    Trouble,
    Watch,
)
from ledger.refusals import Reason
from ledger.wire.checks import (
    Bad,
    Object,
    fault,
    figures_or_none,
    int_or_none,
    ints,
    listed,
    object_of,
    pairs,
    text,
    texts,
    word,
)
from ledger.wire.fields import ABSENT, BOOT, HEAD, ORIGINS, Ints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BYTES: Final = (0, limits.MEMORY_BYTES_MAX)
_REST: Final = (-limits.MEMORY_BYTES_MAX, limits.MEMORY_BYTES_MAX)
_PPM: Final = (0, limits.PPM_MAX)
_TIME: Final = (limits.TIME_US_MIN, limits.TIME_US_MAX)
_PID: Final = (1, limits.PID_MAX)
_READINGS: Final[Ints] = (("readings", ABSENT, 1, limits.READINGS_MAX),)

AGENT_TEXTS: Final = ("cluster", "driver", "host", "namespace", "pod", "software")
ENGAGEMENTS: Final = {one.value: one for one in Engagement}
WATCHES: Final = {one.value: one for one in Watch}

SPREADS: Final = {
    "used_bytes": _BYTES,
    "free_bytes": _BYTES,
    "total_bytes": _BYTES,
    "reserved_bytes": _BYTES,
    "busy_ppm": _PPM,
    "memory_busy_ppm": _PPM,
    "occupancy_ppm": _PPM,
    "power_mw": (0, limits.POWER_MW_MAX),
}
"""The spreads of a GPU's row, each with its bounds."""

COUNTERS: Final = (("ecc_corrected", 0, limits.TOKENS_MAX), ("ecc_uncorrected", 0, limits.TOKENS_MAX))
HEALTH: Final = (
    ("inner_pid", *_PID),
    ("started_us", *_TIME),
    ("threads", 0, limits.PID_MAX),
    ("rss_bytes", *_BYTES),
    ("cpu_us", 0, limits.BLOCK_US_MAX),
    ("busiest_us", 0, limits.BLOCK_US_MAX),
    ("waiting_threads", 0, limits.PID_MAX),
    ("workers", 0, limits.PID_MAX),
    ("workers_busy", 0, limits.PID_MAX),
    ("queued", 0, limits.TOKENS_MAX),
)
"""The figures of a process's health that may be unknown, each with its bounds."""


# --- reading --------------------------------------------------------------------------------------------


def samples_of(item: Object) -> SampleBatch:
    """The samples in a parsed document; :class:`~ledger.wire.checks.Bad` at their first fault."""
    source, boot = object_of(item, "source"), object_of(item, "boot")
    return SampleBatch(
        source=Agent(
            source_id=text(source, "source_id", default=None),
            origin=word(source, "origin", ORIGINS),
            **texts(source, AGENT_TEXTS),
        ),
        boot=Boot(boot_id=text(boot, "boot_id", default=None), **ints(boot, BOOT)),
        gpus=None if "gpus" not in item else listed(item, "gpus", _gpu, limits.GPUS_MAX),
        samples=listed(item, "samples", _gpu_period, limits.GPUS_MAX),
        processes=listed(item, "processes", _gpu_process, limits.GPU_PROCESSES_MAX),
        rests=listed(item, "rests", _gpu_rest, limits.GPUS_MAX),
        health=listed(item, "health", _process_period, limits.PROCESSES_MAX),
        troubles=listed(item, "troubles", _trouble, limits.TROUBLES_MAX),
        **ints(item, HEAD),
    )


def _gpu(item: Object) -> Gpu:
    return Gpu(
        uuid=text(item, "uuid", default=None),
        instance=int_or_none(item, "instance", 0, limits.GPUS_MAX),
        memory_bytes=int_or_none(item, "memory_bytes", *_BYTES),
        **texts(item, ("model", "parent")),
        **ints(item, (("index", 0, 0, limits.GPUS_MAX),)),
    )


def _gpu_period(item: Object) -> GpuPeriod:
    return GpuPeriod(
        gpu=text(item, "gpu", default=None),
        used_marks=_marks(item, _BYTES),
        throttles=None if "throttles" not in item else pairs(item, "throttles", limits.THROTTLES_MAX, _throttle),
        **ints(item, _READINGS),
        **_spreads(item),
        **figures_or_none(item, COUNTERS),
    )


def _gpu_process(item: Object) -> GpuProcess:
    return GpuProcess(
        gpu=text(item, "gpu", default=None),
        engagement=word(item, "engagement", ENGAGEMENTS, Engagement.COMPUTE.value),
        used_bytes=_spread(item, "used_bytes", _BYTES),
        used_marks=_marks(item, _BYTES),
        **ints(item, (("pid", ABSENT, *_PID), *_READINGS)),
    )


def _gpu_rest(item: Object) -> GpuRest:
    return GpuRest(
        gpu=text(item, "gpu", default=None),
        rest_bytes=_spread(item, "rest_bytes", _REST),
        **ints(item, (("unmeasured", 0, 0, limits.GPU_PROCESSES_MAX),)),
    )


def _process_period(item: Object) -> ProcessPeriod:
    return ProcessPeriod(
        watch=word(item, "watch", WATCHES, Watch.GPU.value),
        **texts(item, ("busiest", "name")),
        **ints(item, (("pid", ABSENT, *_PID),)),
        **figures_or_none(item, HEALTH),
    )


def _trouble(item: Object) -> Trouble:
    return Trouble(
        reason=text(item, "reason", default=None),
        gpu=text(item, "gpu"),
        **ints(item, (("count", ABSENT, 1, limits.TOKENS_MAX),)),
    )


def _throttle(name: object, readings: object) -> tuple[str, int]:
    return (
        text({"throttles": name}, "throttles", default=None),
        ints({"readings": readings}, _READINGS)["readings"],
    )


def _spreads(item: Object) -> dict[str, Any]:
    return {name: _spread(item, name, bounds) for name, bounds in SPREADS.items()}


def _spread(item: Object, name: str, bounds: tuple[int, int]) -> Spread | None:
    if name not in item:
        return None
    values = _figures(item, name, bounds)
    if len(values) != 3 or not values[0] <= values[1] <= values[2]:
        raise Bad(Reason.BAD_SPREAD, f"{name}: must be the smallest, mean and largest value")
    return Spread(least=values[0], mean=values[1], most=values[2])


def _marks(item: Object, bounds: tuple[int, int]) -> tuple[int, ...]:
    if "used_marks" not in item:
        return ()
    values = _figures(item, "used_marks", bounds)
    if not 1 <= len(values) <= MARKS:
        raise Bad(Reason.TOO_MANY, f"used_marks: {len(values)} values; at most {MARKS}, left out where there is none")
    return tuple(values)


def _figures(item: Object, name: str, bounds: tuple[int, int]) -> list[int]:
    values = item[name]
    if not isinstance(values, list):
        raise Bad(Reason.WRONG_TYPE, f"{name}: must be a list of integers")
    for value in values:
        if type(value) is not int or not bounds[0] <= value <= bounds[1]:
            raise fault(name, value, *bounds)
    return values


# --- writing --------------------------------------------------------------------------------------------


def head_of(batch: SampleBatch) -> Iterator[tuple[str, Any]]:
    """The keys of ``agent`` in order, each with its value, or None where :func:`rows_of` has its rows."""
    yield "boot", _plain(batch.boot)
    yield "end_us", batch.end_us
    yield "gpus", None
    yield "health", None
    yield "processes", None
    yield "rests", None
    yield "samples", None
    yield "seq", batch.seq
    if batch.skew_us:
        yield "skew_us", batch.skew_us
    yield "source", _agent(batch.source)
    yield "start_us", batch.start_us
    yield "troubles", None


def rows_of(batch: SampleBatch, key: str) -> Iterator[Object] | None:
    """The rows under ``key`` as written; None where the key is left out."""
    records = getattr(batch, key)
    if records is None or (not records and key != "gpus"):
        return None
    return map(_WRITERS[key], records)


def _writer(record: type[Any], *spreads: str, also: dict[str, Callable[[Any], Any]] | None = None) -> Any:
    """A function that writes a record: sorted keys, what is absent, empty or 0 left out where that is its default."""
    names = tuple(sorted(record.__slots__))
    get = attrgetter(*names)
    forms: dict[str, Callable[[Any], Any]] = {**dict.fromkeys(spreads, _listed), **(also or {})}
    shaped = tuple(forms.get(name) for name in names)
    left_out = tuple(_DEFAULTS.get(name) for name in names)

    def write(one: Any) -> Object:
        return {
            name: value if form is None else form(value)
            for name, value, form, default in zip(names, get(one), shaped, left_out, strict=True)
            if value is not None and value != default
        }

    return write


def _listed(spread: Spread) -> list[int]:
    return [spread.least, spread.mean, spread.most]


def _pairs(values: tuple[tuple[str, int], ...]) -> list[list[Any]]:
    return [list(pair) for pair in values]


_DEFAULTS: Final[dict[str, Any]] = {
    "busiest": "",
    "cluster": "",
    "driver": "",
    "engagement": Engagement.COMPUTE,
    "host": "",
    "index": 0,
    "model": "",
    "name": "",
    "namespace": "",
    "parent": "",
    "pod": "",
    "software": "",
    "unmeasured": 0,
    "used_marks": (),
    "watch": Watch.GPU,
}
"""What is left out, by name; a figure that may be unknown is left out where it is."""

_plain: Final = _writer(Boot)
_agent: Final = _writer(Agent)
_write_trouble: Final = _writer(Trouble)
_WRITERS: Final[dict[str, Callable[[Any], Object]]] = {
    "gpus": _writer(Gpu),
    "samples": _writer(GpuPeriod, *SPREADS, also={"used_marks": list, "throttles": _pairs}),
    "processes": _writer(GpuProcess, "used_bytes", also={"used_marks": list}),
    "rests": _writer(GpuRest, "rest_bytes"),
    "health": _writer(ProcessPeriod),
    "troubles": lambda row: {name: value for name, value in _write_trouble(row).items() if value != ""},
}
