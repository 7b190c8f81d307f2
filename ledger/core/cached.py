"""Blocks of one pool that nobody holds but whose content is kept: each belongs to the session that held it last.

Invariant: ``cached`` is the sum over the accounts, and a block is one session's exactly if its owner is that account.
An account is remembered while it has blocks, or has changed in the period.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from ledger.core.holders import OUTSIDE, Account, Holder, Key, Owner, Ticks, session, tally
from ledger.core.leaves import LeafAccounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.core.records import Dimensions


class CachedAccounts(LeafAccounts):
    """The cached blocks of one pool."""

    def __init__(
        self,
        ticks: Ticks,
        lookahead: int,
        unsteady: Callable[[int, Holder], None],
        fault: Callable[[str], None],
    ) -> None:
        super().__init__(ticks, lookahead, unsteady, fault)
        self.cached = self.cached_acc = 0
        self.accounts: dict[Dimensions, Account] = {}
        self.touched: list[Account] = []
        self.period_start = 0

    def account(self, dims: Dimensions) -> Account:
        """A session's account; a new one is kept as soon as it changes."""
        return self.accounts.get(dims) or Account(dims)

    def change_cached(self, t: int, account: Account, by: int) -> None:
        if not account.touched:
            account.touched = True
            self.touched.append(account)
            self.accounts[account.dims] = account
            account.acc = -account.blocks * self.period_start
        account.blocks += by
        account.acc -= by * t
        self.cached += by
        self.cached_acc -= by * t

    def put_cached(self, t: int, account: Account, blocks: Sequence[int]) -> None:
        """Content that was there before anybody was watching."""
        for block in blocks:
            self.owner[block] = account
            self.computed_by[block] = OUTSIDE
        self.change_cached(t, account, len(blocks))

    def owners(self, blocks: Sequence[int]) -> tuple[Owner, ...]:
        """Owners of blocks, in order; raises on ids that are no blocks of the pool."""
        if len(blocks) < 2:
            return tuple([self.owner[block] for block in blocks])
        owners: tuple[Owner, ...] = itemgetter(*blocks)(self.owner)
        return owners

    def authors(self, blocks: Sequence[int], owners: tuple[Owner, ...]) -> list[Key]:
        """Who computed blocks, in order; ``owners`` are theirs."""
        by = self.computed_by
        keys = {owner: session(owner) for owner in set(owners)}
        return [keys[owner] if (key := by[block]) is None else key for block, owner in zip(blocks, owners, strict=True)]

    def evict(self, t: int, blocks: Sequence[int]) -> None:
        """Cached blocks become free."""
        owner = self.owner
        owners = self.owners(blocks)
        if len(blocks) == 1:
            only = owners[0]
            if type(only) is Account:
                owner[blocks[0]] = self.computed_by[blocks[0]] = None
                self.change_cached(t, only, -1)
                return
        if len(set(blocks)) != len(blocks):
            self.fault("block_twice")
            blocks = list(dict.fromkeys(blocks))
            owners = self.owners(blocks)
        for kind, count in tally(owners).items():
            if type(kind) is Account:
                self.change_cached(t, kind, -count)
            else:
                self.fault("evict_not_cached")
        for block, was in zip(blocks, owners, strict=True):
            if type(was) is Account:
                owner[block] = self.computed_by[block] = None
