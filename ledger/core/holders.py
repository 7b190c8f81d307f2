"""The parties of block accounting: requests that hold, their block tables, and the accounts of cached blocks.

Data only; the rules that keep it together are those of :mod:`ledger.core.blocks`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from ledger.core.records import UNATTRIBUTED, Dimensions
from ledger.core.sharing import Cell, Node, leaves_of

if TYPE_CHECKING:
    from ledger.core.blocks import BlockAccounts


Key: TypeAlias = tuple[str, ...]
"""Tenant and session: who computed a block."""

OUTSIDE: Key = ()
"""Nobody here computed it."""

NOBODY = Dimensions(tenant=UNATTRIBUTED)


class Ticks:
    """The steps scheduled so far, and their integral."""

    __slots__ = ("acc", "n")

    def __init__(self) -> None:
        self.n = 0
        self.acc = 0


class Holder:
    """What block accounting has to know of a request. ``frontier`` excludes the ticks while ``steady``."""

    __slots__ = ("dims", "frontier", "key", "loose", "steady", "tables")

    def __init__(self, dims: Dimensions = NOBODY) -> None:
        self.dims = dims
        self.key: Key = (dims.tenant, dims.session)
        self.frontier = 0
        """Positions scheduled so far, from the start of the prompt."""
        self.loose = 0
        """Tokens that steps in flight may not give: so far the frontier may fall back."""
        self.steady = False
        """In steady decode: every step fills one slot."""
        self.tables: list[Table] = []

    @property
    def held(self) -> int:
        """Blocks held, in all pools: worked out, since it is asked for less often than it changes."""
        return sum([held_blocks(table) for table in self.tables])

    @property
    def holds(self) -> bool:
        """Whether it holds any block."""
        for table in self.tables:  # noqa: SIM110  # any() with a generator costs four times as much
            if table.own or table.nodes:
                return True
        return False


class Account:
    """Cached blocks of one session in one pool; the integral starts with the period of the first change."""

    __slots__ = ("acc", "blocks", "dims", "touched")

    def __init__(self, dims: Dimensions) -> None:
        self.dims = dims
        self.blocks = 0
        self.acc = 0
        self.touched = False


class Table:
    """The blocks that one request holds in one group of one pool."""

    __slots__ = (
        "acc",
        "ahead",
        "ahead_acc",
        "ahead_falls",
        "base",
        "done",
        "due",
        "falls",
        "group",
        "holder",
        "marked_ahead",
        "marked_unfilled",
        "nodes",
        "noted",
        "opens",
        "order",
        "own",
        "pool",
        "shared",
        "shared_ahead",
        "shared_unfilled",
        "size",
        "spot",
        "tail",
        "unfilled",
        "unfilled_acc",
        "whole",
    )

    def __init__(self, pool: BlockAccounts, holder: Holder, group: int, size: int) -> None:
        self.pool = pool
        self.holder = holder
        self.group = group
        self.size = size
        """Slots of a block; 0 where blocks have none (state groups)."""
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
        """Its blocks by position; None where one was let go before it was full."""
        self.whole = True
        """Whether ``order`` is known to be just the blocks held: nothing was let go so far but all at once."""
        self.noted = False
        """Whether ``computed_by`` may have notes on own blocks: some had content when they were taken."""
        self.base = self.tail = 0
        """Positions: of the first block, and from where blocks are an ordinary tail."""
        self.opens: dict[int, int] = {}
        """First position of each block whose fill is written down."""
        self.due = self.spot = -1
        """The tick at which its tail is full, and its spot on the pool's wheel; -1 while no tick concerns it."""
        self.done = (0, 0, 0)
        """For the settling alone: the charges up to the last boundary."""

    @property
    def end(self) -> int:
        """The position behind the last block."""
        return self.base + len(self.order) * self.size


Owner: TypeAlias = Account | Table | Cell | None


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


def session(owner: Owner) -> Key:
    """Whose blocks these are, unless they are several requests' or free."""
    if type(owner) is Table:
        return owner.holder.key
    if type(owner) is Account:
        return owner.dims.tenant, owner.dims.session
    return OUTSIDE


def held_blocks(table: Table) -> int:
    """Blocks of a table, own and shared."""
    return table.own + sum([leaf.blocks for leaf in leaves_of(table.nodes)])
