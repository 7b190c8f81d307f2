"""The reference pool against a naive one, and the order in which it evicts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.reference.pool import BlockPool


def take(pool: BlockPool, hashes: list[int]) -> list[int]:
    """A table for content ``hashes``, hits first, all of it registered."""
    hits = pool.lookup(hashes, len(hashes))
    pool.take_hits(hits)
    new, _evicted = pool.take_new(len(hashes) - len(hits))
    pool.register(new, hashes[len(hits) :])
    return hits + new


def test_block_ids_run_from_1_to_n_and_never_include_the_null_block() -> None:
    pool = BlockPool(5)
    taken, evicted = pool.take_new(5)
    assert sorted(taken) == [1, 2, 3, 4, 5]
    assert evicted == []
    assert pool.available == 0


def test_the_end_of_a_context_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(4)
    first, second, third, _fourth = table = take(pool, [10, 11, 12, 13])
    pool.release(table)
    _taken, evicted = pool.take_new(1)
    assert evicted == [table[-1]]
    assert pool.lookup([10, 11, 12, 13], 4) == [first, second, third]


def test_what_was_used_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(4)
    old = take(pool, [10, 11])
    young = take(pool, [20, 21])
    pool.release(old)
    pool.release(young)
    pool.release(take(pool, [10, 11]))
    _taken, evicted = pool.take_new(2)
    assert evicted == [young[1], young[0]]


def test_a_hit_shares_a_held_block_and_lookup_stops_at_the_first_miss() -> None:
    pool = BlockPool(6)
    table = take(pool, [10, 11, 12])
    assert pool.lookup([10, 11, 99, 12], 4) == table[:2]
    assert pool.lookup([10, 11, 12], 2) == table[:2]
    again = take(pool, [10, 11])
    assert again == table[:2]
    assert [pool.references[block] for block in table] == [2, 2, 1]
    assert pool.idle_among(table) == 0


def test_blocks_without_a_hash_are_freed_and_those_with_one_are_cached() -> None:
    pool = BlockPool(4)
    table = take(pool, [10])
    new, _evicted = pool.take_new(1)
    cached, freed = pool.release(table + new)
    assert (cached, freed) == (table, new)


def test_a_twin_answers_once_the_first_block_of_a_hash_is_evicted() -> None:
    pool = BlockPool(2)
    (first,), _evicted = pool.take_new(1)
    (twin,), _evicted = pool.take_new(1)
    pool.register([first], [7])
    pool.register([twin], [7])
    assert pool.lookup([7], 1) == [first]
    pool.release([first])
    pool.take_new(1)
    assert pool.lookup([7], 1) == [twin]


def test_content_that_was_unregistered_cannot_be_hit() -> None:
    pool = BlockPool(3)
    table = take(pool, [1, 2, 3])
    pool.unregister(table[1:])
    assert pool.lookup([1, 2, 3], 3) == table[:1]
    assert pool.release(table) == ([table[0]], [table[2], table[1]])


def test_a_reset_forgets_all_content_and_names_what_was_cached() -> None:
    pool = BlockPool(4)
    idle = take(pool, [1, 2])
    pool.release(idle)
    held = take(pool, [3])
    assert sorted(pool.forget_all()) == sorted(idle)
    assert pool.lookup([3], 1) == []
    assert pool.release(held) == ([], held)


@given(
    st.integers(1, 12), st.lists(st.tuples(st.sampled_from("atr"), st.integers(0, 3), st.integers(1, 6)), max_size=60)
)
def test_every_block_is_held_cached_or_free_whatever_happens(blocks: int, actions: list[tuple[str, int, int]]) -> None:
    pool = BlockPool(blocks)
    tables: list[list[int]] = []
    counted = [0] * (blocks + 1)
    for action, stem, length in actions:
        hashes = [100 * stem + position for position in range(length)]
        if action == "r":
            if tables:
                table = tables.pop(stem % len(tables))
                for block in table:
                    counted[block] -= 1
                cached, freed = pool.release(table)
                assert sorted(cached + freed) == sorted(block for block in table if not counted[block])
        else:
            hits = pool.lookup(hashes, length) if action == "a" else []
            new = length - len(hits)
            if new + pool.idle_among(hits) > pool.available:
                continue
            pool.take_hits(hits)
            taken, evicted = pool.take_new(new)
            assert set(evicted) <= set(taken)
            assert not any(counted[block] for block in taken), "a block that was handed out had an owner"
            pool.register(taken, hashes[len(hits) :])
            for block in hits + taken:
                counted[block] += 1
            tables.append(hits + taken)
        assert pool.references == counted
        assert pool.available == blocks - sum(count > 0 for count in counted[1:])
        assert pool.cached_blocks() <= pool.available
