"""`kvledger serve`: everything of the service in one process.

Invariants: what it needs is made before it listens (tables, terms, a token); an SQLite ledger has one service; a stop
answers what was asked, lets running jobs end, and loses nothing, since whatever was acknowledged is in the database.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import uvicorn
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from ledger import config, ingest, limits
from ledger.cli import settings_of
from ledger.commands.agent_inside import agent_inside, wanted
from ledger.commands.opening import Ledger, fit_terms, make_folder, now_us, opened_or_made
from ledger.core.periods import HOUR_US, period_start
from ledger.errors import LedgerError, UsageError
from ledger.ingest import Status
from ledger.jobs.runner import Runner
from ledger.jobs.scraping import Scraping
from ledger.jobs.work import jobs_of
from ledger.pricebook import Price
from ledger.producer import Plan, Sent, Told, prepare, producing
from ledger.reports.render import counted
from ledger.settle import settle
from ledger.store import fleet, prices
from ledger.store.alone import SERVING, alone, among_others
from ledger.store.database import file_of
from ledger.store.leader import Leadership
from ledger.store.tokens import SECRET_BYTES, Scope, add_token, end_token, list_tokens
from ledger.web.access import session_key
from ledger.web.app import make_app
from ledger.web.listening import listen
from ledger.web.service import Service, make_service, settle_memory

if TYPE_CHECKING:
    import socket
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from ledger.config import Settings

GRACE_S = 10
"""For answers that are under way when the service is stopped."""

KEEP_ALIVE_S = 75
"""Longer than a period, so that an engine delivers on one connection."""

ORPHANED_S = 1.0
"""How often a service that was started with --parent looks whether that is still there."""

DEMO_PRICE_NANOS = 2_950_000_000
"""Per GPU-hour, as in the replays."""


STOPS = (signal.SIGINT, signal.SIGTERM)
"""What ends the service in order."""


def serve(args: Namespace) -> int:
    """Run until it is stopped."""
    settings = _settings(args)
    for number in STOPS:
        signal.signal(number, _stop)
    with (
        _alone(settings) as note,
        opened_or_made(settings) as ledger,
        closing(listen(*settings.listen)) as listener,
    ):
        _ready(ledger)
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        note(url)
        if args.demo:
            # Simulated facts can be simulated again, so their commits need not wait for the disk.
            with opened_or_made(settings, durable=False) as fast:
                _demo_books(fast, hours=args.hours)
        first = _first_token(ledger)
        service = _service(ledger)
        runner = Runner(
            jobs_of(service),
            metrics=service.metrics,
            outcomes=service.job_outcomes,
            leads=Leadership(ledger.database).held,
            clock_us=now_us,
        )
        scraping = Scraping(service, leads=lambda: runner.leading)
        server = uvicorn.Server(
            uvicorn.Config(
                make_app(service),
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=limits.CONNECTIONS_MAX,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        with_agent = wanted(service, args.agent, demo=args.demo)
        _tell(url, first, ledger, demo=args.demo)
        settle_memory()
        runner.start()
        scraping.start()
        over = threading.Event()
        serving = threading.Thread(target=_run, args=(server, listener, over), name="http")
        serving.start()
        try:
            with (
                _engines(ledger, url) if args.demo else _nothing(),
                _agent(service) if with_agent else _nothing(),
            ):
                # Not by join(): interrupted, it takes a thread that runs for one that has ended (CPython before 3.13).
                while not over.wait(ORPHANED_S) and not _orphaned(args.parent):
                    pass
        except KeyboardInterrupt:
            pass  # the engines have delivered their last batches by now, and the service may end
        finally:
            server.should_exit = True
            serving.join()
            scraping.stop()
            runner.stop()
            service.gate.write_uses()
        print("stopped; the books are whole, start it again to go on with them")
    return 0


@contextmanager
def _alone(settings: Settings) -> Iterator[Callable[[str], None]]:
    """An SQLite ledger has one service: two demonstrations would run each engine twice, and one writer is enough."""
    file = file_of(settings.database)
    make_folder(settings.database)
    with among_others(settings.state_dir / SERVING) if file is None else alone(file) as note:
        yield note


def _run(server: uvicorn.Server, listener: socket.socket, over: threading.Event) -> None:
    try:
        server.run(sockets=[listener])
    finally:
        over.set()


def _orphaned(parent: int | None) -> bool:
    """Whether whoever started us was killed, so that nobody else would stop us."""
    return parent is not None and os.getppid() != parent


def _stop(_number: int, _frame: object) -> NoReturn:
    """A service manager's stop is a Ctrl-C; it counts once, since a terminal and make(1) both send it on."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _settings(args: Namespace) -> Settings:
    settings = settings_of(args)
    if args.listen is not None:
        try:
            settings = replace(settings, listen=config.LISTEN.parse(args.listen))
        except ValueError as problem:
            raise UsageError(f"--listen {args.listen!r}: {problem}. Allowed: {config.LISTEN.limit}") from None
    if args.demo:
        if args.database is not None:
            raise UsageError("the demo has a ledger of its own, service.db in --state-dir; leave out --database")
        settings = replace(settings, database=f"sqlite:///{settings.state_dir / 'service.db'}")
    return settings


def _ready(ledger: Ledger) -> None:
    """Terms in the ledger, which everything else asks for."""
    ledger.database.write(lambda c: fit_terms(c, ledger.settings, at_us=now_us()))


def _first_token(ledger: Ledger) -> str | None:
    """An admin token, where nobody could log in without; None where somebody can."""
    at_us = now_us()
    secret = secrets.token_bytes(SECRET_BYTES)
    with ledger.database.read() as connection:
        if any(token.may(Scope.READ) and token.holds(at_us) for token in list_tokens(connection)):
            return None
    return ledger.database.write(
        lambda c: add_token(c, name="first start", scope=Scope.ADMIN, secret=secret, now_us=at_us)
    )


def _service(ledger: Ledger) -> Service:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return make_service(
        ledger.settings,
        ledger.database,
        key=session_key(ledger.settings.state_dir),
        clock_us=now_us,
        clock_s=time.monotonic,
        registry=registry,
    )


def _tell(url: str, token: str | None, ledger: Ledger, *, demo: bool) -> None:
    print(f"kvledger serves {ledger.name}")
    if token is not None:
        print(f"  log in       {url}/login#{token}")
        print("               (this link holds an admin token; it is printed this once)")
    else:
        print(f"  page         {url}/   (log in with your token; another is made by")
        print(f"               kvledger tokens add --scope read --name me{_which(ledger)})")
    print(f"  API          {url}/docs")
    print(f"  metrics      {url}/metrics")
    if demo:
        print("  two simulated engines report every 15 seconds; Ctrl-C ends everything, a second start goes on")
    sys.stdout.flush()


def _which(ledger: Ledger) -> str:
    """How to name this ledger to another command, ready to be pasted; a password is not shown to whoever looks on."""
    url = ledger.settings.database
    return f" --database {shlex.quote(url)}" if config.masked(url) == url else ", with the settings of this service"


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _agent(service: Service) -> Iterator[None]:
    with agent_inside(service) as name:
        print(f"  agent        {name} samples the GPUs of this machine", flush=True)
        yield


# --- the demonstration ------------------------------------------------------------------------------------


def _demo_books(ledger: Ledger, *, hours: int) -> None:
    """A price for simulated GPUs, and ``hours`` that end now; nothing where the ledger has facts already."""
    at_us = now_us()
    # The day ends now, with what is under way: engines on the wall clock take over when it is booked.
    until_us = period_start(at_us)
    start_us = until_us - hours * HOUR_US
    with ledger.database.read() as connection:
        if fleet.engine_states(connection, at_us, all_of_them=True):
            return
    price = Price(model="simulated", nanos_per_hour=DEMO_PRICE_NANOS, valid_from_us=start_us)
    currency = ledger.settings.currency
    ledger.database.write(lambda c: prices.add_price(c, price, currency=currency, now_us=at_us))
    if not hours:
        return
    what = f"{counted(hours, 'simulated hour')} up to now"
    print(f"back-filling {what}, of two engines (once; about {2 * hours} s) …", flush=True)
    plan = Plan(seed=1, hours=hours, engines=2, start_us=start_us, until_us=until_us)
    shown = time.monotonic()
    with producing(replace(prepare(plan), name="engine"), None) as messages:
        for message in messages:
            if isinstance(message, Sent):
                for outcome in ingest.accept_several(ledger.database, message.raws, message.received_us):
                    if outcome.status not in (Status.ACCEPTED, Status.DUPLICATE):
                        raise LedgerError(
                            f"a simulated batch was refused: {outcome.refusal}; start with a fresh --state-dir"
                        )
            elif isinstance(message, Told) and time.monotonic() - shown > 5:
                shown = time.monotonic()
                print(f"  {max(0, message.at_us - start_us) / HOUR_US:.1f} of {hours} h", flush=True)
    settle(ledger.database, until_us=at_us, now_us=at_us)


@contextmanager
def _engines(ledger: Ledger, url: str) -> Iterator[None]:
    """Two reference engines in a process of their own, with a token that ends with them."""
    at_us = now_us()
    secret = secrets.token_bytes(SECRET_BYTES)
    token = ledger.database.write(
        lambda c: add_token(
            c,
            name="engines of the demo",
            scope=Scope.INGEST,
            secret=secret,
            now_us=at_us,
            ends_us=at_us + 7 * 24 * HOUR_US,
        )
    )
    spool = ledger.settings.state_dir / "spool"
    command = [sys.executable, "-m", "ledger", "engines", "--spool", str(spool), "--parent", str(os.getpid())]
    engines = subprocess.Popen(  # noqa: S603 - our own command
        command,
        # Whatever else is said about reporting is not about these.
        env={name: value for name, value in os.environ.items() if not name.startswith("KVLEDGER_")}
        | {"KVLEDGER_URL": url, "KVLEDGER_TOKEN": token, "PYTHONPATH": _path()},
        start_new_session=True,
    )
    try:
        yield
    finally:
        engines.terminate()
        try:
            engines.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            engines.kill()
        ledger.database.write(lambda c: end_token(c, int(token.split("_")[1]), at_us=now_us()))


def _path() -> str:
    """Where this package lies, so that the child finds it however it was started."""
    return os.pathsep.join(filter(None, (str(Path(ingest.__file__).parents[1]), os.environ.get("PYTHONPATH", ""))))
