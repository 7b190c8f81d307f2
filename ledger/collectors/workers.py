"""Threads that may hang: each does one thing at a time, and whoever asked goes on without it after a deadline.

Invariant: nothing here waits for a worker without a bound. A worker that hangs is asked nothing more until it has
come back, and what it then brings is dropped: it answers a question that is over.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Worker:
    """One thread, named for what it talks to."""

    def __init__(self, name: str, answers: queue.SimpleQueue[tuple[Worker, int, Any]]) -> None:
        self.name = name
        self.free = True
        """Whether it has answered all that it was asked."""
        self.number = 0
        """Of what it was asked last."""
        self._answers = answers
        self._asked: queue.SimpleQueue[tuple[int, Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=f"kvledger-{name}", daemon=True).start()

    def ask(self, work: Callable[[], Any]) -> None:
        """Have ``work`` done; only where the worker is free."""
        assert self.free, self.name
        self.free = False
        self.number += 1
        self._asked.put((self.number, work))

    def end(self) -> None:
        """Let the thread end once it is free."""
        self._asked.put(None)

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            number, work = asked
            try:
                answer = work()
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                answer = error
            self._answers.put((self, number, answer))


class Crew:
    """The workers of one owner, who asks some of them and waits for all of these together."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[tuple[Worker, int, Any]] = queue.SimpleQueue()

    def worker(self, name: str) -> Worker:
        """A new worker."""
        return Worker(name, self._answers)

    def gather(self, asked: Iterable[Worker], until_s: float) -> dict[Worker, Any]:
        """The answers that come until ``until_s`` (monotonic); an exception is an answer as well.

        Also frees workers whose answers come too late for an earlier question.
        """
        waiting = {worker: worker.number for worker in asked}
        found: dict[Worker, Any] = {}
        while True:
            rest_s = until_s - time.monotonic()
            try:
                if waiting and rest_s > 0:
                    worker, number, answer = self._answers.get(timeout=rest_s)
                else:
                    worker, number, answer = self._answers.get_nowait()
            except queue.Empty:
                return found
            worker.free = True
            if waiting.get(worker) == number:
                del waiting[worker]
                found[worker] = answer
