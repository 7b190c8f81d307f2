"""One batch: decode it, check the laws, write it once. A named reason for each refusal.

Invariants: key, rows and effects are one transaction, so a batch that was acknowledged is in the ledger and
counts once however often it is delivered; what is refused is refused whole, counted, and kept in quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ledger import limits
from ledger.errors import Refusal, UsageError
from ledger.fastwire import read
from ledger.laws import breach
from ledger.refusals import Reason
from ledger.sample_laws import sample_breach
from ledger.store import facts, quarantine, receipt, sample_tables, samples, tables
from ledger.wire import Decoded, DecodedSamples, peek

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.records import Batch, Boot
    from ledger.core.samples import SampleBatch
    from ledger.store.database import Connection, Database


class Status(StrEnum):
    """What became of a batch."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """It is in the ledger already; a success for its sender."""
    QUARANTINED = "quarantined"
    """Its major version is unknown: it is kept until the service is upgraded; a success for its sender."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer to one batch. ``refusal`` is there where the status is quarantined or refused.

    ``missing_before``: seqs between the batch before and this one that had not arrived. ``ahead``: it lies
    after its receipt, within bounds. ``lost``: an earlier boot claims its time, so it is stored, not valid.
    ``batch`` or ``samples`` is there where one was accepted, for whoever shows what is going on now.
    """

    status: Status
    refusal: Refusal | None = None
    missing_before: int = 0
    ahead: bool = False
    lost: bool = False
    batch: Batch | None = None
    samples: SampleBatch | None = None


def accept(db: Database, raw: bytes, received_us: int) -> Outcome:
    """Take one encoded batch that arrived at ``received_us`` (the receipt clock, virtual in a replay).

    When it returns, the answer is durable. Raises :class:`~ledger.errors.StoreError` where the database
    failed; then nothing is known about the batch, and its sender delivers it again.
    """
    return accept_several(db, [raw], received_us)[0]


def accept_several(db: Database, raws: Sequence[bytes], received_us: int) -> tuple[Outcome, ...]:
    """:func:`accept` for a delivery of several batches, in order and in one transaction: all answers or none.

    At most ``BATCHES_AT_ONCE_MAX``; one that is refused keeps no other from being accepted.
    """
    return book(db, [examine(db, raw, received_us) for raw in raws])


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A batch about which all is known that can be said without asking the database."""

    raw: bytes
    found: Decoded | DecodedSamples | Refusal
    received_us: int


def examine(db: Database, raw: bytes, received_us: int) -> Examined:
    """The first half of :func:`accept`: nothing is read or written, and any number of threads may do it at a time."""
    return Examined(raw=raw, found=_examine(db, raw, received_us), received_us=received_us)


def retry(db: Database, entry: int, received_us: int) -> Outcome:
    """Try a batch in quarantine again; once accepted, or found to be in the ledger, it leaves quarantine."""
    with db.read() as connection:
        found = quarantine.entry(connection, entry)
    if found is None:
        raise UsageError(f"no entry {entry} in quarantine; see: kvledger quarantine list")
    return book(db, [examine(db, found[1], received_us)], entry=entry)[0]


def book(db: Database, examined: Sequence[Examined], *, entry: int | None = None) -> tuple[Outcome, ...]:
    """The second half: the batches in order and in one transaction, all answers or none.

    At most ``BATCHES_AT_ONCE_MAX``. ``entry``: the one batch is this entry of the quarantine.
    """
    assert len(examined) <= limits.BATCHES_AT_ONCE_MAX, "the caller divides what was delivered"
    for one in examined:
        if not isinstance(one.found, Refusal):
            facts.ensure_day(db, one.found.batch.start_us)

    def work(connection: Connection) -> tuple[tuple[Outcome, ...], facts.Learned]:
        learned = facts.Learned()
        # Several engines in one transaction: everybody takes their locks in the same order.
        batches = [one.found.batch for one in examined if isinstance(one.found, Decoded)]
        for engine in sorted({batch.source.engine for batch in batches}):
            receipt.lock_engine(connection, engine)
        sampled = [one.found.batch for one in examined if isinstance(one.found, DecodedSamples)]
        for agent in sorted({batch.source.source_id for batch in sampled}):
            samples.lock_agent(connection, agent)
        if len(batches) > 1:
            facts.intern(db, connection, batches, learned)
        samples.intern(db, connection, sampled, learned)
        results = [
            one.found if isinstance(one.found, Refusal) else _take(db, connection, one.found, one.received_us, learned)
            for one in examined
        ]
        facts.flush(connection, learned)
        # Counts are locked last, and by everybody last.
        answers = tuple(
            result if isinstance(result, Outcome) else _put_aside(connection, one, result, entry)
            for one, result in zip(examined, results, strict=True)
        )
        if entry is not None and isinstance(results[0], Outcome):
            quarantine.release(connection, entry)
        return answers, learned

    answers, learned = db.write(work)
    facts.remember(db, learned)
    return answers


def _examine(db: Database, raw: bytes, received_us: int) -> Decoded | DecodedSamples | Refusal:
    """All that can be said about a batch without asking the database."""
    decoded = read(raw)
    if isinstance(decoded, Refusal):
        return decoded
    batch = decoded.batch
    ahead_us = batch.end_us - received_us
    if ahead_us > limits.AHEAD_US_MAX:
        detail = f"ends {ahead_us} µs after its receipt; at most {limits.AHEAD_US_MAX}: set the sender's clock"
        return Refusal(reason=Reason.FROM_THE_FUTURE, detail=detail)
    if -ahead_us > db.retention_days * limits.DAY_US:
        detail = f"ended {-ahead_us // limits.DAY_US} days before its receipt; facts are kept {db.retention_days} days"
        return Refusal(reason=Reason.TOO_OLD, detail=detail)
    return (breach(decoded.batch) if isinstance(decoded, Decoded) else sample_breach(decoded.batch)) or decoded


def _take(
    db: Database,
    connection: Connection,
    decoded: Decoded | DecodedSamples,
    received_us: int,
    learned: facts.Learned,
) -> Outcome | Refusal:
    """Write the batch, unless what is stored speaks against it; nothing is written before that is known."""
    batch = decoded.batch
    if isinstance(decoded, Decoded):
        known = facts.find_boot(db, connection, decoded.batch.source.engine, batch.boot, learned)
    else:
        known = samples.find_boot(db, connection, decoded.batch.source.source_id, batch.boot, learned)
    missing = _place(connection, decoded, known)
    if not isinstance(missing, int):
        return missing
    origin = receipt.fix_origin(connection, batch.source.origin, received_us)
    if origin is not batch.source.origin:
        detail = f"this ledger is {origin} from its first batch on, and the batch is {batch.source.origin}"
        return Refusal(reason=Reason.OTHER_ORIGIN, detail=f"{detail}: use another database for it")
    ahead = batch.end_us > received_us
    taken = facts.Receipt(
        digest=decoded.digest,
        prev=decoded.prev,
        kept_digest=decoded.kept_digest,
        received_us=received_us,
        ahead=ahead,
        missing_before=missing,
    )
    number = known[0] if known is not None else None
    if isinstance(decoded, DecodedSamples):
        source_id = decoded.batch.source.source_id
        boot = number or samples.add_boot(connection, source_id, batch.boot, received_us)
        samples.insert(db, connection, decoded.batch, boot=boot, receipt=taken, learned=learned)
        return Outcome(status=Status.ACCEPTED, missing_before=missing, ahead=ahead, samples=decoded.batch)
    engine = decoded.batch.source.engine
    boot = number or facts.add_boot(connection, engine, batch.boot, received_us)
    facts.insert_batch(db, connection, decoded.batch, boot=boot, receipt=taken, learned=learned)
    lost = receipt.settle_overlaps(connection, engine, boot, decoded.batch, received_us)
    return Outcome(status=Status.ACCEPTED, missing_before=missing, ahead=ahead, lost=lost, batch=decoded.batch)


def _place(
    connection: Connection, decoded: Decoded | DecodedSamples, known: tuple[int, Boot] | None
) -> int | Outcome | Refusal:
    """How many seqs are missing before the batch, if it fits into what is stored of its boot."""
    batch = decoded.batch
    if known is None:
        return _out_of_line(decoded, None, None) or batch.seq - 1
    boot, record = known
    if record != batch.boot:
        detail = f"boot {batch.boot.boot_id!r} has other times than before; a new life of its sender needs a new id"
        return Refusal(reason=Reason.OTHER_BOOT, detail=detail)
    keys = tables.batches if isinstance(decoded, Decoded) else sample_tables.agent_batches
    at, later = receipt.neighbours(connection, boot, batch.seq, table=keys)
    if at is not None and at.seq == batch.seq:
        if at.digest == decoded.digest:
            return Outcome(status=Status.DUPLICATE)
        detail = f"seq {batch.seq} of boot {batch.boot.boot_id!r} is stored with digest {at.digest.hex()}"
        return Refusal(reason=Reason.KEY_REUSED, detail=f"{detail}, this one has {decoded.digest.hex()}")
    refusal = _out_of_line(decoded, at, later)
    if refusal is None and isinstance(decoded, Decoded):
        refusal = _second_paying(connection, boot, decoded.batch)
    if refusal is not None:
        return refusal
    # A late batch fills a gap that was counted when the one after it arrived.
    return 0 if later is not None else batch.seq - 1 - (at.seq if at is not None else 0)


def _out_of_line(
    decoded: Decoded | DecodedSamples, at: receipt.Neighbour | None, later: receipt.Neighbour | None
) -> Refusal | None:
    """Whether the batch does not fit between its neighbours, in the chain of digests or in time."""
    batch = decoded.batch
    broken = None
    if (batch.seq == 1) != (not decoded.prev):
        broken = "only the first batch of a boot has none before it"
    elif at is not None and at.seq == batch.seq - 1 and at.digest != decoded.prev:
        broken = f"names {decoded.prev.hex()} as the batch before, which is stored as {at.digest.hex()}"
    elif later is not None and later.seq == batch.seq + 1 and later.prev != decoded.digest:
        broken = f"has digest {decoded.digest.hex()}, and the batch after it names {later.prev.hex()}"
    if broken is not None:
        return Refusal(reason=Reason.BROKEN_CHAIN, detail=f"seq {batch.seq}: {broken}")
    if at is not None and batch.start_us < at.end_us:
        detail = f"seq {batch.seq} starts at {batch.start_us}, before seq {at.seq} ends at {at.end_us}"
        return Refusal(reason=Reason.TIME_REVERSED, detail=detail)
    if later is not None and batch.end_us > later.start_us:
        detail = f"seq {batch.seq} ends at {batch.end_us}, after seq {later.seq} starts at {later.start_us}"
        return Refusal(reason=Reason.TIME_REVERSED, detail=detail)
    return None


def _second_paying(connection: Connection, boot: int, batch: Batch) -> Refusal | None:
    opened = receipt.second_paying(connection, boot, batch)
    if opened is None:
        return None
    detail = f"pool {opened.pool!r} opens with money while another pool of the engine has it; one may"
    return Refusal(reason=Reason.TWO_PAYING, detail=detail)


def _put_aside(connection: Connection, one: Examined, refusal: Refusal, entry: int | None) -> Outcome:
    """Quarantine what is refused; an unknown version is told apart, since its sender is right."""
    if entry is None:
        quarantine.keep(
            connection,
            one.raw,
            claimed=peek(one.raw),
            reason=refusal.reason,
            detail=refusal.detail,
            received_us=one.received_us,
        )
    else:
        quarantine.still_refused(connection, entry, reason=refusal.reason, detail=refusal.detail)
    unknown = refusal.reason == Reason.UNKNOWN_VERSION
    return Outcome(status=Status.QUARANTINED if unknown else Status.REFUSED, refusal=refusal)
