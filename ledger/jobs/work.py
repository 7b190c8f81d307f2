"""What each job does, and when.

Invariants: a job can be run again at any time and then changes nothing that it should not; what it makes known
(metrics of the whole ledger) is made by the same functions as reports and pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from ledger import audit
from ledger import metrics as m
from ledger.jobs.gpu_metrics import show_gpus
from ledger.jobs.runner import Job
from ledger.reports.usage import By, usage
from ledger.settle import settle
from ledger.store import books, fleet, quarantine, retention, terms
from ledger.store.findings import Severity, list_findings
from ledger.web.figures_api import bounds_of, open_time, read_statement
from ledger.web.fleet_api import engines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.store.fleet import LiveSession
    from ledger.web.service import Service

DAY_US = 86_400_000_000


def jobs_of(service: Service, rules: Sequence[Callable[[Sequence[LiveSession], int], None]] = ()) -> list[Job]:
    """The jobs of a service; ``rules`` are given every live session every 15 seconds."""
    grace_s = service.settings.settle_grace_s
    with service.database.read() as connection:
        length_s = terms.read_terms(connection).interval_us // 1_000_000
    return [
        Job(name="scan", trigger=IntervalTrigger(seconds=15), late_s=10, work=lambda: scan(service, rules)),
        Job(name="aggregate", trigger=CronTrigger(second=5), late_s=30, work=lambda: aggregate(service)),
        Job(name="settle", trigger=_after(length_s, grace_s), late_s=length_s // 2, work=lambda: close_hours(service)),
        Job(name="retention", trigger=CronTrigger(hour=2, minute=47), late_s=3600, work=lambda: forget(service)),
        Job(name="audit", trigger=CronTrigger(hour=3, minute=17), late_s=3600, work=lambda: check(service)),
    ]


def _after(length_s: int, grace_s: int) -> CronTrigger:
    """``grace_s`` after the end of every settle interval (an hour, or 15 minutes)."""
    minutes = length_s // 60
    marks = sorted({(mark + grace_s // 60) % 60 for mark in range(0, 60, minutes)})
    return CronTrigger(minute=",".join(map(str, marks)), second=grace_s % 60)


def scan(service: Service, rules: Sequence[Callable[[Sequence[LiveSession], int], None]]) -> None:
    """The 15-second pass: engines are counted by state, GPUs become metrics, every live session goes to every rule."""
    now_us = service.clock_us()
    engines = engines_of(service)
    states = dict.fromkeys((state.value for state in fleet.State), 0)
    for engine in engines:
        states[engine.state.value] += 1
    service.metrics.replace(m.ENGINES_KNOWN, {(state,): number for state, number in states.items()})
    off = [engine.engine for engine in engines if engine.state is fleet.State.OFF]
    service.metrics.replace(m.HOOK_OFF, {(engine,): 1 for engine in off[: m.HOOK_OFF.bound]})
    show_gpus(service)
    if rules:
        with service.database.read() as connection:
            sessions = fleet.live_sessions(connection, engines, now_us)
        for rule in rules:
            rule(sessions, now_us)


def aggregate(service: Service) -> None:
    """Every minute: the running month's bill and units, findings and quarantine as metrics; uses of tokens."""
    metrics, now_us = service.metrics, service.clock_us()
    service.gate.write_uses()
    statement = read_statement(service, None)
    named = _named(service, [(line.tenant, line.amount_nanos) for line in statement.lines if line.account == "tenant"])
    costs: dict[tuple[str, ...], float] = {}
    for line in statement.lines:
        tenant = line.tenant if line.account != "tenant" or line.tenant in named else m.OTHER
        if line.account == "tenant" and service.settings.metrics_tenants == 0:
            tenant = ""
        key = (line.account, line.kind, tenant, statement.currency)
        costs[key] = costs.get(key, 0) + line.amount_nanos / 1e9
    metrics.replace(m.MONTH_COST, costs)
    metrics.replace(m.MONTH_COST_UNITS, _units(service, statement.month, named))
    with service.database.read() as connection:
        kept = len(quarantine.entries(connection))
        found = list_findings(connection, start_us=now_us - DAY_US)
        settled_us = books.settled_until(connection)
    metrics.put(m.QUARANTINED, (), kept)
    metrics.replace(
        m.FINDINGS,
        {(severity.value,): sum(finding.severity is severity for finding in found) for severity in Severity},
    )
    if settled_us is not None:
        metrics.put(m.SETTLED_UNTIL, (), settled_us / 1e6)
    delivered_us = bounds_of(service)[1]
    if delivered_us:
        metrics.put(m.PROVISIONAL_UNTIL, (), delivered_us / 1e6)


def close_hours(service: Service) -> None:
    """Book every interval that has been over for the grace time."""
    now_us = service.clock_us()
    until_us = now_us - service.settings.settle_grace_s * 1_000_000
    settle(service.database, until_us=until_us, now_us=now_us)
    service.kept.forget()


def forget(service: Service) -> None:
    """Delete facts that are older than their retention."""
    retention.delete_old_facts(service.database, service.clock_us())


def check(service: Service) -> None:
    """Every law on what is stored, and roll-ups against what they are made of."""
    service.metrics.put(m.LAWS_BROKEN, (), len(audit.audit(service.database)))
    service.metrics.put(m.AUDITED, (), service.clock_us() / 1e6)


def _named(service: Service, amounts: list[tuple[str, int]]) -> set[str]:
    """The dearest tenants, as many as have series of their own."""
    totals: dict[str, int] = {}
    for tenant, nanos in amounts:
        totals[tenant] = totals.get(tenant, 0) + nanos
    dearest = sorted(totals, key=lambda tenant: (-totals[tenant], tenant))
    return set(dearest[: service.settings.metrics_tenants])


def _units(service: Service, month: str, named: set[str]) -> dict[tuple[str, ...], float]:
    with service.database.read() as connection:
        start_us, end_us = terms.read_terms(connection).month_bounds(month)
    first_us, delivered_us = bounds_of(service)
    start_us, end_us = max(start_us, first_us), min(end_us, delivered_us)
    if start_us >= end_us or service.settings.metrics_tenants == 0:
        return {}
    units: dict[tuple[str, ...], float] = {}
    for row in usage(service.database, start_us=start_us, end_us=end_us, by=By.TENANT, known=open_time(service)):
        tenant = row.tenant if row.tenant in named else m.OTHER
        units[tenant,] = units.get((tenant,), 0) + (row.weighted_milliunits or 0) / 1000
    return units
