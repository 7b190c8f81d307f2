"""Shared blocks and the division of what cannot be divided: the laws, for any sequence of joins, splits and leaves."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.blocks import BlockAccounts
from ledger.core.holders import Holder, Ticks
from ledger.core.money import apportion
from ledger.core.records import Dimensions, Group
from ledger.core.sharing import ONE, TIE, Cell, Node, divide, split
from ledger.hook.periods import settled_nodes


@settings(deadline=None)
@given(st.lists(st.fractions(0, 1000, max_denominator=97), min_size=1, max_size=20))
def test_division_sums_to_the_total_and_is_within_one_of_every_part(parts):
    total = sum(parts)
    # Rounded up, so that the whole is a whole number of units, as a pool's is.
    parts[0] += -total % 1
    total = sum(parts)
    shares = divide(int(total), [int(part * ONE) for part in parts])
    assert sum(shares) == total
    assert all(abs(share - part) < 1 for share, part in zip(shares, parts, strict=True))


def test_ties_go_to_the_earlier_part():
    third = ONE // 3
    assert divide(2, [third * 2, third * 2, third * 2]) == [1, 1, 0]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, max_size=12),
    st.lists(st.integers(0, TIE // 16), min_size=12, max_size=12),
)
def test_what_rounding_took_decides_no_tie(quarters, noise):
    quarters[0] += -sum(quarters) % 4
    total = sum(quarters) // 4
    rounded = [max(0, part * ONE // 4 - less) for part, less in zip(quarters, noise, strict=False)]
    exact = [Fraction(part, 4) for part in quarters]
    assert divide(total, rounded) == apportion(total, exact, range(len(exact)))


def test_a_true_difference_is_no_tie():
    """Of 4 095 and 4 096 holders: the parts of a microsecond, and what is left of it."""
    one, other = ONE // 4096, ONE // 4095
    assert divide(1, [one, other, ONE - one - other]) == [0, 0, 1]
    assert divide(1, [one, other]) == [0, 1]


def test_a_split_changes_no_holders_charge():
    cell = Cell(0, Node(0, 3, 7))
    whole = cell.node
    parted = split(10, cell, 3, 0, 0)
    later = {node: node.values(25) for node in (cell.node, parted.node)}
    charged = settled_nodes(later, [frozenset([whole])])[whole][0]
    assert abs(Fraction(charged, ONE) - Fraction(7 * 25, 3)) < Fraction(1, 10**9)


class Pool:
    """Block accounts that must meet no fault, and what holders ought to be charged, in fractions."""

    def __init__(self, blocks):
        self.faults = []
        self.accounts = BlockAccounts(
            blocks,
            (Group(block_size=4),),
            (4,),
            Ticks(),
            lookahead=0,
            fault=self.faults.append,
            unsteady=lambda _t, _holder: None,
        )
        self.tables = {}
        self.held = {}
        self.charged = {}
        self.t = 0

    def table(self, name):
        if name not in self.tables:
            self.tables[name] = self.accounts.table(Holder(Dimensions(tenant=name)), 0)
            self.charged[name] = Fraction(0)
        return self.tables[name]

    def wait(self, span):
        for holders in self.held.values():
            for name in holders:
                self.charged[name] += Fraction(span, len(holders))
        self.t += span

    def value(self, name):
        table = self.tables[name]
        nodes = settled_nodes({n: n.values(self.t) for n in self.accounts.leaves}, [table.nodes])
        return Fraction(table.own * self.t + table.acc) + Fraction(
            table.shared + sum(nodes[node][0] for node in table.nodes), ONE
        )


moves = st.tuples(st.sampled_from("abcd"), st.sets(st.integers(1, 8), min_size=1), st.integers(0, 9))


@settings(deadline=None)
@given(st.lists(moves, max_size=40))
def test_each_holder_is_charged_its_part_of_every_block(steps):
    pool = Pool(8)
    for name, blocks, span in steps:
        table = pool.table(name)
        mine = [block for block in blocks if name in pool.held.get(block, ())]
        if mine:
            for block in mine:
                pool.held[block].remove(name)
            freed = [block for block in mine if not pool.held[block]]
            pool.accounts.release(pool.t, table.holder, mine, (), freed)
        else:
            hit = [block for block in blocks if pool.held.get(block)]
            new = [block for block in blocks if not pool.held.get(block)]
            if hit:
                pool.accounts.take_hit(pool.t, table, hit, pool.accounts.owners(hit))
            if new:
                pool.accounts.take_new(pool.t, table, new)
            for block in blocks:
                pool.held.setdefault(block, []).append(name)
        pool.wait(span)
        assert pool.accounts.active == sum(bool(holders) for holders in pool.held.values())
    assert not pool.faults
    for name, exact in pool.charged.items():
        assert 0 <= exact - pool.value(name) < Fraction(1, 10**9)


@settings(deadline=None)
@given(st.integers(2, 4096))
def test_the_shares_of_any_number_of_holders_never_sum_to_more_than_the_leaf(holders):
    """Rounded down, and by less than can ever be seen."""
    node = Node(0, holders, 64)
    charged = node.values(15_000_000)[0] * holders
    assert 0 <= 64 * 15_000_000 * ONE - charged < ONE // 1_000_000
