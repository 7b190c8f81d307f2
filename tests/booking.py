"""Books for tests: a ledger with terms, assets and prices, and engines that deliver whole hours of batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from batches import T0, Held, Life

from ledger import ingest
from ledger.core.records import (
    PERIOD_US,
    Batch,
    Dimensions,
    Group,
    Holding,
    Outcome,
    PeriodUse,
    PoolOpen,
    RequestRecord,
    Shard,
    Tokens,
)
from ledger.core.settlement import Terms
from ledger.pricebook import Asset, Assignment, Price
from ledger.settle import Settled, settle
from ledger.store import prices, terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ledger.store.database import Database

HOUR = 3_600_000_000
MINUTE = 60_000_000
DAY = 24 * HOUR
USD = 1_000_000_000
A = Dimensions(tenant="A", session="a1", model="m")
B = Dimensions(tenant="B", session="b1", model="m")
LATE = T0 + 40 * DAY


def open_ledger(db: Database, *, currency: str = "USD", zone: str = "UTC", **weights: object) -> None:
    db.write(
        lambda connection: terms.ensure_terms(
            connection,
            currency=currency,
            zone_name=zone,
            terms=Terms(**weights),
            now_us=T0,  # type: ignore[arg-type]
        )
    )


def give_asset(
    db: Database,
    asset_id: str,
    engine: str | None,
    nanos: int | None,
    *,
    from_us: int = T0,
    to_us: int | None = None,
    share_ppm: int = 1_000_000,
) -> None:
    """A registered GPU, its own price where ``nanos`` says one, and an engine that has a share of it."""

    def work(connection):
        prices.add_asset(connection, Asset(asset_id=asset_id, valid_from_us=from_us, valid_to_us=to_us), now_us=T0)
        if nanos is not None:
            price = Price(asset_id=asset_id, nanos_per_hour=nanos, valid_from_us=from_us)
            prices.add_price(connection, price, currency="USD", now_us=T0)
        if engine is not None:
            had = Assignment(asset_id=asset_id, engine=engine, share_ppm=share_ppm, valid_from_us=from_us)
            prices.assign(connection, had, now_us=T0)

    db.write(work)


def change_price(
    db: Database, asset_id: str, nanos: int, from_us: int, *, to_us: int | None = None, now_us: int = LATE
) -> None:
    price = Price(asset_id=asset_id, nanos_per_hour=nanos, valid_from_us=from_us, valid_to_us=to_us)
    db.write(lambda connection: prices.add_price(connection, price, currency="USD", now_us=now_us))


def with_open(batch: Batch, shards: Sequence[Shard] = ()) -> Batch:
    opened = PoolOpen(
        pool="gpu",
        at_us=batch.start_us,
        blocks=batch.pools[0].blocks,
        groups=(Group(block_size=16),),
        shards=tuple(shards),
    )
    return replace(batch, opens=(opened,))


def stretch(
    life: Life,
    until_us: int,
    held: Held,
    *,
    quiet: Held | None = None,
    opens: bool = False,
    closes: bool = False,
    shards: Sequence[Shard] = (),
) -> Iterator[Batch]:
    """Periods of constant holdings up to ``until_us``; the standing counts go along where they are due."""
    first = True
    while life.now_us < until_us:
        length_us = min(until_us, life.now_us - life.now_us % PERIOD_US + PERIOD_US) - life.now_us
        due = life.now_us % HOUR == 0 or (opens and first)
        batch = life.period(
            held, quiet=quiet, length_us=length_us, standing=due, closes=closes and life.now_us + length_us >= until_us
        )
        yield with_open(batch, shards) if opens and first else batch
        first = False


def deliver(db: Database, life: Life, batches: Iterator[Batch] | Sequence[Batch]) -> list[bytes]:
    """Take the batches as they would come over the wire; the bytes, for delivering again."""
    sent = []
    for batch in batches:
        raw = life.send(batch)
        outcome = ingest.accept(db, raw, batch.end_us)
        assert outcome.status is ingest.Status.ACCEPTED, outcome
        sent.append(raw)
    return sent


def book(db: Database, until_us: int = T0 + DAY, now_us: int = LATE) -> Settled:
    return settle(db, until_us=until_us, now_us=now_us)


def worked_example(db: Database) -> None:
    """Two GPUs at 2.95 an hour, one of them 3.50 from 01:20 on; 1000 blocks; as docs/accounts.md has it."""
    open_ledger(db)
    hour = T0 + HOUR
    for asset_id in ("gpu-0", "gpu-1"):
        give_asset(db, asset_id, "engine-a", 2_950_000_000, from_us=hour, to_us=hour + HOUR)
    change_price(db, "gpu-1", 3_500_000_000, hour + 20 * MINUTE)
    life = Life(start_us=hour)
    deliver(db, life, [life.announce()])
    deliver(db, life, stretch(life, hour + 20 * MINUTE, {A: (400, 0)}, quiet={B: (0, 200)}, opens=True))
    deliver(db, life, [life.period({A: (100, 0), B: (300, 100)})])
    deliver(db, life, stretch(life, hour + HOUR, {A: (100, 0), B: (300, 100)}, closes=True))


def request(
    name: str,
    dims: Dimensions,
    uses: Mapping[int, tuple[int, int]],
    *,
    outcome: Outcome = Outcome.FINISHED,
    ended_us: int,
    prompt: int = 10,
) -> RequestRecord:
    """An ended request that held ``uses[start] = (block time, compute)`` in each period."""
    return RequestRecord(
        request=name,
        dims=dims,
        pool="gpu",
        outcome=outcome,
        prompt_tokens=prompt,
        tokens=Tokens(computed=prompt),
        holding=Holding(active_block_us=sum(block for block, _ in uses.values())),
        compute_us=sum(compute for _, compute in uses.values()),
        arrived_us=min(uses),
        ended_us=ended_us,
        uses=tuple(
            PeriodUse(start_us=at, active_block_us=block, compute_us=compute)
            for at, (block, compute) in sorted(uses.items())
        ),
    )
