"""An engine core is waited for until its books are closed, for a bounded time, whatever it does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ledger.hook.vllm.ending import ask_to_end, mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator

CORE = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from ledger.hook.vllm.ending import mark_of

def end(*_):
    {end}

signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True:
    signal.pause()
"""
ROOT = str(Path(__file__).parents[1])


class Core:
    """A process as multiprocessing has them."""

    def __init__(self, folder: Path, end: str) -> None:
        code = CORE.format(root=ROOT, end=end.format(mark=f"mark_of(os.getpid(), Path({str(folder)!r}))"))
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"
        self.pid = self.process.pid

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def terminate(self) -> None:
        self.process.terminate()


@pytest.fixture
def cores() -> Iterator[list[Core]]:
    made: list[Core] = []
    yield made
    for core in made:
        core.process.kill()
        core.process.communicate()


def asked(folder: Path, cores: list[Core], wait_s: float) -> float:
    began_s = time.monotonic()
    ask_to_end(cores, wait_s=wait_s, folder=folder)
    assert not any(mark_of(core.pid, folder).exists() for core in cores)
    return time.monotonic() - began_s


def test_it_waits_until_every_core_has_closed_its_books(tmp_path: Path, cores: list[Core]) -> None:
    ends = (f"Path({str(tmp_path)!r}, 'closed-{place}').touch(); {{mark}}.unlink()" for place in range(2))
    cores.extend(Core(tmp_path, end) for end in ends)
    assert asked(tmp_path, cores, 30) < 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["closed-0", "closed-1"]
    assert all(core.is_alive() for core in cores), "what else they have to do is not waited for"


def test_a_core_that_ends_without_a_word_is_not_waited_for(tmp_path: Path, cores: list[Core]) -> None:
    cores.append(Core(tmp_path, "os._exit(3)"))
    assert asked(tmp_path, cores, 30) < 20


def test_a_core_that_does_nothing_is_waited_for_so_long_and_no_longer(tmp_path: Path, cores: list[Core]) -> None:
    cores.append(Core(tmp_path, "pass"))
    assert 0.3 <= asked(tmp_path, cores, 0.3) < 20


def test_where_there_is_no_shared_memory_nobody_is_asked(tmp_path: Path, cores: list[Core]) -> None:
    cores.append(Core(tmp_path, "os._exit(3)"))
    ask_to_end(cores, wait_s=30, folder=tmp_path / "none")
    assert cores[0].is_alive()
