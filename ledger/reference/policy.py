"""Scheduling decisions, behind one seam. The default is vLLM's first come, first served within a priority.

A policy decides; the scheduler keeps the invariants (budget, blocks, order), whatever a policy answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.reference.scheduler import CoreRequest


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of a step: running requests, and tokens scheduled in all."""

    sequences: int = 256
    tokens: int = 2048


DEFAULT_LIMITS = BatchLimits()


class Policy:
    """vLLM's defaults; a subclass overrides what it wants to decide. One instance per engine."""

    def limits(self, now_us: int, running: int, waiting: int) -> BatchLimits:  # noqa: ARG002
        """Bounds of the step that is about to be scheduled. Running requests are never dropped for them."""
        return DEFAULT_LIMITS

    def admission_key(self, request: CoreRequest) -> tuple[int, ...]:
        """Smallest first; fixed while a request waits. The scheduler breaks ties by order of receipt."""
        return (request.dims.priority, request.arrived_us)

    def chunk_tokens(self, request: CoreRequest, wanted: int, budget: int) -> int:  # noqa: ARG002
        """How many of the ``wanted`` prompt tokens to schedule now, 0 to ``min(wanted, budget)``."""
        return min(wanted, budget)

    def must_fit_whole(self, request: CoreRequest) -> bool:  # noqa: ARG002
        """Whether admission waits until blocks for the whole prompt are free, not just for its first chunk."""
        return True

    def victim(self, running: Collection[CoreRequest], wanting: CoreRequest) -> CoreRequest:  # noqa: ARG002
        """Who is preempted when no block is left: the least urgent, of these the one admitted last.

        ``running`` is in order of admission and never empty; the answer may be ``wanting`` itself.
        """
        return max(running, key=lambda request: (request.dims.priority, request.admitted))
