"""Joining and leaving blocks that others hold: the leaves of :mod:`ledger.core.sharing`, kept for one pool.

Invariant: a block's cell leads to the leaf whose holders are exactly the tables that hold the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.sharing import Cell, Node, final, split
from ledger.core.slots import SlotAccounts

NONE: frozenset[Node] = frozenset()

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.core.holders import Holder, Key, Owner, Table, Ticks


class LeafAccounts(SlotAccounts):
    """The shared blocks of one pool."""

    computed_by: list[Key | None]

    def __init__(
        self,
        ticks: Ticks,
        lookahead: int,
        unsteady: Callable[[int, Holder], None],
        fault: Callable[[str], None],
    ) -> None:
        super().__init__(ticks, lookahead, unsteady)
        self.fault = fault
        self.leaves: dict[Node, None] = {}

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
        by, key = self.computed_by, other.holder.key
        for block in mine:
            if by[block] is None:
                by[block] = key
            self.owner[block] = cell
            if self.fills.get(block, -1) >= table.size:
                del self.fills[block]
        self._name(cell, mine)
        self.leaves[node] = None
        other.nodes |= {node}
        table.nodes |= {node}
        return count

    def _join(
        self,
        t: int,
        table: Table,
        cell: Cell,
        count: int,
        *,
        blocks: Sequence[int] = (),
        owners: tuple[Owner, ...] = (),
    ) -> int:
        """One more holder of a leaf, or (``count`` tells) of the part of it that is named."""
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
        table.shared -= node.rate * t + node.acc
        if node.slotted:
            table.shared_unfilled -= node.unfilled_rate * t + node.unfilled_acc
            table.shared_ahead -= node.ahead_rate * t + node.ahead_acc
        table.nodes = table.nodes | {node} if table.nodes else frozenset((node,))
        return count

    def _name(self, cell: Cell, blocks: Sequence[int]) -> None:
        """Note all blocks of a leaf, and who computed them: that stands while anybody holds them."""
        cell.named = list(blocks)
        writers = {self.computed_by[block] for block in blocks}
        cell.writer = writers.pop() if len(writers) == 1 else None

    def whole_leaves(self, blocks: Sequence[int]) -> list[Cell]:
        """The leaves that make up ``blocks``, each whole and in the order noted; none if they are not just that.

        The frequent case of a hit is one leaf, and no part of the list to copy.
        """
        owner = self.owner
        cells: list[Cell] = []
        at = 0
        while at < len(blocks):
            cell = owner[blocks[at]]
            if type(cell) is not Cell or cell in cells:
                return []
            end = at + cell.node.blocks
            if cell.named != (blocks[at:end] if cells or end < len(blocks) else blocks):
                return []
            cells.append(cell)
            at = end
        return cells

    def _part(self, t: int, cell: Cell, blocks: Sequence[int], size: int) -> Node:
        """The named blocks of a leaf become a leaf of their own."""
        unfilled, ahead = self._written(blocks, size) if self.fills else (0, 0)
        del self.leaves[cell.node]
        parted = split(t, cell, len(blocks), unfilled, ahead)
        for block in blocks:
            self.owner[block] = parted
        self._name(parted, blocks)
        self.leaves[cell.node] = None
        self.leaves[parted.node] = None
        return parted.node

    def _leave(self, t: int, table: Table, node: Node) -> None:
        """The table gives up a leaf: its pointer above is brought down to it first."""
        nodes = table.nodes
        if node not in nodes:
            self._bring_down(table, node)
            nodes = table.nodes
        table.shared += node.rate * t + node.acc
        if node.slotted:
            table.shared_unfilled += node.unfilled_rate * t + node.unfilled_acc
            table.shared_ahead += node.ahead_rate * t + node.ahead_acc
        table.nodes = nodes - {node} if len(nodes) > 1 else NONE
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

    @staticmethod
    def _holds(table: Table, node: Node) -> bool:
        above: Node | None = node
        while above is not None and above not in table.nodes:
            above = above.up
        return above is not None
