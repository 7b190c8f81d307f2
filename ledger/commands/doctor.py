"""`kvledger doctor`: checks an installation and its deployment, and says what to do.

Invariants: a check never changes anything; each says what it looked at, what it found and, where that is bad, the way
out; one that cannot be made because of another says so, and is not counted as good.
"""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ledger import audit, metrics
from ledger.cli import FOUND, OK, settings_of
from ledger.commands.opening import connected, file_of, now_us
from ledger.errors import LedgerError
from ledger.store import fleet, migrate, prices, quarantine
from ledger.store.findings import Severity, list_findings
from ledger.store.tokens import Scope, list_tokens

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from ledger.config import Settings
    from ledger.store.database import Connection, Database

DAY_US = 86_400_000_000

DISK_BYTES_MIN = 2 * 1024**3
"""Free room below which a ledger of a few engines has days left, not weeks."""

WAIT_S = 3.0
"""For the service to answer: it does so in milliseconds, or there is a reason."""


class Verdict(Enum):
    GOOD = "good"
    BAD = "BAD"
    OPEN = "open"
    """Could not be looked at, or there is nothing yet to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at, what was found, and the way out where it is bad."""

    what: str
    verdict: Verdict
    found: str
    todo: str = ""


def run(args: Namespace) -> int:
    """Make every check; 1 if any is bad."""
    settings = settings_of(args)
    bad = 0
    for check in _checks(settings):
        bad += check.verdict is Verdict.BAD
        print(f"{check.verdict.value:<5} {check.what:<12} {check.found}")
        if check.todo:
            print(f"{'':<18} → {check.todo}")
    print("all is well" if not bad else f"{bad} of these want somebody")
    return FOUND if bad else OK


def _checks(settings: Settings) -> Iterator[Check]:
    yield Check(what="settings", verdict=Verdict.GOOD, found=f"basis {settings.basis.value}, {settings.currency}")
    file = file_of(settings.database)
    if file is not None and not file.is_file():
        found = f"there is no ledger at {file}"
        yield Check(
            what="database", verdict=Verdict.BAD, found=found, todo="`kvledger serve` or `kvledger db upgrade` makes it"
        )
        return
    if file is not None:
        yield _disk(shutil.disk_usage(file.resolve().parent).free)
    with connected(settings) as ledger:
        try:
            differences = migrate.check(ledger.database)
        except LedgerError as error:
            yield Check(
                what="database", verdict=Verdict.BAD, found=str(error), todo="see that it runs and can be reached"
            )
            return
        yield _judged(
            "database", not differences, "answers, its tables are this version's", "; ".join(differences)[:300],
            "`kvledger db upgrade`; see docs/operating.md for the order of upgrades",
        )  # fmt: skip
        if differences:
            return
        yield from _books(ledger.database)
    yield from _service(settings)


def _disk(free: int) -> Check:
    shown = f"{free / 1024**3:.1f} GiB free beside the ledger"
    return _judged("disk", free >= DISK_BYTES_MIN, shown, shown, "free some: a full disk stops ingest (engines spool)")


def _books(database: Database) -> Iterator[Check]:
    at_us = now_us()
    with database.read() as connection:
        yield from _tokens(connection, at_us)
        engines = fleet.engine_states(connection, at_us)
        known = prices.list_prices(connection)
        kept = [entry for entry in quarantine.entries(connection) if entry.received_us > at_us - DAY_US]
        found = [f for f in list_findings(connection, start_us=at_us - DAY_US) if f.severity is not Severity.INFO]
    if not engines:
        yield Check(
            what="engines", verdict=Verdict.OPEN, found="none was heard of in the last day",
            todo="set KVLEDGER_URL and KVLEDGER_TOKEN at one (`kvledger tokens add --scope ingest`)",
        )  # fmt: skip
    else:
        silent = [engine.engine for engine in engines if engine.state is fleet.State.SILENT]
        missing = sum(engine.missing for engine in engines)
        skewed = [engine.engine for engine in engines if abs(engine.skew_us) > 1_000_000]
        yield _judged(
            "engines", not silent, f"{len(engines)} heard of", f"silent: {', '.join(silent[:5])}",
            "see that they run and reach the service",
        )  # fmt: skip
        yield _judged(
            "gaps", not missing, "no batch is missing in the last day", f"{missing} batches are missing",
            "they may lie in a spool: `kvledger ingest DIR`",
        )  # fmt: skip
        yield _judged(
            "clocks", not skewed, "engines are within a second of their hosts", f"off: {', '.join(skewed[:5])}",
            "restart these engines: a boot fixes its clock once",
        )  # fmt: skip
    yield _judged("prices", bool(known), f"{len(known)} known", "none: GPUs that are seen are unpriced",
                  "`kvledger prices add` or `prices import`")  # fmt: skip
    yield _judged("refused", not kept, "nothing in the last day", f"{len(kept)} batches in the last day",
                  "`kvledger quarantine list` says why")  # fmt: skip
    last = found[-1].detail if found else ""
    yield _judged("findings", not found, "none in the last day", f"{len(found)}, as {last}", "/v1/findings lists them")
    breaches = audit.audit(database)
    yield _judged("laws", not breaches, "every law holds on what is stored", f"{len(breaches)} breaches",
                  "`kvledger audit` names them; restore what was changed from a backup")  # fmt: skip


def _tokens(connection: Connection, at_us: int) -> Iterator[Check]:
    tokens = [token for token in list_tokens(connection) if token.holds(at_us)]
    missing = [scope.value for scope in (Scope.INGEST, Scope.READ) if not any(token.may(scope) for token in tokens)]
    shown = ", ".join(f"{sum(t.scope is scope for t in tokens)} {scope.value}" for scope in Scope)
    yield _judged("tokens", not missing, shown, f"none for {' and '.join(missing)}", "`kvledger tokens add --scope …`")


def _service(settings: Settings) -> Iterator[Check]:
    host, port = settings.listen
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=WAIT_S):  # noqa: S310 - our own address
            pass
    except (OSError, ValueError) as error:
        yield Check(what="service", verdict=Verdict.OPEN, found=f"does not answer at {url} ({error})",
                    todo="`kvledger serve` starts it; `listen` says where")  # fmt: skip
        return
    yield Check(what="service", verdict=Verdict.GOOD, found=f"answers at {url}")
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_S) as answer:  # noqa: S310
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        yield Check(
            what="metrics", verdict=Verdict.OPEN, found=f"answer {error.code}: they want a token (metrics_open = no)"
        )
        return
    absent = [one.name for one in metrics.DECLARED if f"# TYPE {one.name.removesuffix('_total')}" not in text]
    yield _judged("metrics", not absent, f"all {len(metrics.DECLARED)} are exposed", f"absent: {', '.join(absent[:5])}",
                  "restart the service: it is of another version")  # fmt: skip


def _judged(what: str, good: bool, fine: str, bad: str, todo: str) -> Check:
    if good:
        return Check(what=what, verdict=Verdict.GOOD, found=fine)
    return Check(what=what, verdict=Verdict.BAD, found=bad, todo=todo)
