"""What the command line shows of the books: the same figures to people and to programs."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from batches import T0, Life
from commandline import MONTH, START, azure, rows

from ledger import ingest
from ledger.core.money import decimal_text
from ledger.core.periods import parse_time
from ledger.reports.bill import LOOKS
from ledger.reports.render import Column, Shape, Sheet, counted, csv_text, money, percent, show
from ledger.reports.usage import KEYS, By
from ledger.store.database import connect

if TYPE_CHECKING:
    from commandline import CommandLine

DOC = (Path(__file__).parents[1] / "docs/cli.md").read_text()


USAGES = [f"usage --by {by}" for by in By]


def documented(section: str, table: int = 0) -> list[str]:
    """The keys in the ``table``-th table of ``key`` rows below a heading of docs/cli.md."""
    text = DOC.partition(f"\n## {section}")[2].partition("\n## ")[0]
    tables = re.split(r"^\| key \| what \|$", text, flags=re.MULTILINE)[1:]
    return re.findall(r"^\| `(\w+)` \|", tables[table].partition("\n\n")[0], re.MULTILINE)


# --- keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", By)
def test_usage_has_the_documented_keys(replayed: CommandLine, by: By) -> None:
    wanted = [*KEYS[by], *documented("usage"), *(documented("usage", 1) if by is By.POOL else ())]
    found = replayed("usage", "--by", by, "--format", "json").json
    assert found
    assert all(list(row) == wanted for row in found)
    header, *lines = csv.reader(io.StringIO(replayed("usage", "--by", by, "--format", "csv").out))
    assert header == wanted
    assert len(lines) == len(found)
    named = ", ".join(f"`{key}`" for key in KEYS[by])
    assert re.search(rf"`{by}`: {named}[;)]", " ".join(DOC.split()))


def test_report_has_the_documented_keys(replayed: CommandLine) -> None:
    statement = replayed("report", "--month", MONTH, "--format", "json").json
    assert list(statement) == documented("report")
    section = DOC.partition("\n## report")[2].partition("\n## ")[0]
    for key in ("lines", "memos", "engines"):
        (below,) = re.findall(rf"^\| `{key}` \| (.*) \|$", section, re.MULTILINE)
        assert list(statement[key][0]) == re.findall(r"`(\w+)`", below)
    header = replayed("report", "--month", MONTH, "--format", "csv").out.splitlines()[0]
    (named,) = re.findall(r"CSV has one table: (.*?)\. The accounts", DOC, re.DOTALL)
    assert header.split(",") == [
        key for key in re.findall(r"`(\w+)`", named) if key not in ("line", "memo", "adjustment")
    ]


@pytest.mark.parametrize(
    ("section", "command"),
    [
        ("assets", "assets list"),
        ("prices", "prices list"),
        ("tenants", "tenants list"),
        ("settle, months, audit", "months list"),
    ],
)
def test_lists_have_the_documented_keys(replayed: CommandLine, section: str, command: str) -> None:
    found = replayed(*command.split(), "--format", "json").json
    assert found
    assert [list(row) for row in found] == [documented(section)] * len(found)
    header = replayed(*command.split(), "--format", "csv").out.splitlines()[0]
    assert header.split(",") == documented(section)


# --- the statement --------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
def test_the_statement_fits_the_terminal_and_its_bar_closes(
    replayed: CommandLine, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = replayed("report", "--month", MONTH).out
    statement = replayed("report", "--month", MONTH, "--format", "json").json
    assert max(map(len, text.splitlines())) <= columns
    bar = text.splitlines()[3]
    assert len(bar) == columns - 1
    assert set(bar.strip()) <= {look.cell for look in LOOKS.values()}
    assert f"bill {decimal_text(statement['bill_nanos'])} =" in text


def test_the_exact_line_of_the_statement_sums_to_the_bill(replayed: CommandLine) -> None:
    text = " ".join(replayed("report", "--month", MONTH).out.split())
    bill, parts = re.findall(r"bill ([\d.]+) = ([-\d.a-z+ ]+?) Of that", text)[0]

    def nanos(decimal: str) -> int:
        whole, _, part = decimal.partition(".")
        return int(whole + part.ljust(9, "0"))

    assert sum(nanos(part) for part in re.findall(r"[\d.]+", parts)) == nanos(bill)


def test_a_bill_of_nothing_says_so_in_words(kvledger: CommandLine) -> None:
    Path("trace.csv").write_text(azure(*rows(5)))
    assert kvledger("replay", "trace.csv", "--start", START, "--price", "0").code == 0
    text = " ".join(kvledger("report").out.split())
    assert "Exactly, in USD: bill 0.00; every line of it is 0." in text


def test_a_tenant_s_statement_is_its_part_of_the_whole(replayed: CommandLine) -> None:
    whole = replayed("report", "--month", MONTH, "--format", "json").json
    tenants = {line["tenant"] for line in whole["lines"]} - {""}
    assert tenants == {"azure", "system"}
    for tenant in tenants:
        part = replayed("report", "--month", MONTH, "--tenant", tenant, "--format", "json").json
        assert part["lines"] == [line for line in whole["lines"] if line["tenant"] == tenant]
        assert part["bill_nanos"] == sum(line["amount_nanos"] for line in part["lines"])


def test_a_statement_of_nobody_or_of_no_month_is_one_line_that_says_what_there_is(replayed: CommandLine) -> None:
    nobody = ("report", "--month", MONTH, "--tenant", "nobody")
    said = f"nothing is booked on nobody in {MONTH}; there are bookings on azure, system\n"
    assert replayed(*nobody).out == said
    answer = replayed(*nobody, "--format", "json")
    assert (answer.json["lines"], answer.json["bill_nanos"], answer.err) == ([], 0, said)
    for tenant in ((), ("--tenant", "azure"), ("--tenant", "nobody")):
        answer = replayed("report", "--month", "2020-01", *tenant)
        assert answer.out == f"nothing is booked in 2020-01; there are bookings in {MONTH}\n"
        assert answer.code == 0
    answer = replayed("report", "--month", "2020-01", "--format", "csv")
    assert (answer.out.count("\n"), answer.err.count("\n")) == (1, 1)


def test_a_month_of_a_ledger_without_bookings_says_how_to_book(kvledger: CommandLine) -> None:
    kvledger("db", "upgrade")
    kvledger("prices", "add", "1", "--model", "H100")
    assert "`kvledger settle` books what is over" in kvledger("report", "--month", "2020-01").out


def test_the_full_basis_divides_the_same_bill(replayed: CommandLine) -> None:
    capacity, full = (
        replayed("report", "--month", MONTH, "--basis", basis, "--format", "json").json
        for basis in ("capacity", "full")
    )
    assert capacity["bill_nanos"] == full["bill_nanos"]
    assert sum(line["amount_nanos"] for line in full["lines"]) == full["bill_nanos"]
    assert capacity["lines"] != full["lines"]


def test_usage_by_any_key_sums_to_the_tenants_cost(replayed: CommandLine) -> None:
    def cost(by: str) -> int:
        found = replayed("usage", "--by", by, "--format", "json").json
        return sum((row["active_nanos"] or 0) + (row["cached_nanos"] or 0) for row in found)

    statement = replayed("report", "--month", MONTH, "--format", "json").json
    wanted = sum(line["amount_nanos"] for line in statement["lines"] if line["account"] == "tenant")
    assert {by: cost(by) for by in By} == dict.fromkeys(By, wanted)


def test_a_statement_before_anything_is_booked_says_what_to_do(kvledger: CommandLine) -> None:
    kvledger("db", "upgrade")
    for month in ((), ("--month", "2020-01")):
        answer = kvledger("report", *month)
        assert "nor in any month; `kvledger settle` books what is over" in answer.out
        assert (answer.code, answer.err) == (0, "")
        answer = kvledger("report", *month, "--format", "json")
        assert (answer.json["lines"], answer.json["bill_nanos"], answer.json["currency"]) == ([], 0, "USD")
        assert "nor in any month" in answer.err
        assert kvledger("report", *month, "--format", "csv").out.count("\n") == 1
    assert "there are no facts yet" in kvledger("usage").out
    assert kvledger("usage", "--format", "json").json == []
    assert "no month has bookings" in kvledger("months", "list").out
    assert kvledger("audit").code == 0


def test_an_empty_range_of_time_is_refused_with_what_there_is(replayed: CommandLine) -> None:
    late, early = "2098-01-01T00:00:00Z", "2020-01-01T00:00:00Z"
    for given, says, other in (
        (("--from", late), f"--from {late} does not lie before the last fact", "--to"),
        (("--to", early), f"--to {early} does not lie after the first fact", "--from"),
        (("--from", late, "--to", early), f"the range from {late} to {early} has no length", "the last fact"),
    ):
        message = replayed.fails("usage", *given)
        assert says in message
        assert other not in message or given == ("--from", late, "--to", early)
        assert f"facts lie from {START}" in message
    later = replayed("usage", "--from", "2025-01-01T00:00:00Z", "--to", "2025-01-02T00:00:00Z")
    assert "nothing was used in that time" in later.out


@pytest.mark.parametrize("now", ["2024-03-04T00:00:00Z", "2024-03-05T00:10:00Z", "2031-01-01T00:00:00Z"])
def test_a_replay_is_settled_whatever_the_clock_here_says(
    replayed: CommandLine, monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    now_us = parse_time(now)
    for module in ("reports", "books"):
        monkeypatch.setattr(f"ledger.commands.{module}.now_us", lambda: now_us)
    statement = replayed("report", "--month", MONTH, "--format", "json").json
    assert statement["provisional_from"] is None
    assert "0 intervals booked, 0 booked again" in replayed("settle").out
    assert replayed("report", "--month", MONTH, "--format", "json").json == statement


# --- months ---------------------------------------------------------------------------------------------


def test_a_closed_month_stays_as_it_was_and_what_comes_late_is_an_adjustment(replayed: CommandLine) -> None:
    before = replayed("report", "--month", MONTH, "--format", "json").json
    closed = replayed("months", "close", MONTH)
    assert closed.code == 0
    digest = closed.out.split()[-1]
    assert "closed already" in replayed("months", "close", MONTH).out
    assert replayed("report", "--month", MONTH, "--format", "json").json == before | {"digest": digest}
    assert f"closed, digest {digest[:12]}" in replayed("report", "--month", MONTH).out

    assert replayed("replay", "trace.csv", "--limit", "8", "--start", START).code == 0
    assert replayed("report", "--month", MONTH, "--format", "json").json == before | {"digest": digest}
    months = replayed("months", "list", "--format", "json").json
    assert (months[0]["month"], months[0]["state"]) == (MONTH, "closed")
    assert sum(row["adjustments_nanos"] for row in months) > 0
    assert replayed("audit").code == 0


def test_a_month_that_is_not_over_is_not_closed(replayed: CommandLine) -> None:
    assert "cannot be closed before" in replayed.fails("months", "close", "2098-01")


# --- tables ---------------------------------------------------------------------------------------------


def sheet(*values: tuple[Any, ...], columns: tuple[Column, ...]) -> str:
    out = io.StringIO()
    show(Sheet(columns=columns, rows=list(values), empty="nothing"), "table", out)
    return out.getvalue()


def test_a_table_too_wide_folds_texts_and_spares_columns_and_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    columns = (
        Column(key="name", title="name"),
        Column(key="spare", title="spare", shape=Shape.COUNT, spare=1),
        *(Column(key=f"n{i}", title=f"n{i}", shape=Shape.COUNT) for i in range(3)),
    )
    text = sheet(("a name that is much longer than it need be", 777, 10**11, 10**11, 10**11), columns=columns)
    assert text.count("100,000,000,000") == 3
    assert "777" not in text
    assert "Left out at this width: 1 column." in text
    assert (
        " ".join(line[:10].strip() for line in text.splitlines()[2:8]) == "a name that is much longer than it need be"
    )


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_sentence_that_would_be_squeezed_is_told_under_the_table(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    why = "pool 'gpu': active + cached + free = 17, blocks x length = 12 block-µs"
    sheet = Sheet(
        columns=(
            Column(key="id"), Column(key="number", title="id"), Column(key="engine", title="engine", name=True),
            Column(key="detail", title="why", sentence=True),
        ),
        rows=[("x", 3, "e" * 35, why), ("y", 4, "f", "")],
        empty="",
    )  # fmt: skip
    out = io.StringIO()
    show(sheet, "table", out)
    lines = out.getvalue().splitlines()
    if width == 160:
        assert why in lines[2]
        assert len(lines) == 4
    else:
        assert "why" not in lines[0]
        assert " ".join(line.strip() for line in lines[4:]) == f"3: {why}"


def test_a_name_that_other_commands_take_is_whole_as_long_as_columns_can_be_spared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    asset = "sim-mooncake_conversation-f83"
    columns = (
        Column(key="asset", title="asset", name=True),
        Column(key="model", title="model", spare=1),
        Column(key="remark", title="a remark by whoever"),
    )
    text = sheet((asset, "H100-SXM5-80GB", "words " * 8), columns=columns)
    assert asset in text
    assert "H100" not in text
    assert "a remark by whoever" in text
    assert text.count("words") == 8


def test_a_name_too_long_for_any_table_is_folded_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    name = "".join(chr(ord("a") + i % 26) for i in range(90))
    text = sheet((name, 7), columns=(Column(key="a", title="a", name=True), Column(key="n", shape=Shape.COUNT)))
    assert name in "".join(text.split())
    assert "…" not in text


@pytest.mark.parametrize("command", ["report", "assets list", "prices list", "tenants list", "months list", *USAGES])
def test_nothing_is_cut_at_eighty_columns(kvledger: CommandLine, command: str) -> None:
    Path("mooncake_conversation.csv").write_text(azure(*rows(9)))
    kvledger("replay", "mooncake_conversation.csv", "--start", START)
    text = kvledger(*command.split()).out
    assert text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    if command in ("assets list", "prices list"):
        (asset,) = kvledger("assets", "list", "--format", "json").json
        assert asset["asset"] in text


def test_a_trace_without_models_is_of_the_model_that_is_served(replayed: CommandLine) -> None:
    assert {row["model"] for row in replayed("usage", "--by", "model", "--format", "json").json} == {"reference"}


def test_one_is_no_plural() -> None:
    assert counted(1, "interval") == "1 interval"
    assert [counted(n, "breach", "breaches") for n in (0, 1, 2_000)] == ["0 breaches", "1 breach", "2,000 breaches"]


def test_a_figure_is_whole_even_where_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    columns = tuple(Column(key=f"n{i}", title=f"n{i}", shape=Shape.COUNT) for i in range(6))
    assert sheet((10**11,) * 6, columns=columns).count("100,000,000,000") == 6


def test_names_are_never_taken_for_markup(kvledger: CommandLine) -> None:
    kvledger("db", "upgrade")
    kvledger("tenants", "add", "[red]:smile:[/red]", "--display", "[bold]x")
    out = kvledger("tenants", "list").out
    assert "[red]:smile:[/red]" in out
    assert "[bold]x" in out


def test_a_cell_that_a_spreadsheet_would_run_is_disarmed_in_every_csv(kvledger: CommandLine) -> None:
    formula = '=HYPERLINK("http://x")'
    kvledger("db", "upgrade")
    kvledger("tenants", "add", formula)
    _header, row = csv.reader(io.StringIO(kvledger("tenants", "list", "--format", "csv").out))
    assert row[0] == "'" + formula
    assert kvledger("tenants", "list", "--format", "json").json[0]["tenant"] == formula
    assert csv_text([("@x", -5, None, True), ("\ty", "a=b", 0, False)]) == "'@x,-5,,yes\n'\ty,a=b,0,no\n"


def test_the_rest_of_a_long_table_is_summed_up(replayed: CommandLine) -> None:
    text = replayed("usage", "--by", "request", "--top", "3").out
    assert "more" in text
    full = replayed("usage", "--by", "request", "--top", "0").out
    assert text.splitlines()[-2] == full.splitlines()[-2], "the sums do not depend on what is shown"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(1, 3, "33.3 %"), (0, 3, "0.0 %"), (1, 10_000, "<0.1 %"), (-1, 3, "-33.3 %"), (3, 0, "-"), (3, 3, "100.0 %")],
)
def test_shares_are_rounded_and_never_hide_what_is_there(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


def test_what_is_too_small_to_show_is_no_nothing() -> None:
    shown = [money(nanos) for nanos in (0, 1, -1, 49_999, 50_000, 10**13)]
    assert shown == ["0.0000", "<0.0001", ">-0.0001", "<0.0001", "0.0001", "10,000.0000"]


def test_the_progress_is_no_part_of_the_answer(kvledger: CommandLine) -> None:
    Path("trace.csv").write_text(azure(*rows(5)))
    answer = kvledger("replay", "trace.csv", "--start", START)
    assert "%" not in answer.out


def test_an_engine_that_has_only_announced_itself_has_used_nothing(kvledger: CommandLine) -> None:
    assert kvledger("db", "upgrade", "--database", "sqlite:///kvledger.db").code == 0
    assert kvledger("settle", "--database", "sqlite:///kvledger.db").code == 0
    database = connect("sqlite:///kvledger.db")
    life = Life()
    assert ingest.accept(database, life.send(life.announce()), T0).status is ingest.Status.ACCEPTED
    database.close()
    answer = kvledger("usage", "--database", "sqlite:///kvledger.db")
    assert answer.code == 0, answer
    assert "nothing was used" in answer.out
