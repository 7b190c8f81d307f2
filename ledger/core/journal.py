"""The journal's transactions: double entry, append-only, one for each (group, interval, revision).

Invariants:

* the postings of a transaction sum to zero: assets are credited (negative), accounts debited (positive);
* its id derives from its key alone, so writing it twice is noticed by the store;
* revision n+1 carries the reversal of what n booked and the new amounts together, so the sum over all revisions of an
  interval is always what the last one books.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ledger.core.digests import digest
from ledger.core.settlement import Allocation, Kind

FIRST_REVISION = 1


class Side(StrEnum):
    """What a posting's account is: an asset that was paid for, or an account of the allocation."""

    ASSET = "asset"
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """One amount on one account: negative is a credit, positive a debit (a reversal has it the other way round)."""

    side: Side
    account: str
    """An asset's id, or a value of :class:`~ledger.core.settlement.Account`."""
    kind: Kind = Kind.NONE
    tenant: str = ""
    amount_nanos: int
    asset_us: int | None = None
    reversal: bool = False
    """Whether it takes back a posting of the revision before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What was booked for an interval of a group. ``booked_at_us`` is accounting time, not when the row was written.

    ``belongs_to`` is the month that the interval lies in; where that month was closed already, ``booked_at_us`` lies
    in the month that was open, and the transaction is an adjustment there.
    """

    transaction_id: str
    group: str
    start_us: int
    end_us: int
    revision: int
    currency: str
    belongs_to: str
    booked_at_us: int
    inputs_digest: str
    reverses: str | None
    """The id of the revision that it takes back; None for the first."""
    postings: tuple[Posting, ...]


def engine_group(engine: str) -> str:
    """The group of an engine's parts of assets."""
    return f"engine:{engine}"


def asset_group(asset_id: str) -> str:
    """The group of an asset's unassigned rest."""
    return f"asset:{asset_id}"


def transaction_id(group: str, start_us: int, revision: int) -> str:
    """The id of a key: 32 hexadecimal digits."""
    return digest((group, start_us, revision))[:32]


def postings_of(allocation: Allocation) -> tuple[Posting, ...]:
    """Credits of the assets, then debits of the accounts; they sum to zero. An asset without a bill has none."""
    credits_ = (
        Posting(side=Side.ASSET, account=asset_id, amount_nanos=-nanos)
        for asset_id, nanos in allocation.asset_credits
        if nanos
    )
    debits = (
        Posting(
            side=Side.ACCOUNT,
            account=line.account.value,
            kind=line.kind,
            tenant=line.tenant,
            amount_nanos=line.amount_nanos,
            asset_us=line.asset_us,
        )
        for line in allocation.lines
    )
    postings = (*credits_, *debits)
    assert sum(posting.amount_nanos for posting in postings) == 0, postings
    return postings


def reversal_of(transaction: Transaction) -> tuple[Posting, ...]:
    """Postings that take back what ``transaction`` itself booked (not what it took back)."""
    return tuple(
        replace(
            posting,
            amount_nanos=-posting.amount_nanos,
            asset_us=None if posting.asset_us is None else -posting.asset_us,
            reversal=True,
        )
        for posting in transaction.postings
        if not posting.reversal
    )
