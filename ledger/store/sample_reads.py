"""Samples read back: batches of agents exactly as they came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from ledger import limits
from ledger.core.records import Origin
from ledger.core.samples import Agent, SampleBatch
from ledger.store import sample_tables as tables
from ledger.store.fact_reads import StoredBoot, boots_in, heads_in, rows_of_boot, stop_at
from ledger.store.sample_rows import batch_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import Table

    from ledger.store.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSamples:
    """A batch of samples made again from its rows, and the digests that were stored with its key."""

    batch: SampleBatch
    digest: bytes
    prev: bytes
    kept_digest: bytes
    received_us: int


def agent_boots(connection: Connection, *, since_us: int | None = None) -> tuple[StoredBoot, ...]:
    """Boots of agents that still have batches, in the order of first acceptance; ``engine`` is the agent's name.

    ``since_us``: only batches count that begin then or later.
    """
    return boots_in(connection, tables.agent_boots, tables.agent_batches, "source_id", since_us=since_us)


def stored_samples(
    connection: Connection,
    boot: StoredBoot,
    *,
    first_seq: int = 1,
    last_seq: int = limits.SEQ_MAX,
    unreadable: Callable[[int, str], None] | None = None,
) -> Iterator[StoredSamples]:
    """The batches of a boot of an agent by seq, as :func:`ledger.store.fact_reads.stored_batches` has an engine's."""
    for heads in heads_in(connection, tables.agent_batches, boot, first_seq=first_seq, last_seq=last_seq):
        yield from _batches(connection, boot, heads, unreadable or stop_at)


def uuids_by_id(connection: Connection, ids: Iterable[int]) -> dict[int, str]:
    """The UUIDs of the GPUs with these ids."""
    g = tables.gpus
    return {row.id: row.uuid for row in connection.execute(select(g).where(g.c.id.in_(sorted(set(ids)))))}


def _batches(
    connection: Connection, boot: StoredBoot, heads: Sequence[Any], unreadable: Callable[[int, str], None]
) -> Iterator[StoredSamples]:
    seqs = (heads[0].seq, heads[-1].seq)
    days = (min(head.day for head in heads), max(head.day for head in heads))
    rows: dict[int, dict[Table, list[tuple[Any, ...]]]] = {head.seq: {} for head in heads}
    named: set[int] = set()
    for table in tables.SAMPLES:
        for seq, row in rows_of_boot(connection, table, boot.number, seqs, days):
            if seq in rows:
                rows[seq].setdefault(table, []).append(row)
                if "gpu" in table.columns and table is not tables.agent_troubles:
                    named.add(row[1])
    uuids = uuids_by_id(connection, named)
    agents = _agents(connection, {head.source for head in heads})
    for head in heads:
        try:
            batch = batch_of(
                source=agents[head.source],
                boot=boot.boot,
                seq=head.seq,
                start_us=head.start_us,
                end_us=head.end_us,
                skew_us=head.skew_us,
                has_gpus=bool(head.has_gpus),
                rows=rows[head.seq],
                uuids=uuids,
            )
        except (KeyError, ValueError, TypeError) as error:
            unreadable(head.seq, f"{type(error).__name__}: {error}")
            continue
        yield StoredSamples(
            batch=batch,
            digest=bytes(head.digest),
            prev=bytes(head.prev),
            kept_digest=bytes(head.kept_digest),
            received_us=head.received_us,
        )


def _agents(connection: Connection, ids: set[int]) -> dict[int, Agent]:
    a = tables.agents
    return {row.id: agent_of(row) for row in connection.execute(select(a).where(a.c.id.in_(sorted(ids))))}


def agent_of(row: Any) -> Agent:
    """An agent from a row that has the columns of ``agents``."""
    described = {name: getattr(row, name) for name in Agent.__slots__ if name != "origin"}
    return Agent(origin=Origin(row.origin), **described)
