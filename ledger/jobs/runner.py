"""Runs jobs on their times, on APScheduler 3.

Invariants: a job never overlaps itself; one that comes too late is skipped, and so are all but the newest of those
that were missed; an exception ends that run alone. Each of these is counted, so that nothing is late in silence.
Only the leader runs jobs; the others ask for the lead every few seconds.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import UTC
from time import perf_counter
from typing import TYPE_CHECKING

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_PAUSED, STATE_RUNNING

from ledger import metrics as m

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from apscheduler.events import JobEvent
    from apscheduler.triggers.base import BaseTrigger

    from ledger.metrics import Metrics

log = logging.getLogger(__name__)

LEAD_EVERY_S = 5.0
"""How soon another process takes over from a leader that is gone."""

STOP_S = 30.0
"""How long a stop waits for what is running: one settled interval, or one chunk of deleted rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """``late_s``: a run that would begin later than this after its time is skipped."""

    name: str
    trigger: BaseTrigger
    late_s: int
    work: Callable[[], None]


class Runner:
    """The jobs of one process. ``outcomes`` gets how each job's last run ended."""

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        metrics: Metrics,
        outcomes: dict[str, str],
        leads: Callable[[], bool],
        clock_us: Callable[[], int],
    ) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._metrics = metrics
        self._outcomes = outcomes
        self._leads = leads
        self._clock_us = clock_us
        self._stopping = threading.Event()
        self.leading = False
        """Whether this process runs the jobs now."""
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            # A thread for each job: one that takes long (an audit) must not make another late.
            executors={"default": ThreadPoolExecutor(len(jobs) or 1)},
            job_defaults={"coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(self._skipped, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
        self._thread = threading.Thread(target=self._follow, name="jobs", daemon=True)

    def start(self) -> None:
        """Begin to ask for the lead, and run the jobs once it is ours."""
        self._metrics.put(m.LEADER, (), 0)
        self._thread.start()

    def stop(self) -> None:
        """Begin no further run, and wait for those that are under way."""
        self._stopping.set()
        self._thread.join(STOP_S)

    def run(self, name: str) -> str:
        """Run a job here and now; how it ended: ``done`` or ``failed``."""
        started_s = perf_counter()
        try:
            self._jobs[name].work()
            outcome = "done"
            self._metrics.put(m.JOB_SUCCEEDED, (name,), self._clock_us() / 1e6)
        except Exception:
            # Whatever it was, the next run shall happen; it is logged, counted, and shown on the page.
            log.exception("job %s failed", name)
            outcome = "failed"
        self._metrics.observe(m.JOB_TIME, (name,), perf_counter() - started_s)
        self._ended(name, outcome)
        return outcome

    def _follow(self) -> None:
        while not self._stopping.is_set():
            if self._lead():
                break
            self._stopping.wait(LEAD_EVERY_S)
        else:
            return
        self._leading(leads=True)
        for job in self._jobs.values():
            self._scheduler.add_job(self.run, job.trigger, args=(job.name,), id=job.name, misfire_grace_time=job.late_s)
        self._scheduler.start()
        while not self._stopping.wait(LEAD_EVERY_S):
            leads = self._lead()
            self._leading(leads=leads)
            if leads and self._scheduler.state == STATE_PAUSED:
                self._scheduler.resume()
            elif not leads and self._scheduler.state == STATE_RUNNING:
                self._scheduler.pause()
        self._scheduler.shutdown(wait=True)

    def _leading(self, *, leads: bool) -> None:
        self.leading = leads
        self._metrics.put(m.LEADER, (), int(leads))

    def _lead(self) -> bool:
        try:
            return self._leads()
        except Exception:
            log.exception("asking for the lead failed")
            return False

    def _skipped(self, event: JobEvent) -> None:
        self._ended(event.job_id, "late" if event.code == EVENT_JOB_MISSED else "overlapped")
        log.warning(
            "job %s was skipped: %s", event.job_id, "late" if event.code == EVENT_JOB_MISSED else "still running"
        )

    def _ended(self, name: str, outcome: str) -> None:
        self._metrics.add(m.JOB_RUNS, (name, outcome))
        self._outcomes[name] = outcome
