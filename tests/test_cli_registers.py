"""Assets, prices, tenants, the schema and quarantine from the command line, and ledgers that cannot be opened."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ledger import ingest, limits
from ledger.cli import FOUND, WORLD
from ledger.store.database import connect

if TYPE_CHECKING:
    from commandline import CommandLine

FROM = ("--from", "2026-11-01T00:00:00Z")


@pytest.fixture
def empty(kvledger: CommandLine) -> CommandLine:
    """The command, with an empty ledger."""
    assert kvledger("db", "upgrade").code == 0
    return kvledger


def listed(kvledger: CommandLine, what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kvledger(what, "list", "--format", "json").json
    return found


# --- assets ---------------------------------------------------------------------------------------------


def test_an_asset_is_registered_assigned_and_retired(empty: CommandLine) -> None:
    assert (
        "is paid for from 2026-11-01T00:00:00Z"
        in empty("assets", "add", "gpu-7", "--model", "H100", "--price", "2.95", *FROM).out
    )
    assert "has 0.5 of gpu-7" in empty("assets", "assign", "gpu-7", "chat-0", "--share", "0.5", *FROM).out
    assert empty("assets", "retire", "gpu-7", "--at", "2026-12-01T00:00:00Z").code == 0
    (asset,) = listed(empty, "assets")
    assert (asset["asset"], asset["model"], asset["engines"]) == ("gpu-7", "H100", "chat-0:0.5")
    assert asset["valid_to_us"] - asset["valid_from_us"] == 30 * 86_400_000_000
    (price,) = listed(empty, "prices")
    assert (price["asset"], price["nanos_per_hour"], price["per_hour"]) == ("gpu-7", 2_950_000_000, "2.95")


@pytest.mark.parametrize(
    ("times", "says"),
    [
        (("--from", "2026-11-05T00:00:00Z"), ""),
        (("--from", "2026-11-04T23:59:45Z"), "until then the assignment counts for nothing"),
        (("--from", "2026-11-01T00:00:00Z", "--to", "2026-11-05T00:00:00Z"), "the assignment counts for nothing"),
        (("--from", "2026-11-09T00:00:00Z"), "the assignment counts for nothing"),
    ],
)
def test_an_assignment_outside_the_time_that_its_asset_is_paid_for_is_taken_and_told(
    empty: CommandLine, times: tuple[str, ...], says: str
) -> None:
    empty("assets", "add", "gpu-7", "--from", "2026-11-05T00:00:00Z")
    empty("assets", "retire", "gpu-7", "--at", "2026-11-09T00:00:00Z")
    answer = empty("assets", "assign", "gpu-7", "chat-0", *times)
    assert (answer.code, "chat-0 has 1 of gpu-7" in answer.out) == (0, True)
    assert says in answer.err
    assert answer.err.count("\n") == bool(says)
    if says:
        assert "gpu-7 is paid for from 2026-11-05T00:00:00Z to 2026-11-09T00:00:00Z" in answer.err


def test_saying_the_same_thing_twice_writes_one_row(empty: CommandLine) -> None:
    for command in (
        ("assets", "add", "gpu-7", "--price", "2.95", *FROM),
        ("assets", "assign", "gpu-7", "chat-0", *FROM),
        ("prices", "add", "3.50", "--model", "H100", "--valid-from", "2026-11-01T00:00:00Z"),
        ("tenants", "add", "acme", "--label", "team=search"),
    ):
        assert "as it was already" not in empty(*command).out
        assert "as it was already" in empty(*command).out
    assert [len(listed(empty, what)) for what in ("assets", "prices", "tenants")] == [1, 2, 1]


def test_an_assignment_that_cannot_be_is_refused_and_nothing_is_written(empty: CommandLine) -> None:
    assert "no asset is called 'gpu-9'" in empty.fails("assets", "assign", "gpu-9", "chat-0", *FROM)
    empty("assets", "add", "gpu-7", *FROM)
    empty("assets", "assign", "gpu-7", "chat-0", "--share", "0.7", *FROM)
    before = listed(empty, "assets")
    message = empty.fails("assets", "assign", "gpu-7", "chat-1", "--share", "0.4", *FROM)
    assert "1100000 millionths" in message
    backwards = ("--from", "2026-11-02T00:00:00Z", "--to", "2026-11-01T00:00:00Z")
    assert "before it begins" in empty.fails("assets", "assign", "gpu-7", "chat-2", "--share", "0.1", *backwards)
    assert listed(empty, "assets") == before


def test_two_registrations_of_one_gpu_are_refused_with_its_price(empty: CommandLine) -> None:
    empty("assets", "add", "gpu-7", "--uuid", "GPU-abc", *FROM)
    message = empty.fails("assets", "add", "gpu-8", "--uuid", "GPU-abc", "--price", "9", *FROM)
    assert "registered as gpu-7" in message
    assert (len(listed(empty, "assets")), listed(empty, "prices")) == (1, [])


# --- prices ---------------------------------------------------------------------------------------------


def test_an_asset_that_is_registered_keeps_what_is_not_named_its_time_as_well(empty: CommandLine) -> None:
    empty("assets", "add", "gpu-7", "--uuid", "GPU-abc", "--cluster", "north", *FROM)
    said = empty("assets", "add", "gpu-7", "--model", "H100")
    assert said.out == "gpu-7 is paid for from 2026-11-01T00:00:00Z\n"
    (asset,) = json.loads(empty("assets", "list", "--format", "json").out)
    assert (asset["model"], asset["uuid"], asset["cluster"]) == ("H100", "GPU-abc", "north")
    assert "as it was already" in empty("assets", "add", "gpu-7").out


def test_a_later_beginning_of_an_asset_says_what_goes_and_none_is_after_its_end(empty: CommandLine) -> None:
    empty("assets", "add", "gpu-7", *FROM)
    said = empty("assets", "add", "gpu-7", "--from", "2026-11-05T00:00:00Z")
    assert "from 2026-11-01T00:00:00Z to 2026-11-05T00:00:00Z as well: settling takes that back" in said.err
    empty("assets", "retire", "gpu-7", "--at", "2026-11-06T00:00:00Z")
    assert "until 2026-11-06T00:00:00Z" in empty("assets", "add", "gpu-7", "--model", "H100").out
    message = empty.fails("assets", "add", "gpu-7", "--from", "2026-11-07T00:00:00Z")
    assert "retired at 2026-11-06T00:00:00Z" in message
    assert "under another name" in message


def test_a_price_is_of_an_asset_or_a_rule_not_both(empty: CommandLine) -> None:
    assert "give one kind" in empty.fails("prices", "add", "1", "--asset", "gpu-7", "--model", "H100")


def test_decimals_are_kept_to_the_nano_unit(empty: CommandLine) -> None:
    empty("prices", "add", "0.123456789", "--model", "H100")
    (price,) = listed(empty, "prices")
    assert (price["nanos_per_hour"], price["per_hour"]) == (123_456_789, "0.123456789")


def test_another_currency_than_the_ledger_s_is_refused(empty: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    empty("prices", "add", "1", "--model", "H100")
    monkeypatch.setenv("KVLEDGER_CURRENCY", "EUR")
    assert "this ledger is in USD and EUR was given" in empty.fails("prices", "add", "2", "--model", "H100")
    Path("list.csv").write_text("gpu,price_usd_per_gpu_hour\nH100,2.95\n")
    assert "its prices are in USD" in empty.fails("prices", "import", "list.csv")
    assert len(listed(empty, "prices")) == 1


def test_a_price_file_is_taken_whole_and_once(empty: CommandLine, traces_dir: Path) -> None:
    argv = (
        "prices",
        "import",
        str(traces_dir / "prices/gpu_hourly_prices.csv"),
        "--valid-from",
        "2026-11-01T00:00:00Z",
    )
    assert "41 of 41 prices" in empty(*argv).out
    found = listed(empty, "prices")
    assert len(found) == 27 + 14, "on demand, and spot where there is one"
    assert all("0 of 41 prices" in empty(*argv).out for _ in range(2))
    assert listed(empty, "prices") == found
    assert {(row["cluster"], row["capacity_type"], row["per_hour"]) for row in found if row["model"] == "RTX4090"} == {
        ("runpod/1x_RTX4090_SECURE/SE", "on-demand", "0.74"),
        ("runpod/1x_RTX4090_SECURE/SE", "spot", "0.39"),
        ("runpod/1x_RTX4090_COMMUNITY/SE", "on-demand", "0.64"),
        ("runpod/1x_RTX4090_COMMUNITY/SE", "spot", "0.29"),
    }


def test_one_cluster_has_one_price(empty: CommandLine) -> None:
    Path("list.csv").write_text("provider,gpu,price_usd_per_gpu_hour\na,H100,2.95\nb,H100,3.50\n")
    message = empty.fails("prices", "import", "list.csv", "--cluster", "prod")
    assert "list.csv, line 3: H100 on-demand costs 3.50, and 2.95 in line 2" in message
    assert listed(empty, "prices") == []
    assert "2 of 2" in empty("prices", "import", "list.csv").out


def test_a_price_of_an_asset_that_nobody_has_registered_is_taken_with_a_warning(empty: CommandLine) -> None:
    answer = empty("prices", "add", "2.95", "--asset", "nosuch")
    assert answer.code == 0
    assert answer.err.count("\n") == 1
    assert "no asset is called 'nosuch' yet" in answer.err
    (row,) = listed(empty, "prices")
    assert row["asset"] == "nosuch"
    empty("assets", "add", "nosuch")
    assert empty("prices", "add", "3.50", "--asset", "nosuch").err == ""


def test_a_price_file_with_a_bad_line_changes_nothing(empty: CommandLine) -> None:
    good = "gpu,price_usd_per_gpu_hour\nH100,2.95\n"
    for line, says in (
        ("B200,-1", "negative"),
        ("B200,NaN", "not a plain decimal"),
        ("B200,1e99", "not a plain decimal"),
        ("B\x1b[2J200,1", "gpu 'B\\x1b[2J200' has a character that does not print"),
    ):
        Path("list.csv").write_text(f"{good}{line}\n")
        message = empty.fails("prices", "import", "list.csv")
        assert "list.csv, line 3" in message
        assert says in message
    Path("list.csv").write_text(f'{good}"H4\n00",1\n')  # a line of CSV ends behind the quote
    assert "list.csv, line 4: gpu 'H4\\n00' has a character that" in empty.fails("prices", "import", "list.csv")
    for register in ("prices add 1 --model", "assets add --price 1 gpu-0 --cluster", "tenants add"):
        assert "'H4\\n00' is no name; write 1 to" in empty.fails(*register.split(), "H4\n00")
    for name in ("absent.csv", "."):
        assert "cannot be read" in empty.fails("prices", "import", name)
    assert listed(empty, "prices") == []


# --- tenants, the schema --------------------------------------------------------------------------------


def test_tenants_that_were_seen_and_registered_stand_in_one_list(replayed: CommandLine) -> None:
    replayed("tenants", "add", "azure", "--display", "Azure", "--cost-center", "4711", "--zone", "Europe/Berlin")
    found = {row["tenant"]: row for row in listed(replayed, "tenants")}
    assert {name: row["registered"] for name, row in found.items()} == {"azure": True, "system": False}
    assert (found["azure"]["cost_center"], found["azure"]["zone"]) == ("4711", "Europe/Berlin")


def tenant(kvledger: CommandLine, *more: str) -> dict[str, Any]:
    """What is known of a tenant after something more was said of it."""
    assert kvledger("tenants", "add", "acme", *more).code == 0
    (found,) = listed(kvledger, "tenants")
    return {key: value for key, value in found.items() if value and key not in {"tenant", "registered"}}


def test_what_is_not_said_again_of_a_tenant_stays_and_what_is_cleared_goes(empty: CommandLine) -> None:
    said = ("--display", "Acme", "--label", "team=search", "--label", "site=a", "--contact", "ann", "--zone", "UTC")
    first = tenant(empty, *said)
    assert first == {"display": "Acme", "labels": "site=a team=search", "contacts": "ann", "zone": "UTC"}
    assert tenant(empty) == first
    assert tenant(empty, "--label", "team=ads", "--contact", "bob", "--cost-center", "4711") == first | {
        "labels": "site=a team=ads", "contacts": "ann bob", "cost_center": "4711",
    }  # fmt: skip
    cleared = ("--clear", "labels", "--clear", "cost-center", "--clear", "contacts", "--clear", "zone")
    assert tenant(empty, *cleared, "--label", "new=1") == {"display": "Acme", "labels": "new=1"}
    assert "'name' cannot be emptied" in empty.fails("tenants", "add", "acme", "--clear", "name")


def test_a_label_has_one_value(empty: CommandLine) -> None:
    message = empty.fails("tenants", "add", "acme", "--label", "team=a", "--label", "site=x", "--label", "team=b")
    assert "--label team is given as 'a' and as 'b'; a label has one value" in message
    assert listed(empty, "tenants") == []
    assert tenant(empty, "--label", "team=a", "--label", "team=a") == {"labels": "team=a"}


def test_the_schema_is_made_once_and_checked(kvledger: CommandLine) -> None:
    assert "was at nothing" in kvledger("db", "upgrade").out
    assert "already" in kvledger("db", "upgrade").out
    assert "the newest is" in kvledger("db", "current").out
    assert kvledger("db", "check").code == 0
    with closing(sqlite3.connect(kvledger.file)) as connection:
        connection.execute("CREATE TABLE stranger (id INTEGER)")
    answer = kvledger("db", "check")
    assert answer.code == FOUND
    assert "stranger" in answer.out


def test_a_planted_error_is_a_line_and_exit_1(replayed: CommandLine) -> None:
    with closing(sqlite3.connect(replayed.file, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE pool_periods SET active_block_us = active_block_us + 1 WHERE seq = 5")
    answer = replayed("audit")
    assert answer.code == FOUND
    assert "seq 5: its rows have digest" in answer.out
    assert len(answer.out.splitlines()) >= 2


# --- quarantine -----------------------------------------------------------------------------------------


def test_a_refused_batch_is_listed_shown_and_tried_again(empty: CommandLine) -> None:
    assert "nothing was refused" in empty("quarantine", "list").out
    db = connect(f"sqlite:///{empty.file}")
    ingest.accept(db, b'{"not": "a batch"}', 1_700_000_000_000_000)
    db.close()
    (entry,) = listed(empty, "quarantine")
    text = (Path(__file__).parents[1] / "docs/cli.md").read_text().partition("`quarantine list`:")[2]
    assert [f"| `{key}` |" in text for key in entry] == [True] * 8
    shown = empty("quarantine", "show", str(entry["id"]))
    assert (shown.out, shown.code) == ('{"not": "a batch"}\n', 0)
    assert entry["reason"] in shown.err
    retried = empty("quarantine", "retry")
    assert retried.code == FOUND
    assert "1 still refused" in retried.out
    for command in ("show", "retry"):
        assert "no entry 99" in empty.fails("quarantine", command, "99")


# --- ledgers that cannot be opened ----------------------------------------------------------------------

COMMANDS = ("usage", "report", "audit", "settle", "assets list", "months list", "quarantine list", "tenants add x")


def test_a_ledger_that_is_not_there_is_not_made_by_looking(kvledger: CommandLine) -> None:
    for command in (*COMMANDS, "db current", "db check"):
        assert "there is no ledger at" in kvledger.fails(*command.split())
    assert "`kvledger serve` makes it and takes what engines send" in kvledger.fails("usage")
    assert list(kvledger.folder.iterdir()) == []


def test_a_ledger_without_tables_or_of_another_version_says_so(kvledger: CommandLine) -> None:
    kvledger.file.touch()
    for command in COMMANDS:
        assert "kvledger db upgrade" in kvledger.fails(*command.split(), code=WORLD)
    kvledger("db", "upgrade")
    with closing(sqlite3.connect(kvledger.file)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    for command in COMMANDS:
        assert "has schema 9999" in kvledger.fails(*command.split(), code=WORLD)
    assert "upgrade kvledger itself first" in kvledger.fails("db", "upgrade", code=WORLD)


def test_a_file_that_is_no_database_says_so(kvledger: CommandLine) -> None:
    kvledger.file.write_bytes(b"this is no database, and never was one" * 100)
    for command in ("usage", "db upgrade", "db current", "settle"):
        assert "is not a SQLite file" in kvledger.fails(*command.split(), code=WORLD)


def test_a_locked_ledger_is_waited_for_then_said(empty: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_BUSY_MS", 1)
    monkeypatch.setattr(limits, "STORE_ATTEMPTS_MAX", 2)
    with closing(sqlite3.connect(empty.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        message = empty.fails("tenants", "add", "acme", code=WORLD)
        assert "stayed locked through 2 tries" in message
        assert listed(empty, "tenants") == [], "reading goes on"
    assert empty("tenants", "add", "acme").code == 0


def test_a_place_that_cannot_hold_a_ledger_is_named(kvledger: CommandLine) -> None:
    Path("file").touch()
    Path("folder").mkdir()
    assert "cannot be made" in kvledger.fails("db", "upgrade", "--database", "sqlite:///file/books.db")
    assert "cannot be made" in kvledger.fails("demo", "--state-dir", "file/state", "--hours", "1")
    assert "cannot be opened" in kvledger.fails("db", "upgrade", "--database", "sqlite:///folder", code=WORLD)


def test_a_server_that_does_not_answer_is_named_without_its_password(kvledger: CommandLine) -> None:
    url = "postgresql://me:hunter2@127.0.0.1:1/books"
    for command in ("usage", "db upgrade", "settle"):
        message = kvledger.fails(*command.split(), "--database", url, code=WORLD)
        assert "cannot be reached" in message
        assert "hunter2" not in message


def test_settings_that_cannot_be_used_are_one_line(kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bad.toml").write_text("kv_share = 2\n")
    assert "bad.toml: kv_share = '2': it is too large" in kvledger.fails("usage", "--config", "bad.toml")
    assert "No such file" in kvledger.fails("usage", "--config", "absent.toml")
    assert "write sqlite:///books.db" in kvledger.fails("usage", "--database", "books.db")
    monkeypatch.setenv("KVLEDGER_BASIS", "fair")
    assert "KVLEDGER_BASIS: basis = 'fair'" in kvledger.fails("usage")


# --- the demonstration ----------------------------------------------------------------------------------


def test_the_demo_shows_a_bill_that_closes_and_replaces_only_its_own_file(kvledger: CommandLine) -> None:
    state = kvledger.folder / "state"
    state.mkdir()
    gone = 2**22 + 1  # no process has such a number
    for name in ("demo.db", "demo.db-wal", "other.db", f"demo.{gone}.new.db", f"demo.{gone}.new.db-wal"):
        (state / name).write_text("from before")
    answer = kvledger("demo", "--hours", "1")
    assert answer.code == 0, answer
    assert "Statement of 2026-11" in answer.out
    assert "Exactly, in USD: bill" in " ".join(answer.out.split())
    assert sorted(file.name for file in state.iterdir()) == ["demo.db", "other.db"]
    assert kvledger("audit", "--database", "sqlite:///state/demo.db").code == 0
    assert "leave out --database" in kvledger.fails("demo", "--database", "sqlite:///mine.db")
    assert not kvledger.file.exists()


def test_a_demo_that_was_interrupted_leaves_the_one_before(
    kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = kvledger.folder / "state"
    state.mkdir()
    (state / "demo.db").write_text("the one before")

    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ingest, "accept_several", interrupted)
    assert kvledger.fails("demo", "--hours", "1", code=130) == (
        "kvledger: interrupted; the ledger of the demo before, if any, is as it was; run it again to start anew\n"
    )
    assert [file.name for file in state.iterdir()] == ["demo.db"]
    assert (state / "demo.db").read_text() == "the one before"
