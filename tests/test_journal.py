from __future__ import annotations

import random
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from settling import HOUR, MINUTE, T0, amounts, asset, boot, inputs, period, stretch, tenant

from ledger.core.allocation import Allocation, IntervalInputs, ShareSpan, allocate
from ledger.core.digests import canonical, digest
from ledger.core.journal import (
    Side,
    Transaction,
    asset_group,
    postings_of,
    reversal_of,
    transaction_id,
)
from ledger.core.records import Admission, Tokens
from ledger.core.timeline import trimmed

A, B = tenant("A"), tenant("B", "s1")


def an_hour(price: int = 2_950_000_000, blocks: int = 400) -> IntervalInputs:
    periods = stretch(T0, T0 + 30 * MINUTE, 1000, {A: (blocks, 100), B: (20, 7)})
    periods[0] = period(1, T0, 1000, {A: (blocks, 100), B: (20, 7)}, standing=True)
    closed = boot(T0, 1000, closed_us=T0 + 30 * MINUTE)
    return inputs([asset("gpu-0", (T0, price))], [closed], periods)


def booked(facts: IntervalInputs, previous: Transaction | None = None) -> Transaction:
    """As the store writes it: what ``previous`` booked is taken back, and the new amounts are booked."""
    revision = previous.revision + 1 if previous else 1
    return Transaction(
        transaction_id=transaction_id("engine:e", facts.start_us, revision),
        group="engine:e",
        start_us=facts.start_us,
        end_us=facts.end_us,
        revision=revision,
        currency="USD",
        belongs_to="2026-11",
        booked_at_us=T0 + HOUR,
        inputs_digest=inputs_digest(facts),
        reverses=previous.transaction_id if previous else None,
        postings=(*(reversal_of(previous) if previous else ()), *postings_of(allocate(facts))),
    )


def balance(account: str, transactions: tuple[Transaction, ...]) -> int:
    return sum(p.amount_nanos for t in transactions for p in t.postings if p.account == account)


def inputs_digest(facts: IntervalInputs) -> str:
    """As settling makes it of what can matter to an interval."""
    return digest(trimmed(facts))


def test_a_transaction_credits_assets_and_debits_accounts_and_sums_to_zero() -> None:
    allocation = allocate(an_hour())
    postings = postings_of(allocation)
    assert sum(p.amount_nanos for p in postings) == 0
    assert [(p.account, p.amount_nanos) for p in postings if p.side is Side.ASSET] == [("gpu-0", -2_950_000_000)]
    debits = {
        f"{p.tenant}/{p.kind.value}" if p.tenant else p.account: p.amount_nanos
        for p in postings
        if p.side is Side.ACCOUNT
    }
    assert debits == amounts(allocation)
    assert next(p for p in postings if p.account == "vacant").asset_us == 30 * MINUTE


def test_lines_that_do_not_sum_to_the_bill_cannot_be_posted() -> None:
    allocation = allocate(an_hour())
    short: Allocation = replace(allocation, lines=allocation.lines[1:])
    with pytest.raises(AssertionError):
        postings_of(short)


def test_the_id_follows_from_the_key_alone() -> None:
    assert transaction_id("engine:e", T0, 1) == transaction_id("engine:e", T0, 1)
    others = {transaction_id(g, t, r) for g in ("engine:e", asset_group("e")) for t in (T0, T0 + HOUR) for r in (1, 2)}
    assert len(others) == 8
    assert all(len(found) == 32 for found in others)


def test_a_revision_takes_back_the_one_before_and_the_sum_is_the_new_amount() -> None:
    first = booked(an_hour())
    second = booked(an_hour(price=3_500_000_000), first)
    third = booked(an_hour(blocks=10), second)
    for transaction in (first, second, third):
        assert sum(p.amount_nanos for p in transaction.postings) == 0
    for transactions, facts in (
        ((first, second), an_hour(price=3_500_000_000)),
        ((first, second, third), an_hour(blocks=10)),
    ):
        lines = allocate(facts).lines
        assert balance("gpu-0", transactions) == -sum(line.amount_nanos for line in lines)
        for account in ("tenant", "idle", "vacant"):
            expected = sum(line.amount_nanos for line in lines if line.account == account)
            assert balance(account, transactions) == expected
        vacant = [p.asset_us or 0 for t in transactions for p in t.postings if p.account == "vacant"]
        assert sum(vacant) == 30 * MINUTE


def test_a_reversal_takes_back_only_what_its_transaction_booked_itself() -> None:
    first = booked(an_hour())
    second = booked(an_hour(blocks=10), first)
    own = [p for p in second.postings if not p.reversal]
    assert [p.amount_nanos for p in reversal_of(second)] == [-p.amount_nanos for p in own]


def changed(value: Any) -> Any:
    """A value of the same type that differs from ``value``."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return (
            next((v for v in type(value) if v != value), value) if hasattr(type(value), "__members__") else value + "x"
        )  # type: ignore[attr-defined]
    return None


def variants(value: Any) -> list[Any]:
    """Copies of a record, each with one field, at any depth, changed."""
    found: list[Any] = []
    if is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            for variant in variants(getattr(value, item.name)):
                found.append(replace(value, **{item.name: variant}))  # noqa: PERF401
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            found += [(*value[:i], variant, *value[i + 1 :]) for variant in variants(item)]
            found.append((*value[:i], *value[i + 1 :]))
    elif value is not None and changed(value) != value:
        found.append(changed(value))
    return found


def test_every_field_of_the_inputs_is_in_their_digest() -> None:
    row = replace(period(2, T0 + 15 * 10**6, 1000, {A: (1, 2)}), end_us=T0 + 20 * 10**6)
    first = period(1, T0, 1000, {A: (3, 4)}, standing=True)
    facts = inputs(
        [asset("gpu-0", (T0, 5), (T0 + MINUTE, 6), shares=[("e", 10, T0 + 1, T0 + 5), ("f", 11, T0 + 2, T0 + 50)])],
        [boot(T0, 1000, started_us=T0 - 7, closed_us=T0 + 20 * MINUTE)],
        [first, row],
    )
    seen = {inputs_digest(facts)}
    different = variants(facts)
    for variant in different:
        seen.add(inputs_digest(variant))
    assert len(different) > 120
    assert len(seen) == len(different) + 1


def test_a_digest_tells_texts_numbers_and_tuples_apart() -> None:
    values: list[object] = [
        (), ((),), ((), ()), ("",), ("a", "b"), ("ab",), ("a;b",), (1,), ("1",), (True,), (None,), ("null",), (-1,),
        Tokens(), Tokens(computed=1), Tokens(cached_own=1), ("é",), (10**30,),
    ]  # fmt: skip
    assert len({digest(value) for value in values}) == len(values)
    assert digest(("a",), ("b",)) != digest(("a", "b"))


def test_an_absent_value_is_not_a_nought() -> None:
    some = Admission(request="r", dims=A, prompt_tokens=1, arrived_us=T0, parent="")
    assert canonical(some) != canonical(replace(some, parent=None))


def test_what_comes_after_the_interval_leaves_its_digest_alone() -> None:
    facts = an_hour()
    alive = replace(facts, boots=(boot(T0, 1000, last_end_us=T0 + HOUR),))
    later = replace(
        facts,
        boots=(
            boot(T0, 1000, closed_us=T0 + 3 * HOUR),
            boot(T0 + 4 * HOUR, 1000, boot_id="boot-b"),
        ),
    )
    assert inputs_digest(alive) == inputs_digest(later) != inputs_digest(facts)
    ended = ShareSpan(engine="e", share_ppm=1_000_000, valid_from_us=T0 - HOUR, valid_to_us=T0 + HOUR)
    assert inputs_digest(replace(facts, assets=(replace(facts.assets[0], shares=(ended,)),))) == inputs_digest(facts)


def test_postings_of_random_hours_sum_to_zero() -> None:
    rng = random.Random(7)
    for _ in range(20):
        facts = an_hour(price=rng.randrange(10**12), blocks=rng.randrange(800))
        assert sum(p.amount_nanos for p in postings_of(allocate(facts))) == 0
