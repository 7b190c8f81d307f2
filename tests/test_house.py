"""The house stays as it is described: what may be imported where, and what the repository may say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {
    "ledger", "migrations", "dashboards", "alerts", "tests", "bench", "docs", ".ci", "pyproject.toml", "Makefile",
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".gitignore",
}  # fmt: skip


def tracked() -> list[str]:
    return subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")


@pytest.mark.parametrize(
    "module",
    [
        "ledger.hook.meter",
        "ledger.hook.settings",
        "ledger.outbox.drain",
        "ledger.wire",
        "ledger.core.allocation",
        "ledger",
    ],
)
def test_the_guest_side_loads_the_standard_library_only(module: str) -> None:
    probe = (
        f"import sys, {module}; "
        "names = {name.partition('.')[0] for name in sys.modules if not name.startswith('_sysconfigdata')}; "
        "print(*sorted(names - set(sys.stdlib_module_names) - {'ledger', '__main__'}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {probe}"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == ""


def test_the_package_itself_imports_nothing() -> None:
    source = (ROOT / "ledger/__init__.py").read_text()
    assert not re.search(r"^\s*(import|from)\s", source, re.MULTILINE)


def test_the_top_level_holds_the_rooms_and_nothing_else() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing to list")
    assert {name.partition("/")[0] for name in tracked() if name} <= ROOMS


def test_every_relative_link_of_the_documents_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, to) for page in pages for to in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())]
    assert not [f"{page} -> {to}" for page, to in links if "://" not in to and not (page.parent / to).exists()]
