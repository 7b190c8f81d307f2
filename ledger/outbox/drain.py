"""The outbox: batches from the meter to the service, beside an engine that must not notice.

Invariants: :meth:`Outbox.emit` neither blocks nor raises nor encodes; every batch that it was given is sent, kept on
the disk, or counted under one reason; memory is bounded. Two daemon threads do the work, so that a slow service does
not keep batches from the disk: *drain* settles, encodes and appends, *send* posts.

**The GIL.** What a thread does in Python keeps the engine's thread from waking up for as long as it lasts. So the
drain thread works in slices of about 16 rows and sleeps half a millisecond between two; compression, digests, the
disk and the network let the GIL go by themselves.
"""

from __future__ import annotations

import atexit
import os
import queue
import random
import sys
import threading
import time
import traceback
import zlib
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ledger import limits, wire
from ledger.core.records import Batch, one_line
from ledger.core.samples import SampleBatch
from ledger.outbox.line import Entry
from ledger.outbox.sender import Delivery, Sender
from ledger.outbox.tally import TELL_EVERY_S, Loss, Tally, log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.outbox.post import Post
    from ledger.outbox.spool import Spool

TICK_S: Final = 1.0
"""How often the drain thread looks for periods to cut and settle, when nothing wakes it."""

ADOPT_EVERY_S: Final = 60.0
"""How often the spool is searched for what processes left that died since, and opened again where it could not be."""

CLOSE_S: Final = 5.0
"""How long closing may take by default: enough for a batch or two; the rest waits on the disk."""

CHAINS_MAX: Final = 64
"""Boots whose last digest is remembered; an outbox serves one engine or agent, or a few."""

_LOST: Final = bytes(32)
"""The digest before, where that batch was dropped before it had one: only the first of a boot has none before it."""

_HELD: Final = Path()


class Meter(Protocol):
    """What the drain thread drives; :class:`ledger.hook.meter.Meter` with ``settle_later`` is one."""

    def settle(self, limit: int | None = None, *, rest: Callable[[], None]) -> int:
        """Settle waiting periods and emit their batches; how many it were. ``rest`` is called every few rows."""

    def resend_standing(self) -> None:
        """The receiver missed something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How the outbox stands, for people and metrics."""

    queued: int
    """Batches in memory that are not encoded yet."""
    held: int
    """Encoded batches in memory, since the disk takes none."""
    spooled_bytes: int
    spooled_segments: int
    dropped: dict[Loss, int]
    delivery: Delivery
    off: str
    """Why it has switched itself off after repeated faults; empty: it has not."""


@dataclass(slots=True)
class _Backlog:
    """The spool, and memory beside it for what the disk does not take."""

    tally: Tally
    spool: Spool | None
    held: deque[Entry] = field(default_factory=deque)
    held_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: int = 0

    def append(self, payload: bytes, stamped_us: int) -> None:
        if self.spool is not None and self.spool.append(payload):
            return
        with self.lock:
            self.numbers += 1
            self.held.append(Entry(payload=payload, stamped_us=stamped_us, segment=_HELD, end=self.numbers))
            self.held_bytes += len(payload)
            while self.held_bytes > limits.OUTBOX_HOLD_BYTES_MAX:
                self.held_bytes -= len(self.held.popleft().payload)
                self.tally.add(Loss.HOLD_FULL)

    def peek(self) -> Entry | None:
        entry = self.spool.peek() if self.spool is not None else None
        if entry is None:
            with self.lock:
                entry = self.held[0] if self.held else None
        return entry

    def acknowledge(self, entry: Entry) -> None:
        if entry.segment != _HELD:
            if self.spool is not None:
                self.spool.acknowledge(entry)
            return
        with self.lock:
            if self.held and self.held[0].end == entry.end:
                self.held_bytes -= len(self.held.popleft().payload)

    def close(self) -> None:
        while self.held:
            entry = self.held.popleft()
            if self.spool is None or not self.spool.append(entry.payload):
                self.tally.add(Loss.CLOSED)
        self.held_bytes = 0
        if self.spool is not None:
            self.spool.close()


class Outbox:
    """Takes batches by :meth:`emit` and sees to the rest; :meth:`start` it, :meth:`close` it (the exit does, too).

    ``spool_of`` opens the spool (None: there is none, memory only); where it raises ``OSError`` that is told and
    tried again later. ``posts`` are the addresses of the service in the order of preference; with none the spool is
    filled for ``kvledger ingest``.
    """

    def __init__(
        self,
        posts: Sequence[Post],
        spool_of: Callable[[Tally], Spool] | None,
        *,
        pause: Callable[[], None] = lambda: time.sleep(limits.OUTBOX_PAUSE_S),
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        mono_s: Callable[[], float] = time.monotonic,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self.tally = Tally()
        self._spool_of = spool_of
        self._backlog = _Backlog(self.tally, None)
        self._sender = Sender(
            self._backlog,
            posts,
            tally=self.tally,
            uniform=uniform,
            note=self._note,
            mono_s=mono_s,
            wall_us=wall_us,
        )
        self._pause = pause
        self._wall_us = wall_us
        self._queue: queue.SimpleQueue[Batch | SampleBatch | None] = queue.SimpleQueue()
        self._queued_rows = 0
        self._lock = threading.Lock()
        self._meter: Meter | None = None
        self._heartbeat: Callable[[], None] | None = None
        self._chain: dict[tuple[str, str, str], bytes] = {}
        self._faults_in_a_row = 0
        self._places: set[str] = set()
        """Where faults came from that were told."""
        self._lost_before = 0
        self._off = ""
        self._bade_farewell: set[tuple[str, str, str]] = set()
        self._closing = False
        self._shut = False
        self._give_up_s: float | None = None
        self._wake_sender = threading.Event()
        self._pid = os.getpid()
        self._drain = threading.Thread(target=self._guarded, args=(self._draining,), name="kvledger-drain", daemon=True)
        self._send = threading.Thread(target=self._guarded, args=(self._sending,), name="kvledger-send", daemon=True)

    def attach(self, meter: Meter, heartbeat: Callable[[], None] | None = None) -> None:
        """From now on the drain thread settles ``meter``'s periods, and tells it when something was lost.

        ``heartbeat`` is called every second before that; it cuts the periods of an engine that is idle: under the
        meter's lock it advances the meter to a second ago, so that an event that is just being reported is not late.
        """
        self._meter, self._heartbeat = meter, heartbeat

    def start(self) -> None:
        """Begin: open the spool, send what earlier processes left."""
        self._drain.start()
        self._send.start()
        atexit.register(self.close)

    def emit(self, batch: Batch | SampleBatch) -> None:
        """Hand over a batch, from any thread. Full or switched off, the outbox drops it, counted.

        Of the first that a boot has dropped because it is off, the bare head is sent, which says so.
        """
        rows = _rows(batch)
        with self._lock:
            if self._off or self._shut:
                loss = Loss.OFF if self._off else Loss.CLOSED
                boot = wire.chain_of(batch)
                if loss is Loss.OFF and boot not in self._bade_farewell and len(self._bade_farewell) < CHAINS_MAX:
                    self._bade_farewell.add(boot)
                    self._queue.put(_head(batch))
            elif (
                self._queue.qsize() >= limits.OUTBOX_QUEUE_MAX
                or self._queued_rows + rows > limits.OUTBOX_QUEUE_ROWS_MAX
            ):
                loss = Loss.QUEUE_FULL
            else:
                self._queued_rows += rows
                self._queue.put(batch)
                return
        self.tally.add(loss)

    @property
    def status(self) -> Status:
        """How it stands at this moment."""
        spool = self._backlog.spool
        return Status(
            queued=self._queue.qsize(),
            held=len(self._backlog.held),
            spooled_bytes=spool.size if spool is not None else 0,
            spooled_segments=spool.segments if spool is not None else 0,
            dropped=self.tally.counts,
            delivery=self._sender.delivery,
            off=self._off,
        )

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Settle, encode and append what is there, send for what is left of ``timeout_s``, and end.

        What is not sent by then waits on the disk for the next process. Never raises; a second call does nothing.
        """
        if self._closing or os.getpid() != self._pid or self._drain.ident is None:
            return
        self._give_up_s = until_s = time.monotonic() + timeout_s
        self._closing = True
        self._queue.put(None)
        self._drain.join(max(0.1, until_s - time.monotonic()))
        self._wake_sender.set()
        self._send.join(max(0.0, until_s - time.monotonic()))
        self._sender.close()
        self._send.join(0.1)
        with self._lock:
            self._shut = True
            while not self._queue.empty():
                if self._queue.get() is not None:
                    self.tally.add(Loss.CLOSED)
        self._backlog.close()
        self.tally.tell(time.monotonic() + TELL_EVERY_S)
        atexit.unregister(self.close)

    # -- the drain thread ------------------------------------------------------------------------------

    def _draining(self) -> None:
        self._work(self._open_spool)
        next_tick_s = time.monotonic()
        while True:
            try:
                batch = self._queue.get(timeout=max(0.001, next_tick_s - time.monotonic()))
            except queue.Empty:
                next_tick_s = time.monotonic() + TICK_S
                self._tick()
                continue
            if batch is None:
                self._work(self._settle_all)
                self._work(self._keep_queued)
                return
            self._taken(batch)

    def _tick(self) -> None:
        if self._heartbeat is not None:
            self._work(self._heartbeat)
        if self._meter is not None:
            lost = self.tally.total
            if lost != self._lost_before:
                self._lost_before = lost
                self._work(self._meter.resend_standing)
            self._work(self._settle_all)
        self.tally.tell(time.monotonic())

    def _settle_all(self) -> None:
        # One at a time, each encoded before the next: memory holds one settled period.
        while self._meter is not None and self._meter.settle(1, rest=self._rest):
            self._keep_queued()

    def _keep_queued(self) -> None:
        while not self._queue.empty():
            batch = self._queue.get()
            if batch is None:
                self._queue.put(None)  # the end, for the loop
                return
            self._taken(batch)

    def _taken(self, batch: Batch | SampleBatch) -> None:
        with self._lock:
            self._queued_rows -= _rows(batch)
        self._work(lambda: self._keep(batch))

    def _reported(self, batch: Batch | SampleBatch) -> Batch | SampleBatch:
        """The batch with what is known here of the hook: what was dropped so far, and whether it is off."""
        if isinstance(batch, SampleBatch):
            return batch
        dropped = sorted((loss.value, count) for loss, count in self.tally.counts.items() if count)
        if not dropped and not self._off:
            return batch
        return replace(batch, hook=replace(batch.hook, dropped=tuple(dropped), off=batch.hook.off or self._off))

    def _keep(self, batch: Batch | SampleBatch) -> None:
        batch = self._reported(batch)
        key = wire.chain_of(batch)
        prev = b"" if batch.seq == 1 else self._chain.pop(key, _LOST)
        pack = zlib.compressobj(wbits=31)
        size, parts, piece = 0, [], b""
        for piece in wire.encode_slices(batch, prev, rows=limits.OUTBOX_SLICE_ROWS):
            size += len(piece)
            if size > limits.BATCH_BYTES_MAX:
                self.tally.add(Loss.TOO_LARGE)
                self._chain[key] = prev or _LOST
                return
            parts.append(pack.compress(piece))
            self._rest()
        parts.append(pack.flush())
        self._chain[key] = wire.digest_of(piece)
        if len(self._chain) > CHAINS_MAX:
            del self._chain[next(iter(self._chain))]
        payload = b"".join(parts)
        self._rest()
        self._backlog.append(payload, self._wall_us())
        self._faults_in_a_row = 0
        self._wake_sender.set()
        self._rest()

    def _rest(self) -> None:
        """Let the engine's thread have the GIL; at the end there is none to wait for."""
        if not self._closing:
            self._pause()

    def _work(self, do: Callable[[], None]) -> None:
        """Do it; a fault of ours is counted, told, and after several in a row the last."""
        try:
            do()
        except Exception:  # noqa: BLE001 - a guest: whatever it is, it ends here, counted
            self._fault()

    def _fault(self) -> None:
        self.tally.add(Loss.FAULT)
        if self._off:
            return
        self._faults_in_a_row += 1
        place = _place_of(sys.exception())
        if place not in self._places and len(self._places) < limits.HOOK_REASONS_MAX:
            # Once for each place; how many there are is told by the tally.
            self._places.add(place)
            log.exception("a fault of kvledger's own, kept away from the engine")
        if self._faults_in_a_row >= limits.OUTBOX_FAULTS_MAX:
            self._off = f"the outbox met {self._faults_in_a_row} faults in a row, the last: {place}"
            log.error("the outbox switches itself off after %d faults in a row", self._faults_in_a_row)

    def _guarded(self, loop: Callable[[], None]) -> None:
        while True:
            try:
                loop()
            except Exception:  # noqa: BLE001 - as above
                self._fault()
                if self._off:
                    return
                time.sleep(TICK_S)
            else:
                return

    # -- the send thread -------------------------------------------------------------------------------

    def _sending(self) -> None:
        next_adoption_s = time.monotonic() + ADOPT_EVERY_S
        while True:
            self._wake_sender.clear()
            ending = self._closing and not self._drain.is_alive()
            wait_s = self._sender.step()
            if ending and (wait_s is None or time.monotonic() + wait_s >= (self._give_up_s or 0.0)):
                return
            if wait_s == 0.0:
                self._pause()
                continue
            now_s = time.monotonic()
            if now_s >= next_adoption_s:
                next_adoption_s = now_s + ADOPT_EVERY_S
                self._adopt()
                continue
            rest_s = next_adoption_s - now_s if wait_s is None else min(wait_s, next_adoption_s - now_s)
            self._wake_sender.wait(min(rest_s, TICK_S) if self._closing else rest_s)

    def _adopt(self) -> None:
        if self._backlog.spool is None:
            self._open_spool()
        else:
            self._backlog.spool.adopt()

    def _open_spool(self) -> None:
        if self._spool_of is None or self._backlog.spool is not None:
            return
        try:
            self._backlog.spool = self._spool_of(self.tally)
        except OSError as error:
            log.warning("the spool cannot be used (%s); batches are kept in memory alone, see KVLEDGER_SPOOL", error)

    def _note(self) -> str:
        """What the service may want to know of us: ``queued=0, spooled_bytes=4711, dropped_queue_full=1``."""
        status = self.status
        words = [f"queued={status.queued}", f"held={status.held}", f"spooled_bytes={status.spooled_bytes}"]
        words += [f"dropped_{loss.value}={count}" for loss, count in status.dropped.items() if count]
        return ", ".join(words)


def _head(batch: Batch | SampleBatch) -> Batch | SampleBatch:
    """What is left of a batch when nothing of it can be kept: whose it is, and when it began."""
    start_us = batch.start_us
    if isinstance(batch, SampleBatch):
        return SampleBatch(source=batch.source, boot=batch.boot, seq=batch.seq, start_us=start_us, end_us=start_us)
    return Batch(source=batch.source, boot=batch.boot, seq=batch.seq, start_us=start_us, end_us=start_us)


def _place_of(error: BaseException | None) -> str:
    """The kind of an error and the line that it came from; what it says may be somebody's content."""
    if error is None or error.__traceback__ is None:
        return "unknown"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return one_line(f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}")


def _rows(batch: Batch | SampleBatch) -> int:
    if isinstance(batch, SampleBatch):
        return len(batch.samples) + len(batch.processes) + len(batch.health)
    return len(batch.sessions) + len(batch.requests) + len(batch.admissions) + len(batch.standing or ())
