"""Who holds the blocks of one pool, counted as it changes and never by looking.

Every block has an owner: nobody (free), an :class:`Account` (cached: the session that held it last), a
:class:`Table` (held by one request) or a :class:`~ledger.core.sharing.Cell` (held by several). Every count is
a pair ``(n, acc)`` whose integral up to ``t`` is ``n * t + acc``; a change by ``d`` at ``t`` does ``n += d;
acc -= d * t``. An event costs the blocks that it names, a reading costs nothing.

Slots: the not yet filled slots of a table fall by one with each step of a request in steady decode. A
global count of steps (:class:`Ticks`) says how far, so no step touches a table: what a table stores is its
slots plus the count, and its integral less the count's. Blocks that are not filled and are no longer one
request's own tail (shared, or left behind by a preemption) have their fill written down block by block.

Idea: docs/hook.md tells the reasons; the engine's words (block, group, block table) are vLLM's.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from ledger.core.records import UNATTRIBUTED, Dimensions
from ledger.core.sharing import Cell, Node, final, split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ledger.core.records import Group

GUARDS = 64
"""Entries behind the owner list for ids below nought: -1 and its like; a wilder id is beyond the list anyhow."""

LOOSE_WHILE_STEADY_MAX = 64
"""Steps in flight, each with one token; the hook has no more at a time."""


class Key:
    """Identity of a (tenant, session): who computed a block is compared by it. One object for each."""

    __slots__ = ("__weakref__", "session", "tenant")

    def __init__(self, tenant: str, session: str) -> None:
        self.tenant = tenant
        self.session = session


class Ticks:
    """The steps scheduled so far, their integral, and which tables must be looked at in which step."""

    __slots__ = ("acc", "due", "n")

    def __init__(self) -> None:
        self.n = 0
        self.acc = 0
        self.due: dict[int, list[Table]] = {}


class Holder:
    """What block accounting has to know of a request. ``frontier`` excludes the ticks while ``steady``."""

    __slots__ = ("frontier", "held", "loose", "steady", "tables")

    def __init__(self) -> None:
        self.frontier = 0
        """Positions scheduled so far, from the start of the prompt."""
        self.loose = 0
        """Tokens that steps in flight may not give: so far the frontier may fall back."""
        self.steady = False
        """In steady decode: every step fills one slot."""
        self.held = 0
        """Blocks held, in all pools."""
        self.tables: list[Table] = []


class Account:
    """Cached blocks of one session in one pool; the integral starts with the period of the first change."""

    __slots__ = ("acc", "blocks", "dims", "tables", "touched")

    def __init__(self, dims: Dimensions) -> None:
        self.dims = dims
        self.blocks = 0
        self.acc = 0
        self.touched = False
        self.tables = 0
        """Tables of live requests that will leave their blocks here."""


class Table:
    """The blocks that one request holds in one group of one pool."""

    __slots__ = (
        "acc",
        "account",
        "ahead",
        "ahead_acc",
        "ahead_falls",
        "base",
        "done",
        "due",
        "end",
        "falls",
        "group",
        "holder",
        "marked_ahead",
        "marked_unfilled",
        "nodes",
        "opens",
        "order",
        "own",
        "pool",
        "queued",
        "shared",
        "shared_ahead",
        "shared_unfilled",
        "size",
        "tail",
        "unfilled",
        "unfilled_acc",
    )

    def __init__(self, pool: BlockAccounts, holder: Holder, group: int, size: int, account: Account) -> None:
        self.pool = pool
        self.holder = holder
        self.group = group
        self.size = size
        """Slots of a block; 0 where blocks have none (state groups)."""
        self.account = account
        self.own = self.acc = 0
        self.nodes: frozenset[Node] = frozenset()
        self.shared = self.shared_unfilled = self.shared_ahead = 0
        """Charges of shared blocks in fixed point, to which the nodes' present values are added."""
        self.unfilled = self.unfilled_acc = self.falls = 0
        """Unfilled slots *less the slots of all own blocks*: a new empty block leaves it as it is."""
        self.ahead = self.ahead_acc = self.ahead_falls = 0
        self.marked_unfilled = self.marked_ahead = 0
        """The part of own slots that is written down block by block."""
        self.order: list[int | None] = []
        self.base = self.end = self.tail = 0
        """Positions: of the first block, behind the last, and from where blocks are an ordinary tail."""
        self.opens: dict[int, int] = {}
        """First position of each block whose fill is written down."""
        self.due = self.queued = -1
        """The tick at which its tail is full, and the one at which it is looked at next (not later)."""
        self.done = (0, 0, 0)
        """For the settling alone: the charges up to the last boundary."""


Owner: TypeAlias = Account | Table | Cell | None

NOBODY = Dimensions(tenant=UNATTRIBUTED)


def tally(owners: tuple[Owner, ...]) -> dict[Owner, int]:
    """How many blocks each owner has: there are few owners, mostly."""
    kinds = set(owners)
    if len(kinds) > 8:
        return Counter(owners)
    if len(kinds) <= 2:
        one = kinds.pop()
        if not kinds:
            return {one: len(owners)}
        count = owners.count(one)
        return {one: count, kinds.pop(): len(owners) - count}
    return {kind: owners.count(kind) for kind in kinds}


def held_blocks(table: Table) -> int:
    """Blocks of a table, own and shared."""
    count = table.own
    stack = list(table.nodes)
    while stack:
        node = stack.pop()
        if node.parts is None:
            count += node.blocks
        else:
            stack.extend(node.parts)
    return count


class BlockAccounts:
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
        self.ticks = ticks
        self.lookahead = lookahead
        self.fault = fault
        self.unsteady = unsteady
        # Ids run from 0 or from 1: engines that keep block 0 for themselves use 1..N.
        # Negative ids end on the guard, which is nobody's table in no group.
        guard = Table(self, Holder(), -1, 0, Account(NOBODY))
        self.owner: list[Owner] = [None] * (blocks + 1)
        self.owner.extend([guard] * GUARDS)
        self.computed_by: list[Key | None] = [None] * (blocks + 1 + GUARDS)
        self.cached = self.cached_acc = 0
        self.group_active = [0] * len(groups)
        self.group_acc = [0] * len(groups)
        self.unfilled = self.unfilled_acc = self.falls = 0
        """Unfilled slots less the slots of all active blocks, as in the tables."""
        self.ahead = self.ahead_acc = self.ahead_falls = 0
        self.fills: dict[int, int] = {}
        """Filled slots of blocks not yet full whose fill is written down; negative: so far ahead of it."""
        self.leaves: dict[Node, None] = {}
        self.holding: dict[Table, None] = {}
        self.let_go: list[Table] = []
        self.accounts: dict[Dimensions, Account] = {}
        self.touched: list[Account] = []
        self.period_start = 0

    @property
    def active(self) -> int:
        """Blocks that somebody holds."""
        return sum(self.group_active)

    @property
    def unfilled_slots(self) -> int:
        """Slots of held blocks that are neither filled nor look-ahead."""
        return self.unfilled + sum(n * size for n, size in zip(self.group_active, self.sizes, strict=True))

    # -- accounts and tables -------------------------------------------------------------------------

    def account(self, dims: Dimensions) -> Account:
        found = self.accounts.get(dims)
        if found is None:
            found = self.accounts[dims] = Account(dims)
        return found

    def table(self, holder: Holder, group: int, dims: Dimensions) -> Table:
        """A new table of a request that has none in this group."""
        if group < 0:
            raise IndexError
        size = self.sizes[group]
        account = self.account(dims)
        account.tables += 1
        table = Table(self, holder, group, size, account)
        holder.tables.append(table)
        return table

    def forget(self, table: Table) -> None:
        """The request is over and holds nothing in this table."""
        account = table.account
        account.tables -= 1
        if not account.tables and not account.blocks and not account.touched:
            self.accounts.pop(account.dims, None)

    def change_cached(self, t: int, account: Account, by: int) -> None:
        if not account.touched:
            account.touched = True
            self.touched.append(account)
            account.acc = -account.blocks * self.period_start
        account.blocks += by
        account.acc -= by * t
        self.cached += by
        self.cached_acc -= by * t

    def put_cached(self, t: int, account: Account, blocks: Sequence[int]) -> None:
        """Content that was there before anybody was watching."""
        for block in blocks:
            self.owner[block] = account
        self.change_cached(t, account, len(blocks))

    def owners(self, blocks: Sequence[int]) -> tuple[Owner, ...]:
        """Owners of blocks, in order; raises on ids that are no blocks of the pool."""
        if len(blocks) == 1:
            return (self.owner[blocks[0]],)
        owners: tuple[Owner, ...] = itemgetter(*blocks)(self.owner)
        return owners

    # -- taking --------------------------------------------------------------------------------------

    def take_new(self, t: int, table: Table, key: Key | None, blocks: Sequence[int]) -> int:
        """Blocks without content of use join a table; returns how many were taken."""
        owner = self.owner
        if len(blocks) == 1 and 0 < (block := blocks[0]) < self.blocks and owner[block] is None:
            owner[block] = table
            self.computed_by[block] = key
            taken = 1
        else:
            if self.owners(blocks).count(None) != len(blocks) or len(set(blocks)) != len(blocks):
                blocks = self._sort_out(t, blocks)
            taken = len(blocks)
            if not taken:
                return 0
            if not self._fits(taken):
                return 0
            by = self.computed_by
            for block in blocks:
                owner[block] = table
                by[block] = key
        self._add_own(t, table, taken)
        if size := table.size:
            table.order.extend(blocks)
            table.end += taken * size
            self.retune(t, table)
        return taken

    def take_full(self, t: int, table: Table, blocks: Sequence[int]) -> int:
        """Blocks with content from outside join a table: full, computed by nobody here."""
        blocks = self._sort_out(t, blocks)
        if not blocks or not self._fits(len(blocks)):
            return 0
        for block in blocks:
            self.owner[block] = table
            self.computed_by[block] = None
        self._add_own(t, table, len(blocks))
        self._append_full(t, table, blocks)
        return len(blocks)

    def take_hit(self, t: int, table: Table, blocks: Sequence[int], owners: tuple[Owner, ...]) -> int:
        """Blocks whose content is reused join a table, whoever has them; returns how many were taken."""
        first = owners[0]
        if type(first) is Cell and first.node.blocks == len(owners) == owners.count(first):
            taken = self._join(t, table, first, len(owners), blocks, owners)
            self._append_full(t, table, blocks)
            return taken
        if len(set(blocks)) != len(blocks):
            self.fault("block_twice")
            blocks = list(dict.fromkeys(blocks))
            owners = self.owners(blocks)
        kinds = tally(owners)
        own = taken = 0
        unfit = False
        for kind, count in kinds.items():
            if type(kind) is Cell:
                taken += self._join(t, table, kind, count, blocks, owners)
            elif type(kind) is Account:
                self.change_cached(t, kind, -count)
                own += count
            elif type(kind) is Table:
                taken += self._share(t, table, kind, blocks, owners)
            elif not self._fits(own + count):
                unfit = True
            else:
                self.fault("hit_without_content")
                own += count
        if own:
            place = self.owner
            if own == len(blocks):
                for block in blocks:
                    place[block] = table
            else:
                for block, was in zip(blocks, owners, strict=True):
                    if type(was) is Account or (was is None and not unfit):
                        place[block] = table
            self._add_own(t, table, own)
        self._append_full(t, table, blocks)
        return taken + own

    def _add_own(self, t: int, table: Table, blocks: int) -> None:
        table.own += blocks
        table.acc -= blocks * t
        self.group_active[table.group] += blocks
        self.group_acc[table.group] -= blocks * t
        self._count(table, blocks)

    def _count(self, table: Table, blocks: int) -> None:
        self.holding[table] = None
        table.holder.held += blocks

    def _fits(self, blocks: int) -> bool:
        """Whether so many free blocks can be left: ids 0 and N together would be one block too many."""
        if self.active + self.cached + blocks > self.blocks:
            self.fault("pool_overfull")
            return False
        return True

    def _append_full(self, t: int, table: Table, blocks: Sequence[int]) -> None:
        size = table.size
        if not size:
            return
        if table.order:
            self.write_down(t, table, table.order)
        if self.fills:
            for i, block in enumerate(blocks):
                if block in self.fills:
                    table.opens[block] = table.end + i * size
        table.order.extend(blocks)
        table.end += len(blocks) * size
        table.tail = table.end
        if table.opens:
            self.moved(t, table)
        elif table.marked_unfilled or table.marked_ahead or table.own or table.unfilled or table.ahead:
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
                fit.append(block)
            else:
                self.fault("new_is_held")
        if len(set(blocks)) != len(blocks):
            self.fault("block_twice")
        for account, count in evicted.items():
            self.change_cached(t, account, -count)
        return fit

    # -- sharing -------------------------------------------------------------------------------------

    def _share(self, t: int, table: Table, other: Table, blocks: Sequence[int], owners: tuple[Owner, ...]) -> int:
        """Blocks that one other request holds alone become a leaf of two."""
        if other is table:
            self.fault("held_already")
            return 0
        if other.group != table.group:
            self.fault("wrong_group")
            return 0
        mine = [block for block, was in zip(blocks, owners, strict=True) if was is other]
        self.write_down(t, other, mine)
        unfilled, ahead = self._written(mine, other.size) if self.fills else (0, 0)
        count = len(mine)
        other.own -= count
        other.acc += count * t
        if unfilled or ahead:
            self._change_marked(t, other, -unfilled, -ahead)
        node = Node(t, 2, count)
        if unfilled or ahead:
            node.change_slots(t, unfilled, ahead)
        if other.size:
            self.retune(t, other)
            self._change_pool_slots(t, unfilled - other.size * count, ahead)
        cell = Cell(table.group, node)
        self.leaves[node] = None
        for block in mine:
            self.owner[block] = cell
            if self.fills.get(block, -1) >= table.size:
                del self.fills[block]
        other.nodes |= {node}
        table.nodes |= {node}
        self._count(table, count)
        return count

    def _join(
        self, t: int, table: Table, cell: Cell, count: int, blocks: Sequence[int], owners: tuple[Owner, ...]
    ) -> int:
        """One more holder of a leaf, or of the named part of it."""
        if cell.group != table.group:
            self.fault("wrong_group")
            return 0
        node = cell.node
        if table.nodes and self._holds(table, node):
            self.fault("held_already")
            return 0
        if count < node.blocks:
            node = self._part(t, cell, [b for b, was in zip(blocks, owners, strict=True) if was is cell], table.size)
        node.change_holders(t, 1)
        charged = node.values(t)
        table.shared -= charged[0]
        table.shared_unfilled -= charged[1]
        table.shared_ahead -= charged[2]
        table.nodes = table.nodes | {node} if table.nodes else frozenset((node,))
        self._count(table, count)
        return count

    def _part(self, t: int, cell: Cell, blocks: Sequence[int], size: int) -> Node:
        """The named blocks of a leaf become a leaf of their own."""
        unfilled, ahead = self._written(blocks, size) if self.fills else (0, 0)
        del self.leaves[cell.node]
        parted = split(t, cell, len(blocks), unfilled, ahead)
        for block in blocks:
            self.owner[block] = parted
        self.leaves[cell.node] = None
        self.leaves[parted.node] = None
        return parted.node

    def _leave(self, t: int, table: Table, node: Node) -> None:
        """The table gives up a leaf: its pointer above is brought down to it first."""
        if node not in table.nodes:
            self._bring_down(table, node)
        charged = node.values(t)
        table.shared += charged[0]
        table.shared_unfilled += charged[1]
        table.shared_ahead += charged[2]
        table.nodes -= {node}
        if node.holders == 1 and table.size:
            self._change_pool_slots(t, table.size * node.blocks - node.unfilled, -node.ahead)
        node.change_holders(t, -1)
        if not node.holders:
            del self.leaves[node]

    @staticmethod
    def _bring_down(table: Table, node: Node) -> None:
        """Replace the table's pointer above a leaf by pointers to the parts, down to the leaf itself."""
        path = [node]
        nodes = set(table.nodes)
        while path[-1] not in nodes:
            above = path[-1].up
            assert above is not None, "membership is checked before"
            path.append(above)
        while len(path) > 1:
            inner = path.pop()
            charged = final(inner)
            table.shared += charged[0]
            table.shared_unfilled += charged[1]
            table.shared_ahead += charged[2]
            assert inner.parts is not None
            nodes.remove(inner)
            nodes.update(inner.parts)
        table.nodes = frozenset(nodes)

    def _holds(self, table: Table | None, node: Node) -> bool:
        if table is None:
            return False
        above: Node | None = node
        while above is not None and above not in table.nodes:
            above = above.up
        return above is not None

    # -- letting go ----------------------------------------------------------------------------------

    def release(
        self, t: int, holder: Holder, blocks: Sequence[int], cached: Sequence[int], freed: Sequence[int]
    ) -> int:
        """A request lets blocks go; returns how many it did hold."""
        owners = self.owners(blocks)
        if len(holder.tables) == 1 and self._release_all(t, holder.tables[0], owners, cached, freed):
            return len(owners)
        named = set(blocks)
        if len(named) != len(blocks):
            self.fault("block_twice")
            blocks = list(named)
            owners = self.owners(blocks)
        kinds = tally(owners)
        ended: set[Owner] = set()
        unheld = let_go = 0
        tables = [table for table in holder.tables if table.pool is self]
        for kind, count in kinds.items():
            if type(kind) is Table and kind.holder is holder:
                if count == kind.own and not kind.opens:
                    self._empty(kind)
                else:
                    self.write_down(t, kind, named)
                ended.add(kind)
                kind.own -= count
                kind.acc += count * t
                self._uncount(t, kind, count, unheld=True)
                unheld += count
            elif type(kind) is Cell:
                table = next((table for table in tables if table.group == kind.group), None)
                if table is None or not self._holds(table, kind.node):
                    self.fault("release_not_held")
                    continue
                cell = kind
                if count < cell.node.blocks:
                    mine = [block for block, was in zip(blocks, owners, strict=True) if was is kind]
                    node = self._part(t, kind, mine, table.size)
                    cell = self.owner[mine[0]]  # type: ignore[assignment]  # the cell just parted
                else:
                    node = cell.node
                self._leave(t, table, node)
                self._uncount(t, table, count, unheld=not node.holders)
                if not node.holders:
                    ended.add(cell)
                    unheld += count
            else:
                self.fault("release_not_held")
                continue
            let_go += count
        if not let_go:
            if cached or freed:
                self.fault("still_held")
            return 0
        for table in tables:
            if table.opens:
                self._take_back(t, table, named)
        if unheld or cached or freed:
            self._settle_unheld(t, tables[0].account, ended, named, unheld, cached, freed)
        for table in tables:
            if table.size:
                self.retune(t, table)
            if not table.own and not table.nodes and table in self.holding:
                del self.holding[table]
                self.let_go.append(table)
        return let_go

    def _release_all(
        self, t: int, table: Table, owners: tuple[Owner, ...], cached: Sequence[int], freed: Sequence[int]
    ) -> bool:
        """Try the frequent case: a request lets go of all own blocks, and of one leaf that others hold on to.

        Returns whether it was that; if not, nothing is changed. A block named twice in place of another goes
        unnoticed here: what is let go of is the same.
        """
        own = owners.count(table)
        rest = len(owners) - own
        if own != table.own or len(cached) + len(freed) != own or self.fills or table.opens:
            return False
        cell = None
        if rest:
            cell = owners[0] if owners[0] is not table else owners[-1]
            if (
                type(cell) is not Cell
                or (node := cell.node).blocks != rest
                or node.holders < 2
                or node not in table.nodes
                or owners.count(cell) != rest
            ):
                return False
        place = self.owner
        if own:
            ends = [*cached, *freed] if cached and freed else cached or freed
            if len(set(ends)) != own or self.owners(ends).count(table) != own:
                return False
            self._empty(table)
            table.own = 0
            table.acc += own * t
            self.group_active[table.group] -= own
            self.group_acc[table.group] += own * t
            if cached:
                account = table.account
                for block in cached:
                    place[block] = account
                self.change_cached(t, account, len(cached))
            for block in freed:
                place[block] = None
        if cell is not None:
            self._leave(t, table, node)
        table.holder.held -= len(owners)
        if table.size:
            self.retune(t, table)
        if not table.nodes:
            del self.holding[table]
            self.let_go.append(table)
        return True

    def _uncount(self, t: int, table: Table, blocks: int, *, unheld: bool) -> None:
        table.holder.held -= blocks
        if unheld:
            self.group_active[table.group] -= blocks
            self.group_acc[table.group] += blocks * t

    def _settle_unheld(
        self,
        t: int,
        account: Account,
        ended: set[Owner],
        named: set[int],
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
            for block in cached:
                owner[block] = account
            self.change_cached(t, account, len(cached))
        for block in freed:
            owner[block] = None

    def _agrees(self, ended: set[Owner], named: set[int], cached: Sequence[int], freed: Sequence[int]) -> bool:
        """Whether cached and freed blocks are exactly those without a holder, given that their number is right."""
        blocks = [*cached, *freed] if cached and freed else cached or freed
        return not blocks or (
            len(set(blocks)) == len(blocks)
            and named.issuperset(blocks)
            and sum(map(self.owners(blocks).count, ended)) == len(blocks)
        )

    def evict(self, t: int, blocks: Sequence[int]) -> None:
        """Cached blocks become free."""
        owner = self.owner
        owners = self.owners(blocks)
        if len(blocks) == 1:
            only = owners[0]
            if type(only) is Account:
                owner[blocks[0]] = None
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
                owner[block] = None

    # -- slots ---------------------------------------------------------------------------------------

    def _frontier(self, table: Table) -> int:
        holder = table.holder
        return holder.frontier + self.ticks.n if holder.steady else holder.frontier

    def retune(self, t: int, table: Table) -> None:
        """Bring a table's slot counts to its frontier, and say when a steady one has to be looked at again."""
        ticks = self.ticks
        steady = table.holder.steady
        frontier = self._frontier(table)
        end = table.end
        low = min(max(frontier, table.tail), end)
        top = min(max(frontier + self.lookahead, table.tail), end)
        unfilled = end - top
        ahead = top - low
        falls = 1 if steady and unfilled else 0
        ahead_falls = 1 if steady and ahead and not unfilled else 0
        step = falls - table.falls
        new = unfilled + table.marked_unfilled - table.own * table.size + (ticks.n if falls else 0)
        change = new - table.unfilled
        if change or step:
            table.unfilled = new
            table.unfilled_acc += step * (ticks.n * t + ticks.acc) - change * t
            table.falls = falls
            change -= step * ticks.n
            self.unfilled += change
            self.unfilled_acc -= change * t
            self.falls += step
        step = ahead_falls - table.ahead_falls
        new = ahead + table.marked_ahead + (ticks.n if ahead_falls else 0)
        change = new - table.ahead
        if change or step:
            table.ahead = new
            table.ahead_acc += step * (ticks.n * t + ticks.acc) - change * t
            table.ahead_falls = ahead_falls
            change -= step * ticks.n
            self.ahead += change
            self.ahead_acc -= change * t
            self.ahead_falls += step
        if falls or ahead_falls:
            table.due = due = ticks.n + (unfilled or ahead)
            if not ticks.n <= table.queued <= due:
                table.queued = due
                ticks.due.setdefault(due, []).append(table)
        else:
            table.due = -1

    def fall(self, t: int) -> None:
        """Fill one slot of every steady table; called before the tick is counted."""
        if self.falls:
            self.unfilled -= self.falls
            self.unfilled_acc += self.falls * t
        if self.ahead_falls:
            self.ahead -= self.ahead_falls
            self.ahead_acc += self.ahead_falls * t

    def is_plain(self, table: Table) -> bool:
        """Whether steps fill only the table's own tail."""
        return not table.opens and self._frontier(table) >= min(table.tail, table.end)

    def moved(self, t: int, table: Table) -> None:
        """The holder's frontier has moved other than by a tick."""
        if table.opens:
            holder = table.holder
            size = table.size
            for block, start in list(table.opens.items()):
                if block not in self.fills:
                    del table.opens[block]
                    continue
                fill = holder.frontier - start
                if self.owner[block] is table:
                    # Never shared, so it follows the frontier in both directions, until that cannot fall back.
                    self._set_fill(t, block, size, fill)
                    if fill - holder.loose >= size:
                        del self.fills[block], table.opens[block]
                elif fill > self.fills[block]:
                    self._set_fill(t, block, size, fill)
                    if fill >= size:
                        del self.fills[block], table.opens[block]
        self.retune(t, table)

    def detach(self, t: int, table: Table) -> None:
        """The request starts from its first position again; blocks still held keep what they have."""
        if table.size:
            self.write_down(t, table, table.order)
            table.order = []
            table.base = table.end = table.tail = 0
            table.opens = {}
            self.retune(t, table)

    def write_down(self, t: int, table: Table, blocks: Iterable[int | None]) -> None:
        """If any of ``blocks`` lies in the table's open tail, fills are written down up to the last of them.

        The holder is not steady after that: its steps fill blocks one by one.
        """
        size = table.size
        holder = table.holder
        if not size:
            return
        order = table.order
        named = blocks if isinstance(blocks, set) else set(blocks)
        if holder.steady:
            # What is loose is known only when it is not steady any more, and not more than this.
            first = max(self._frontier(table) - LOOSE_WHILE_STEADY_MAX, table.tail)
            if first >= table.end or named.isdisjoint(order[(first - table.base) // size :]):
                return
            self.unsteady(t, holder)
        first = max(holder.frontier - holder.loose, table.tail)
        if first >= table.end:
            return
        first = (first - table.base) // size
        last = len(order) - 1
        while last >= first and order[last] not in named:
            last -= 1
        if last < first:
            return
        for i in range(first, last + 1):
            block = order[i]
            assert block is not None, "blocks that were let go lie before the tail"
            start = table.base + i * size
            fill = holder.frontier - start
            self.fills[block] = fill
            table.opens[block] = start
            unfilled, ahead = self._slots(fill, size)
            table.marked_unfilled += unfilled
            table.marked_ahead += ahead
        table.tail = table.base + (last + 1) * size
        self.retune(t, table)

    def _empty(self, table: Table) -> None:
        """A table loses all own blocks: open ones at the end give their positions back, as in _take_back."""
        size = table.size
        if size:
            first = max(self._frontier(table), table.tail)
            if first < table.end:
                order = table.order
                del order[(first - table.base) // size :]
                while order and order[-1] is None:
                    order.pop()
                table.end = table.base + len(order) * size
            table.tail = table.end

    def _take_back(self, t: int, table: Table, released: set[int]) -> None:
        """Positions at the end of a table that lost their block before it was full are free again."""
        opens = table.opens
        hit = [block for block in opens if block in released]
        if not hit:
            return
        size = table.size
        order = table.order
        for block in hit:
            start = opens.pop(block)
            if self.fills.get(block, size) < size:
                order[(start - table.base) // size] = None
        while order and order[-1] is None:
            order.pop()
            table.end -= size
        table.tail = min(table.tail, table.end)
        self.retune(t, table)

    def _slots(self, fill: int, size: int) -> tuple[int, int]:
        """Unfilled and look-ahead slots of a block that is filled so far."""
        filled = min(max(fill, 0), size)
        covered = min(max(fill + self.lookahead, 0), size)
        return size - covered, covered - filled

    def _written(self, blocks: Iterable[int], size: int) -> tuple[int, int]:
        """Slots of those blocks whose fill is written down."""
        unfilled = ahead = 0
        for block in blocks:
            if block in self.fills:
                more = self._slots(self.fills[block], size)
                unfilled += more[0]
                ahead += more[1]
        return unfilled, ahead

    def _set_fill(self, t: int, block: int, size: int, fill: int) -> None:
        before = self._slots(self.fills[block], size)
        after = self._slots(fill, size)
        self._change_slots(t, block, after[0] - before[0], after[1] - before[1])
        self.fills[block] = fill

    def _drop_fills(self, t: int, blocks: Sequence[int]) -> None:
        """Blocks that nobody holds have no slots to fill. Leaves that ended took their slots along."""
        for block in blocks:
            fill = self.fills.pop(block, None)
            was = self.owner[block]
            if fill is not None and type(was) is Table:
                unfilled, ahead = self._slots(fill, was.size)
                self._change_marked(t, was, -unfilled, -ahead)

    def _change_slots(self, t: int, block: int, unfilled: int, ahead: int) -> None:
        was = self.owner[block]
        if type(was) is Table:
            self._change_marked(t, was, unfilled, ahead)
        elif type(was) is Cell:
            was.node.change_slots(t, unfilled, ahead)
            self._change_pool_slots(t, unfilled, ahead)

    def _change_marked(self, t: int, table: Table, unfilled: int, ahead: int) -> None:
        table.marked_unfilled += unfilled
        table.marked_ahead += ahead
        table.unfilled += unfilled
        table.unfilled_acc -= unfilled * t
        table.ahead += ahead
        table.ahead_acc -= ahead * t
        self._change_pool_slots(t, unfilled, ahead)

    def _change_pool_slots(self, t: int, unfilled: int, ahead: int) -> None:
        self.unfilled += unfilled
        self.unfilled_acc -= unfilled * t
        self.ahead += ahead
        self.ahead_acc -= ahead * t
