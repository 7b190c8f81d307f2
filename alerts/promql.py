"""How PromQL is written for alerts and dashboards.

Invariants: every expression is made of declared metrics (:mod:`ledger.metrics`) and their labels; a figure of the whole
ledger is read from the process that leads, since one that led before goes on showing its last; a counter that is born
with a value counts as grown, which `increase` alone does not see.
"""

from __future__ import annotations

from typing import Final

from ledger import metrics as m
from ledger.metric import Kind, Metric

LEADS: Final = f"and on (job, instance) {m.LEADER.name}"
"""Keeps what the leader says; an offset and ``== 1`` follow."""


def series(metric: Metric, *, back: str = "", kept: str = "", **labels: str) -> str:
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
    return text if metric.scope != "ledger" else f"({text} {LEADS}{offset} == 1)"


def grown(metric: Metric, *, by: str, over: str, of_all: str = "sum", **labels: str) -> str:
    """By how much a counter grew in the time ``over``, where it did; ``of_all`` is ``max`` where replicas repeat it."""
    assert metric.kind is Kind.COUNTER, metric.name
    now = series(metric, **labels)
    born = f"{now} unless {series(metric, back=over, **labels)}"
    return f"{of_all} by ({by}) (increase({now}[{over}]) > 0 or ({born})) > 0"


def risen(metric: Metric, *, by: str, over: str, **labels: str) -> str:
    """A gauge's sum less what it was the time ``over`` ago; all of it where it was not there yet."""
    now, before = (f"sum by ({by}) {_braced(series(metric, back=back, **labels))}" for back in ("", over))
    return f"({now} - ({before} or 0 * {now}))"


def _braced(text: str) -> str:
    return text if text.startswith("(") else f"({text})"
