"""What an alert is, and how rules become YAML.

The pattern (rules from one set of figures, a runbook behind each, tests for firing and for silence) is that of
kubernetes-mixin and sloth.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

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
