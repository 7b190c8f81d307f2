"""Scraping in the service: who is scraped follows the ledger, what they say goes to the metrics and to the store.

Invariants: the leader alone scrapes; a round that the database does not take waits and is tried again, in order, and
one that cannot wait any longer is counted; of an engine whose hook reports, the hook's figures are shown, whatever is
scraped; nothing that a target says ends a thread.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Final

from ledger import ingest, limits
from ledger import metrics as m
from ledger import metrics_scraped as ms
from ledger.collectors.fetch import fetch
from ledger.collectors.gpu_samples import SampleMaker
from ledger.collectors.known import AUTO, KINDS
from ledger.collectors.reconcile import differences, watched
from ledger.collectors.scraper import ROUND_LAG_US, Aim, Scraper
from ledger.core.records import PERIOD_US, Origin
from ledger.errors import LedgerError
from ledger.jobs.scraped_metrics import ScrapedMetrics
from ledger.jobs.unread import Unread
from ledger.store import receipt, scrapes
from ledger.store.fleet import SILENT_US, State
from ledger.store.watched import hook_watched
from ledger.web.fleet_api import engines_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.collectors.fetch import Place
    from ledger.collectors.readings import Gpu
    from ledger.collectors.scraper import Answer, Failure, Round
    from ledger.web.service import Service

log = logging.getLogger(__name__)

TARGETS_EVERY_S: Final = 10.0
"""How soon a target that was added or removed is scraped or left alone."""

HOOKED_US: Final = 2 * SILENT_US
"""A hook that was heard of so lately speaks for its engine; the same bound as for facts of now."""

COMPARED_US: Final = 20 * PERIOD_US
"""Five minutes: long enough for a difference of one scrape interval at an end to be a twentieth."""

WAKE_S: Final = 0.5

STOP_S: Final = limits.SCRAPE_TIMEOUT_S + 5.0
"""For the scrapes that are under way and the last rounds, when the service stops."""


class Scraping:
    """Scrapes while ``leads``. :meth:`start` and :meth:`stop` once each."""

    def __init__(
        self,
        service: Service,
        *,
        leads: Callable[[], bool],
        mono_s: Callable[[], float] = time.monotonic,
        get: Callable[[Place], bytes] = fetch,
        interval_s: float = limits.SCRAPE_INTERVAL_S,
    ) -> None:
        self._service = service
        self._leads = leads
        self._mono_s = mono_s
        self._metrics = ScrapedMetrics(service.metrics, self._is_hooked)
        self._scraper = Scraper(self, clock_us=service.clock_us, mono_s=mono_s, get=get, interval_s=interval_s)
        self._stopped, self._over = threading.Event(), threading.Event()
        self._rounds: deque[Round] = deque()
        self._lock = threading.Lock()
        self._hooked: frozenset[str] = frozenset()
        self._aims: dict[str, Aim] = {}
        self._collector: int | None = None
        self._samples: dict[str, SampleMaker] = {}
        self._unsent: dict[str, bytes] = {}
        self._delivered: dict[str, int] = {}
        self._heard: dict[str, int] = {}
        self._unread = Unread()
        self._asked_s = float("-inf")
        self._name = uuid.uuid4().hex
        self._threads = (
            threading.Thread(target=self._scraper.run, args=(self._stopped,), name="scraper", daemon=True),
            threading.Thread(target=self._keep, name="scrape-keeper", daemon=True),
        )

    def start(self) -> None:
        """Begin to follow the ledger's targets."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End it: answers that are under way are waited for, and what is known is written."""
        self._stopped.set()
        self._threads[0].join(STOP_S)
        self._over.set()
        self._threads[1].join(STOP_S)

    # --- what the scraper tells (ledger.collectors.scraper.Observer) ------------------------------------

    def began(self, _aim: Aim, late_s: float) -> None:
        """A scrape began."""
        self._metrics.began(late_s)

    def skipped(self, aim: Aim) -> None:
        """A scrape was left out."""
        self._metrics.skipped(aim)

    def answered(self, answer: Answer) -> None:
        """A target answered."""
        for noticed in answer.noticed:
            log.info("%s: %s: %s", answer.aim.engine, noticed.word, noticed.detail)
        self._heard[answer.aim.engine] = answer.at_us
        self._unread.answered(answer.aim)
        self._metrics.answered(answer)

    def failed(self, failure: Failure) -> None:
        """A target did not answer; the log has the first failure of a row, the metrics have all."""
        if failure.in_a_row == 1:
            log.warning("%s at %s: %s", failure.aim.engine, failure.aim.url, failure.detail)
        self._unread.failed(failure)
        self._metrics.failed(failure)

    def round(self, made: Round) -> None:
        """A period is complete: it waits to be written."""
        with self._lock:
            if made.records or made.gpus or made.targets:
                self._rounds.append(made)
            dropped = len(self._rounds) - limits.SCRAPE_ROUNDS_WAITING_MAX
            for _ in range(dropped):
                self._rounds.popleft()
        if dropped > 0:
            self._service.metrics.add(ms.ROUNDS_DROPPED, (), dropped)

    # --- what is done beside ------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Follow the targets, write rounds, compare; nothing in it ends the thread."""
        while not self._over.wait(WAKE_S):
            self._try(self._step)
        self._try(self._write)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except LedgerError as error:
            log.warning("scraping: %s", error)
        except Exception:
            log.exception("scraping: a fault of kvledger; it goes on")

    def _step(self) -> None:
        if not self._stopped.is_set() and self._mono_s() - self._asked_s >= TARGETS_EVERY_S:
            self._asked_s = self._mono_s()
            self._retarget()
            self._try(self._keep_unread)
            self._try(self._compare)
        self._write()

    def _retarget(self) -> None:
        """Aim at what the ledger names, or at nothing where another process leads or the ledger is simulated."""
        aims: dict[str, Aim] = {}
        if self._leads():
            with self._service.database.read() as connection:
                if receipt.origin_of(connection) is not Origin.SIMULATED:
                    aims = {
                        t.engine: Aim(
                            number=t.number, engine=t.engine, url=t.url, kind=t.kind if t.kind in KINDS else AUTO
                        )
                        for t in scrapes.list_targets(connection)
                    }
        self._follow_hooks()
        for aim in self._scraper.aim(aims.values()):
            log.warning("%s: %r is no address that can be scraped; name it anew with kvledger collect add", *_said(aim))
        metrics = self._service.metrics
        for engine in self._aims.keys() - aims.keys():
            self._metrics.forget(engine)
        for engine in aims.keys() - self._aims.keys():
            # Until it answers for the first time, so that one that never does is seen to be late.
            metrics.put(ms.SCRAPED, (engine,), self._service.clock_us() / 1e6)
        self._aims = aims
        metrics.put(ms.TARGETS, (), len(aims))
        ways = [(engine, "hook") for engine in self._hooked]
        late_us = self._service.clock_us() - HOOKED_US
        ways += [(engine, "scraped") for engine in aims if self._heard.get(engine, 0) > late_us]
        metrics.replace(ms.METHOD, dict.fromkeys(sorted(ways)[: ms.METHOD.bound], 1.0))

    def _keep_unread(self) -> None:
        """Let the ledger know which targets cannot be read; whoever does not lead has nothing to say."""
        if self._leads():
            self._unread.keep(self._service.database, self._aims.values())
        else:
            self._unread.forget()

    def _write(self) -> None:
        """Write the rounds that wait, oldest first; one that the database does not take stays."""
        service = self._service
        while True:
            with self._lock:
                service.metrics.put(ms.ROUNDS_WAITING, (), len(self._rounds))
                if not self._rounds:
                    return
                made = self._rounds[0]
            for aim, seen in made.gpus:
                self._deliver(aim, made.start_us, seen)
            scrapes.write_round(
                service.database,
                collector=self._collector_id(),
                start_us=made.start_us,
                targets=made.targets,
                records=made.records,
                now_us=service.clock_us(),
            )
            with self._lock:
                if self._rounds and self._rounds[0] is made:
                    self._rounds.popleft()

    def _deliver(self, aim: Aim, start_us: int, seen: tuple[tuple[Gpu, ...], ...]) -> None:
        """Book what an exporter said; what is made once is delivered again as it was if the database fails."""
        service = self._service
        if self._delivered.get(aim.engine, 0) >= start_us:
            return  # the samples are booked, and the round beside them was not
        maker = self._samples.get(aim.engine)
        if maker is None:
            maker = self._samples[aim.engine] = SampleMaker(
                aim.engine, boot_id=f"{self._name}-{aim.number}", host=socket.gethostname(), started_us=start_us
            )
        raw = self._unsent.get(aim.engine) or maker.batch(start_us, seen)
        self._unsent[aim.engine] = raw
        outcome = ingest.accept(service.database, raw, service.clock_us())
        del self._unsent[aim.engine]
        self._delivered[aim.engine] = start_us
        service.live.answered(outcome, service.clock_us())

    def _collector_id(self) -> int:
        if self._collector is None:
            host = socket.gethostname()
            self._collector = self._service.database.write(
                lambda connection: scrapes.start_collector(connection, collector=self._name, host=host)
            )
        return self._collector

    def _compare(self) -> None:
        """Hold the hook's figures of the last minutes against what was scraped, where an engine has both."""
        metrics = self._service.metrics
        both = self._hooked & self._aims.keys()
        if not both:
            metrics.replace(ms.DIFFERENCE, {})
            return
        end_us = (self._service.clock_us() - ROUND_LAG_US - PERIOD_US) // PERIOD_US * PERIOD_US
        start_us = end_us - COMPARED_US
        with self._service.database.read() as connection:
            hooks = hook_watched(connection, both, start_us, end_us)
            said = scrapes.scraped_between(connection, start_us, end_us)
        metrics.replace(
            ms.DIFFERENCE,
            {
                (engine, figure): ratio
                for engine in sorted(both & hooks.keys() & said.keys())
                for figure, ratio in differences(hooks[engine], watched(said[engine]), COMPARED_US).items()
            },
        )

    def _is_hooked(self, engine: str) -> bool:
        return engine in self._hooked

    def _follow_hooks(self) -> None:
        """Find the engines whose hooks report; what was shown of them from outside is the hook's to show now."""
        now_us = self._service.clock_us()
        hooked = frozenset(
            state.engine
            for state in engines_of(self._service)
            if state.state in (State.OPEN, State.STARTING) and state.last_end_us > now_us - HOOKED_US
        )
        for engine in (hooked - self._hooked) & self._aims.keys():
            self._service.metrics.forget(m.KV_UTILIZATION, engine)
            self._service.metrics.forget(m.KV_BLOCKS, engine)
        self._hooked = hooked


def _said(aim: Aim) -> tuple[str, str]:
    return aim.engine, aim.url
