"""Blocks that several requests hold: leaves with a running integral of ``1/holders``.

A *leaf* is the blocks with one and the same set of holders. It charges each holder ``blocks / holders`` of
its time, kept as one running integral, so that joining and leaving cost the same whatever the number of
holders. When only a part of a leaf gains or loses a holder, the leaf is split: it becomes an inner node and
its two parts are new leaves. Holders keep pointing at the node that they joined; a node's integral is its
own up to the split plus those of its parts, so a split touches no holder at all (a refinement forest).

Invariants: only leaves change; an inner node's figures are final; the holders of a leaf are exactly those
that point at it or at a node above it; shares are rounded down, so the holders' sum never exceeds the truth.

Fixed point with 64 fractional bits: an error of one unit in the last place per microsecond cannot reach a
microsecond within any period (8 bits fail, 40 come near).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SHIFT = 64
ONE = 1 << SHIFT

TIE = 1 << 40
"""Fractions this close (6e-8 of a microsecond) are equal: a period's rounding moves them by less, and true fractions of
up to a few thousand holders lie further apart."""


class Node:
    """A leaf of the forest, or what was one until it was split; integrals are ``rate * t + acc``.

    Beside the blocks' time two slot counts are divided in the same way: slots not yet filled, and
    look-ahead slots. Both are nought for nearly every leaf.
    """

    __slots__ = (
        "acc",
        "ahead",
        "ahead_acc",
        "ahead_rate",
        "blocks",
        "holders",
        "parts",
        "rate",
        "slotted",
        "unfilled",
        "unfilled_acc",
        "unfilled_rate",
        "up",
    )

    def __init__(self, t: int, holders: int, blocks: int, up: Node | None = None) -> None:
        self.holders = holders
        self.blocks = blocks
        self.rate = blocks * ONE // holders
        self.acc = -self.rate * t
        self.slotted = False
        """Whether it has ever had slots to fill: for the others two of three charges are nought."""
        self.unfilled = self.unfilled_rate = self.unfilled_acc = 0
        self.ahead = self.ahead_rate = self.ahead_acc = 0
        self.up = up
        self.parts: tuple[Node, Node] | None = None

    def change_holders(self, t: int, by: int) -> None:
        """One holder more or fewer from ``t`` on; with none left the leaf charges nobody."""
        self.holders = holders = self.holders + by
        rate = (self.blocks << SHIFT) // holders if holders else 0
        self.acc += (self.rate - rate) * t
        self.rate = rate
        if self.unfilled_rate or self.ahead_rate:
            self.change_slots(t, 0, 0)

    def change_slots(self, t: int, unfilled: int, ahead: int) -> None:
        """The leaf's slot counts change by so many from ``t`` on."""
        self.slotted = True
        self.unfilled += unfilled
        self.ahead += ahead
        rate = self.unfilled * ONE // self.holders if self.holders else 0
        self.unfilled_acc += (self.unfilled_rate - rate) * t
        self.unfilled_rate = rate
        rate = self.ahead * ONE // self.holders if self.holders else 0
        self.ahead_acc += (self.ahead_rate - rate) * t
        self.ahead_rate = rate

    def values(self, t: int) -> tuple[int, int, int]:
        """What one holder has been charged until ``t`` by this leaf: block, unfilled and look-ahead time."""
        return (
            self.rate * t + self.acc,
            self.unfilled_rate * t + self.unfilled_acc,
            self.ahead_rate * t + self.ahead_acc,
        )


class Cell:
    """What the owner list points at: it always knows the leaf of its blocks, whatever was split before."""

    __slots__ = ("group", "named", "node", "writer")

    def __init__(self, group: int, node: Node) -> None:
        self.group = group
        self.node = node
        self.named: list[int] = []
        """All blocks of the leaf in the order of those who share them, or nothing if that is not known. Comparing
        two lists is ten times faster than looking up the owner of each block."""
        self.writer: tuple[str, ...] | None = None
        """Tenant and session that computed all of ``named``; None if there are several."""


def split(t: int, cell: Cell, blocks: int, unfilled: int, ahead: int) -> Cell:
    """Part ``blocks`` blocks (with their slots) from a cell's leaf; returns their cell, the rest stay in ``cell``.

    The caller points the owners of the parted blocks at the new cell.
    """
    node = cell.node
    assert 0 < blocks < node.blocks
    assert node.parts is None
    parted = Node(t, node.holders, blocks, node)
    rest = Node(t, node.holders, node.blocks - blocks, node)
    if node.unfilled or node.ahead:
        parted.change_slots(t, unfilled, ahead)
        rest.change_slots(t, node.unfilled - unfilled, node.ahead - ahead)
    # From here on the node's own integrals stand still at t.
    node.acc += node.rate * t
    node.unfilled_acc += node.unfilled_rate * t
    node.ahead_acc += node.ahead_rate * t
    node.rate = node.unfilled_rate = node.ahead_rate = 0
    node.parts = (parted, rest)
    cell.node = rest
    cell.named = []
    return Cell(cell.group, parted)


def leaves_of(nodes: Iterable[Node]) -> list[Node]:
    """The leaves that nodes consist of now."""
    leaves = []
    stack = list(nodes)
    while stack:
        one = stack.pop()
        if one.parts is None:
            leaves.append(one)
        else:
            stack.extend(one.parts)
    return leaves


def final(node: Node) -> tuple[int, int, int]:
    """An inner node's own charge per holder, up to its split."""
    return node.acc, node.unfilled_acc, node.ahead_acc


def divide(total: int, parts: list[int]) -> list[int]:
    """``total`` units over fixed-point ``parts``: each its floor, the rest to the largest fractions.

    Ties (see :data:`TIE`) go to the earlier part, so parts come in a stable order. The parts' sum may fall short of
    the total by what was rounded down on the way; by no more, or the result would not sum to ``total``.
    """
    shares = [part >> SHIFT for part in parts]
    rest = total - sum(shares)
    if rest:
        assert 0 < rest <= len(parts), f"{rest} units left over {len(parts)} parts of {total}"
        mask = ONE - 1
        order = sorted(range(len(parts)), key=lambda i: -(parts[i] & mask))
        # Only a tie between the last that gets a unit and the first that gets none matters.
        first = last = rest
        while first and last < len(parts) and (parts[order[first - 1]] & mask) - (parts[order[first]] & mask) <= TIE:
            first -= 1
        while first < last < len(parts) and (parts[order[last - 1]] & mask) - (parts[order[last]] & mask) <= TIE:
            last += 1
        for i in (*order[:first], *sorted(order[first:last])[: rest - first]):
            shares[i] += 1
    return shares
