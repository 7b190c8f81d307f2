"""The parts of a step: those that an engine's core sees itself, and those that its ranks have written down.

Invariant: steps are paired first in, first out, as the meter pairs them; nothing here waits for a rank.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from ledger.hook.slices import no_rest
from ledger.hook.vllm.ring import FOLDER, RingReader, path_of
from ledger.limits import RANKS_WAIT_S, RING_RECORDS, RING_SLICES_MAX, SLICE_ROWS, STEPS_IN_FLIGHT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ledger.hook.meter import Meter
    from ledger.hook.vllm.ring import StepTimes

log: Final = logging.getLogger("kvledger.hook")


class CoreTimes:
    """``schedule``, ``update`` and ``wait`` of an engine core: its thread piles up stamps, the drain's pairs them."""

    def __init__(self) -> None:
        self._pile: deque[tuple[int, int, bool | None]] = deque(maxlen=2 * RING_RECORDS)
        self._flight: deque[dict[str, int]] = deque(maxlen=STEPS_IN_FLIGHT_MAX)
        """What is known of each step that has not ended."""
        self._ended_us: int | None = None
        """When the last step ended, if there was more to do."""
        self.steps = 0
        """Steps that have ended, as far as they are drained."""
        self._lock = threading.Lock()
        self.stamp: Callable[[tuple[int, int, bool | None]], None] = self._pile.append
        """Takes (began, ended, None) of a ``schedule``, and of an ``update`` whether requests are left to run."""

    def drain(self, meter: Meter, t_us: int, rest: Callable[[], None] = no_rest) -> None:
        """Tell ``meter`` at ``t_us`` the times of the steps that have ended. ``rest`` is called after every few."""
        with self._lock:
            while self._pile:
                told = [self._pair(*self._pile.popleft()) for _ in range(min(SLICE_ROWS, len(self._pile)))]
                with meter.lock:
                    for times in filter(None, told):
                        meter.phases(t_us, times)
                if self._pile:
                    rest()

    def _pair(self, began_us: int, ended_us: int, goes_on: bool | None) -> dict[str, int] | None:
        """The times of the step that an update ends."""
        if goes_on is None:
            times = {"schedule": ended_us - began_us}
            if self._ended_us is not None and not self._flight:
                times["wait"] = began_us - self._ended_us
            self._flight.append(times)
            return None
        times = self._flight.popleft() if self._flight else {}
        times["update"] = ended_us - began_us
        self._ended_us = ended_us if goes_on else None
        self.steps += 1
        return times


class Ranks:
    """What the ranks of an engine write, for its meter. Thread-safe."""

    def __init__(self, instance: str, *, dp: int, ranks: int, folder: Path = FOLDER) -> None:
        self._missing = {rank: path_of(instance, dp, rank, folder) for rank in range(ranks)}
        """Those that have not begun; those of another machine never do, and have no times."""
        self._readers: dict[int, RingReader] = {}
        self._talking: set[int] = set()
        """Ranks that have had to do with another one."""
        self._told = 0
        self._lock = threading.Lock()

    @property
    def lost(self) -> int:
        """Steps of ranks whose times were overwritten before they were read."""
        return sum(reader.lost for reader in self._readers.values())

    def look(self) -> None:
        """Open what the ranks write, as far as they have begun."""
        with self._lock:
            self._open()

    def drain(self, meter: Meter, t_us: int, rest: Callable[[], None] = no_rest) -> int:
        """Tell ``meter`` at ``t_us`` what was written since; returns how many steps of ranks it was.

        ``rest`` is called after every few, without the lock.
        """
        with self._lock:
            return self._drain(meter, t_us, rest)

    def _drain(self, meter: Meter, t_us: int, rest: Callable[[], None]) -> int:
        self._open()
        steps = 0
        for rank, reader in list(self._readers.items()):
            for _ in range(RING_SLICES_MAX):
                try:
                    taken = reader.read(SLICE_ROWS)
                except OSError as error:
                    log.warning("kvledger: no more step times of rank %d: %s", rank, error)
                    del self._readers[rank]
                    break
                self._tell(meter, t_us, rank, taken)
                steps += len(taken)
                if len(taken) < SLICE_ROWS:
                    break
                rest()
        if self.lost > 2 * self._told:
            self._told = self.lost
            log.warning("kvledger: %d steps of ranks so far came faster than their times were read", self._told)
        return steps

    def _tell(self, meter: Meter, t_us: int, rank: int, taken: list[StepTimes]) -> None:
        shard = self._readers[rank].shard
        told = []
        for times in taken:
            if times.communication_us:
                self._talking.add(rank)
            told.append((_phases(times, talks=rank in self._talking), times.method))
        with meter.lock:
            for phases, method in told:
                meter.phases(t_us, phases, shard=shard, method=method)

    def drain_last(self, meter: Meter, now_us: Callable[[], int], steps: int) -> None:
        """The same at the end of an engine that has had so many steps.

        For the last of them it waits until the ranks have written them down, at most :data:`RANKS_WAIT_S`.
        """
        until_us = now_us() + round(RANKS_WAIT_S * 1_000_000)
        while True:
            self.drain(meter, now_us())
            behind = any(reader.number < steps for reader in self._readers.values())
            if not behind or now_us() >= until_us:
                return
            time.sleep(RANKS_WAIT_S / 20)

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers = {}
            self._missing = {}

    def _open(self) -> None:
        for rank, path in list(self._missing.items()):
            try:
                self._readers[rank] = RingReader(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                log.warning("kvledger: no step times of rank %d: %s", rank, error)
            del self._missing[rank]


def _phases(times: StepTimes, *, talks: bool) -> dict[str, int]:
    """The phases of a rank's step. A rank that never has to do with another has no communication, rather than 0."""
    if times.communication_us is None:
        return {"execute": times.execute_us}
    communication_us = min(times.communication_us, times.execute_us)
    phases = {"execute": times.execute_us, "compute": times.execute_us - communication_us}
    if talks:
        phases["communication"] = communication_us
    return phases
