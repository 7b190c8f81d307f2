"""Slots of held blocks: which are filled, which are look-ahead, which are empty.

The tail of a request's table fills by one slot with each step of steady decode. A global count of steps
(:class:`~ledger.core.holders.Ticks`) says how far, so no step touches a table: what a table stores is its slots
plus the count, and its integral less the count's. Blocks that are not filled and are no longer one request's own
tail (shared, or left behind by a preemption) have their fill written down block by block.

Invariant: the pool's counts are the sums of its tables' and leaves'.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ledger.core.holders import Holder, Owner, Table, Ticks
from ledger.core.sharing import Cell
from ledger.limits import STEPS_IN_FLIGHT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class SlotAccounts:
    """The slots of one pool; the owners of its blocks are the subclass's business."""

    owner: list[Owner]

    def __init__(self, ticks: Ticks, lookahead: int, unsteady: Callable[[int, Holder], None]) -> None:
        self.ticks = ticks
        self.lookahead = lookahead
        self.unsteady = unsteady
        self.unfilled = self.unfilled_acc = self.falls = 0
        """Unfilled slots, less those of all active blocks and plus the ticks for each that falls, as in the tables."""
        self.ahead = self.ahead_acc = self.ahead_falls = 0
        self.wheels: defaultdict[int, defaultdict[int, dict[Table, None]]] = defaultdict(lambda: defaultdict(dict))
        """By block size: a falling table lies at the spot ``due % size``. It stays there when it takes one block more
        in time, so a tick looks at those of one spot and moves none of them."""
        self.fills: dict[int, int] = {}
        """Filled slots of blocks not yet full whose fill is written down; negative: so far ahead of it."""

    def _frontier(self, table: Table) -> int:
        holder = table.holder
        return holder.frontier + self.ticks.n if holder.steady else holder.frontier

    def retune(self, t: int, table: Table) -> None:
        """Bring a table's slot counts to its frontier, and say when a steady one has to be looked at again."""
        n = self.ticks.n
        holder = table.holder
        steady = holder.steady
        end = table.base + len(table.order) * table.size
        low = holder.frontier + n if steady else holder.frontier
        top = low + self.lookahead
        # min(max(frontier, tail), end), written out: as calls these would be half of the function's cost.
        tail = table.tail
        low = max(tail, low)
        low = min(end, low)
        top = max(tail, top)
        top = min(end, top)
        unfilled = end - top
        ahead = top - low
        falls = 1 if steady and unfilled else 0
        ahead_falls = 1 if steady and ahead and not unfilled else 0
        step = falls - table.falls
        new = unfilled + table.marked_unfilled - table.own * table.size + (n if falls else 0)
        change = new - table.unfilled
        if change or step:
            since = step * (n * t + self.ticks.acc) - change * t
            table.unfilled = new
            table.unfilled_acc += since
            table.falls = falls
            self.unfilled += change
            self.unfilled_acc += since
            self.falls += step
        if self.lookahead:
            self._retune_ahead(t, table, ahead, ahead_falls)
        if falls or ahead_falls:
            due = table.due = n + (unfilled or ahead)
            spot = due % table.size
        else:
            table.due = spot = -1
        if spot != table.spot:
            self._place(table, spot)

    def _place(self, table: Table, spot: int) -> None:
        """Move a table on the wheel, or (-1) off it."""
        wheel = self.wheels[table.size]
        was = table.spot
        if was >= 0:
            # An empty spot stays: there are no more than a block has slots.
            del wheel[was][table]
        if spot >= 0:
            wheel[spot][table] = None
        table.spot = spot

    def start_falling(self, t: int, table: Table) -> None:
        """The holder is steady from now on, and the table plain: what :meth:`retune` would find, at half."""
        ticks = self.ticks
        n = ticks.n
        size = table.size
        unfilled = table.base + len(table.order) * size - table.holder.frontier - n
        if unfilled <= 0 or self.lookahead or table.falls:
            self.retune(t, table)
            return
        change = unfilled + table.marked_unfilled - table.own * size + n - table.unfilled
        since = (n - change) * t + ticks.acc
        table.unfilled += change
        table.unfilled_acc += since
        table.falls = 1
        self.unfilled += change
        self.unfilled_acc += since
        self.falls += 1
        due = table.due = n + unfilled
        spot = table.spot = due % size
        self.wheels[size][spot][table] = None

    def stand_still(self, t: int, table: Table) -> None:
        """The holder is steady no more, with its frontier where it was: what :meth:`retune` would find, at a third."""
        if self.lookahead:
            self.retune(t, table)
        elif table.falls:
            n, acc = self.ticks.n, self.ticks.acc
            table.unfilled -= n
            table.unfilled_acc -= acc
            table.falls = 0
            self.unfilled -= n
            self.unfilled_acc -= acc
            self.falls -= 1
            del self.wheels[table.size][table.spot][table]
            table.due = table.spot = -1

    def _retune_ahead(self, t: int, table: Table, ahead: int, falls: int) -> None:
        """The look-ahead part of :meth:`retune`."""
        ticks = self.ticks
        step = falls - table.ahead_falls
        new = ahead + table.marked_ahead + (ticks.n if falls else 0)
        change = new - table.ahead
        if change or step:
            since = step * (ticks.n * t + ticks.acc) - change * t
            table.ahead = new
            table.ahead_acc += since
            table.ahead_falls = falls
            self.ahead += change
            self.ahead_acc += since
            self.ahead_falls += step

    def tick(self, t: int) -> None:
        """Look at the steady tables that have no slot to fill; called before the tick is counted."""
        n = self.ticks.n
        for size, wheel in self.wheels.items():
            # Mostly nobody: whoever was due has taken a block for this very step.
            for table in tuple(wheel.get(n % size, ())):
                if table.due == n:
                    self.retune(t, table)

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
            table.whole = not table.own and not table.nodes
            table.base = table.tail = 0
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
            # What is loose is known only when it is not steady any more, and not more than one token a step in flight.
            first = max(self._frontier(table) - STEPS_IN_FLIGHT_MAX, table.tail)
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

    def _empty(self, t: int, table: Table) -> None:
        """A table has lost all own blocks: open ones at the end give their positions back, as in :meth:`_take_back`."""
        size = table.size
        if not size:
            return
        order, base = table.order, table.base
        holder = table.holder
        first = holder.frontier + self.ticks.n if holder.steady else holder.frontier
        if first < table.tail:
            first = table.tail
        del order[(first - base) // size :]
        while order and order[-1] is None:
            order.pop()
        table.tail = base + len(order) * size
        if table.falls or self.lookahead or table.marked_unfilled:
            self.retune(t, table)
        elif gone := table.unfilled:
            # What retune() would find, at a third.
            until = gone * t
            table.unfilled = 0
            table.unfilled_acc += until
            self.unfilled -= gone
            self.unfilled_acc += until

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
