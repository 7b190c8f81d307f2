"""What is wrong now, in sentences with a way out: for the page and for `kvledger doctor`.

Invariant: every trouble names a thing and what to do about it; nothing is repeated for each of many engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger import metrics as m
from ledger.core.periods import HOUR_US
from ledger.store import fleet, quarantine
from ledger.store.findings import Severity, list_findings
from ledger.store.fleet import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ledger.store.fleet import EngineState
    from ledger.web.outside import Seen
    from ledger.web.service import Service

DAY_US = 24 * HOUR_US
SKEW_US_MAX = 1_000_000
"""A second between an engine's clock and its system's: its anchor is worn, a new boot takes a new one."""

NAMED_MAX = 5
"""Engines that a sentence names before it counts the rest."""

Trouble = dict[str, str]


def troubles(service: Service, engines: Sequence[EngineState], seen: Iterable[Seen] = ()) -> list[Trouble]:
    """All that is wrong, worst first; empty where nothing is. ``seen`` are the targets that are scraped."""
    now_us = service.clock_us()
    with service.database.read() as connection:
        refused = fleet.refused_missing(connection, engines, now_us)
        kept = [entry for entry in quarantine.entries(connection) if entry.received_us > now_us - DAY_US]
        findings = list_findings(connection, start_us=now_us - DAY_US)
    found = [*_of_engines(engines, sum(refused.values())), *_of_targets(list(seen)), *_of_jobs(service)]
    if kept:
        reasons = ", ".join(sorted({entry.reason for entry in kept}))
        found.append(
            _trouble(Severity.WARNING, f"{len(kept)} batches were refused in the last 24 hours: {reasons}",
                     "read why with `kvledger quarantine list`; their time is unobserved")
        )  # fmt: skip
    for severity in (Severity.CRITICAL, Severity.WARNING):
        own = [finding for finding in findings if finding.severity is severity]
        for code in sorted({finding.code for finding in own}):
            some = [finding for finding in own if finding.code == code]
            found.append(
                _trouble(severity, f"{code.replace('_', ' ')} ({len(some)} in 24 hours): {some[-1].detail}",
                         "see /v1/findings, and docs/accounts.md for what it means")
            )  # fmt: skip
    broken = int(service.metrics.value(m.LAWS_BROKEN))
    if broken:
        found.append(
            _trouble(Severity.CRITICAL, f"the last audit found {broken} breaches in what is stored",
                     "run `kvledger audit`: it names each row; restore it from a backup")
        )  # fmt: skip
    return sorted(found, key=lambda trouble: [s.value for s in (Severity.CRITICAL, Severity.WARNING, Severity.INFO)]
                  .index(trouble["severity"]))  # fmt: skip


def way_to_missing(missing: int, refused: int) -> str:
    """What to do about batches that are missing, ``refused`` of which are in quarantine."""
    spooled = "may still lie in the engine's spool: `kvledger ingest DIR` books it"
    if not refused:
        return f"they {spooled}"
    kept = "`kvledger quarantine list` says why, `quarantine retry` tries them again"
    if refused >= missing:
        return f"they were refused and are kept: {kept}"
    return f"{refused} of them were refused and are kept: {kept}; the others {spooled}"


def _of_engines(engines: Sequence[EngineState], refused: int) -> Iterable[Trouble]:
    silent = [engine.engine for engine in engines if engine.state is State.SILENT]
    if silent:
        yield _trouble(
            Severity.CRITICAL, f"open and not heard of for a minute: {_named(silent)}",
            "see that the engine runs and reaches this service; its time is unobserved, and vacant after 15 minutes",
        )  # fmt: skip
    off = [f"{engine.engine} ({engine.hook.off})" for engine in engines if engine.state is State.OFF]
    if off:
        yield _trouble(
            Severity.CRITICAL, f"hooks have switched themselves off: {_named(off)}",
            "keep the engine's log and restart it: its time is unobserved, and vacant after 15 minutes",
        )  # fmt: skip
    for what, said, todo in (
        ("batches were dropped by hooks", {e.engine: e.lately.dropped for e in engines}, "docs/hook-settings.md"),
        ("calls made no sense to hooks", {e.engine: e.lately.faults for e in engines}, "docs/hook.md"),
    ):
        counts = [pair for pairs in said.values() for pair in pairs]
        if counts:
            reasons = ", ".join(sorted({reason for reason, _ in counts}))
            some = _named([engine for engine, pairs in said.items() if pairs])
            sentence = f"{sum(count for _, count in counts)} {what} in the last 24 hours ({reasons}): {some}"
            yield _trouble(Severity.WARNING, sentence, f"the engine's log says more, {todo} what each reason means")
    gaps = [engine.engine for engine in engines if engine.missing]
    if gaps:
        missing = sum(engine.missing for engine in engines)
        yield _trouble(
            Severity.WARNING, f"{missing} batches are missing in the last 24 hours: {_named(gaps)}",
            way_to_missing(missing, refused),
        )  # fmt: skip
    skewed = [engine.engine for engine in engines if abs(engine.skew_us) > SKEW_US_MAX]
    if skewed:
        yield _trouble(
            Severity.WARNING, f"clocks are off by more than a second: {_named(skewed)}",
            "the engine keeps the time of its start; restart it, or let it close and open its pools",
        )  # fmt: skip


def _of_targets(seen: Sequence[Seen]) -> Iterable[Trouble]:
    down = [each.named for each in seen if each.down]
    if down:
        yield _trouble(
            Severity.CRITICAL, f"scraped, and cannot be read: {_named(down)}",
            "`kvledger collect list` has the addresses, `inspect URL` asks one; its time is unobserved, then vacant",
        )  # fmt: skip
    dead = [f"{each.target.engine} ({', '.join(each.dead)})" for each in seen if each.dead]
    if dead:
        yield _trouble(
            Severity.WARNING, f"gauges say 0 while requests run: {_named(dead)}",
            "work is known by counters meanwhile; docs/collectors.md says how it is told",
        )  # fmt: skip


def _of_jobs(service: Service) -> Iterable[Trouble]:
    for job in service.failed_jobs():
        yield _trouble(Severity.CRITICAL, f"the job {job} failed when it last ran", "the service's log says why")


def _named(engines: Sequence[str]) -> str:
    shown = ", ".join(sorted(engines)[:NAMED_MAX])
    return shown + (f" and {len(engines) - NAMED_MAX} more" if len(engines) > NAMED_MAX else "")


def _trouble(severity: Severity, what: str, todo: str) -> Trouble:
    return {"severity": severity.value, "what": what, "todo": todo}
