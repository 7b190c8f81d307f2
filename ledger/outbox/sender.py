"""Which batch goes where next, and what its reply means.

Invariants: one batch is under way at a time, the oldest; it is acknowledged only by a receipt that our service wrote
(:mod:`ledger.wire.answer`) or given up for a 4xx that will not change; everything else is tried again, later and at
the next address. A status 200 without a receipt comes from something else, a captive portal say, and takes nothing.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from ledger import limits
from ledger.outbox.post import Post, Reply, Unreachable
from ledger.outbox.tally import Loss, Tally, log
from ledger.wire import answer as answers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ledger.outbox.line import Entry
    from ledger.wire.answer import Answer, Receipt

KEPT_STATUSES: Final = frozenset({401, 408, 413, 429})
"""The 4xx that may be gone the next time: token, time, a proxy's limit, pressure. Any other is final."""


class Backlog(Protocol):
    """Where the batches wait: a spool, or memory."""

    def peek(self) -> Entry | None:
        """The oldest batch, the same one until it is acknowledged."""

    def acknowledge(self, entry: Entry) -> None:
        """It is done with."""


@dataclass(slots=True)
class _Endpoint:
    post: Post
    failures: int = 0
    not_before_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Delivery:
    """Counts of what was sent, and what the last answer said; for people and metrics."""

    receipts: Counter[Receipt] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """By status, or ``unreachable``, or ``no_receipt``: these were tried again."""
    last_failure: str = ""
    """What the last failure said, with its address; empty after a success."""
    service_ahead_us: int | None = None
    """The service's clock minus ours, at the last answer: good to half a round trip."""
    setpoints_revision: int = 0


class Sender:
    """Sends what waits in ``backlog`` to the first of ``posts`` that may be tried.

    ``uniform`` gives the jitter, 0 … 1; ``note`` is sent along with each batch, for the service's eyes.
    """

    def __init__(
        self,
        backlog: Backlog,
        posts: Sequence[Post],
        *,
        tally: Tally,
        uniform: Callable[[], float],
        note: Callable[[], str] = lambda: "",
        mono_s: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        assert len(posts) <= limits.SEND_ENDPOINTS_MAX
        self.delivery = Delivery()
        self._backlog = backlog
        self._endpoints = [_Endpoint(post) for post in posts]
        self._tally = tally
        self._uniform = uniform
        self._note = note
        self._mono_s = mono_s
        self._wall_us = wall_us

    def step(self) -> float | None:
        """Try to send one batch. Says after how many seconds to call again; None: there is nothing to do."""
        entry = self._backlog.peek()
        if entry is None or not self._endpoints:
            return None
        now_s = self._mono_s()
        endpoint = next((e for e in self._endpoints if e.not_before_s <= now_s), None)
        if endpoint is None:
            return min(e.not_before_s for e in self._endpoints) - now_s
        sent_us = self._wall_us()
        try:
            reply = endpoint.post(entry.payload, self._note())
        except Unreachable as error:
            self._failed(endpoint, "unreachable", str(error), None)
            return 0.0
        if 200 <= reply.status < 300:
            answer = answers.decode(reply.body)
            if answer is None:
                self._failed(endpoint, "no_receipt", f"status {reply.status} from something else", reply.retry_after_s)
            else:
                self._received(endpoint, entry, answer, (sent_us + self._wall_us()) // 2)
        elif 400 <= reply.status < 500 and reply.status not in KEPT_STATUSES:
            self._refused(endpoint, entry, reply)
        else:
            self._failed(endpoint, str(reply.status), _detail(reply), reply.retry_after_s)
        return 0.0

    def close(self) -> None:
        """End what is under way, from any thread."""
        for endpoint in self._endpoints:
            endpoint.post.close()

    def _received(self, endpoint: _Endpoint, entry: Entry, answer: Answer, at_us: int) -> None:
        self._backlog.acknowledge(entry)
        delivery = self.delivery
        if delivery.last_failure:
            log.warning("%s takes batches again", endpoint.post.name)
        delivery.receipts[answer.status] += 1
        delivery.last_failure = ""
        delivery.service_ahead_us = answer.service_time_us - at_us
        delivery.setpoints_revision = answer.setpoints.revision
        endpoint.failures = 0
        if answer.retry_after_ms:
            asked_s = min(answer.retry_after_ms / 1000, limits.SEND_RETRY_AFTER_S_MAX)
            endpoint.not_before_s = self._mono_s() + asked_s

    def _refused(self, endpoint: _Endpoint, entry: Entry, reply: Reply) -> None:
        self._backlog.acknowledge(entry)
        self._tally.add(Loss.REFUSED)
        endpoint.failures = 0
        log.warning("%s refused a batch for good: %d %s", endpoint.post.name, reply.status, _detail(reply))

    def _failed(self, endpoint: _Endpoint, kind: str, detail: str, asked_s: float | None) -> None:
        endpoint.failures += 1
        ceiling_s = min(limits.SEND_BACKOFF_S_MAX, limits.SEND_BACKOFF_S_MIN * 2.0 ** min(endpoint.failures - 1, 16))
        # The jitter is added to what the service asks for, too, or all engines would come back in one instant.
        pause_s = (asked_s or 0.0) + ceiling_s * (1 + self._uniform()) / 2
        endpoint.not_before_s = self._mono_s() + pause_s
        said = f"{endpoint.post.name}: {kind}: {detail}"
        delivery = self.delivery
        delivery.failures[kind] += 1
        if not delivery.last_failure:
            log.warning("%s; batches wait and are tried again%s", said, _ADVICE.get(kind, ""))
        delivery.last_failure = said


_ADVICE: Final[Mapping[str, str]] = {
    "401": ". See to KVLEDGER_TOKEN: the service does not know it",
    "413": ". A proxy before the service takes smaller bodies than the service does: raise its limit",
    "no_receipt": ". See to KVLEDGER_URL: what answers there is no kvledger",
}


def _detail(reply: Reply) -> str:
    """What a refusal says (problem details), one line, bounded."""
    try:
        document = json.loads(reply.body)
        text = document.get("detail") or document.get("title") or ""
    except (ValueError, RecursionError, AttributeError):
        text = reply.body[:200].decode("ascii", "replace")
    shown = "".join(c if c.isprintable() else " " for c in str(text)[:300])
    return shown.strip() or "without a word"
