"""One batch: decode it, check the laws, write it once. A named reason for each refusal.

Invariants: key, rows and effects are one transaction, so a batch that was acknowledged is in the ledger and
counts once however often it is delivered; what is refused is refused whole, counted, and kept in quarantine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ledger import limits
from ledger.errors import Refusal, UsageError
from ledger.fastwire import read
from ledger.laws import breach
from ledger.placing import place_of
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
        receipt.lock_engines(connection, {batch.source.engine for batch in batches})
        sampled = [one.found.batch for one in examined if isinstance(one.found, DecodedSamples)]
        for agent in sorted({batch.source.source_id for batch in sampled}):
            samples.lock_agent(connection, agent)
        if len(batches) > 1:
            facts.intern(db, connection, batches, learned)
        samples.intern(db, connection, sampled, learned)
        results: dict[int, Outcome | Refusal] = {}
        for turn in _turns(examined):
            results |= _take(db, connection, turn, learned)
        facts.flush(connection, learned)
        # Counts are locked last, and by everybody last.
        answers = []
        for place, one in enumerate(examined):
            result = one.found if isinstance(one.found, Refusal) else results[place]
            answers.append(_put_aside(connection, one, result, entry) if isinstance(result, Refusal) else result)
        if entry is not None and isinstance(results.get(0), Outcome):
            quarantine.release(connection, entry)
        return tuple(answers), learned

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """A batch that could be read, and its place in the delivery."""

    place: int
    decoded: Decoded | DecodedSamples
    received_us: int


def _turns(examined: Sequence[Examined]) -> list[list[_Due]]:
    """What could be read, in turns: of each sender one batch a turn, in order.

    Batches of a turn have nothing to do with each other, so the database is asked about all of them at once.
    """
    turns: list[list[_Due]] = []
    had: Counter[tuple[str, str]] = Counter()
    for place, one in enumerate(examined):
        if isinstance(one.found, Refusal):
            continue
        if isinstance(one.found, Decoded):
            sender = "engine", one.found.batch.source.engine
        else:
            sender = "agent", one.found.batch.source.source_id
        if had[sender] == len(turns):
            turns.append([])
        turns[had[sender]].append(_Due(place=place, decoded=one.found, received_us=one.received_us))
        had[sender] += 1
    return turns


def _take(
    db: Database, connection: Connection, turn: Sequence[_Due], learned: facts.Learned
) -> dict[int, Outcome | Refusal]:
    """Write the batches, unless what is stored speaks against one; nothing of it is written before that is known."""
    boots = [_boot_of(db, connection, due.decoded, learned) for due in turn]
    results: dict[int, Outcome | Refusal] = {}
    written: list[tuple[_Due, int, facts.Receipt]] = []
    for due, known, near in zip(turn, boots, _neighbours(connection, turn, boots), strict=True):
        missing = place_of(due.decoded, known, near)
        if isinstance(missing, int):
            missing = _against(db, connection, due, known, learned) or missing
        if not isinstance(missing, int):
            results[due.place] = missing or Outcome(status=Status.DUPLICATE)
            continue
        taken = facts.Receipt(
            digest=due.decoded.digest,
            prev=due.decoded.prev,
            kept_digest=due.decoded.kept_digest,
            received_us=due.received_us,
            ahead=due.decoded.batch.end_us > due.received_us,
            missing_before=missing,
        )
        boot = known[0] if known is not None else _add_boot(connection, due)
        _insert(db, connection, due.decoded, boot=boot, receipt=taken, learned=learned)
        written.append((due, boot, taken))
    facts.flush_keys(connection, learned)
    lost = _lost(connection, written)
    for due, _, taken in written:
        results[due.place] = Outcome(
            status=Status.ACCEPTED,
            missing_before=taken.missing_before,
            ahead=taken.ahead,
            lost=due.place in lost,
            batch=due.decoded.batch if isinstance(due.decoded, Decoded) else None,
            samples=due.decoded.batch if isinstance(due.decoded, DecodedSamples) else None,
        )
    return results


def _boot_of(
    db: Database, connection: Connection, decoded: Decoded | DecodedSamples, learned: facts.Learned
) -> tuple[int, Boot] | None:
    """The boot with this id that was seen before, if any."""
    if isinstance(decoded, Decoded):
        return facts.find_boot(db, connection, decoded.batch.source.engine, decoded.batch.boot, learned)
    return samples.find_boot(db, connection, decoded.batch.source.source_id, decoded.batch.boot, learned)


def _neighbours(
    connection: Connection, turn: Sequence[_Due], boots: Sequence[tuple[int, Boot] | None]
) -> list[receipt.Near]:
    """What is stored around each batch."""
    near: list[receipt.Near] = [(None, None)] * len(turn)
    for kind, keys in ((Decoded, tables.batches), (DecodedSamples, sample_tables.agent_batches)):
        asked = {
            place: (known[0], due.decoded.batch.seq)
            for place, (due, known) in enumerate(zip(turn, boots, strict=True))
            if known is not None and isinstance(due.decoded, kind)
        }
        for place, found in zip(asked, receipt.neighbours(connection, list(asked.values()), table=keys), strict=True):
            near[place] = found
    return near


def _against(
    db: Database, connection: Connection, due: _Due, known: tuple[int, Boot] | None, learned: facts.Learned
) -> Refusal | None:
    """What else that is stored speaks against a batch which fits into its boot."""
    decoded = due.decoded
    if known is not None and isinstance(decoded, Decoded):
        opened = receipt.second_paying(connection, known[0], decoded.batch)
        if opened is not None:
            detail = f"pool {opened.pool!r} opens with money while another pool of the engine has it; one may"
            return Refusal(reason=Reason.TWO_PAYING, detail=detail)
    origin = decoded.batch.source.origin
    learned.origin = db.origin or learned.origin or receipt.fix_origin(connection, origin, due.received_us)
    if origin is learned.origin:
        return None
    detail = f"this ledger is {learned.origin} from its first batch on, and the batch is {origin}"
    return Refusal(reason=Reason.OTHER_ORIGIN, detail=f"{detail}: use another database for it")


def _add_boot(connection: Connection, due: _Due) -> int:
    if isinstance(due.decoded, Decoded):
        batch = due.decoded.batch
        return facts.add_boot(connection, batch.source.engine, batch.boot, due.received_us)
    sampled = due.decoded.batch
    return samples.add_boot(connection, sampled.source.source_id, sampled.boot, due.received_us)


def _insert(
    db: Database,
    connection: Connection,
    decoded: Decoded | DecodedSamples,
    *,
    boot: int,
    receipt: facts.Receipt,
    learned: facts.Learned,
) -> None:
    if isinstance(decoded, Decoded):
        facts.insert_batch(db, connection, decoded.batch, boot=boot, receipt=receipt, learned=learned)
    else:
        samples.insert(db, connection, decoded.batch, boot=boot, receipt=receipt, learned=learned)


def _lost(connection: Connection, written: Sequence[tuple[_Due, int, facts.Receipt]]) -> set[int]:
    """The places of the batches whose time an earlier boot of their engine claims."""
    claims = {
        due.place: receipt.Claim(
            engine=due.decoded.batch.source.engine,
            boot=boot,
            seq=due.decoded.batch.seq,
            start_us=due.decoded.batch.start_us,
            end_us=due.decoded.batch.end_us,
            received_us=due.received_us,
        )
        for due, boot, _ in written
        if isinstance(due.decoded, Decoded)
    }
    settled = receipt.settle_overlaps(connection, list(claims.values()))
    return {place for place, lost in zip(claims, settled, strict=True) if lost}


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
