"""A ledger that may only be read, an archived one say: it answers, stays as it was, and says why it takes nothing."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commandline import MONTH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commandline import CommandLine

ROOT = Path(__file__).parents[1]


@pytest.fixture
def archived(replayed_file: Path) -> Iterator[Path]:
    """The ledger of a replay with the mode 0444, in a folder that nobody may write to."""
    # Not below pytest's own folder, which whoever we become is not let into.
    folder = Path(tempfile.mkdtemp(prefix="kvledger-archive-", dir="/tmp"))
    file = folder / "2024 books.db"
    shutil.copyfile(replayed_file, file)
    file.chmod(0o444)
    folder.chmod(0o555)
    yield file
    folder.chmod(0o755)
    shutil.rmtree(folder)


def asked(file: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command on that ledger, by somebody whom modes bind."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KVLEDGER_")}
    return subprocess.run(
        [sys.executable, "-m", "ledger", *argv, "--database", f"sqlite:///{file}", "--state-dir", "/nowhere"],
        cwd="/", env={**environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=60,
        preexec_fn=bound_by_modes if os.getuid() == 0 else None,
    )  # fmt: skip


def bound_by_modes() -> None:
    """Root is no longer let past the modes of files; from the next program on."""
    assert ctypes.CDLL(None).prctl(24, 1, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE


def test_it_answers_as_the_ledger_did_and_stays_as_it_was(archived: Path, replayed: CommandLine) -> None:
    before = archived.read_bytes()
    for command in (("usage", "--format", "json"), ("report", "--month", MONTH, "--format", "json"), ("audit",)):
        answer = asked(archived, *command)
        assert (answer.returncode, answer.stdout) == (0, replayed(*command).out), answer
    assert archived.read_bytes() == before
    assert list(archived.parent.iterdir()) == [archived]


def test_what_would_write_says_why_it_cannot(archived: Path) -> None:
    answer = asked(archived, "tenants", "add", "acme")
    assert (answer.returncode, answer.stdout) == (3, "")
    assert "cannot be written" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_one_whose_newest_transactions_are_in_a_log_beside_it_is_not_read_without_them(archived: Path) -> None:
    archived.parent.chmod(0o755)
    log = archived.with_name(archived.name + "-wal")
    log.write_bytes(b"\x37\x7f\x06\x82" + bytes(60))
    archived.parent.chmod(0o555)
    answer = asked(archived, "usage")
    assert answer.returncode == 3
    assert "copied whole, with its -wal" in answer.stderr
