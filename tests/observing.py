"""A real Prometheus, a real Alertmanager, a webhook that remembers and the service on a port, all on loopback.

Every port is one that the system chose; every process ends with its context.
"""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from programs import program
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from ledger import config
from ledger.core.settlement import Terms
from ledger.jobs.runner import Runner
from ledger.jobs.work import jobs_of
from ledger.pricebook import Price
from ledger.store import migrate, prices, terms
from ledger.store.database import connect
from ledger.store.leader import Leadership
from ledger.store.tokens import Scope, add_token
from ledger.web.app import make_app
from ledger.web.listening import listen
from ledger.web.service import Service, make_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")
LOOK_S = 0.1
START_S = 30
PERIOD_US = 15_000_000


def until(ask: Callable[[], T], *, within_s: float, what: str) -> T:
    """The first true answer; the test fails where there is none in time."""
    deadline_s = time.monotonic() + within_s
    while not (answer := ask()):
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        threading.Event().wait(LOOK_S)
    return answer


@dataclass
class Serving:
    """The service at ``address``, with its jobs at hand."""

    service: Service
    runner: Runner
    address: str
    token: str

    def post(self, raw: bytes) -> int:
        """Deliver a batch; the status."""
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"http://{self.address}/v1/batches", data=raw, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as got:
                return int(got.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return int(refused.code)

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as got:
            return str(got.read().decode())


@contextmanager
def serving(state: Path, *, clock_us: Callable[[], int], start_us: int) -> Iterator[Serving]:
    """A service with empty books, a price from ``start_us`` on, and the lead."""
    url = f"sqlite:///{state / 'books.db'}"
    database = connect(url, durable=False)
    migrate.upgrade(database)
    price = Price(nanos_per_hour=2_950_000_000, valid_from_us=start_us - start_us % PERIOD_US)
    database.write(
        lambda c: terms.ensure_terms(c, currency="USD", zone_name="UTC", terms=Terms(), now_us=start_us - PERIOD_US)
    )
    database.write(lambda c: prices.add_price(c, price, currency="USD", now_us=start_us))
    token = database.write(
        lambda c: add_token(c, name="engines", scope=Scope.INGEST, tenant=None, secret=b"i" * 32, now_us=start_us)
    )
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    settings = config.load(environ={"KVLEDGER_STATE_DIR": str(state), "KVLEDGER_DATABASE": url})
    service = make_service(
        settings, database, key=b"k" * 32, clock_us=clock_us, clock_s=time.monotonic, registry=registry
    )
    runner = Runner(
        jobs_of(service),
        metrics=service.metrics,
        outcomes=service.job_outcomes,
        leads=Leadership(database).held,
        clock_us=clock_us,
    )
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(service), log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    runner.start()
    try:
        until(lambda: server.started, within_s=START_S, what="the service listens")
        yield Serving(service=service, runner=runner, address=f"127.0.0.1:{listener.getsockname()[1]}", token=token)
    finally:
        server.should_exit = True
        thread.join()
        runner.stop()
        listener.close()
        database.close()


@contextmanager
def running(name: str, *arguments: str, log: Path) -> Iterator[str]:
    """One of Prometheus' servers; where it listens."""
    with log.open("w") as out:
        made = subprocess.Popen([program(name), *arguments], stdout=out, stderr=subprocess.STDOUT)

    def listens() -> str | None:
        assert made.poll() is None, log.read_text()
        found = re.search(r'msg="Listening on" address=(\S+)', log.read_text())
        return found and found[1]

    try:
        yield until(listens, within_s=START_S, what=f"{name} listens")
    finally:
        made.terminate()
        try:
            made.wait(START_S)
        except subprocess.TimeoutExpired:
            made.kill()
            made.wait()


@dataclass
class Prometheus:
    address: str

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as got:
            return json.load(got)["data"]

    def values(self, query: str) -> dict[tuple[tuple[str, str], ...], float]:
        """What a query finds now: the value by labels."""
        found = self.get("query", query=query)["result"]
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in found}


@contextmanager
def prometheus(folder: Path, target: str, *, rules: str = "", alertmanager: str = "") -> Iterator[Prometheus]:
    """A Prometheus that scrapes ``target`` twice a second; ``rules`` is the text of a rule file."""
    folder.mkdir()
    asked: dict[str, Any] = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "kvledger", "static_configs": [{"targets": [target]}]}],
    }
    if rules:
        (folder / "rules.yml").write_text(rules)
        asked["rule_files"] = ["rules.yml"]
    if alertmanager:
        asked["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    (folder / "prometheus.yml").write_text(json.dumps(asked))
    arguments = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    )
    with running("prometheus", *arguments, log=folder / "log") as address:
        yield Prometheus(address)


@dataclass
class Webhook:
    """What Alertmanager delivered: for each message its path and its body."""

    address: str = ""
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def alerts(self, name: str, status: str = "firing") -> list[tuple[str, dict[str, Any]]]:
        """Alerts of a name that were delivered, each with the path it came by."""
        return [
            (path, alert)
            for path, body in list(self.messages) for alert in body["alerts"]
            if alert["labels"]["alertname"] == name and alert["status"] == status
        ]  # fmt: skip


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A receiver on loopback that remembers."""
    seen = Webhook()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.messages.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        seen.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def alertmanager(folder: Path, routes: str) -> Iterator[str]:
    """An Alertmanager with ``routes`` (the text of its configuration), alone; where it listens."""
    folder.mkdir()
    (folder / "alertmanager.yml").write_text(routes)
    arguments = (
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        "--cluster.listen-address=",
    )
    with running("prometheus-alertmanager", *arguments, log=folder / "log") as address:
        yield address
