"""`kvledger doctor --engine`: whether an engine on this machine would reach its service. Standard library only.

Invariants: it looks with the hook's own settings; nothing is booked, kept or counted as a refusal at the service; the
token goes to the address that was named and nowhere else (no redirect, no proxy of the environment).
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ledger import limits
from ledger.commands import doctor_vllm
from ledger.commands.checks import Check, Verdict, ago, judged, report
from ledger.errors import LedgerError, UsageError
from ledger.hook import settings as hook
from ledger.outbox.post import PATH

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ledger.hook.settings import HookSettings

WAIT_S = 5.0
"""For each answer."""

SKEW_S_MAX = 5.0
"""The service's clock is read from a header that has whole seconds."""

WAITING_US_MAX = 3600 * 1_000_000
"""A batch that waits longer has met an outage."""

DISK_BYTES_MIN = 2 * limits.SPOOL_BYTES_MAX
"""Free room for a spool at its bound, and as much for everybody else."""

PROBE_ENCODING = "kvledger-doctor"
"""A Content-Encoding that no service takes: it says so (415) to whoever may deliver, before it looks at a batch."""


def run(args: Namespace) -> int:
    """Make every check; 1 if any is bad."""
    if args.quick:
        raise UsageError("--quick is about the ledger, which is not looked at beside an engine: leave it out")
    environ = dict(os.environ)
    if args.engine:
        environ[hook.URL.name] = args.engine
    return report(_checks(environ), args.format)


def _checks(environ: Mapping[str, str]) -> Iterator[Check]:
    for sentence in hook.misspelt(environ):
        yield Check(what="settings", verdict=Verdict.WARN, found=sentence, todo="rename it, or leave it out")
    try:
        settings = hook.load(environ)
        token = settings.read_token()
    except (LedgerError, OSError) as error:
        todo = "the hook is switched off until it can be used; docs/hook-settings.md has every variable"
        yield Check(what="settings", verdict=Verdict.BAD, found=str(error), todo=todo)
        return
    yield judged(
        "settings", settings.enabled, "the hook's can be used", "KVLEDGER_ENABLED switches the hook off",
        "set it to true, and restart the engine", otherwise=Verdict.WARN,
    )  # fmt: skip
    yield doctor_vllm.vllm(environ)
    yield doctor_vllm.identity(settings.trust)
    yield from _spool(settings.spool)
    if settings.spool is not None and settings.enabled:
        yield doctor_vllm.attached(settings.spool, time.time_ns() // 1000)
    if not settings.urls:
        todo = "set KVLEDGER_URL, or carry the spool to the ledger and book it: `kvledger ingest DIR`"
        yield Check(what="service", verdict=Verdict.WARN, found="no address: the spool is only filled", todo=todo)
    for url in settings.urls:
        yield from _service(url, token, settings)


def _spool(root: Path | None) -> Iterator[Check]:
    if root is None:
        todo = "set KVLEDGER_SPOOL to a directory on a local disk: an outage and a restart together lose batches"
        yield Check(what="spool", verdict=Verdict.WARN, found="none: batches wait in memory alone", todo=todo)
        return
    place = next(path for path in (root, *root.parents) if path.exists())
    yield judged(
        "spool", place.is_dir() and os.access(place, os.W_OK | os.X_OK), f"{root} can be written",
        f"{root} cannot be written: {place} does not let us",
        "give it to the user that the engine runs as, or name another with KVLEDGER_SPOOL",
    )  # fmt: skip
    if not (place.is_dir() and os.access(place, os.R_OK)):
        return
    free = shutil.disk_usage(place).free
    shown = f"{free / 1024**3:.1f} GiB free for the spool"
    yield judged(
        "disk", free >= DISK_BYTES_MIN, shown, shown,
        "free some, or choose another place: an outage fills the spool up to KVLEDGER_SPOOL_BYTES",
        otherwise=Verdict.WARN,
    )  # fmt: skip
    waiting = list(root.glob("*/*.seg"))
    size = sum(path.stat().st_size for path in waiting)
    oldest_us = max((time.time_ns() - path.stat().st_mtime_ns for path in waiting), default=0) // 1000
    yield judged(
        "waiting", oldest_us <= WAITING_US_MAX, f"{len(waiting)} segments, {size} bytes in the spool",
        f"{len(waiting)} segments, {size} bytes in the spool, the oldest for {ago(oldest_us)}",
        "the engine sends them when it reaches the service; if none runs here: `kvledger ingest` at the ledger",
        otherwise=Verdict.WARN,
    )  # fmt: skip


def _service(url: str, token: str, settings: HookSettings) -> Iterator[Check]:
    parts = urlsplit(url)
    secure = parts.scheme == "https" or parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not secure:
        todo = "put TLS in front of the service and write https://, or keep this network to yourself"
        yield Check(what="transport", verdict=Verdict.WARN, found=f"{url}: the token travels readable", todo=todo)
    before_s = time.time()
    try:
        status, headers, body = _asked(url, "GET", "/healthz", {}, settings)
    except (OSError, http.client.HTTPException) as error:
        todo = "see that the service runs and listens there (`listen`), and that nothing between keeps us out"
        yield Check(what="service", verdict=Verdict.BAD, found=f"{url} cannot be reached: {error}", todo=todo)
        return
    after_s = time.time()
    if not _is_ours(status, body):
        found = f"{url} answers {status}, but not as kvledger does"
        yield Check(
            what="service", verdict=Verdict.BAD, found=found, todo="see to KVLEDGER_URL: something else is there"
        )
        return
    yield judged(
        "service", status == 200, f"{url} answers", f"{url} answers {status}: {_detail(body)}",
        "run `kvledger doctor` at the service",
    )  # fmt: skip
    yield from _clock(headers.get("date", ""), before_s, after_s)
    yield _token(url, token, settings)


def _clock(date: str, before_s: float, after_s: float) -> Iterator[Check]:
    try:
        # The header has whole seconds, cut: half a second more is the best guess.
        there_s = parsedate_to_datetime(date).timestamp() + 0.5
    except ValueError:
        todo = "compare the clocks by hand; something between us takes the Date header away"
        yield Check(what="clock", verdict=Verdict.WARN, found="the service's clock could not be read", todo=todo)
        return
    ahead_s = (before_s + after_s) / 2 - there_s
    yield judged(
        "clock", abs(ahead_s) <= SKEW_S_MAX, "within some seconds of the service's",
        f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the service's",
        "see to NTP on both machines, then restart the engine; batches 5 minutes ahead of the service are refused",
        otherwise=Verdict.BAD if ahead_s * 1e6 > limits.AHEAD_US_MAX / 2 else Verdict.WARN,
    )  # fmt: skip


def _token(url: str, token: str, settings: HookSettings) -> Check:
    headers = {"Authorization": f"Bearer {token}", "Content-Encoding": PROBE_ENCODING}
    try:
        status, _, body = _asked(url, "POST", PATH, headers, settings)
    except (OSError, http.client.HTTPException) as error:
        return Check(what="token", verdict=Verdict.BAD, found=f"no answer to it: {error}", todo="ask again")
    todo = {
        401: "`kvledger tokens list` at the service shows those in force, `tokens add --scope ingest` makes one",
        403: "`kvledger tokens add --scope ingest` at the service makes one that may",
    }.get(status, "ask again in a minute; then run `kvledger doctor` at the service")
    return judged(
        "token", status == 415, "may deliver batches", f"the service answers {status}: {_detail(body)}", todo,
        otherwise=Verdict.WARN if status == 429 else Verdict.BAD,
    )  # fmt: skip


def _asked(
    url: str, method: str, path: str, headers: dict[str, str], settings: HookSettings
) -> tuple[int, Mapping[str, str], bytes]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        trusted = ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file else None)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=WAIT_S, context=trusted
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=WAIT_S)
    try:
        connection.request(method, parts.path.rstrip("/") + path, body=b"", headers=headers)
        answer = connection.getresponse()
        body = answer.read(limits.ANSWER_BYTES_MAX)
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body
    finally:
        connection.close()


def _is_ours(status: int, body: bytes) -> bool:
    """Whether ``/healthz`` answers as our service does: its one word, or a problem document."""
    try:
        document = json.loads(body)
    except ValueError:
        return False
    return isinstance(document, dict) and (document.get("status") == "ok" if status == 200 else "detail" in document)


def _detail(body: bytes) -> str:
    try:
        text = str(json.loads(body).get("detail", ""))
    except (ValueError, AttributeError):
        text = ""
    return "".join(c if c.isprintable() else " " for c in text[:200]) or "without a word"
