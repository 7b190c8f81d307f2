"""Through every fault between an engine and its books: nothing acknowledged is lost, nothing counts twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import delivery
import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_on_the_way_the_books_are_whole(seed: int, sqlite_template: Path) -> None:
    kept, delivered = delivery.run(seed, sqlite_template)
    assert kept > 10
    assert delivered >= kept


@pytest.mark.slow
def test_the_same_in_hundreds_of_worlds(sqlite_template: Path, pytestconfig: pytest.Config) -> None:
    kept = delivered = 0
    worlds = range(100, 100 + pytestconfig.getoption("--worlds"))
    for seed in worlds:
        of_one = delivery.run(seed, sqlite_template)
        kept, delivered = kept + of_one[0], delivered + of_one[1]
    print(f"{len(worlds)} worlds, {kept} batches, {delivered} deliveries: none lost, none counts twice, audits silent")
