"""The end of an engine: its core closes the books before anything else is taken down, and is given a moment for it.

Invariants: requests are aborted or drained as vLLM was told; the moment is over when the books are closed, and after
:data:`WAIT_S` at the latest; whatever fails here, vLLM's own way to end is gone through.

vLLM 0.32 kills its core in the instant in which it asks it to end, unless ``--shutdown-timeout`` is set: every restart
would look like a crash, its last period unobserved and its requests lost. So the process that ends a core leaves a mark
first, which the core takes away when its books are closed.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from ledger.hook.vllm.guard import log
from ledger.hook.vllm.recorder import CLOSE_S
from ledger.hook.vllm.ring import FOLDER, prefix
from ledger.hook.vllm.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

WAIT_S: Final = CLOSE_S + 1.0
"""For a core that has just been asked to end: the rest of its step, and then its books."""

_LOOK_S: Final = 0.01


def attach() -> None:
    """Wrap what ends cores, wherever it is called from, and in the process of one its end."""
    from vllm.v1.engine.utils import CoreEngineProcManager  # noqa: PLC0415 - the engine's own

    if "vllm.v1.engine.core" in sys.modules:
        watch()
    wrap_once(CoreEngineProcManager, "shutdown", _waited_for)


def _waited_for(original: Callable[..., Any]) -> Callable[..., Any]:
    def shutdown(self: Any, timeout: float | None = None) -> Any:
        # With a time for requests to drain there is one for the books as well, and 0 means that it is up.
        if timeout == 0 and self._request_shutdown_timeout == 0:
            try:
                ask_to_end(self.processes)
            except Exception:  # noqa: BLE001 - a guest: whatever it is, it ends here
                log.exception("kvledger: the engine's books could not be waited for")
        return original(self, timeout)

    return shutdown


def watch() -> None:
    """In an engine's core: close its books at the beginning of its end."""
    from vllm.v1.engine.core import EngineCore  # noqa: PLC0415 - the engine's own

    wrap_once(EngineCore, "shutdown", _books_first)


def _books_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def shutdown(self: Any) -> Any:
        recorder = getattr(getattr(self, "scheduler", None), "_kvledger", None)
        if recorder is not None:
            recorder.closed("shutdown")
        _take_away(mark_of(os.getpid()))
        return original(self)

    return shutdown


def ask_to_end(
    processes: Sequence[Any],
    *,
    wait_s: float = WAIT_S,
    folder: Path = FOLDER,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Send each process SIGTERM, and wait until all have closed their books or ended."""
    if not folder.is_dir():
        return
    marks = {mark_of(process.pid, folder): process for process in processes if process.is_alive()}
    try:
        for mark, process in marks.items():
            mark.touch(mode=0o600)
            process.terminate()
        until_s = time.monotonic() + wait_s
        while time.monotonic() < until_s and any(mark.exists() and one.is_alive() for mark, one in marks.items()):
            pause(_LOOK_S)
    finally:
        for mark in marks:
            _take_away(mark)


def mark_of(pid: int, folder: Path = FOLDER) -> Path:
    """What is there while somebody waits for the books of the core with this process id."""
    return folder / f"{prefix()}ending-{pid}"


def _take_away(mark: Path) -> None:
    try:
        mark.unlink(missing_ok=True)
    except OSError as error:
        log.warning("kvledger: %s stays behind: %s", mark, error)
