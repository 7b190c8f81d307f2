"""`kvledger ingest`: books a spool that had no network.

Invariants: a batch is acknowledged in the spool only when it is durable in the ledger or kept in its quarantine, so
after any kill the same command goes on where it was, and the one batch in between is recognised as a repeat; what is
not booked (damage, refusals, owners that live) is counted, named, and shows in the exit code.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ledger import ingest
from ledger.cli import FOUND, OK
from ledger.commands.opening import now_us, open_books, opened
from ledger.errors import LedgerError, UsageError
from ledger.ingest import Status
from ledger.outbox import spool
from ledger.outbox.tally import Loss

if TYPE_CHECKING:
    from argparse import Namespace

    from ledger.outbox.spool import Reading
    from ledger.store.database import Database

TOLD_S = 5
"""Seconds between two lines of progress."""

NAMED_MAX = 5
"""Segments and owners that are named; the rest is counted."""


@dataclass(slots=True)
class _Booked:
    statuses: Counter[Status] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.statuses.total()


def run(args: Namespace) -> int:
    """Book every batch of the spool; 1 where something in it could not be booked."""
    directory = Path(args.directory)
    if directory.is_dir() and os.access(directory, os.R_OK) and not any(directory.iterdir()):
        print(f"nothing waits in {directory}")  # as this command leaves a spool that it has booked
        return OK
    with opened(args) as ledger, _reading(directory) as reading:
        open_books(ledger)
        booked = _book(reading, ledger.database)
    taken, known = booked.statuses[Status.ACCEPTED], booked.statuses[Status.DUPLICATE]
    print(f"{taken} batches booked, {known} were in the ledger already; `kvledger settle` or the service settles them")
    aside = booked.statuses[Status.REFUSED] + booked.statuses[Status.QUARANTINED]
    if aside:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(booked.refusals.items()))
        print(f"{aside} are kept in quarantine ({reasons}); see `kvledger quarantine list`")
    if reading.damaged:
        runs, lost = reading.tally.counts[Loss.DAMAGED], reading.tally.damaged_bytes
        print(
            f"{runs} places ({lost} bytes) are not what was written, a crash or a bad disk: {_named(reading.damaged)}"
        )
    if reading.busy:
        print(f"left out, since an engine that runs sends it itself: {_named(reading.busy)}; stop it, or wait")
    return FOUND if aside or reading.damaged or reading.busy else OK


def _reading(directory: Path) -> Reading:
    try:
        return spool.read(directory)
    except LedgerError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}; run this as somebody who may read it") from error


def _book(reading: Reading, database: Database) -> _Booked:
    booked, told_s = _Booked(), time.monotonic()
    for entry in reading:
        # One at a time: the spool is read in order, and a kill repeats one batch at most.
        outcome = ingest.accept(database, entry.raw, now_us())
        reading.acknowledge(entry)
        booked.statuses[outcome.status] += 1
        if outcome.refusal is not None:
            booked.refusals[outcome.refusal.reason] += 1
        if time.monotonic() - told_s >= TOLD_S:
            told_s = time.monotonic()
            print(f"{booked.total} batches read, now {entry.segment.name}", file=sys.stderr)
    return booked


def _named(paths: dict[Path, int] | list[Path]) -> str:
    shown = [str(path) for path in list(paths)[:NAMED_MAX]]
    return ", ".join(shown) + (f" and {len(paths) - NAMED_MAX} more" if len(paths) > NAMED_MAX else "")
