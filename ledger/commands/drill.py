"""`kvledger drill outage`: takes the way to a service away under load, and shows that the books are whole afterwards.

Everything is the real thing: the service is a process, the engines' batches go through outboxes with spools on a disk
and over HTTP on the loopback. Only time is not: the engines live an hour that is over, a hundred times as fast as the
clock, so that hours, settlement and a bill are there within a minute.

Invariants: the drill has a ledger of its own and touches no other; it ends in bounded time; what it starts, it ends.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import signal
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ledger import config
from ledger.cli import OK
from ledger.commands.checks import Check, judged, report
from ledger.commands.drill_books import Metered, whole
from ledger.commands.drill_way import Relay, ServiceProcess
from ledger.commands.opening import Ledger, fit_terms, now_us, opened_or_made
from ledger.core.periods import HOUR_US, format_time
from ledger.core.records import PERIOD_US
from ledger.outbox.drain import Outbox
from ledger.outbox.post import HttpPost
from ledger.outbox.spool import Spool
from ledger.outbox.tally import log
from ledger.pricebook import Asset, Assignment, Price
from ledger.reference.engine import Engine, EngineConfig, engine_of
from ledger.reference.policy import Policy
from ledger.reference.workload import mixed_day
from ledger.store import prices
from ledger.store.tokens import SECRET_BYTES, Scope, add_token

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from ledger.config import Settings
    from ledger.core.records import Batch
    from ledger.outbox.tally import Tally
    from ledger.wire.answer import Receipt

ENGINES = 2
SPEED = 100
"""Simulated seconds in a second: a period each 150 ms, 13 batches a second of both engines."""

LOAD = 2.0
"""Times the mixed day: its first hours are quiet ones."""

LOAD_US = 5_000_000
"""From boot to the opening of the pool."""

PRICE_NANOS = 2_950_000_000
"""Per GPU-hour, as in the demonstrations."""

ANSWER_S = 1.0
"""How long an engine waits for an answer here (in earnest 15 s), so that a slow service is one within seconds."""

HELD_S = 2.0
"""How long answers are held back: longer than engines wait."""

QUIET = 2 * ENGINES
"""Batches that are under way in quiet times."""

STEP_US_MAX = 5_000_000
"""No step takes longer, so that one which is under way when an engine is told to close ends within the hour."""

QUEUED_MAX = 32
"""Batches that may wait for the disk before the engines' time waits, too: half of what an outbox takes."""

DRAIN_S = 40.0
"""For everything to arrive after the last outage: two of the longest pauses that a sender makes after half a minute."""


@dataclass(slots=True, kw_only=True)
class _Outage:
    """Something that is done to the way at ``at_s`` and undone at ``until_s``, in seconds since the engines began."""

    name: str
    at_s: float
    until_s: float
    begin: Callable[[], None]
    end: Callable[[], None]
    began: bool = False
    over_s: float | None = None
    """When it was undone."""
    waited: int = 0
    """Batches that waited at most, until the next outage."""
    recovered_s: float | None = None
    """Seconds from its end until the engines had nothing older to send than they have in quiet times."""


@dataclass(slots=True)
class _Sender:
    """An engine's outbox, and what went in."""

    outbox: Outbox
    spool: Path
    emitted: int = 0

    @property
    def answered(self) -> int:
        return self.outbox.status.delivery.receipts.total()


@dataclass(slots=True, kw_only=True)
class _Drill:
    metered: Metered
    service: ServiceProcess
    relay: Relay
    senders: list[_Sender]
    engines: list[Engine]
    outages: list[_Outage]
    began_s: float = field(default_factory=time.monotonic)

    @property
    def waiting(self) -> int:
        return sum(sender.emitted - sender.answered for sender in self.senders)

    def look(self) -> None:
        """Begin and end what is due, and note how the way stands."""
        at_s, waiting = time.monotonic() - self.began_s, self.waiting
        for outage, following in pairwise((*self.outages, None)):
            assert outage is not None
            if not outage.began and at_s >= outage.at_s:
                print(f"  {at_s:4.0f} s  {outage.name}", flush=True)
                outage.began = True
                outage.begin()
            if outage.began and outage.over_s is None and at_s >= outage.until_s:
                outage.end()
                outage.over_s = at_s
            if outage.began and (following is None or not following.began):
                outage.waited = max(outage.waited, waiting)
            met = outage.over_s is not None and outage.waited > QUIET
            if met and outage.recovered_s is None and waiting <= QUIET:
                assert outage.over_s is not None
                outage.recovered_s = at_s - outage.over_s


def outage(args: Namespace) -> int:
    """Run the drill; 1 if anything is not whole, and then its files are kept."""
    # A stop from elsewhere ends the service of the drill as well, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="kvledger-drill-"))
    began_s = time.monotonic()
    kept = True
    try:
        code = _outage(folder, seed=args.seed, began_s=began_s)
        kept = code != OK
    except KeyboardInterrupt:
        kept = False
        raise
    finally:
        if kept:
            print(f"ledger, spools and logs are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _outage(folder: Path, *, seed: int, began_s: float) -> int:
    end_us = now_us() // HOUR_US * HOUR_US
    metered = Metered(start_us=end_us - HOUR_US, end_us=end_us, bill_nanos=ENGINES * PRICE_NANOS)
    settings = _settings(folder)
    with opened_or_made(settings) as ledger, ExitStack() as stack:
        token = _open_books(ledger, metered)
        service = ServiceProcess(folder, settings.database)
        stack.callback(service.stop)
        service.start()
        service.wait()
        relay = Relay(service.port)
        stack.callback(relay.close)
        stack.enter_context(_logged(folder / "engines.log"))
        senders = [_sender(relay.url, token, folder / "spool" / str(number)) for number in range(ENGINES)]
        for sender in senders:
            stack.callback(sender.outbox.close)
        drill = _Drill(
            metered=metered,
            service=service,
            relay=relay,
            senders=senders,
            engines=[_engine(number, sender, metered, seed) for number, sender in enumerate(senders)],
            outages=_outages(service, relay),
        )
        print(
            f"{ENGINES} engines live {format_time(metered.start_us)} to {format_time(end_us)} again, {SPEED} times as "
            f"fast, and report to a service of their own at {relay.url} (ready after {drill.began_s - began_s:.1f} s)",
            flush=True,
        )
        _live(drill, seed)
        lived_s = time.monotonic() - drill.began_s
        drained_s = _drain(drill)
        _tell(drill, lived_s, drained_s)
        for sender in senders:
            sender.outbox.close()
        relay.close()
        stopped = service.stop()
        checks = [*_way(drill, drained_s, stopped), *whole(ledger.database, metered)]
    print()
    code = report(checks, "table")
    verdict = "the books are whole" if code == OK else "the books are NOT whole"
    print(f"{verdict} after {len(drill.outages)} outages, in {time.monotonic() - began_s:.0f} s")
    return code


# --- what takes part --------------------------------------------------------------------------------------


def _settings(folder: Path) -> Settings:
    """The defaults, whatever the caller's environment and directory say: a drill touches nobody's ledger."""
    file = folder / config.DEFAULT_FILE
    file.touch()
    return config.load(environ={"KVLEDGER_STATE_DIR": str(folder)}, file=file)


def _open_books(ledger: Ledger, metered: Metered) -> str:
    """Terms, a paid GPU for each engine, and a token for both."""
    settings, at_us, start_us, end_us = ledger.settings, now_us(), metered.start_us, metered.end_us
    ledger.database.write(lambda c: fit_terms(c, settings, at_us=start_us))
    price = Price(model="simulated", nanos_per_hour=PRICE_NANOS, valid_from_us=start_us)
    ledger.database.write(lambda c: prices.add_price(c, price, currency=settings.currency, now_us=start_us))
    for number in range(ENGINES):
        name, gpu = f"drill-{number}", f"sim-drill-{number}"
        asset = Asset(asset_id=gpu, uuid=gpu, model="simulated", valid_from_us=start_us, valid_to_us=end_us)
        held = Assignment(asset_id=gpu, engine=name, valid_from_us=start_us, valid_to_us=end_us)
        ledger.database.write(partial(prices.add_asset, asset=asset, now_us=start_us))
        ledger.database.write(partial(prices.assign, assignment=held, now_us=start_us))
    secret = secrets.token_bytes(SECRET_BYTES)
    reader = secrets.token_bytes(SECRET_BYTES)  # or the service would make a login and print it
    ledger.database.write(lambda c: add_token(c, name="", scope=Scope.READ, secret=reader, now_us=at_us))
    return ledger.database.write(lambda c: add_token(c, name="drill", scope=Scope.INGEST, secret=secret, now_us=at_us))


def _sender(url: str, token: str, spool: Path) -> _Sender:
    def spool_of(tally: Tally) -> Spool:
        return Spool(spool, tally=tally)

    outbox = Outbox([HttpPost(url, token=lambda: token, timeout_s=ANSWER_S)], spool_of)
    outbox.start()
    return _Sender(outbox, spool)


def _engine(number: int, sender: _Sender, metered: Metered, seed: int) -> Engine:
    load = mixed_day(seed)

    def emit(batch: Batch) -> None:
        metered.add(batch)
        sender.emitted += 1
        sender.outbox.emit(batch)

    return Engine(
        EngineConfig(
            name=f"drill-{number}",
            blocks=load.blocks,
            block_size=load.block_size,
            start_us=metered.start_us,
            load_us=LOAD_US,
            model="reference",
            gpu_model="simulated",
            latency=load.latency,
            warmup_requests=3,
            acceptance_ratio=0.7,
            seed=seed,
        ),
        Policy(),
        emit,
    )


def _outages(service: ServiceProcess, relay: Relay) -> list[_Outage]:
    def slow() -> None:
        relay.hold_answers(HELD_S)

    def fast() -> None:
        relay.hold_answers(0)

    return [
        _Outage(name="the service is killed (SIGKILL), and started again after 2 s", at_s=3, until_s=5,
                begin=service.kill, end=service.start),
        _Outage(name="connections are refused for 3 s", at_s=15, until_s=18, begin=relay.refuse, end=relay.admit),
        _Outage(name=f"answers are held back for {HELD_S:.0f} s, engines wait {ANSWER_S:.0f} s; for 4 s",
                at_s=23, until_s=27, begin=slow, end=fast),
        _Outage(name="the service is killed once more, and started again at once", at_s=31, until_s=31,
                begin=service.kill, end=service.start),
    ]  # fmt: skip


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """What outboxes have to say goes to a file for the time being."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    before, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.propagate = before
        log.removeHandler(handler)
        handler.close()


# --- what happens -----------------------------------------------------------------------------------------


def _live(drill: _Drill, seed: int) -> None:
    """The hour, a period at a time; the last batches are on their way when it is over."""
    requests = mixed_day(seed, load=LOAD).requests()
    following = next(requests)
    drill.began_s = time.monotonic()
    for to_us in range(PERIOD_US, HOUR_US + 1, PERIOD_US):
        while LOAD_US + following.arrival_us < min(to_us, HOUR_US - STEP_US_MAX):
            at_us = LOAD_US + following.arrival_us
            for engine in drill.engines:
                engine.run_until(at_us)
            drill.engines[engine_of(following, ENGINES)].submit(following, at_us)
            following = next(requests)
        for engine in drill.engines:
            engine.run_until(min(to_us, HOUR_US - STEP_US_MAX))
        drill.look()
        while (
            time.monotonic() - drill.began_s < to_us / 1e6 / SPEED
            or max(sender.outbox.status.queued for sender in drill.senders) > QUEUED_MAX
        ):
            time.sleep(0.01)
    for engine in drill.engines:
        engine.close(HOUR_US)


def _drain(drill: _Drill) -> float | None:
    """Wait until every batch has an answer: the seconds it took; None where that was not to be."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < DRAIN_S:
        drill.look()
        if not drill.waiting:
            return time.monotonic() - began_s
        time.sleep(0.02)
    return None


# --- what is said about it --------------------------------------------------------------------------------


def _tell(drill: _Drill, lived_s: float, drained_s: float | None) -> None:
    print(f"  {lived_s:4.0f} s  the hour is over, the engines close", flush=True)
    if drained_s is not None:
        print(f"  {lived_s + drained_s:4.0f} s  everything has arrived, {drained_s:.1f} s later")
    print("\nafter each outage")
    for each in drill.outages:
        lasted_s = (each.over_s or each.at_s) - each.at_s
        again = "never behind" if each.waited <= QUIET else "caught up at the end"
        if each.recovered_s is not None:
            again = f"caught up {each.recovered_s:.1f} s after"
        print(f"  {lasted_s:4.1f} s long, up to {each.waited} batches waited, {again}: {each.name}")
    receipts: dict[Receipt, int] = {}
    failures: dict[str, int] = {}
    for sender in drill.senders:
        delivery = sender.outbox.status.delivery
        for receipt, count in delivery.receipts.items():
            receipts[receipt] = receipts.get(receipt, 0) + count
        for kind, count in delivery.failures.items():
            failures[kind] = failures.get(kind, 0) + count
    print("answers   " + ", ".join(f"{count} {receipt.value}" for receipt, count in sorted(receipts.items())))
    tries = ", ".join(f"{count} {kind}" for kind, count in sorted(failures.items()))
    print(f"failures  {tries or 'none'}; each was tried again")


def _way(drill: _Drill, drained_s: float | None, stopped: int) -> Iterator[Check]:
    """What the outboxes and the service say of themselves."""
    emitted, answered = sum(s.emitted for s in drill.senders), sum(s.answered for s in drill.senders)
    failed = sum(sender.outbox.status.delivery.failures.total() for sender in drill.senders)
    left = [path for sender in drill.senders for path in sender.spool.rglob("*.seg")]
    dropped = {loss.value: n for s in drill.senders for loss, n in s.outbox.tally.counts.items() if n}
    faults = sum(sum(engine.meter.faults.values()) for engine in drill.engines)
    yield judged(
        "outages", failed > 0 and all(outage.over_s is not None for outage in drill.outages),
        f"{len(drill.outages)} were met: {failed} deliveries failed and were tried again",
        "the way was never away, so nothing is shown", "run it again on a machine with less to do",
    )  # fmt: skip
    yield judged(
        "sent", drained_s is not None and answered == emitted and not left,
        f"{emitted} batches, each answered; the spools are empty",
        f"{emitted} batches, {answered} answered within {DRAIN_S:.0f} s; {len(left)} segments wait in the spools",
        "run it again on a machine with less to do; if it stays, the log of the engines says why",
    )  # fmt: skip
    yield judged("dropped", not dropped, "nothing", f"{dropped}", "the log of the engines says why")
    yield judged("meter", not faults, "no fault", f"{faults} calls made no sense to it", "please report this")
    yield judged("service", stopped == 0, f"started {drill.service.starts} times, ended in order",
                 f"ended with {stopped}", "its log says why")  # fmt: skip
