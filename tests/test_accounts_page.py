"""The page on the accounts says what the code does: every account, every finding, and the worked example's figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from settling import amounts
from test_allocation import worked_example

from ledger.core.allocation import Account, allocate

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "accounts.md").read_text()


@pytest.mark.parametrize("account", list(Account))
def test_every_account_is_explained(account: Account) -> None:
    assert re.search(rf"^\| `{account.value}`", PAGE, re.MULTILINE)


def test_every_finding_is_explained() -> None:
    sources = [(ROOT / "ledger" / "core" / name).read_text() for name in ("usage.py", "dividing.py", "allocation.py")]
    codes = set(re.findall(r"findings\.add\(\s*\"(\w+)\"", "\n".join(sources)))
    assert codes == {"law1", "law2_active", "law2_cached", "law3", "standing", "overlap", "over_allocation"}
    assert all(f"`{code}`" in PAGE for code in codes)


@pytest.mark.parametrize(("column", "other"), [(3, False), (4, True)])
def test_the_worked_examples_table_has_the_codes_figures(column: int, other: bool) -> None:
    found = amounts(allocate(worked_example()), other=other)
    rows = {
        cells[0]: int(cells[column])
        for line in PAGE.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5 and cells[column].isdigit()
    }
    assert rows.pop("bill") == sum(found.values())
    assert rows == {
        "A active": found["A/active"],
        "B active": found["B/active"],
        "B cached": found["B/cached"],
        "idle": found.get("idle", 0),
    }
