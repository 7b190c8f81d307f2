"""Prometheus' own programs, of Debian's packages: a missing one skips on a laptop and fails in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
}


def program(name: str) -> str:
    """Where a program is."""
    found = shutil.which(name)
    if found is None:
        message = f"no {name}: apt-get install {PACKAGES[name]}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


def output(name: str, *arguments: str | Path, given: str | None = None) -> list[str]:
    """The lines that a program says when all is well; otherwise the test fails with them."""
    command = [program(name), *map(str, arguments)]
    done = subprocess.run(command, check=False, input=given, capture_output=True, text=True)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return [line.strip() for line in text.splitlines()]
