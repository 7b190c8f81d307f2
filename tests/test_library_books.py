"""The second half of docs/library.md: the script runs, and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from booking import HOUR, T0, book, worked_example

if TYPE_CHECKING:
    import pytest

    from ledger.store.database import Database

PAGE = Path(__file__).parents[1] / "docs" / "library.md"


def test_the_script_that_reads_the_books_prints_what_the_page_says(
    sqlite_db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    worked_example(sqlite_db)
    book(sqlite_db, until_us=T0 + 2 * HOUR)
    section = PAGE.read_text().split("## Read the books", 1)[1].partition("\n## ")[0]
    (script,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (said,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    assert len(script.strip().splitlines()) <= 20
    here = sqlite_db.engine.url.render_as_string(hide_password=False)
    exec(compile(script.replace("sqlite:///kvledger.db", here), str(PAGE), "exec"), {})
    assert capsys.readouterr().out == said
