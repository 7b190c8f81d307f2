"""The memory of GPUs over time, as it was kept: the rows of devices, of processes and of what no process has.

Invariant: rows hold until the next ones of their GPU, at most a minute later; nothing is made up in between here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, select

from ledger.limits import DAY_US
from ledger.store import sample_tables as t
from ledger.store.sample_rows import marks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ledger.store.database import Connection

DEVICE, PROCESS, REST = "device", "process", "rest"
"""What a row is of."""

_TABLES: Final[dict[str, Any]] = {DEVICE: t.gpu_periods, PROCESS: t.gpu_processes, REST: t.gpu_rests}
_SHOWN: Final = ("used_bytes", "free_bytes", "total_bytes", "reserved_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGpu:
    """A GPU as its newest list in a range has it, and the boots of agents that saw it."""

    number: int
    uuid: str
    index: int
    model: str
    parent: str
    host: str
    boots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """A stored row: of a device (all four figures), of a process (``pid``), or of the rest; figures may be None."""

    start_us: int
    end_us: int
    gpu: str
    of: str
    pid: int | None = None
    least_bytes: int | None
    mean_bytes: int | None
    most_bytes: int | None
    marks_bytes: tuple[int, ...] = ()
    free_bytes: int | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None


def known_gpus(connection: Connection, start_us: int, end_us: int) -> tuple[KnownGpu, ...]:
    """The GPUs that agents listed in the days of ``[start_us, end_us)``, by host, index and UUID."""
    g, b, a = t.gpu_lists, t.agent_batches, t.agents
    query = (
        select(g.c.gpu, t.gpus.c.uuid, g.c.index_no, g.c.model, g.c.parent, g.c.boot, a.c.host)
        .join(b, and_(b.c.boot == g.c.boot, b.c.seq == g.c.seq))
        .join(a, a.c.id == b.c.source)
        .join(t.gpus, t.gpus.c.id == g.c.gpu)
        .where(g.c.day.between(start_us // DAY_US, end_us // DAY_US))
        .order_by(g.c.boot, g.c.seq)
    )
    rows: dict[str, Any] = {}
    boots: dict[str, dict[int, None]] = {}
    for row in connection.execute(query):
        rows[row.uuid] = row
        boots.setdefault(row.uuid, {})[row.boot] = None
    found = [
        KnownGpu(
            number=row.gpu, uuid=uuid, index=row.index_no, model=row.model, parent=row.parent, host=row.host,
            boots=tuple(boots[uuid]),
        )
        for uuid, row in rows.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda gpu: (gpu.host, gpu.index, gpu.parent, gpu.uuid)))


def memory_rows(
    connection: Connection, gpus: Sequence[KnownGpu], start_us: int, end_us: int, *, devices_only: bool = False
) -> Iterator[MemoryRow]:
    """The rows of periods that begin in ``[start_us, end_us)``, GPU by GPU, each by time.

    Where two agents kept rows of one period, those of the boot that was accepted later count.
    """
    kinds = [DEVICE] if devices_only else list(_TABLES)
    for gpu in gpus:
        found: dict[int, tuple[int, list[MemoryRow]]] = {}
        for of in kinds:
            for boot, row in _rows(connection, of, gpu, start_us, end_us):
                known = found.get(row.start_us)
                if known is None or boot > known[0]:
                    found[row.start_us] = (boot, [row])
                elif boot == known[0]:
                    known[1].append(row)
        for at_us in sorted(found):
            yield from found[at_us][1]


def _rows(
    connection: Connection, of: str, gpu: KnownGpu, start_us: int, end_us: int
) -> Iterator[tuple[int, MemoryRow]]:
    b, table = t.agent_batches, _TABLES[of]
    query = (
        select(b.c.start_us, b.c.end_us, table)
        .join(table, and_(*(table.c[name] == b.c[name] for name in ("day", "boot", "seq"))))
        .where(b.c.boot.in_(gpu.boots), b.c.start_us >= start_us, b.c.start_us < end_us, table.c.gpu == gpu.number)
        .order_by(b.c.start_us, b.c.boot, table.c.pos)
    )
    name = "rest_bytes" if of == REST else "used_bytes"
    for row in connection.execute(query).mappings():
        more = {}
        if of == DEVICE:
            more = {f"{each}": row[f"{each}_mean"] for each in _SHOWN[1:]}
        marks: tuple[int, ...] = ()
        if of != REST:
            marks = marks_of([row["used_mark_1"], row["used_mark_2"], row["used_mark_3"]])
        yield (
            row["boot"],
            MemoryRow(
                start_us=row["start_us"], end_us=row["end_us"], gpu=gpu.uuid, of=of,
                pid=row["pid"] if of == PROCESS else None, least_bytes=row[f"{name}_least"],
                mean_bytes=row[f"{name}_mean"], most_bytes=row[f"{name}_most"], marks_bytes=marks, **more,
            ),
        )  # fmt: skip
