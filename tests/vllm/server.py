"""Processes of the suite: a vLLM server, and `kvledger` beside it, started, watched and ended as groups.

Invariant: whatever a test starts is gone with its whole group when the context ends, and its log stays as a file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

READY_S = 240.0
"""A server alone is ready in half a minute on 2 cores; CI's may be busy."""
PLUGINS = Path(__file__).parent / "plugins"
"""On PYTHONPATH it brings the tests' own plugin of vLLM's along (kvledger_test.py)."""
END_S = 40.0
"""From the polite signal to the other one."""

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache, /sleep
}
"""No network, a GiB of KV cache of which `--num-gpu-blocks-override` takes a little."""

TINY = (
    "--load-format", "dummy", "--enforce-eager", "--dtype", "float32", "--seed", "0",
    "--block-size", "32", "--served-model-name", "tiny",
)  # fmt: skip
"""Options of every server here. Blocks on the CPU have a multiple of 32 tokens."""


@dataclass
class Program:
    """A started process and its group."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""
    """Where it answers."""
    seen: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        """All that it has said so far."""
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.text().splitlines()[-lines:])

    def group(self) -> list[int]:
        """The living processes of its group, itself among them."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # After the name in parentheses: state, parent, group.
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.pid and state != "Z":
                    found.append(int(stat.parent.name))
        return found

    def stop(self, first: signal.Signals = signal.SIGTERM) -> int:
        """End it and wait for all of its group; its exit status."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(first)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        until_s = time.monotonic() + 10
        while self.group() and time.monotonic() < until_s and self.process.returncode is not None:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.process.wait(END_S)


@contextlib.contextmanager
def program(
    command: Sequence[str | Path], *, log: Path, environ: Mapping[str, str], cwd: Path, url: str = ""
) -> Iterator[Program]:
    """A program as the leader of a group of its own. ``environ`` is all that it gets beside PATH and the like."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("KVLEDGER_", "VLLM_")) and key != "COVERAGE_PROCESS_START"
    }
    with log.open("ab") as file:
        process = subprocess.Popen(
            list(map(str, command)), stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            cwd=cwd, env=kept | dict(environ), start_new_session=True,
        )  # fmt: skip
    started = Program(process=process, log=log, url=url)
    try:
        yield started
    finally:
        started.stop()


@contextlib.contextmanager
def vllm_server(
    model: Path,
    *,
    folder: Path,
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    name: str = "vllm",
    ready_s: float = READY_S,
) -> Iterator[Program]:
    """A server of ``model`` that answers /health, with ``environ`` on top of :data:`QUIET`; logs to FOLDER/NAME.log.

    The distribution on the CPU is called vllm-cpu, and `vllm serve` asks for one called vllm: hence the module.
    """
    port = free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--host", "127.0.0.1", "--port", str(port), *TINY, *options,
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    log = folder / f"{name}.log"
    ours = {
        "KVLEDGER_SPOOL": str(folder / "spool"),  # never the one of whoever runs the tests
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PLUGINS), os.environ.get("PYTHONPATH")])),
    }
    with program(command, log=log, environ=QUIET | ours | dict(environ or {}), cwd=folder, url=url) as started:
        wait_for(lambda: answers(f"{url}/health"), started, f"{url}/health", ready_s)
        yield started


def wait_for(
    holds: Callable[[], bool], of: Program | None, what: str, within_s: float = 60.0, every_s: float = 0.2
) -> None:
    """Wait until it holds; fails with the end of the program's log when it does not, or the program has ended."""
    until_s = time.monotonic() + within_s
    while not holds():
        ended = of is not None and of.process.poll() is not None
        if ended or time.monotonic() > until_s:
            why = f"the program has ended ({of.process.returncode})" if ended and of else f"not within {within_s:.0f} s"
            raise AssertionError(f"{what}: {why}\n{of.tail() if of is not None else ''}")
        time.sleep(every_s)


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
