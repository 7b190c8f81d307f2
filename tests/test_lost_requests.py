"""What is lost is looked for in boots that have ended, from the day on that is asked for, and by their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batches import ALICE, T0, Life
from plans import plans

from ledger import limits
from ledger.ingest import Status, accept
from ledger.store import tables
from ledger.store.lost import EVER, LostRequest, lost_requests

if TYPE_CHECKING:
    from ledger.store.database import Database

NOW = T0 + 10 * limits.DAY_US
HOUR = 3_600_000_000


def lived(db: Database, life: Life, *, admits: list[str], ends: list[str]) -> None:
    """Two periods: requests arrive in the first, some end in the second."""
    batches = (
        life.announce(),
        life.period({ALICE: (1, 0)}, opens=True, standing=True, admits=admits),
        life.period({ALICE: (1, 0)}, ends=ends),
    )
    assert {accept(db, life.send(batch), NOW).status for batch in batches} == {Status.ACCEPTED}


def lost(db: Database, *, span: tuple[int, int] = EVER) -> list[LostRequest]:
    with db.read() as connection:
        return list(lost_requests(connection, NOW, span=span))


def two_restarts(db: Database) -> list[Life]:
    """Three boots on three days: each ends two requests of three, the last still lives."""
    lives = []
    for day in range(3):
        start_us = T0 + day * limits.DAY_US if day < 2 else NOW - 60_000_000
        life = Life(boot_id=f"boot-{day}", start_us=start_us)
        lived(db, life, admits=[f"{day}-a", f"{day}-b", f"{day}-c"], ends=[f"{day}-a", f"{day}-b"])
        lives.append(life)
    return lives


def test_every_boot_that_has_ended_lost_what_it_did_not_answer(db: Database) -> None:
    two_restarts(db)
    assert [(each.boot_id, each.admission.request, each.admission.dims) for each in lost(db)] == [
        ("boot-0", "0-c", ALICE),
        ("boot-1", "1-c", ALICE),
    ]


def test_only_what_arrived_in_the_span_is_told(db: Database) -> None:
    arrived_us = lived_on_the_edge(db)
    assert [each.admission.request for each in lost(db, span=(arrived_us, arrived_us + 1))] == ["r"]
    assert lost(db, span=(arrived_us + 1, NOW)) == []
    assert lost(db, span=(0, arrived_us)) == []


def lived_on_the_edge(db: Database) -> int:
    """A request that arrives in the last batch before midnight and is lost; when it arrived."""
    midnight_us = T0 + limits.DAY_US
    life = Life(start_us=midnight_us - 15_000_000)
    lived(db, life, admits=["r", "s"], ends=["s"])
    (only,) = lost(db)
    assert only.admission.arrived_us < midnight_us < only.heard_us
    return only.admission.arrived_us


def test_facts_are_found_by_their_keys_and_none_of_boots_that_live_or_ended_before_the_span(
    sqlite_db: Database,
) -> None:
    first, second, _ = two_restarts(sqlite_db)
    facts = [table.name for table in (*tables.PARTITIONED, tables.batches)]
    seen = plans(sqlite_db, lambda: lost(sqlite_db))
    assert [plan for plan in seen if "admissions" in plan]
    assert not [plan for plan in seen for table in facts if f"SCAN {table}" in plan]
    of_rows = [
        line
        for plan in seen
        for line in plan.splitlines()
        if line.startswith("SEARCH") and ("admissions" in line or "request_records" in line)
    ]
    assert of_rows
    assert all("USING PRIMARY KEY (day=? AND boot=?" in line for line in of_rows), of_rows
    read = len([plan for plan in seen if "admissions" in plan])
    later = plans(sqlite_db, lambda: lost(sqlite_db, span=(first.now_us + HOUR, NOW)))
    assert len([plan for plan in later if "admissions" in plan]) == read // 2
    none = plans(sqlite_db, lambda: lost(sqlite_db, span=(second.now_us + HOUR, NOW)))
    assert not [plan for plan in none if "admissions" in plan or "request_records" in plan]
