"""When the machine gave a process no CPU although it wanted some: on a shared machine nobody is late only by itself."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

LOOK_S = 0.2
STARVED_S = 0.1
"""A thread that waited so long for a CPU within one look was starved then."""

NS = 1_000_000_000


class Starved(threading.Thread):
    """Watches processes until :meth:`stop`; ``spans`` are the starts and ends of such times, of `time.monotonic`, s."""

    def __init__(self, *pids: int) -> None:
        super().__init__(daemon=True)
        self._pids = pids
        self._over = threading.Event()
        self.spans: list[tuple[float, float]] = []

    def run(self) -> None:
        before, before_s = self._waited(), time.monotonic()
        while not self._over.wait(LOOK_S):
            now, now_s = self._waited(), time.monotonic()
            if any(waited_s - before.get(task, 0.0) > STARVED_S for task, waited_s in now.items()):
                self.spans.append((before_s, now_s))
            before, before_s = now, now_s

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _waited(self) -> dict[str, float]:
        """How long each thread has waited for a CPU since it began, s (the second figure of `schedstat`)."""
        found = {}
        for pid in self._pids:
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):  # it has ended
                    found[str(task)] = int(task.read_text().split()[1]) / NS
        return found
