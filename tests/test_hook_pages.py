"""The pages for whoever embeds the meter: the example runs, and nothing public is left untold."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from ledger.hook.meter import Meter, PoolMeter

ROOT = Path(__file__).parents[1]
HOOK = (ROOT / "docs" / "hook.md").read_text()
LIBRARY = (ROOT / "docs" / "library.md").read_text()
SOURCES = "\n".join(path.read_text() for room in ("hook", "core") for path in (ROOT / "ledger" / room).glob("*.py"))


def test_the_embedding_example_prints_what_the_page_says(capsys):
    section = LIBRARY.partition("## Embed the meter")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    exec(compile(code, "docs/library.md", "exec"), {})
    printed = capsys.readouterr().out.strip()
    assert f"It prints `{printed}`" in section
    statements = [line for line in code.splitlines() if line.strip()]
    assert len(statements) <= 22


@pytest.mark.parametrize("kind", [Meter, PoolMeter])
def test_every_call_is_on_the_page(kind):
    names = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]
    assert names
    assert [name for name in names if f"{name}(" not in HOOK] == []


def test_every_fault_is_explained():
    reasons = set(re.findall(r"fault\(\s*\"(\w+)\"", SOURCES)) | set(re.findall(r"faults\[\"(\w+)\"\]", SOURCES))
    reasons |= {"unknown_request", "ended_request"}
    assert len(reasons) > 15
    assert [reason for reason in reasons if f"`{reason}`" not in HOOK] == []


def test_every_histogram_is_explained():
    names = set(re.findall(r"_(?:histogram|labelled)\(\s*\"(\w+)\"", SOURCES))
    assert len(names) == 7
    assert [name for name in names if f"| `{name}` |" not in HOOK] == []
