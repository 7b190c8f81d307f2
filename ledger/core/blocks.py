"""Who holds the blocks of one pool, counted as it changes and never by looking.

Every block has an owner: nobody (free), an :class:`Account` (cached: the session that held it last), a
:class:`Table` (held by one request) or a :class:`~ledger.core.sharing.Cell` (held by several). Every count is
a pair ``(n, acc)`` whose integral up to ``t`` is ``n * t + acc``; a change by ``d`` at ``t`` does ``n += d;
acc -= d * t``. An event costs the blocks that it names, a reading costs nothing.

Slots (which of a held block's are filled) are :mod:`ledger.core.slots`.

Idea: docs/hook.md tells the reasons; the engine's words (block, group, block table) are vLLM's.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from ledger.core.cached import CachedAccounts
from ledger.core.holders import OUTSIDE, Account, Holder, Key, Owner, Table, Ticks, tally
from ledger.core.sharing import Cell, leaves_of
from ledger.limits import GUARD_IDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ledger.core.records import Dimensions, Group


class BlockAccounts(CachedAccounts):
    """All blocks of one pool. The times of successive calls must not fall; the caller sees to it."""

    def __init__(
        self,
        blocks: int,
        groups: Sequence[Group],
        sizes: Sequence[int],
        ticks: Ticks,
        *,
        lookahead: int,
        fault: Callable[[str], None],
        unsteady: Callable[[int, Holder], None],
    ) -> None:
        self.blocks = blocks
        self.groups = tuple(groups)
        self.sizes = tuple(sizes)
        super().__init__(ticks, lookahead, unsteady, fault)
        # Ids run from 0 or from 1: engines that keep block 0 for themselves use 1..N.
        # Negative ids end on the guard, which is nobody's table in no group.
        guard = Table(self, Holder(), -1, 0)
        self.owner: list[Owner] = [None] * (blocks + 1)
        self.owner.extend([guard] * GUARD_IDS)
        self.computed_by: list[Key | None] = [None] * (blocks + 1 + GUARD_IDS)
        """None where that is the session of the owner, as for most: noted when others take over, until it is free."""
        self.group_active = [0] * len(groups)
        self.group_acc = [0] * len(groups)

    @property
    def active(self) -> int:
        """Blocks that somebody holds."""
        return sum(self.group_active)

    def table(self, holder: Holder, group: int) -> Table:
        """A new table of a request that has none in this group."""
        if group < 0:
            raise IndexError
        table = Table(self, holder, group, self.sizes[group])
        holder.tables.append(table)
        return table

    # -- taking --------------------------------------------------------------------------------------

    def take_new(self, t: int, table: Table, blocks: Sequence[int]) -> None:
        """Blocks without content of use join a table."""
        if not self._take_free(table, blocks):
            self.owners(blocks)
            blocks = self._sort_out(t, blocks)
            if not blocks or not self._fits(len(blocks)) or not self._take_free(table, blocks):
                return
        self._add_own(t, table, len(blocks))
        size = table.size
        if size:
            order = table.order
            end = table.base + len(order) * size
            order.extend(blocks)
            holder = table.holder
            # Empty blocks behind one that is not full change nothing (see Table.unfilled): what an arrival is spared.
            if holder.steady or holder.frontier > end or table.tail > end or self.lookahead:
                self.retune(t, table)

    def _take_free(self, table: Table, blocks: Sequence[int]) -> bool:
        """Give free blocks to a table, all of them or none."""
        if not self._hand_over(blocks, None, table):
            return False
        # Only if ids 0 and N are both in use can there be one block too many.
        if self.owner[0] is None or self.owner[self.blocks] is None or self._has_room(len(blocks)):
            return True
        self._hand_over(blocks, table, None)
        return False

    def _hand_over(self, blocks: Sequence[int], was: Owner, to: Owner) -> bool:
        """Blocks that have one owner get another, all of them or none; one that is named twice has it only once."""
        owner = self.owner
        left = iter(blocks)
        try:
            for block in left:
                if owner[block] is not was:
                    break
                owner[block] = to
            else:
                return True
        except (IndexError, TypeError):
            pass
        # What is left in the iterator says how far it came.
        for block in islice(blocks, len(blocks) - 1 - len(list(left))):
            owner[block] = was
        return False

    def take_full(self, t: int, table: Table, blocks: Sequence[int]) -> None:
        """Blocks with content from outside join a table: full, computed by nobody here."""
        blocks = self._sort_out(t, blocks)
        if not blocks or not self._fits(len(blocks)):
            return
        for block in blocks:
            self.owner[block] = table
            self.computed_by[block] = OUTSIDE
        table.noted = True
        self._add_own(t, table, len(blocks))
        self._append_full(t, table, blocks)

    def take_hit(self, t: int, table: Table, blocks: Sequence[int], owners: tuple[Owner, ...]) -> None:
        """Blocks whose content is reused join a table, whoever has them."""
        if len(set(blocks)) != len(blocks):
            self.fault("block_twice")
            blocks = list(dict.fromkeys(blocks))
            owners = self.owners(blocks)
        taken = 0
        mine: set[Owner] = set()
        own = 0
        for kind, count in tally(owners).items():
            if type(kind) is Cell:
                if not kind.named and count == kind.node.blocks:
                    self._name(kind, [b for b, was in zip(blocks, owners, strict=True) if was is kind])
                taken += self._join(t, table, kind, count, blocks=blocks, owners=owners)
            elif type(kind) is Table:
                taken += self._share(t, table, kind, blocks, owners)
            elif self._revive(t, kind, count, own):
                mine.add(kind)
                own += count
        if own:
            key = table.holder.key
            for block, was, author in zip(blocks, owners, self.authors(blocks, owners), strict=True):
                if was in mine:
                    self.owner[block] = table
                    self.computed_by[block] = None if author == key else author
            table.noted = True
            self._add_own(t, table, own)
        self._append_full(t, table, blocks)
        table.whole &= taken + own == len(blocks)

    def take_leaves(self, t: int, table: Table, blocks: Sequence[int], cells: Sequence[Cell]) -> None:
        """A hit on leaves that :meth:`whole_leaves` found ``blocks`` to be."""
        for cell in cells:
            if not self._join(t, table, cell, cell.node.blocks):
                table.whole = False
        self._append_full(t, table, blocks)

    def _revive(self, t: int, was: Owner, count: int, more: int) -> bool:
        """Cached blocks of one session are hit; free ones should not be, but may if there is room."""
        if type(was) is Account:
            self.change_cached(t, was, -count)
            return True
        if not self._fits(more + count):
            return False
        self.fault("hit_without_content")
        return True

    def _add_own(self, t: int, table: Table, blocks: int) -> None:
        since = blocks * t
        table.own += blocks
        table.acc -= since
        group = table.group
        self.group_active[group] += blocks
        self.group_acc[group] -= since

    def _fits(self, blocks: int) -> bool:
        """Whether so many free blocks can be left: ids 0 and N together would be one block too many."""
        if self._has_room(blocks):
            return True
        self.fault("pool_overfull")
        return False

    def _has_room(self, blocks: int) -> bool:
        return self.active + self.cached + blocks <= self.blocks

    def _append_full(self, t: int, table: Table, blocks: Sequence[int]) -> None:
        size = table.size
        if not size:
            return
        if table.order:
            self.write_down(t, table, table.order)
        order = table.order
        end = table.base + len(order) * size
        if self.fills:
            for i, block in enumerate(blocks):
                if block in self.fills:
                    table.opens[block] = end + i * size
        order.extend(blocks)
        table.tail = end + len(blocks) * size
        if table.opens:
            self.moved(t, table)
        elif table.own:
            self.retune(t, table)

    def _sort_out(self, t: int, blocks: Sequence[int]) -> list[int]:
        """Those of ``blocks`` that may be taken as new; cached ones among them are evicted by it."""
        fit: list[int] = []
        evicted: Counter[Account] = Counter()
        for block in dict.fromkeys(blocks):
            was = self.owner[block]
            if was is None:
                fit.append(block)
            elif type(was) is Account:
                evicted[was] += 1
                self.owner[block] = self.computed_by[block] = None
                fit.append(block)
            else:
                self.fault("new_is_held")
        if len(set(blocks)) != len(blocks):
            self.fault("block_twice")
        for account, count in evicted.items():
            self.change_cached(t, account, -count)
        return fit

    def take_next(
        self,
        t: int,
        group: int,
        tables: Mapping[str, Table],
        *,
        names: Sequence[str],
        blocks: Sequence[int],
        start: int,
    ) -> int:
        """Many requests take one new block each, from the place ``start`` on; returns where it is not that simple.

        An empty block at the end of a falling table changes none of its slot counts (see ``Table.unfilled``), only
        when it is full; and the table stays where it is on the wheel.
        """
        if self.lookahead:
            return start
        owner, last = self.owner, self.blocks
        size = self.sizes[group]
        at = start
        try:
            for at in range(start, len(names)):
                block = blocks[at]
                table = tables.get(names[at])
                if table is None or not table.falls or not 0 < block < last or owner[block] is not None:
                    break
                owner[block] = table
                table.own += 1
                table.acc -= t
                table.order.append(block)
                table.due += size
            else:
                at = len(names)
        finally:
            # Whatever else the caller named: the account stays consistent.
            self.group_active[group] += at - start
            self.group_acc[group] -= (at - start) * t
        return at

    # -- letting go ----------------------------------------------------------------------------------

    def release(
        self, t: int, holder: Holder, blocks: Sequence[int], cached: Sequence[int], freed: Sequence[int]
    ) -> None:
        """A request lets blocks go."""
        owners = self.owners(blocks)
        named = set(blocks)
        if len(named) != len(blocks):
            self.fault("block_twice")
            blocks = list(named)
            owners = self.owners(blocks)
        tables = [table for table in holder.tables if table.pool is self]
        for one in tables:
            one.whole = False
        ended: set[Owner] = set()
        unheld = let_go = 0
        for kind, count in tally(owners).items():
            if type(kind) is Table and kind.holder is holder:
                self._leave_own(t, kind, count, named)
                ended.add(kind)
                unheld += count
            elif (table := self._holder_of(kind, tables)) is not None:
                assert type(kind) is Cell
                cell = self._leave_shared(
                    t, table, kind, [b for b, was in zip(blocks, owners, strict=True) if was is kind]
                )
                if not cell.node.holders:
                    ended.add(cell)
                    unheld += count
            else:
                self.fault("release_not_held")
                continue
            let_go += count
        if not let_go:
            if cached or freed:
                self.fault("still_held")
            return
        self._end_release(t, tables, ended, named, unheld=unheld, cached=cached, freed=freed)

    def _end_release(
        self,
        t: int,
        tables: Sequence[Table],
        ended: set[Owner],
        named: set[int],
        *,
        unheld: int,
        cached: Sequence[int],
        freed: Sequence[int],
    ) -> None:
        """What is left to do when the counts are right: positions, owners, slots."""
        for table in tables:
            if table.opens:
                self._take_back(t, table, named)
        if unheld or cached or freed:
            self._settle_unheld(t, tables[0].holder.dims, ended, named, unheld=unheld, cached=cached, freed=freed)
        for table in tables:
            if table.size:
                self.retune(t, table)
            if not table.own and not table.nodes:
                table.whole = not table.order

    def _leave_own(self, t: int, table: Table, count: int, named: set[int]) -> None:
        """The table loses so many blocks of its own."""
        emptied = count == table.own and not table.opens
        if not emptied:
            self.write_down(t, table, named)
        table.own -= count
        table.acc += count * t
        self._uncount(t, table.group, count)
        if emptied:
            self._empty(t, table)

    def _leave_shared(self, t: int, table: Table, cell: Cell, blocks: Sequence[int]) -> Cell:
        """The table gives up blocks of one leaf; returns the cell that they are in now."""
        if len(blocks) < cell.node.blocks:
            self._part(t, cell, blocks, table.size)
            parted = self.owner[blocks[0]]
            assert type(parted) is Cell
            cell = parted
        self._leave(t, table, cell.node)
        if not cell.node.holders:
            self._uncount(t, table.group, len(blocks))
        return cell

    def _holder_of(self, owner: Owner, tables: Sequence[Table]) -> Table | None:
        """Which of a request's tables holds a leaf, if any does."""
        if type(owner) is Cell:
            for table in tables:
                if table.group == owner.group and self._holds(table, owner.node):
                    return table
        return None

    def release_all(  # noqa: C901  # one reason after the other for not being the frequent case
        self, t: int, holder: Holder, blocks: Sequence[int], cached: Sequence[int], freed: Sequence[int]
    ) -> bool:
        """Try the frequent case: a request lets go of all that it holds, own blocks and leaves that others hold on to.

        Returns whether it was that; if not, nothing is changed. It compares lists of blocks instead of looking at the
        owner of each, which costs a tenth; what is written down block by block, or parted before, goes the long way.
        """
        if len(holder.tables) != 1:
            return False
        table = holder.tables[0]
        own = table.own
        if (
            not table.whole
            or table.pool is not self
            or self.fills
            or table.opens
            or own != len(cached) + len(freed)
            or table.order not in (blocks, blocks[::-1])
        ):
            return False
        leaves = leaves_of(table.nodes)
        for leaf in leaves:
            if leaf.holders < 2:
                return False
        # The table holds just what is in its order: so its own blocks are as many as these, and these if they are its.
        if not self._hand_over(freed, table, None):
            return False
        if cached:
            account = self.account(holder.dims)
            if not self._hand_over(cached, table, account):
                self._hand_over(freed, None, table)
                return False
            self.change_cached(t, account, len(cached))
        if table.noted:
            self._forget(freed)
        if own:
            table.own = 0
            table.acc += own * t
            self._uncount(t, table.group, own)
            self._empty(t, table)
        for leaf in leaves:
            self._leave(t, table, leaf)
        # Ids of full blocks stay in the order, for their positions.
        table.whole = not table.order
        return True

    def _uncount(self, t: int, group: int, blocks: int) -> None:
        """So many blocks of a group are held by nobody any more."""
        self.group_active[group] -= blocks
        self.group_acc[group] += blocks * t

    def _settle_unheld(
        self,
        t: int,
        dims: Dimensions,
        ended: set[Owner],
        named: set[int],
        *,
        unheld: int,
        cached: Sequence[int],
        freed: Sequence[int],
    ) -> None:
        """Blocks that nobody holds any more become cached or free, as the engine says where it can be so."""
        owner = self.owner
        if unheld != len(cached) + len(freed) or not self._agrees(ended, named, cached, freed):
            self.fault("release_state_unclear")
            claimed = set(cached)
            gone = [block for block in named if owner[block] in ended]
            cached = [block for block in gone if block in claimed]
            freed = [block for block in gone if block not in claimed]
        if self.fills:
            self._drop_fills(t, cached)
            self._drop_fills(t, freed)
        if cached:
            account = self.account(dims)
            for block in cached:
                owner[block] = account
            self.change_cached(t, account, len(cached))
        for block in freed:
            owner[block] = None
        self._forget(freed)

    def _forget(self, blocks: Sequence[int]) -> None:
        """Blocks that are free again were computed by nobody."""
        by = self.computed_by
        for block in blocks:
            by[block] = None

    def _agrees(self, ended: set[Owner], named: set[int], cached: Sequence[int], freed: Sequence[int]) -> bool:
        """Whether cached and freed blocks are exactly those without a holder, given that their number is right."""
        blocks = [*cached, *freed] if cached and freed else cached or freed
        return not blocks or (
            len(set(blocks)) == len(blocks)
            and named.issuperset(blocks)
            and sum(map(self.owners(blocks).count, ended)) == len(blocks)
        )
