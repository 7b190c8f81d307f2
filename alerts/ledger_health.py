"""Is the ledger itself well? The alerts of alerts/ledger_health.yml and every figure in them.

    python -m alerts.ledger_health > alerts/ledger_health.yml

Invariant: each alert has a heading in docs/runbooks.md, and cases for firing and for silence in alerts/tests/.
"""

from __future__ import annotations

from typing import Final

from alerts.promql import grown, risen, series
from alerts.rules import Alert, Group, Severity, as_yaml
from alerts.scraped import SCRAPED
from ledger import metrics as m

RECENT: Final = "15m"
"""How long one event keeps an alert up: long enough to be seen, and what is silent so long is `vacant` in the books."""

SILENT_S: Final = 120
"""Eight periods. The page says `silent` after 60 s; a restart that takes less than two minutes wakes nobody."""

LAG_S: Final = 120
"""As old as a batch may be to count as one of now (limits.LIVE_AGE_US_MAX)."""

SKEW_S: Final = 1
"""Between an engine's clock and its system's: its anchor is worn. The page has the same bound."""

UNOBSERVED_SHARE: Final = 0.02
"""Of the money of the last hour: 72 s of one GPU, a restart or two. More is a hole that somebody pays for."""

SETTLED_S: Final = 3600 + 300
"""An hour is closed 2 minutes after its end. One that was idle before is behind until its next close: see `holds`."""

AUDIT_S: Final = 26 * 3600
"""The audit runs every night; two hours for one that takes long."""

JOB_LATE_S: Final = {"scan": 120, "aggregate": 300, "settle": 2 * 3600 + 900, "retention": AUDIT_S, "audit": AUDIT_S}
"""Time since a job last ended well: some of its intervals, or its day and two hours."""

DISK_BYTES: Final = 2 * 2**30
"""About a day of ten engines at the size of a regular batch (docs/operating.md)."""

DISK_LEFT_S: Final = 24 * 3600
"""Full within a day, as the last six hours went: somebody can still act in daylight."""

_LEADS: Final = f"max({m.LEADER.name})"
_HEARD: Final = f"max by (engine) ({m.ENGINE_HEARD.name})"
_SILENT: Final = f"max({series(m.ENGINES_KNOWN, state='silent')}) > 0"
_OFF: Final = f"max by (engine) ({series(m.HOOK_OFF)}) > 0"
_AUDITED: Final = f"max({series(m.AUDITED, kept='26h')})"
_UNOBSERVED: Final = risen(m.MONTH_COST, by="currency", over="1h", account="unobserved")
_BILLED: Final = risen(m.MONTH_COST, by="currency", over="1h")

ARRIVING: Final = Group(
    name="kvledger_arriving",
    alerts=(
        Alert(
            name="KvledgerBatchGaps",
            expr=grown(m.BATCH_GAPS, by="engine", over=RECENT),
            severity=Severity.WARNING,
            summary='{{ $value | printf "%.0f" }} batches of {{ $labels.engine }} are missing',
            detail="Until they come, their time is paid for and unobserved.",
        ),
        Alert(
            name="KvledgerBatchesRefused",
            expr=grown(m.BATCHES, by="status, reason", over=RECENT, status="~refused|quarantined"),
            severity=Severity.WARNING,
            summary="batches were {{ $labels.status }}: {{ $labels.reason }}",
            detail="Their time is unobserved until they are taken. `kvledger quarantine list` has each, with why.",
        ),
        Alert(
            name="KvledgerBatchesTurnedAway",
            expr=f"sum by (status) (rate({m.INGEST_TURNED_AWAY.name}[5m])) > 0",
            holds="10m",
            severity=Severity.WARNING,
            summary="batches are turned away with status {{ $labels.status }}",
            detail="Senders keep what is answered 401, 408, 413, 429 or 5xx, as long as their spools have room.",
        ),
        Alert(
            name="KvledgerEngineSilent",
            expr=f"time() - {_HEARD} > {SILENT_S}\n"
            # An engine that closed cleanly has no blocks any more.
            f"  and on (engine) count by (engine) ({m.KV_BLOCKS.name})\n"
            f"  and on () {_SILENT}\n"
            # One that is off has an alert of its own.
            f"  unless on (engine) {_OFF}",
            holds="1m",
            severity=Severity.CRITICAL,
            summary="{{ $labels.engine }} is open and has not been heard of for {{ $value | humanizeDuration }}",
            detail="It is gone, or cannot reach this service. Its time is unobserved.",
        ),
        Alert(
            name="KvledgerEnginesUnheard",
            expr=_SILENT,
            holds="5m",
            severity=Severity.WARNING,
            summary="{{ $value }} engines are open and not heard of",
            detail="As the books have it, also when the service was restarted since and has no series of them.",
        ),
        Alert(
            name="KvledgerHookOff",
            expr=_OFF,
            severity=Severity.CRITICAL,
            summary="the hook of {{ $labels.engine }} has switched itself off",
            detail="The engine goes on and nobody knows what it does: its time is unobserved until it starts again.",
        ),
        Alert(
            name="KvledgerHookDropping",
            expr=grown(m.HOOK_DROPPED, by="engine, reason", over=RECENT, of_all="max"),
            severity=Severity.WARNING,
            summary="{{ $labels.engine }} dropped batches: {{ $labels.reason }}",
            detail="They never come: their time is paid for and unobserved.",
        ),
        Alert(
            name="KvledgerHookFaults",
            expr=grown(m.HOOK_FAULTS, by="engine, reason", over=RECENT, of_all="max"),
            severity=Severity.WARNING,
            summary="the meter of {{ $labels.engine }} cannot make sense of its engine: {{ $labels.reason }}",
            detail="Every sum still closes; whose blocks and tokens they were may be wrong.",
        ),
        Alert(
            name="KvledgerBatchesLate",
            expr=f"histogram_quantile(0.9, sum by (le) (rate({m.BATCH_LAG.name}_bucket[10m]))) > {LAG_S}",
            holds="30m",
            severity=Severity.WARNING,
            summary="every tenth batch is more than {{ $value | humanizeDuration }} old when it comes",
            detail="The books get it; pages and live metrics show the past. A spool that drains ends by itself.",
        ),
        Alert(
            name="KvledgerBatchesOverlapped",
            expr=grown(m.BATCHES_LOST, by="engine", over=RECENT),
            severity=Severity.WARNING,
            summary="two boots claim the same time of {{ $labels.engine }}",
            detail="The one that was accepted first counts. Two engines have one name, or a clock was put back.",
        ),
        Alert(
            name="KvledgerClockOff",
            expr=f"max by (engine) (abs({m.ENGINE_SKEW.name})) > {SKEW_S}",
            holds="5m",
            severity=Severity.WARNING,
            summary="the clock of {{ $labels.engine }} is off by {{ $value | humanizeDuration }}",
            detail="Its facts are booked at the time that it states, so money near the ends of hours is misplaced.",
        ),
    ),
)

BOOKS: Final = Group(
    name="kvledger_books",
    alerts=(
        Alert(
            name="KvledgerLawBroken",
            expr=f"max({series(m.LAWS_BROKEN, kept='26h')}) > 0",
            severity=Severity.CRITICAL,
            summary="the last audit found {{ $value }} breaches in what is stored",
            detail="Figures of the ledger cannot be trusted until each is explained.",
        ),
        Alert(
            name="KvledgerAuditOverdue",
            # A service that was restarted has no audit yet; it is overdue once it ran for so long without one.
            expr=f"max(time() - process_start_time_seconds and on (job, instance) {m.BUILD.name}) > {AUDIT_S}\n"
            f"  unless on () time() - {_AUDITED} <= {AUDIT_S}",
            severity=Severity.WARNING,
            summary="there was no whole audit for more than a day",
            detail="A broken law would go unseen.",
        ),
        Alert(
            name="KvledgerSettlementBehind",
            expr=f"max({series(m.PROVISIONAL_UNTIL)}) - max({series(m.SETTLED_UNTIL)}) > {SETTLED_S}",
            holds="65m",
            severity=Severity.WARNING,
            summary="facts of {{ $value | humanizeDuration }} are delivered and not booked",
            detail="Hours are not being closed.",
        ),
        Alert(
            name="KvledgerUnobservedMoney",
            # A new month starts from nothing: what fell is no share of anything.
            expr=f"{_UNOBSERVED}\n  / ({_BILLED} > 0) > {UNOBSERVED_SHARE}",
            holds="5m",
            severity=Severity.CRITICAL,
            summary="{{ $value | humanizePercentage }} of the last hour's money ({{ $labels.currency }}) is unobserved",
            detail="GPUs are paid for and nobody knows what they did.",
        ),
        Alert(
            name="KvledgerOverAllocation",
            expr=f"sum by (currency) {series(m.MONTH_COST, account='over_allocation')} != 0",
            severity=Severity.CRITICAL,
            summary="tenants were given more than the bill by {{ $value | humanize }} {{ $labels.currency }}",
            detail="An allocation is wrong. The line `over_allocation` keeps the sum; its finding names the asset.",
        ),
        Alert(
            name="KvledgerCriticalFinding",
            expr=f"max({series(m.FINDINGS, severity='critical')}) > 0",
            severity=Severity.CRITICAL,
            summary="settling made {{ $value }} critical findings in 24 hours",
            detail="`/v1/findings` has them.",
        ),
    ),
)

_LATE: Final = "\n  or ".join(
    f"time() - max by (job_name) ({series(m.JOB_SUCCEEDED, job_name=name)}) > {late_s}"
    for name, late_s in JOB_LATE_S.items()
)

SERVICE: Final = Group(
    name="kvledger_service",
    alerts=(
        Alert(
            name="KvledgerServiceAbsent",
            expr=f"absent({m.BUILD.name})",
            holds="2m",
            severity=Severity.CRITICAL,
            summary="nobody can read the metrics of the ledger's service",
            detail="It is down, or Prometheus does not reach it. Engines keep their batches in their spools meanwhile.",
        ),
        Alert(
            name="KvledgerNoLeader",
            expr=f"{_LEADS} < 1",
            holds="2m",
            severity=Severity.CRITICAL,
            summary="no process runs the jobs",
            detail="Hours are not closed, nothing is audited, and the ledger's own metrics stand still.",
        ),
        Alert(
            name="KvledgerJobFailed",
            expr=grown(m.JOB_RUNS, by="job_name", over=RECENT, outcome="failed"),
            severity=Severity.WARNING,
            summary="the job {{ $labels.job_name }} failed",
            detail="It is tried again at its next time; the service's log has the exception.",
        ),
        Alert(
            name="KvledgerJobLate",
            expr=_LATE,
            holds="1m",
            severity=Severity.WARNING,
            summary="the job {{ $labels.job_name }} last ended well {{ $value | humanizeDuration }} ago",
            detail="Its runs fail, are skipped, or do not end.",
        ),
        Alert(
            name="KvledgerDiskLow",
            expr=f"{m.DISK_FREE.name} < {DISK_BYTES}",
            holds="5m",
            severity=Severity.CRITICAL,
            summary="{{ $value | humanize1024 }}B are free where the ledger lies",
            detail="When it is full, batches are answered 503 and wait in the engines' spools.",
        ),
        Alert(
            name="KvledgerDiskFilling",
            expr=f"predict_linear({m.DISK_FREE.name}[6h], {DISK_LEFT_S}) < 0",
            holds="1h",
            severity=Severity.WARNING,
            summary="the disk of the ledger will be full within a day",
            detail="As the last six hours went.",
        ),
    ),
)

GROUPS: Final = (ARRIVING, SCRAPED, BOOKS, SERVICE)
ALERTS: Final = tuple(alert for group in GROUPS for alert in group.alerts)


def document() -> str:
    """alerts/ledger_health.yml."""
    return as_yaml(GROUPS, "python -m alerts.ledger_health > alerts/ledger_health.yml")


if __name__ == "__main__":
    print(document(), end="")
