"""`kvledger ingest`: a spool that had no network is booked, once, whatever happens meanwhile."""

from __future__ import annotations

import signal
import zlib
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from batches import ALICE, Life

from ledger import wire
from ledger.cli import FOUND
from ledger.outbox import segment
from ledger.outbox.spool import Spool
from ledger.outbox.tally import Tally
from ledger.store import fact_reads
from ledger.store.database import connect

if TYPE_CHECKING:
    from pathlib import Path

    from commandline import CommandLine


def made(kvledger: CommandLine, *engines: str, batches: int = 6) -> Path:
    """A spool that ``engines`` filled one after the other, each with a lawful life, and an empty ledger."""
    assert kvledger("db", "upgrade").code == 0
    root = kvledger.folder / "spool"
    for name in engines:
        life = Life(engine=name, boot_id=f"boot of {name}")
        with closing(Spool(root, tally=Tally(), fsync=False)) as spool:
            assert spool.append(zlib.compress(life.send(life.announce()), wbits=31))
            for number in range(1, batches):
                batch = life.period({ALICE: (3, 1)}, standing=True, opens=number == 1, closes=number == batches - 1)
                assert spool.append(zlib.compress(life.send(batch), wbits=31))
    return root


def stored(kvledger: CommandLine) -> list[tuple[str, int]]:
    with closing(connect(f"sqlite:///{kvledger.file}")) as database, database.read() as connection:
        return [
            (boot.engine, found.batch.seq)
            for boot in fact_reads.boots_of(connection)
            for found in fact_reads.stored_batches(connection, boot)
        ]


def test_every_batch_is_booked_and_the_spool_is_empty_afterwards(kvledger: CommandLine) -> None:
    root = made(kvledger, "engine-a", "engine-b")
    answer = kvledger("ingest", str(root))
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("12 batches booked, 0 were in the ledger already")
    assert stored(kvledger) == [(name, seq) for name in ("engine-a", "engine-b") for seq in range(1, 7)]
    assert list(root.iterdir()) == []
    assert kvledger("ingest", str(root)).out == f"nothing waits in {root}\n"
    # Before anything is settled, too; nothing has a price here.
    assert "alice" in kvledger("usage").out
    assert "unpriced" in kvledger("report", "--month", "2026-11").out
    assert kvledger("settle").code == 0
    assert kvledger("audit").out == ""


def test_a_spool_that_was_sent_already_changes_nothing(kvledger: CommandLine) -> None:
    assert kvledger("ingest", str(made(kvledger, "engine-a"))).code == 0
    before = stored(kvledger)
    answer = kvledger("ingest", str(made(kvledger, "engine-a")))
    assert (answer.code, answer.out[:52]) == (0, "0 batches booked, 6 were in the ledger already; `kvl")
    assert stored(kvledger) == before


@pytest.mark.parametrize("after", [0, 1, 4, 5])
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_killed_in_the_middle_the_same_command_goes_on_where_it_was(
    kvledger: CommandLine, after: int, when: str
) -> None:
    root = made(kvledger, "engine-a")
    # SIGKILL at the given batch: before it is booked, between the ledger and the spool, or after both.
    script = f"""
import os, signal
from ledger import ingest
from ledger.outbox.spool import Reading
accept, acknowledge, calls = ingest.accept, Reading.acknowledge, []
def die(moment):
    if moment == {when!r} and len(calls) == {after}:
        os.kill(os.getpid(), signal.SIGKILL)
def accepting(*given):
    die("before")
    try:
        return accept(*given)
    finally:
        die("between")
def acknowledging(*given):
    acknowledge(*given)
    die("after")
    calls.append(None)
ingest.accept, Reading.acknowledge = accepting, acknowledging
"""
    assert kvledger.child(script, "ingest", str(root)).returncode == -signal.SIGKILL
    booked = after + (when != "before")
    assert len(stored(kvledger)) == booked
    answer = kvledger("ingest", str(root))
    known = 1 if when == "between" else 0
    assert (answer.code, answer.out.partition(" already")[0]) == (
        0, f"{6 - booked} batches booked, {known} were in the ledger",
    )  # fmt: skip
    assert [seq for _, seq in stored(kvledger)] == [1, 2, 3, 4, 5, 6]


def test_damage_is_counted_and_its_segment_named_while_the_rest_is_booked(kvledger: CommandLine) -> None:
    root = made(kvledger, "engine-a")
    (path,) = root.rglob("*.seg")
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1  # in the last batch
    path.write_bytes(raw)
    answer = kvledger("ingest", str(root))
    assert answer.code == FOUND
    assert answer.out.startswith("5 batches booked, ")
    assert "1 places (" in answer.out
    assert str(path) in answer.out


def test_what_the_ledger_refuses_is_kept_in_quarantine_and_said(kvledger: CommandLine) -> None:
    root = made(kvledger, "engine-a")
    life = Life(engine="engine-b")
    with closing(Spool(root, tally=Tally(), fsync=False)) as spool:
        spool.append(zlib.compress(wire.encode(life.announce(), b"\x01" * 32), wbits=31))
        spool.append(b"no batch at all")
    answer = kvledger("ingest", str(root))
    assert answer.code == FOUND
    assert "2 are kept in quarantine (broken_chain 1, not_json 1); see `kvledger quarantine list`" in answer.out
    assert [entry["reason"] for entry in kvledger("quarantine", "list", "--format", "json").json] != []
    assert len(stored(kvledger)) == 6
    assert list(root.iterdir()) == []


def test_the_spool_of_an_engine_that_runs_is_left_to_it_and_named(kvledger: CommandLine) -> None:
    root = made(kvledger)
    with closing(Spool(root, tally=Tally(), fsync=False)) as spool:
        spool.append(b"x")
        (owner,) = root.iterdir()
        answer = kvledger("ingest", str(root))
        assert answer.code == FOUND
        assert f"left out, since an engine that runs sends it itself: {owner}" in answer.out
        assert spool.peek() is not None


def test_what_is_no_spool_or_no_ledger_is_one_line(kvledger: CommandLine) -> None:
    spool = kvledger.folder / "spool"
    spool.mkdir()
    (spool / "notes.txt").write_text("not a spool")
    assert "there is no ledger at" in kvledger.fails("ingest", str(spool))
    assert kvledger("db", "upgrade").code == 0
    assert "no spool is in it; name the directory that KVLEDGER_SPOOL names" in kvledger.fails("ingest", str(spool))
    assert "there is no such directory" in kvledger.fails("ingest", str(kvledger.folder / "absent"))


def test_a_ledger_of_another_version_leaves_the_spool_as_it_is(kvledger: CommandLine) -> None:
    root = made(kvledger, "engine-a")
    kvledger.file.write_bytes(b"")
    assert "`kvledger db upgrade` brings it up to date" in kvledger.fails("ingest", str(root), code=3)
    assert kvledger("db", "upgrade").code == 0
    assert kvledger("ingest", str(root)).out.startswith("6 batches booked")


def test_a_segment_of_a_later_version_stays_and_what_came_before_it_is_booked(kvledger: CommandLine) -> None:
    root = made(kvledger, "engine-a")
    (owner,) = root.iterdir()
    later = owner / f"{owner.name.replace('0', '1', 1)}-00000001.seg"
    stated = segment._IDENTITY.pack(b"KVLSPL\x02\n", bytes(16), 1, b"")[:-16]
    later.write_bytes(stated + segment._sum(b"", stated) + bytes(200))
    assert f"{later} is of a later version" in kvledger.fails("ingest", str(root), code=3)
    assert len(stored(kvledger)) == 6
    assert list(root.rglob("*.seg")) == [later]
