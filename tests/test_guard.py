"""What goes around every request: how full the pool of threads is, told even while no request ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import anyio.to_thread

from ledger import metrics as m
from ledger.metrics import Metrics
from ledger.web.guard import Guard

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


async def nothing_comes() -> Message:
    raise AssertionError


async def nobody_hears(message: Message) -> None:
    raise AssertionError(message)


def test_where_every_worker_is_stuck_the_next_request_says_how_many_wait() -> None:
    metrics, stuck, waiting = Metrics(), threading.Event(), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        if scope["path"] == "/blocks":
            await anyio.to_thread.run_sync(stuck.wait)

    guard = Guard(app, metrics)

    def seen() -> tuple[float, ...]:
        return tuple(metrics.value(metric) for metric in (m.WORKERS, m.WORKERS_BUSY, m.WORKERS_QUEUED))

    async def ask(path: str) -> None:
        await guard({"type": "http", "scheme": "http", "path": path}, nothing_comes, nobody_hears)

    async def run() -> None:
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 2
        async with anyio.create_task_group() as requests:
            for _ in range(5):
                requests.start_soon(ask, "/blocks")
            with anyio.fail_after(20):
                while limiter.statistics().tasks_waiting < 3:
                    await anyio.lowlevel.checkpoint()
            waiting.append(limiter.borrowed_tokens)
            await ask("/asks-nobody")
            waiting.append(seen())
            stuck.set()

    anyio.run(run)
    assert waiting == [2, (2, 2, 3)]
    assert seen()[2] == 0
