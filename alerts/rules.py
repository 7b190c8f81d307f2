"""What an alert is, how PromQL is written here, and how rules become YAML.

Invariants: every expression is made of declared metrics (:mod:`ledger.metrics`); a figure of the whole ledger is read
from the process that leads, since one that led before goes on showing its last; a counter that is born with a value
counts as grown, which `increase` alone does not see. The pattern (rules from one set of figures, a runbook behind
each, tests for firing and for silence) is that of kubernetes-mixin and sloth.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ledger import metrics as m

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNBOOKS: Final = "docs/runbooks.md"


class Severity(StrEnum):
    """``critical`` wakes somebody: money goes wrong or unseen now. ``warning`` is for the next working day."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """``holds`` is how long the expression must be true first. ``summary`` names the thing, ``detail`` what it means.

    Both are Prometheus templates. The runbook's heading is the name.
    """

    name: str
    expr: str
    severity: Severity
    summary: str
    detail: str
    holds: str = "0s"

    @property
    def runbook(self) -> str:
        return f"{RUNBOOKS}#{self.name.lower()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Alerts that are evaluated together."""

    name: str
    alerts: tuple[Alert, ...]
    interval: str = "30s"


def series(metric: m.Metric, *, back: str = "", kept: str = "", **labels: str) -> str:
    """A selector of ``metric``; of the leader alone where it speaks of the whole ledger.

    A label's value that begins with ``~`` is a regular expression. ``back`` is how long ago; ``kept`` keeps the last
    value for so long after a restart took the series away.
    """
    matchers = []
    for label, value in labels.items():
        assert label in metric.labels, (metric.name, label)
        matchers.append(f'{label}=~"{value[1:]}"' if value.startswith("~") else f'{label}="{value}"')
    offset = f" offset {back}" if back else ""
    text = metric.name + (f"{{{', '.join(matchers)}}}" if matchers else "")
    text = f"last_over_time({text}[{kept}])" if kept else text + offset
    if metric.scope != "ledger":
        return text
    return f"({text} and on (job, instance) {m.LEADER.name}{offset} == 1)"


def grown(metric: m.Metric, *, by: str, over: str, **labels: str) -> str:
    """By how much a counter grew in the time ``over``, where it did."""
    assert metric.kind is m.Kind.COUNTER, metric.name
    now = series(metric, **labels)
    born = f"{now} unless {series(metric, back=over, **labels)}"
    return f"sum by ({by}) (increase({now}[{over}]) > 0 or ({born})) > 0"


def risen(metric: m.Metric, *, by: str, over: str, **labels: str) -> str:
    """A gauge's sum less what it was the time ``over`` ago; all of it where it was not there yet."""
    now, before = (f"sum by ({by}) {_braced(series(metric, back=back, **labels))}" for back in ("", over))
    return f"({now} - ({before} or 0 * {now}))"


def _braced(text: str) -> str:
    return text if text.startswith("(") else f"({text})"


def as_yaml(groups: Sequence[Group], command: str) -> str:
    """A rule file; ``command`` made it."""
    lines = [f"# Made by `{command}`; a test compares. The figures and their reasons are there.", "groups:"]
    for group in groups:
        lines += [f"  - name: {group.name}", f"    interval: {group.interval}", "    rules:"]
        for alert in group.alerts:
            lines += [f"      - alert: {alert.name}", "        expr: |-"]
            lines += [f"          {line}" for line in alert.expr.splitlines()]
            if alert.holds != "0s":
                lines += [f"        for: {alert.holds}"]
            lines += ["        labels:", f"          severity: {alert.severity.value}", "          service: kvledger"]
            lines += ["        annotations:"]
            for key in ("summary", "detail", "runbook"):
                # A JSON string is a YAML string.
                lines += [f"          {key}: {json.dumps(getattr(alert, key), ensure_ascii=False)}"]
    return "\n".join(lines) + "\n"
