"""What a metric is: its declaration. :mod:`ledger.metrics` has all of them and their values.

It is apart so that declarations can stand in more than one file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

Labels = tuple[str, ...]


class Kind(Enum):
    """Prometheus' word for a metric, in capitals."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A declaration. ``about`` says how the figure is made; ``name`` of a counter ends in ``_total``.

    ``bound`` is the number of label sets; the next one is counted under :data:`OTHER`. ``scope`` says who has
    it: each process its own part (``process``), or the leader alone (``ledger``).
    """

    name: str
    kind: Kind
    about: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()
    bound: int = 1
    scope: str = "process"


LATENCY_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""From a step to a request that nobody waits for any more; 1 s and 2.5 s lie about the objectives people have."""

ENGINES: Final = 500
"""Engines with series of their own; a ledger of more is split, or its series are read per replica."""
