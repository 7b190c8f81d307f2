"""The command line in this process, for tests: what it answers, and a small trace to give it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.cli import main

ROOT = Path(__file__).parents[1]

START = "2024-03-05T00:00:00Z"
"""Long over, so that its month can be closed."""

MONTH = "2024-03"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)


class CommandLine:
    """``kvledger`` with a ledger of its own, which is not there at first."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.file = folder / "books.db"
        self._capsys = capsys

    def __call__(self, *argv: str) -> Answer:
        code = main(argv)
        captured = self._capsys.readouterr()
        return Answer(code=code, out=captured.out, err=captured.err)

    def child(self, script: str, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """The same in a process of its own, after ``script``: for what would take this process along."""
        code = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{script}\nfrom ledger.cli import main\n"
        file = self.folder / "child.py"
        # A file with a guard, since a replay's own child imports it again.
        file.write_text(code + "if __name__ == '__main__':\n    sys.exit(main(sys.argv[1:]))\n")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.run([sys.executable, file, *argv], text=True, timeout=60, check=False, **pipes)

    def fails(self, *argv: str, code: int = 2) -> str:
        """The one line that a command which cannot be done has to say; nothing else is said."""
        answer = self(*argv)
        assert answer.code == code, answer
        assert answer.err.startswith("kvledger: "), answer
        assert answer.err.count("\n") == 1, answer
        assert "Traceback" not in answer.err
        return answer.err


def rows(count: int, *, first: int = 0) -> list[str]:
    """Rows of an Azure trace, one every three seconds."""
    return [
        f"2023-11-16 18:{15 + s // 20:02d}:{s * 3 % 60:02d}.0000000,{200 + 37 * s},{5 + s % 7}"
        for s in range(first, first + count)
    ]


def azure(*lines: str) -> str:
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n"


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, no settings from outside, a ledger that is not there."""
    for name in [name for name in os.environ if name.startswith("KVLEDGER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KVLEDGER_DATABASE", f"sqlite:///{tmp_path / 'books.db'}")
    monkeypatch.setenv("KVLEDGER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def kvledger(plain: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command, in an empty folder."""
    return CommandLine(plain, capsys)


@pytest.fixture(scope="session")
def replayed_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with one replay of ``trace.csv`` in it, to be copied."""
    folder = tmp_path_factory.mktemp("replayed")
    (folder / "trace.csv").write_text(azure(*rows(40)))
    database = f"sqlite:///{folder / 'books.db'}"
    assert main(["replay", str(folder / "trace.csv"), "--start", START, "--engines", "2", "--database", database]) == 0
    return folder / "books.db"


@pytest.fixture
def replayed(kvledger: CommandLine, replayed_file: Path) -> CommandLine:
    """The command, with a ledger that has a replay in it, and the trace beside it."""
    shutil.copy(replayed_file, kvledger.file)
    shutil.copy(replayed_file.with_name("trace.csv"), kvledger.folder / "trace.csv")
    return kvledger
