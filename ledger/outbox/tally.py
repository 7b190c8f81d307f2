"""What was lost on the way to the service, why, and who was told.

Invariants: whatever the outbox lets go is counted under one reason; counting is a few bytecodes and may be done on
the engine's thread, telling (the log, which may block) is the drain thread's.
"""

from __future__ import annotations

import logging
import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

log: Final = logging.getLogger("kvledger.outbox")

TELL_EVERY_S: Final = 60.0
"""A reason that goes on is told once a minute, with its total."""


class Loss(StrEnum):
    """Why batches were dropped. The unit is batches, for ``damaged`` runs of bytes that are no record."""

    QUEUE_FULL = "queue_full"
    """Periods came faster than they were settled."""
    FAULT = "fault"
    """Settling or encoding failed: a bug of ours, kept away from the engine."""
    OFF = "off"
    """The outbox had switched itself off."""
    TOO_LARGE = "too_large"
    """A batch above ``BATCH_BYTES_MAX``, which no service would take."""
    HOLD_FULL = "hold_full"
    """Neither the disk nor the service took any, and the memory was used up."""
    SPOOL_BYTES = "spool_bytes"
    """The oldest, when the spool reached its bound."""
    SPOOL_AGE = "spool_age"
    """Older than the spool keeps."""
    DAMAGED = "damaged"
    """Bytes of the spool whose checksum does not hold: torn by a crash, or flipped."""
    REFUSED = "refused"
    """The service refused it for good (a 4xx)."""
    CLOSED = "closed"
    """Still in memory at the end, with no disk to take it."""


MEANINGS: Final[Mapping[Loss, str]] = {
    Loss.QUEUE_FULL: "periods came faster than they could be settled; the machine is short of CPU",
    Loss.FAULT: "a fault of kvledger itself; please report the traceback above",
    Loss.OFF: "the outbox has switched itself off after repeated faults; restart the engine to try again",
    Loss.TOO_LARGE: "a batch is larger than a service takes",
    Loss.HOLD_FULL: "neither the disk nor the service took them; see to KVLEDGER_SPOOL and KVLEDGER_URL",
    Loss.SPOOL_BYTES: "the spool is full and gave up its oldest; raise KVLEDGER_SPOOL_BYTES or restore the service",
    Loss.SPOOL_AGE: "they were older than KVLEDGER_SPOOL_AGE; restore the service",
    Loss.DAMAGED: "parts of the spool are not what was written: a crash or a bad disk",
    Loss.REFUSED: "the service refused them for good; its answer is above and in `kvledger quarantine list`",
    Loss.CLOSED: "the engine ended with batches in memory and no disk that took them",
}


class Tally:
    """Counts of losses by reason, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Loss, 0)
        self._told: dict[Loss, tuple[int, float]] = {}
        self.damaged_bytes = 0

    def add(self, loss: Loss, count: int = 1) -> None:
        """``count`` more were lost for this reason."""
        with self._lock:
            self._counts[loss] += count

    def damage(self, size: int) -> None:
        """A run of ``size`` bytes of the spool is no record."""
        with self._lock:
            self._counts[Loss.DAMAGED] += 1
            self.damaged_bytes += size

    @property
    def counts(self) -> dict[Loss, int]:
        """Every reason with its count, those at zero too."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> int:
        """All of them: it grows whenever something was lost."""
        with self._lock:
            return sum(self._counts.values())

    def tell(self, now_s: float) -> None:
        """Log each reason that has news, at most once a minute; ``now_s`` is monotonic."""
        for loss, count in self.counts.items():
            told, at_s = self._told.get(loss, (0, now_s - TELL_EVERY_S))
            if count > told and now_s - at_s >= TELL_EVERY_S:
                self._told[loss] = (count, now_s)
                log.warning("%d dropped (%s), %d in all: %s", count - told, loss.value, count, MEANINGS[loss])
