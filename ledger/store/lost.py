"""Requests that were received and never answered.

Invariant: nothing of it is stored. What is lost follows from the facts, so a record that arrives late changes the
answer. Only boots that have ended can have lost anything, so only their rows are read, by their keys, from the day on
that was asked for: engines that have not restarted since cost one look each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import except_, select

from ledger import limits
from ledger.store import tables
from ledger.store.fact_reads import dimensions_by_id
from ledger.store.fact_rows import admission_of

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select, Table

    from ledger.core.records import Admission
    from ledger.store.database import Connection

EVER: Final = (0, limits.TIME_US_MAX)

_HANDOVER_SEQ: Final = 2
"""A boot announces itself with its first batch and admits what it takes over with its second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRequest:
    """An admission that its boot left unanswered. ``heard_us`` is the end of the boot's last batch."""

    engine: str
    boot_id: str
    admission: Admission
    heard_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    """A boot that still has batches."""

    number: int
    engine: str
    boot_id: str
    heard_us: int


def lost_requests(
    connection: Connection, now_us: int, engine: str | None = None, *, span: tuple[int, int] = EVER
) -> tuple[LostRequest, ...]:
    """Admissions of ``span`` (by arrival) that no record answers, of boots that have ended.

    A boot ends with a newer boot of its engine, or with 15 minutes of silence. One that ended because its clock was set
    anew (a close with reason ``clock``) handed its requests over: the next one admits them again.
    """
    found: list[LostRequest] = []
    for life, heir in _ended(connection, now_us, engine):
        if life.heard_us >= span[0]:
            found += _lost_of(connection, life, heir, span)
    return tuple(found)


def _ended(connection: Connection, now_us: int, engine: str | None) -> list[tuple[_Life, _Life | None]]:
    """The boots that have ended, in the order of first acceptance, each with the next one of its engine."""
    boots, batches = tables.boots.c, tables.batches.c
    last = (
        select(batches.end_us)
        .where(batches.boot == boots.id)
        .order_by(batches.seq.desc())
        .limit(1)
        .correlate(tables.boots)
        .scalar_subquery()
    )
    query = select(boots.id, boots.engine, boots.boot_id, last).order_by(boots.id)
    if engine is not None:
        query = query.where(boots.engine == engine)
    lives = [
        _Life(number=number, engine=name, boot_id=boot_id, heard_us=heard_us)
        for number, name, boot_id, heard_us in connection.execute(query)
        if heard_us is not None
    ]
    heirs: dict[int, _Life] = {}
    newest: dict[str, _Life] = {}
    for life in lives:
        if (before := newest.get(life.engine)) is not None:
            heirs[before.number] = life
        newest[life.engine] = life
    return [
        (life, heirs.get(life.number))
        for life in lives
        if life.number in heirs or now_us - life.heard_us >= limits.SILENCE_US_MAX
    ]


def _lost_of(connection: Connection, life: _Life, heir: _Life | None, span: tuple[int, int]) -> list[LostRequest]:
    asked, closes = tables.admissions.c, tables.pool_closes.c
    first_day, last_day = _days(connection, life)
    # An admission lies in the batch in which it arrived, or in a later one; that may begin on the day before.
    days = range(max(first_day, span[0] // limits.DAY_US - 1), last_day + 1)
    mine = (_rows(tables.admissions, life, days), asked.arrived_us >= span[0], asked.arrived_us < span[1])
    answered = [select(tables.request_records.c.request).where(_rows(tables.request_records, life, days))]
    clock = select(closes.pool).where(closes.boot == life.number, closes.reason == "clock").limit(1)
    if heir is not None and connection.execute(clock).first() is not None:
        answered.append(_taken_over(heir))
    unanswered = except_(select(asked.request).where(*mine), *answered)
    rows = connection.execute(
        select(asked.request, asked.parent, asked.dims, asked.prompt_tokens, asked.arrived_us)
        .where(*mine, asked.request.in_(unanswered))
        .order_by(asked.seq, asked.pos)
    ).all()
    dims = dimensions_by_id(connection, (row[2] for row in rows))
    return [
        LostRequest(engine=life.engine, boot_id=life.boot_id, admission=admission_of(row, dims), heard_us=life.heard_us)
        for row in rows
    ]


def _taken_over(heir: _Life) -> Select[tuple[str]]:
    asked, batches = tables.admissions.c, tables.batches.c
    days = select(batches.day).where(batches.boot == heir.number, batches.seq <= _HANDOVER_SEQ)
    return select(asked.request).where(asked.day.in_(days), asked.boot == heir.number, asked.seq <= _HANDOVER_SEQ)


def _days(connection: Connection, life: _Life) -> tuple[int, int]:
    """The days of a boot's first and last batch."""
    batches = tables.batches.c
    days = select(batches.day).where(batches.boot == life.number).limit(1)
    first = connection.execute(days.order_by(batches.seq)).scalar_one()
    last = connection.execute(days.order_by(batches.seq.desc())).scalar_one()
    return first, last


def _rows(table: Table, life: _Life, days: range) -> ColumnElement[bool]:
    """The rows of a boot on some days, by the key of the table."""
    return table.c.day.in_(list(days)) & (table.c.boot == life.number)
