"""A seeded world of engines, spools, networks and a service, in which everything goes wrong; and what must hold.

The outbox, the wire, the spool on a real disk, receipt, settlement and audit are the real ones; time, the network
and kills are the world's. A failure says the command that repeats it::

    python tests/delivery.py SEED [SEED …]
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from batches import ALICE, BOB, T0, Life

from ledger import ingest, limits, wire
from ledger.audit import audit
from ledger.core.records import PERIOD_US, Batch
from ledger.core.settlement import Terms
from ledger.ingest import Status
from ledger.outbox import spool as spools
from ledger.outbox.drain import Outbox
from ledger.outbox.line import Entry
from ledger.outbox.post import Reply, Unreachable
from ledger.outbox.segment import Segment
from ledger.outbox.spool import Spool
from ledger.outbox.tally import Loss
from ledger.pricebook import Price
from ledger.settle import settle
from ledger.store import fact_reads, migrate, prices, terms
from ledger.store.database import Database, connect
from ledger.wire import answer as answers
from ledger.wire.answer import Answer, Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR_US = 3_600_000_000
RECEIPTS = {Status.ACCEPTED: Receipt.ACCEPTED, Status.DUPLICATE: Receipt.DUPLICATE}
Key = tuple[str, str, int]


@dataclass
class World:
    """Time, the weather of the network, the service's books, and what was seen."""

    seed: int
    database: Database
    root: Path
    now_us: int = T0
    stepped_us: int = 0
    """How far the engines' machine has its wall clock stepped."""
    network: str = "up"
    disk_full: bool = False
    past: list[bytes] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def wall_us(self) -> int:
        return self.now_us + self.stepped_us

    def mono_s(self) -> float:
        return self.now_us / 1e6

    def deliver(self, payload: bytes) -> Reply:
        """What the service says, as far as the network lets it through."""
        dice = self.dice.random()
        if self.network == "down" or (self.network == "bad" and dice < 0.25):
            raise Unreachable("lost on the way there")
        if self.network == "bad" and dice < 0.4:
            return Reply(
                status=self.dice.choice([408, 429, 500, 503]), body=b"", retry_after_s=self.dice.choice([None, 20.0])
            )
        if self.network == "bad" and dice < 0.45:
            return Reply(status=200, body=b"<html>a portal</html>")
        raw = Entry(payload=payload, stamped_us=0, segment=Path(), end=0).raw
        outcome = ingest.accept(self.database, raw, self.now_us)
        self.past.append(raw)
        if self.network == "bad" and dice < 0.55:
            self.repeat(raw)  # doubled by something on the way
        if self.network == "bad" and dice < 0.7:
            raise Unreachable("the answer was lost on the way back")
        if outcome.status is Status.REFUSED:
            assert outcome.refusal is not None
            self.refused.append(f"{outcome.refusal.reason}: {outcome.refusal.detail}")
            return Reply(status=422, body=b"{}")
        return Reply(
            status=200, body=answers.encode(Answer(status=RECEIPTS[outcome.status], service_time_us=self.now_us))
        )

    def repeat(self, raw: bytes) -> None:
        """Something delivers again what was delivered before, at any time and in any order."""
        outcome = ingest.accept(self.database, raw, self.now_us)
        assert outcome.status is Status.DUPLICATE, outcome


@dataclass
class Wire:
    """The post of one engine: it notes what its sender takes for received."""

    world: World
    name: str = "the service"

    def __call__(self, payload: bytes, note: str) -> Reply:
        return self.world.deliver(payload)

    def close(self) -> None:
        pass


class Engine:
    """An engine with an outbox whose threads the world plays."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.boots = 0
        self.kept: set[Key] = set()
        """On the disk, as far as the outbox knows."""
        self.boot()

    def boot(self) -> None:
        world = self.world
        self.boots += 1
        skew_us = world.dice.randrange(-20_000_000, 20_000_000)
        start_us = (world.now_us + skew_us) // PERIOD_US * PERIOD_US
        self.life = Life(engine=self.name, boot_id=f"{self.name}-{self.boots}", start_us=start_us)
        self.outbox = Outbox([Wire(world), Wire(world)], None, pause=lambda: None, wall_us=world.wall_us,
                             mono_s=world.mono_s, uniform=world.dice.random)  # fmt: skip
        self.spool = Spool(world.root, tally=self.outbox.tally, fsync=False, wall_us=world.wall_us, mono_s=world.mono_s)
        self.outbox._backlog.spool = self.spool
        self.emit(self.life.announce())
        self.opened = False

    def emit(self, batch: Batch) -> None:
        held = len(self.outbox._backlog.held)
        self.outbox._keep(batch)
        key = (self.name, batch.boot.boot_id, batch.seq)
        if len(self.outbox._backlog.held) == held:
            self.kept.add(key)

    def period(self, *, closes: bool = False) -> None:
        dice = self.world.dice
        held = {ALICE: (dice.randrange(1, 400), dice.randrange(40)), BOB: (dice.randrange(100), dice.randrange(40))}
        name = f"{self.life.boot_id}-{self.life.seq}"
        self.emit(
            self.life.period(held, standing=True, opens=not self.opened, closes=closes, admits=[name], ends=[name])
        )
        self.opened = True

    def send(self, most: int) -> None:
        for _ in range(most):
            wait_s = self.outbox._sender.step()
            if wait_s is None or wait_s > 0:
                return

    def kill(self) -> None:
        """SIGKILL: no flush, no goodbye; perhaps in the midst of a write."""
        dice = self.world.dice
        grows = self.spool._line.files[-1] if self.spool._line.growing else None
        self.spool.forget()
        if grows is not None and dice.random() < 0.5:
            with grows.path.open("ab") as stream:
                stream.write(dice.randbytes(dice.randrange(1, 300)))
        self.boot()

    def stop(self) -> None:
        self.period(closes=True)
        if not self.world.disk_full:
            # What memory still holds goes to the disk.
            self.kept.update(key_of(entry) for entry in self.outbox._backlog.held)
        self.outbox._backlog.close()
        self.boot()


def key_of(entry: Entry) -> Key:
    found = wire.decode(entry.raw)
    assert isinstance(found, wire.Decoded), found
    return found.batch.source.engine, found.batch.boot.boot_id, found.batch.seq


def live(world: World) -> list[Engine]:
    """Some minutes of a fleet, or hours, with everything that can happen to it."""
    write = Segment.append

    def append(self: Segment, payload: bytes, *, stamp_us: int) -> int:
        if world.disk_full:
            raise OSError(28, "No space left on device")
        return write(self, payload, stamp_us=stamp_us)

    def token_hex(size: int) -> str:
        return world.dice.randbytes(size).hex()

    with patch.object(Segment, "append", append), patch.object(spools.secrets, "token_hex", token_hex):
        fleet = [Engine(world, f"engine-{n}") for n in range(world.dice.randrange(1, 4))]
        for _ in range(world.dice.randrange(20, 70)):
            turn(world, fleet)
        # The storm is over; what is left is delivered.
        world.network, world.disk_full, world.stepped_us = "up", False, 0
        for engine in fleet:
            engine.period(closes=True)
        for _ in range(2):
            world.now_us += int(limits.SEND_RETRY_AFTER_S_MAX * 1e6)
            for engine in fleet:
                engine.spool.adopt()
                engine.send(100_000)
        for engine in fleet:
            engine.outbox._backlog.close()
    return fleet


def turn(world: World, fleet: list[Engine]) -> None:
    """A quarter of a minute."""
    dice = world.dice
    world.now_us += PERIOD_US
    if dice.random() < 0.15:
        world.network = dice.choice(["up", "bad", "bad", "down"])
    if dice.random() < 0.06:
        world.disk_full = not world.disk_full
    if dice.random() < 0.04:
        world.stepped_us = dice.choice([0, HOUR_US, -HOUR_US])
    if dice.random() < 0.03:
        world.now_us += dice.randrange(1, 3 * 240) * PERIOD_US  # hours in which nobody sends
        for engine in fleet:
            engine.life.now_us = max(engine.life.now_us, world.now_us // PERIOD_US * PERIOD_US - PERIOD_US)
    for engine in fleet:
        if engine.life.now_us + PERIOD_US <= world.now_us + 20_000_000:
            engine.period()
        engine.send(dice.randrange(6))
        what = dice.random()
        if what < 0.03:
            engine.kill()
        elif what < 0.05:
            engine.stop()
        elif what < 0.1:
            engine.spool.adopt()
    if world.past and dice.random() < 0.3:
        world.repeat(dice.choice(world.past))
    if dice.random() < 0.1:
        settle(world.database, until_us=world.now_us // HOUR_US * HOUR_US, now_us=world.now_us)


def check(world: World, fleet: list[Engine]) -> Iterator[str]:
    """A sentence for everything that must hold and does not."""
    with world.database.read() as connection:
        stored = [
            (boot.engine, found.batch.boot.boot_id, found.batch.seq)
            for boot in fact_reads.boots_of(connection)
            for found in fact_reads.stored_batches(connection, boot)
        ]
    if len(stored) != len(set(stored)):
        yield "a batch counts twice"
    for engine in fleet:
        missing = engine.kept - set(stored)
        if missing:
            yield f"{engine.name}: on the disk and never booked: {sorted(missing)}"
    yield from (f"refused: {why}" for why in world.refused)
    for engine in fleet:
        drops = {loss: n for loss, n in engine.outbox.tally.counts.items() if n and loss is not Loss.DAMAGED}
        if drops:
            yield f"{engine.name}: dropped {drops}"
    settled = [settle(world.database, until_us=world.now_us, now_us=world.now_us) for _ in range(2)]
    if settled[1].booked or settled[1].revised:
        yield f"settling twice changes the books: {settled[1]}"
    yield from (f"audit: {breach}" for breach in audit(world.database))
    if any(path.suffix == ".seg" for path in world.root.rglob("*")):
        yield "something is left in the spool"


def run(seed: int, template: Path | None = None) -> tuple[int, int]:
    """One world from beginning to end: batches on the disk, deliveries. AssertionError says how to repeat it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "books.db"
        if template is not None:
            path.write_bytes(template.read_bytes())
        database = connect(f"sqlite:///{path}", durable=False)
        if template is None:
            migrate.upgrade(database)
        database.write(
            lambda c: terms.ensure_terms(c, currency="USD", zone_name="UTC", terms=Terms(), now_us=T0 - HOUR_US)
        )
        price = Price(nanos_per_hour=2_950_000_000, valid_from_us=T0 - HOUR_US)
        database.write(lambda c: prices.add_price(c, price, currency="USD", now_us=T0 - HOUR_US))
        world = World(seed=seed, database=database, root=Path(folder) / "spool")
        try:
            fleet = live(world)
            problems = list(check(world, fleet))
        except Exception as error:
            raise AssertionError(f"repeat with: python tests/delivery.py {seed}") from error
        finally:
            database.close()
    assert not problems, "\n".join([*problems, f"repeat with: python tests/delivery.py {seed}"])
    return sum(len(engine.kept) for engine in fleet), len(world.past)


if __name__ == "__main__":
    for each in map(int, sys.argv[1:]):
        kept, delivered = run(each)
        print(f"seed {each}: {kept} batches, {delivered} deliveries: none lost, none counts twice, the audit is silent")
