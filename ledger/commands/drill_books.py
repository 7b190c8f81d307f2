"""Whether the books are whole after a drill: what engines metered against what the ledger has.

Invariant: nothing here trusts what was acknowledged; it reads the ledger and compares it with what was handed to the
outboxes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger.audit import audit
from ledger.commands.checks import Check, judged, named
from ledger.core.money import rounded_text
from ledger.reports.monthly import last_month, read_statement
from ledger.reports.usage import By, usage
from ledger.settle import settle
from ledger.store import fact_reads, quarantine

if TYPE_CHECKING:
    from ledger.core.records import Batch
    from ledger.store.database import Database

Key = tuple[str, str, int]
"""Engine, boot, seq."""


@dataclass(slots=True, kw_only=True)
class Metered:
    """What the engines handed to their outboxes."""

    start_us: int
    end_us: int
    bill_nanos: int
    """What their GPUs cost in that time, worked out by hand."""
    keys: set[Key] = field(default_factory=set)
    sums: Counter[str] = field(default_factory=Counter)

    def add(self, batch: Batch) -> None:
        """Note a batch on its way."""
        self.keys.add((batch.source.engine, batch.boot.boot_id, batch.seq))
        for pool in batch.pools:
            # By pool: of sessions that are quiet a batch has no row.
            self.sums["active_block_us"] += pool.active_block_us
            self.sums["cached_block_us"] += pool.cached_block_us
            self.sums["free_block_us"] += pool.free_block_us
        for row in batch.sessions:
            self.sums["output_tokens"] += row.tokens.output


def whole(database: Database, metered: Metered) -> tuple[Check, ...]:
    """Settle, and check each thing that makes books whole."""
    settled = [settle(database, until_us=metered.end_us, now_us=metered.end_us) for _ in range(2)]
    again = settled[1].booked + settled[1].revised
    return (
        *_batches(database, metered),
        judged("settled", not again, f"{settled[0].booked} intervals booked, {settled[0].revised} revised; settling "
               "again changes nothing", f"settling again changes {again} intervals", "run `kvledger audit`"),
        _figures(database, metered),
        _bill(database, metered),
        _laws(database),
    )  # fmt: skip


def _batches(database: Database, metered: Metered) -> tuple[Check, ...]:
    with database.read() as connection:
        boots = fact_reads.boots_of(connection)
        found = [
            (boot.engine, batch.batch.boot.boot_id, batch.batch.seq)
            for boot in boots
            for batch in fact_reads.stored_batches(connection, boot)
        ]
        refused = [
            f"{entry.engine or 'nobody'} {entry.seq}: {entry.reason}" for entry in quarantine.entries(connection)
        ]
    missing, strange = metered.keys - set(found), set(found) - metered.keys
    twice = [key for key, count in Counter(found).items() if count > 1]
    holes = sum(boot.missing for boot in boots)
    return (
        judged("batches", not missing and not strange, f"{len(metered.keys)} metered, {len(set(found))} in the ledger",
               f"missing {_seqs(missing)}; never metered {_seqs(strange)}", "the log of the service says more"),
        judged("gaps", not holes, "none", f"{holes} batches are missing between others", "as above"),
        judged("once", not twice, "no batch is there twice", f"twice: {_seqs(set(twice))}", "as above"),
        judged("refused", not refused, "no batch", named(refused), "`kvledger quarantine list` on its ledger"),
    )  # fmt: skip


def _figures(database: Database, metered: Metered) -> Check:
    rows = usage(database, start_us=metered.start_us, end_us=metered.end_us, by=By.POOL)
    booked = {name: sum(getattr(row, name) or 0 for row in rows) for name in metered.sums}
    differ = [f"{name} {metered.sums[name]} metered, {figure} in the ledger" for name, figure in booked.items()
              if figure != metered.sums[name]]  # fmt: skip
    held, cached, free = (
        metered.sums[name] // 1_000_000 for name in ("active_block_us", "cached_block_us", "free_block_us")
    )
    fine = (
        f"as metered, to the µs: {held:,} block-seconds held, {cached:,} cached, {free:,} free; "
        f"{metered.sums['output_tokens']:,} tokens out"
    )
    return judged("figures", not differ, fine, named(differ), "run `kvledger audit` on its ledger")


def _bill(database: Database, metered: Metered) -> Check:
    month = last_month(database)
    if month is None:
        return judged("bill", False, "", "nothing is booked", "as above")
    statement = read_statement(database, month, now_us=metered.end_us)
    lines = sum(line.amount_nanos for line in statement.lines)
    unobserved = sum(line.amount_nanos for line in statement.lines if line.account == "unobserved")
    good = lines == statement.bill_nanos == metered.bill_nanos and not unobserved
    return judged(
        "bill", good,
        f"closes to the nano-unit: {rounded_text(lines, 9)} {statement.currency} on {len(statement.lines)} lines, "
        "none of it unobserved",
        f"the lines sum to {rounded_text(lines, 9)} of {rounded_text(metered.bill_nanos, 9)}, "
        f"{rounded_text(unobserved, 9)} of it unobserved",
        "run `kvledger audit` on its ledger",
    )  # fmt: skip


def _laws(database: Database) -> Check:
    breaches = [str(breach) for breach in audit(database)]
    return judged(
        "audit", not breaches, "silent: every law holds", named(breaches), "run `kvledger audit` on its ledger"
    )


def _seqs(keys: set[Key]) -> str:
    return named(f"{engine} {seq}" for engine, _, seq in sorted(keys)) or "none"
