"""`kvledger doctor`: checks an installation and its deployment, and says what to do.

Invariants: a check never changes anything; each says what it looked at, what it saw and, where that is not ok, the way
out; one that cannot be made because of another says so, and is not counted as good.
"""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ledger import audit, limits, metrics
from ledger.cli import settings_of
from ledger.commands.checks import Check, Verdict, ago, judged, named, report
from ledger.commands.opening import connected, now_us
from ledger.core.periods import HOUR_US, format_time, settle_interval
from ledger.errors import LedgerError
from ledger.reports.render import counted
from ledger.store import fleet, inputs, migrate, prices, quarantine
from ledger.store.alone import SERVING, lock_of, served_at
from ledger.store.database import file_of
from ledger.store.findings import Severity, list_findings
from ledger.store.tokens import Scope, list_tokens
from ledger.web.outside import seen_in
from ledger.web.troubles import way_to_missing

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ledger.config import Settings
    from ledger.store.database import Connection, Database
    from ledger.store.fleet import EngineState
    from ledger.web.outside import Seen

DAY_US = 86_400_000_000

DISK_BYTES_MIN = 2 * 1024**3
"""Free room below which a ledger of a few engines has days left, not weeks."""

DISK_BYTES_BAD = 256 * 1024**2
"""And below which it has hours."""

SKEW_US_MAX = 1_000_000
"""What clocks that are kept by NTP never differ by."""

TOKEN_ENDS_US = 7 * DAY_US
"""Time enough to give every engine another token."""

WAIT_S = 3.0
"""For the service to answer: it does so in milliseconds, or there is a reason."""


def run(args: Namespace) -> int:
    """Make every check; 1 if any is bad. Settings that cannot be used end it at once, as any command (2)."""
    return report(_checks(settings_of(args), quick=args.quick), args.format)


def _checks(settings: Settings, *, quick: bool) -> Iterator[Check]:
    said = f"can be used: {settings.currency}, basis {settings.basis.value}, months of {settings.billing_timezone}"
    yield Check(what="settings", verdict=Verdict.OK, found=said)
    file = file_of(settings.database)
    yield from _places(settings, file)
    if file is not None and not file.is_file():
        todo = "`kvledger serve` or `kvledger db upgrade` makes it; --database names another"
        yield Check(what="database", verdict=Verdict.BAD, found=f"there is no ledger at {file}", todo=todo)
    else:
        yield from _ledger(settings, quick=quick)
    yield from _service(settings)


def _places(settings: Settings, file: Path | None) -> Iterator[Check]:
    """Where the service writes."""
    state = settings.state_dir
    if state.exists():
        yield judged(
            "state", os.access(state, os.W_OK | os.X_OK), f"{state} can be written", f"{state} cannot be written",
            "run as its owner, or name another with --state-dir",
        )  # fmt: skip
    folder = state if file is None else file.resolve().parent
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    shown = f"{free / 1024**3:.1f} GiB free in {folder}"
    yield judged(
        "disk", free >= DISK_BYTES_MIN, shown, shown,
        "free some, or shorten fact_retention_days: a full disk stops ingest, and engines spool meanwhile",
        otherwise=Verdict.BAD if free < DISK_BYTES_BAD else Verdict.WARN,
    )  # fmt: skip


def _ledger(settings: Settings, *, quick: bool) -> Iterator[Check]:
    with connected(settings) as ledger:
        try:
            at, newest = migrate.current(ledger.database), migrate.head()
            differences = migrate.check(ledger.database) if at == newest else ()
        except LedgerError as error:
            todo = "see that it runs, can be reached and knows this user"
            yield Check(what="database", verdict=Verdict.BAD, found=" ".join(str(error).split()), todo=todo)
            return
        yield Check(what="database", verdict=Verdict.OK, found=f"{ledger.name} answers")
        yield judged(
            "migrations", at == newest and not differences, f"at {newest}, the newest",
            f"at {at or 'nothing'}, and this version wants {newest}" if at != newest else named(differences, most=3),
            "`kvledger db upgrade`; docs/operating.md has the order of upgrades",
        )  # fmt: skip
        if at != newest or differences:
            return
        try:
            yield from _books(ledger.database)
            yield _laws(ledger.database, quick=quick)
        except LedgerError as error:
            todo = "see that the database runs, then ask again: the checks after this one were not made"
            yield Check(what="database", verdict=Verdict.BAD, found=" ".join(str(error).split()), todo=todo)


def _books(database: Database) -> Iterator[Check]:
    at_us = now_us()
    with database.read() as connection:
        yield from _tokens(connection, at_us)
        every = fleet.engine_states(connection, at_us, all_of_them=True)
        refused = fleet.refused_missing(connection, every, at_us)
        known = prices.list_prices(connection)
        targets = seen_in(connection, at_us)
        kept = [entry for entry in quarantine.entries(connection) if entry.received_us > at_us - DAY_US]
        found = [f for f in list_findings(connection, start_us=at_us - DAY_US) if f.severity is not Severity.INFO]
    if targets:
        yield from _targets(targets)
    yield from _engines(every, at_us, refused, scraped=bool(targets))
    yield judged(
        "prices", bool(known), f"{len(known)} known", "none is known: GPUs that are seen are unpriced",
        "`kvledger prices add` or `prices import`", otherwise=Verdict.WARN,
    )  # fmt: skip
    reasons = Counter(entry.reason for entry in kept)
    yield judged(
        "refused", not kept, "no batch in the last day",
        f"{len(kept)} batches in the last day: {named(f'{reason} {n}' for reason, n in reasons.most_common())}",
        "`kvledger quarantine list` says why each, `quarantine retry` tries them again; their time is unobserved",
    )  # fmt: skip
    critical = any(finding.severity is Severity.CRITICAL for finding in found)
    yield judged(
        "findings", not found, "none in the last day",
        f"{len(found)} in the last day, the last: {found[-1].detail if found else ''}",
        "/v1/findings lists them, docs/accounts.md says what they mean",
        otherwise=Verdict.BAD if critical else Verdict.WARN,
    )  # fmt: skip


def _laws(database: Database, *, quick: bool) -> Check:
    """The audit, of everything or of the last day; in a ledger of the past that is the last one it has facts of."""
    what = "all that is stored"
    if quick:
        with database.read() as connection:
            last_us = inputs.last_fact_us(connection)
        at_us = now_us()
        since_us = settle_interval((at_us if last_us is None else min(at_us, last_us)) - DAY_US, HOUR_US).start_us
        what = f"what began on {format_time(since_us)} or later (--quick; without it, on all that is stored)"
        breaches = audit.audit_since(database, since_us)
    else:
        breaches = audit.audit(database)
    return judged(
        "laws", not breaches, f"every law holds on {what}", f"{len(breaches)} breaches in {what}",
        "`kvledger audit` names them; restore what was changed from a backup",
    )  # fmt: skip


def _targets(seen: Sequence[Seen]) -> Iterator[Check]:
    """What is looked at from outside: engines, and exporters of GPUs."""
    down = [each.named for each in seen if each.down]
    dead = [each.target.engine for each in seen if each.answers and each.dead]
    failing = [each.named for each in seen if each.failing]
    found = f"nothing can be read of {len(down)} of {len(seen)}: {named(down)}"
    if not down:
        found = f"{len(failing)} of {len(seen)} fail: {named(failing)}" if failing else f"dead gauges: {named(dead)}"
    yield judged(
        "targets", not down and not failing and not dead, f"{len(seen)} scraped, and none fails", found,
        "`kvledger collect list` has them, `inspect URL` asks one; docs/collectors.md says what each sign means",
        otherwise=Verdict.BAD if down else Verdict.WARN,
    )  # fmt: skip


def _engines(every: Sequence[EngineState], at_us: int, refused: Mapping[str, int], *, scraped: bool) -> Iterator[Check]:
    """Engines by their hooks. ``refused``: how many of their missing batches are in quarantine."""
    engines = [engine for engine in every if engine.last_end_us > at_us - DAY_US]
    ahead_us = max((engine.received_us - at_us for engine in every), default=0)
    yield judged(
        "clock", ahead_us <= SKEW_US_MAX, f"{format_time(at_us)} here; nothing was received after that",
        f"{format_time(at_us)} here, and a batch was received {ago(ahead_us)} after that",
        "set this machine's clock (NTP): batches that lie ahead of it by more than 5 minutes are refused",
    )  # fmt: skip
    if not engines and scraped:
        return
    if not engines:
        todo = "set KVLEDGER_URL and KVLEDGER_TOKEN at one (`kvledger tokens add --scope ingest`), then there: "
        yield Check(
            what="engines", verdict=Verdict.WARN, found="none was heard of in the last day",
            todo=f"{todo}`kvledger doctor --engine`",
        )  # fmt: skip
        return
    heard = sorted(engines, key=lambda engine: engine.received_us)
    silent = [engine for engine in heard if engine.state is fleet.State.SILENT]
    yield judged(
        "engines", not silent,
        f"{len(engines)} heard of: {named(f'{e.engine} {ago(at_us - e.received_us)} ago' for e in heard)}",
        f"open and silent: {named(f'{e.engine} for {ago(at_us - e.received_us)}' for e in silent)}",
        "see that they run, and run `kvledger doctor --engine` beside them; their time is unobserved",
    )  # fmt: skip
    given_up = [f"{engine.engine}: {engine.hook.off}" for engine in heard if engine.state is fleet.State.OFF]
    troubled = [engine for engine in heard if engine.dropped or engine.faults]
    reasons = sorted({reason for e in troubled for reason, _ in (*e.lately.dropped, *e.lately.faults)})
    lately = named(f"{e.engine} {_lost(e.dropped, e.faults)}" for e in troubled)
    yield judged(
        "hooks", not given_up and not troubled, "on, without a drop or a fault in the last day",
        f"switched off: {named(given_up)}" if given_up else f"in the last day {lately} ({', '.join(reasons)})",
        "the engine's log says more, docs/hook-settings.md and docs/hook.md what each reason means; "
        "where the hook is off, time is unobserved until the engine starts again",
        otherwise=Verdict.BAD if given_up else Verdict.WARN,
    )  # fmt: skip
    gaps = [engine for engine in engines if engine.missing]
    yield judged(
        "gaps", not gaps, "no batch is missing in the last day",
        f"missing in the last day: {named(f'{engine.missing} of {engine.engine}' for engine in gaps)}",
        way_to_missing(sum(engine.missing for engine in gaps), sum(refused.values())),
    )  # fmt: skip
    # A batch says when its period ended and the service when it came: what came before it had ended shows clocks.
    off = {e.engine: max(abs(e.skew_us), e.last_end_us - e.received_us) for e in engines}
    skewed = [engine for engine, us in off.items() if us > SKEW_US_MAX]
    refused_soon = any(us > limits.AHEAD_US_MAX // 2 for us in off.values())
    yield judged(
        "skew", not skewed, "engines are within a second of their hosts and not ahead of this clock",
        f"off by more than a second: {named(f'{engine} {off[engine] / 1e6:.0f} s' for engine in skewed)}",
        "see to NTP on both machines, then restart these engines: a boot fixes its clock once",
        otherwise=Verdict.BAD if refused_soon else Verdict.WARN,
    )  # fmt: skip


def _tokens(connection: Connection, at_us: int) -> Iterator[Check]:
    tokens = [token for token in list_tokens(connection) if token.holds(at_us)]
    missing = [scope.value for scope in (Scope.INGEST, Scope.READ) if not any(token.may(scope) for token in tokens)]
    shown = named(f"{sum(t.scope is scope for t in tokens)} for {scope.value}" for scope in Scope)
    if missing:
        todo = f"`kvledger tokens add --scope {missing[0]}`"
        yield Check(what="tokens", verdict=Verdict.BAD, found=f"none for {' and none for '.join(missing)}", todo=todo)
        return
    lasting = [token for token in tokens if token.holds(at_us + TOKEN_ENDS_US)]
    ending = [scope.value for scope in (Scope.INGEST, Scope.READ) if not any(token.may(scope) for token in lasting)]
    yield judged(
        "tokens", not ending, f"in force: {shown}", f"the last for {' and for '.join(ending)} ends within a week",
        "`kvledger tokens add`, and move its clients before the old one ends", otherwise=Verdict.WARN,
    )  # fmt: skip


def _address(settings: Settings) -> str | Check:
    """Where the service of this ledger says that it is; else where the settings say; a check where neither tells."""
    file = file_of(settings.database)
    try:
        at = served_at(settings.state_dir / SERVING if file is None else lock_of(file))
    except OSError:
        file, at = None, None  # it is another user's, so the settings are all there is
    if at == "":
        return Check(what="service", verdict=Verdict.WARN, found="is starting", todo="ask again in a moment")
    if at is None and file is not None:
        found = f"none runs on {file}"
        return Check(what="service", verdict=Verdict.WARN, found=found, todo="`kvledger serve` starts it")
    host, port = settings.listen
    if at is not None:
        parts = urlsplit(at)
        host, port = parts.hostname or host, parts.port or port
    if not port:
        found = "listens on any free port (listen), so its address is not known here"
        return Check(what="service", verdict=Verdict.WARN, found=found, todo="set `listen` to a fixed port")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _service(settings: Settings) -> Iterator[Check]:
    url = _address(settings)
    if isinstance(url, Check):
        yield url
        return
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=WAIT_S):  # noqa: S310 - our own address
            pass
    except urllib.error.HTTPError as error:
        yield Check(
            what="service", verdict=Verdict.BAD, found=f"{url}/healthz answers {error.code}",
            todo="its log says why; after an upgrade: `kvledger db upgrade`, then start it again",
        )  # fmt: skip
        return
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        yield Check(
            what="service", verdict=Verdict.WARN, found=f"does not answer at {url}: {why}",
            todo="where it runs, its log says why; `kvledger serve` starts it, the setting `listen` says where",
        )  # fmt: skip
        return
    yield Check(what="service", verdict=Verdict.OK, found=f"answers at {url}")
    yield _metrics(url)


def _metrics(url: str) -> Check:
    request = urllib.request.Request(f"{url}/metrics")  # noqa: S310 - our own address
    if token := os.environ.get("KVLEDGER_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310 - our own address
            text = answer.read().decode(errors="replace")
    except (OSError, ValueError) as error:
        wants = isinstance(error, urllib.error.HTTPError) and error.code in (401, 403)
        return Check(
            what="metrics", verdict=Verdict.WARN if wants else Verdict.BAD, found=f"{url}/metrics: {error}",
            todo="they want a token that may read (metrics_open = no): set KVLEDGER_TOKEN to one and ask again"
            if wants else "its log says why",
        )  # fmt: skip
    absent = [one.name for one in metrics.DECLARED if f"# TYPE {one.name.removesuffix('_total')}" not in text]
    return judged(
        "metrics", not absent, f"all {len(metrics.DECLARED)} are exposed", f"not exposed: {named(absent)}",
        "restart the service: it is of another version",
    )  # fmt: skip


def _lost(dropped: int, faults: int) -> str:
    """What a hook dropped and met, without the part that is zero."""
    parts = [f"dropped {counted(dropped, 'batch', 'batches')}"] if dropped else []
    parts += [f"met {counted(faults, 'fault')}"] if faults else []
    return " and ".join(parts)
