"""The agent's loop: a look a second, a batch of samples a period, whatever the driver does.

Invariants: the loop never ends by itself and never falls behind: a look that took longer than its second makes the
next one due at once, and none is made up for; a clock that is set makes a new boot, since the times of one boot rise
with its own monotonic clock (docs/wire.md).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from ledger.collectors.sampler import Sampler
from ledger.core.records import PERIOD_US, Boot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.collectors.gpu_readings import Look
    from ledger.collectors.procfs import Pool, Processes
    from ledger.core.samples import Agent, SampleBatch

log: Final = logging.getLogger("kvledger.agent")

LOOK_EVERY_S: Final = 1.0
LOOK_WITHIN_S: Final = 0.8
"""What a look may take: whatever has not answered by then is hanging."""

CLOCK_US: Final = 2_000_000
"""How far the system's clock may be from the boot's before the boot is ended: it was set, not slewed."""

TELL_EVERY_S: Final = 600.0
"""A reason that goes on is told once in ten minutes; each look of it is counted."""


class Driver(Protocol):
    """What is looked at: :class:`ledger.collectors.nvml.Nvml`, or a test's."""

    def look(self, deadline_s: float) -> Look:
        """What every GPU said in time."""

    def close(self) -> None:
        """No more looks."""


class AgentLoop:
    """Looks, samples, hands over. :meth:`run` in a thread of its own; :meth:`step` is one turn of it.

    ``emit`` gets each batch. ``pools`` says how a process's own worker threads stand, by process id.
    """

    def __init__(
        self,
        source: Agent,
        driver: Driver,
        processes: Processes,
        emit: Callable[[SampleBatch], None],
        *,
        pools: Callable[[], Mapping[int, Pool]] = dict,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        mono_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        self._source = source
        self._driver = driver
        self._processes = processes
        self._emit = emit
        self._pools = pools
        self._wall_us = wall_us
        self._mono_us = mono_us
        self._missed = threading.Event()
        self._told: dict[tuple[str, str], float] = {}
        self._sampler = self._begun()

    def settle(self, limit: int | None = None, *, rest: Callable[[], None]) -> int:
        """For the outbox, which asks whoever it serves: nothing waits here."""
        del limit, rest
        return 0

    def resend_standing(self) -> None:
        """For the outbox, from its own thread: something was lost, so everything is told again."""
        self._missed.set()

    def run(self, stopping: threading.Event) -> None:
        """A turn a second, until ``stopping``; then what is left goes out."""
        next_s = time.monotonic()
        while not stopping.wait(max(0.0, next_s - time.monotonic())):
            self.step()
            next_s = max(next_s + LOOK_EVERY_S, time.monotonic() - LOOK_EVERY_S)
        self.finish()

    def step(self) -> Look:
        """Cut what is over, and look."""
        at_us = self._now_us()
        if at_us >= self._sampler.end_us:
            self._cut(self._sampler.end_us)
            if abs(self._wall_us() - at_us) > CLOCK_US:
                log.warning("the system's clock was set by %+.1f s; the agent begins anew", self._skew_us(at_us) / 1e6)
                self._sampler = self._begun()
                at_us = self._now_us()
            elif at_us >= self._sampler.end_us:
                # Asleep in between: nobody looked, and what is there now is told anew.
                self._sampler.start_us = at_us - at_us % PERIOD_US
                self._sampler.resend()
        look = self._driver.look(LOOK_WITHIN_S)
        self._sampler.add(look, at_us)
        self._tell(look)
        return look

    def finish(self) -> None:
        """The last batch, and no more looks."""
        at_us = min(self._now_us(), self._sampler.end_us)
        if at_us > self._sampler.start_us:
            self._cut(at_us)
        self._driver.close()

    def _begun(self) -> Sampler:
        wall_us, mono_us = self._wall_us(), self._mono_us()
        boot = Boot(boot_id=secrets.token_hex(8), anchor_us=wall_us - mono_us, started_us=wall_us)
        return Sampler(self._source, boot)

    def _cut(self, end_us: int) -> None:
        sampler = self._sampler
        if self._missed.is_set():
            self._missed.clear()
            sampler.resend()
        health = self._processes.period(sampler.pids, end_us - sampler.start_us, self._pools())
        self._emit(sampler.cut(end_us, health, skew_us=self._skew_us(self._now_us())))
        self._source = sampler.source

    def _now_us(self) -> int:
        return self._sampler.boot.anchor_us + self._mono_us()

    def _skew_us(self, at_us: int) -> int:
        return at_us - self._wall_us()

    def _tell(self, look: Look) -> None:
        now_s = self._mono_us() / 1e6
        for key in look.troubles:
            if now_s - self._told.get(key, -TELL_EVERY_S) >= TELL_EVERY_S:
                self._told[key] = now_s
                reason, gpu = key
                log.warning("%s: %s", gpu or "the GPU driver", MEANINGS.get(reason, reason.replace("_", " ")))


MEANINGS: Final = {
    "binding_not_installed": "NVIDIA's binding is missing; pip install nvidia-ml-py",
    "library_not_found": "libnvidia-ml.so.1 is missing: no NVIDIA driver here, or the container has no access to it",
    "driver_not_loaded": "the driver is not loaded",
    "lib_rm_version_mismatch": "the driver was upgraded beneath its library; restart the container or the host",
    "no_permission": "a figure is for administrators alone, and is absent",
    "hanging": "no answer in time; the others go on without it",
    "gpu_is_lost": "lost: it has fallen off the bus, or was taken away",
    "uninitialized": "the driver was restarted; begins anew",
}
"""What is told of a reason, and the way out where there is one; NVML's own word for any other."""
