"""Are engines without a hook seen? Alerts on what is scraped; :mod:`alerts.ledger_health` has the file they go to."""

from __future__ import annotations

from typing import Final

from alerts.promql import grown, series
from alerts.rules import Alert, Group, Severity
from ledger import metrics_scraped as ms

DOWN_S: Final = 120
"""Eight scrapes in a row; the page says so after the same time."""

DIFFERS: Final = 0.1
"""Over five minutes a scrape at the edge is 0.05 of a count; twice that is a difference."""

COUNTED: Final = "~output_tokens|prompt_tokens"
"""What nobody may differ in. Gauges that are looked at every 15 s differ by chance, by far more where requests come in
clumps; the dashboard shows them."""

SCRAPED: Final = Group(
    name="kvledger_scraped",
    alerts=(
        Alert(
            name="KvledgerTargetDown",
            expr=f"time() - max by (engine) {series(ms.SCRAPED)} > {DOWN_S}",
            holds="1m",
            severity=Severity.CRITICAL,
            summary="{{ $labels.engine }} is scraped and has not answered for {{ $value | humanizeDuration }}",
            detail="Without a hook its time is unobserved for 15 minutes, then vacant.",
        ),
        Alert(
            name="KvledgerDeadGauge",
            expr=f"max by (engine, figure) {series(ms.DEAD)} > 0",
            holds="5m",
            severity=Severity.WARNING,
            summary="{{ $labels.figure }} of {{ $labels.engine }} says 0 while requests run",
            detail="The figure is left out. Busy time is known by counters, with less detail.",
        ),
        Alert(
            name="KvledgerScrapeDiffers",
            expr=f"max by (engine, figure) (abs({series(ms.DIFFERENCE, figure=COUNTED)})) > {DIFFERS}",
            holds="15m",
            severity=Severity.WARNING,
            summary="{{ $labels.figure }} of {{ $labels.engine }} differs by {{ $value | humanizePercentage }} "
            "between its hook and its /metrics",
            detail="The hook's figures carry the money; one of both counts something else, or not at all.",
        ),
        Alert(
            name="KvledgerScrapeRoundsDropped",
            expr=grown(ms.ROUNDS_DROPPED, by="job", over="15m"),
            severity=Severity.WARNING,
            summary='{{ $value | printf "%.0f" }} periods of scraped engines were dropped',
            detail="The database has not taken them for an hour; their time is unobserved.",
        ),
    ),
)
