"""The command line before any ledger is touched: help, versions, and arguments that cannot be used."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ledger
from ledger.cli import USAGE, main
from ledger.commands import arguments
from ledger.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]


def below(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [child for action in found for child in action.choices.values()]


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for child in below(parser):
        yield from parsers(child)


PARSERS = list(parsers(arguments.parser()))
LEAVES = [parser for parser in PARSERS if not below(parser)]


@pytest.mark.parametrize("page", PARSERS, ids=lambda parser: parser.prog)
def test_every_example_of_every_help_page_is_taken_and_is_of_that_page(
    page: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = [line.strip() for line in page.format_help().splitlines() if line.startswith("  kvledger ")]
    assert examples, page.format_help()
    for example in examples:
        words = shlex.split(example.partition("&&")[0])
        assert f"{example} ".startswith(f"{page.prog} ")
        if words[-1] == "--help":
            assert main(words[1:]) == 0
            assert capsys.readouterr().out
        else:
            args = arguments.parser().parse_args(words[1:])
            assert f"kvledger {args.command} ".startswith(f"{page.prog} ")


def test_the_help_of_a_replay_says_what_its_limit_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "agent sessions: the first N sessions" in text
    assert "counted apart" in text


def test_the_documented_commands_are_there() -> None:
    assert {leaf.prog.removeprefix("kvledger ") for leaf in LEAVES} == {
        "replay", "demo", "usage", "report", "settle", "audit",
        "assets add", "assets list", "assets assign", "assets retire",
        "prices add", "prices list", "prices import", "tenants add", "tenants list",
        "months close", "months list", "db upgrade", "db current", "db check",
        "quarantine list", "quarantine show", "quarantine retry",
        "serve", "engines", "tokens add", "tokens list", "tokens revoke", "sources list", "config show", "config check",
        "doctor", "ingest", "drill outage", "inspect", "agent",
        "collect add", "collect list", "collect remove", "collect export",
    }  # fmt: skip


def test_version_and_help_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kvledger {ledger.__version__}\n"
    assert main(["replay", "--help"]) == 0
    assert "example:" in capsys.readouterr().out


def test_the_bare_install_answers_help_and_names_the_install_that_a_command_needs() -> None:
    probe = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ledger.cli import main; sys.exit(main(sys.argv[1:]))"

    def bare(*argv: str) -> subprocess.CompletedProcess[str]:
        # -S leaves site-packages out, -I the user's; what remains is the standard library and this checkout.
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", probe, *argv], capture_output=True, text=True, check=False
        )

    for argv in (["--help"], ["--version"], *[[*leaf.prog.split()[1:], "--help"] for leaf in LEAVES[:2]]):
        done = bare(*argv)
        assert (done.returncode, done.stderr) == (0, ""), argv
    for argv in (["audit"], ["usage"], ["db", "upgrade"], ["replay", "trace.csv"], ["demo"]):
        done = bare(*argv)
        assert done.returncode == USAGE, done
        assert "pip install '.[service]' in a clone" in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("", "COMMAND"),
        ("replya x", "invalid choice: 'replya'"),
        ("replay", "TRACE"),
        ("replay x --limit 0", "'0': it is too small; write a whole number from 1"),
        ("replay x --limit 1.5", "not a whole number"),
        ("replay x --limit 1e400", "out of all proportion"),
        ("replay x --limit nan", "not a finite number"),
        ("replay x --engines 65", "'65': it is too large; write a whole number from 1 to 64"),
        ("replay x --blocks 99999999999999999999", "out of all proportion"),
        ("replay x --block-size -16", "'-16': it is too small"),
        ("replay x --price NaN", "not a plain decimal number"),
        ("replay x --price -1", "negative"),
        ("replay x --price 1e9", "not a plain decimal number"),
        ("replay x --price 1000001", "above 1000000"),
        ("replay x --price 2.9512345678", "10 decimals, the most is 9"),
        ("replay x --start 2026-11-03", "has no offset"),
        ("replay x --start 2026-11-03T00:00:00", "has no offset"),
        ("replay x --start yesterday", "is not a time"),
        ("replay x --start 2026-11-03T00:00:01Z", "15-second grid"),
        ("replay x --start 9999-12-31T00:00:00Z", "outside the years"),
        ("replay x --format parquet", "invalid choice: 'parquet'"),
        ("replay x --lim 3", "unrecognized arguments"),
        ("usage --from 2026-13-01T00:00:00Z", "is not a time"),
        ("usage --by colour", "invalid choice: 'colour'"),
        ("usage --format xml", "invalid choice: 'xml'"),
        ("report --month 2026-13", "give a month within"),
        ("report --month November", "is not a month"),
        ("report --basis fair", "invalid choice: 'fair'"),
        ("assets add", "ASSET"),
        ("assets assign gpu-0 engine-0 --share 1.5", "above 0 and at most 1"),
        ("assets assign gpu-0 engine-0 --share 0", "above 0 and at most 1"),
        ("assets assign gpu-0 engine-0 --share 0.1234567", "more than 6 decimals"),
        ("assets assign gpu-0 engine-0 --from 2026-11-03T00:00:07Z", "15-second grid"),
        ("prices add 2,95", "not a plain decimal number"),
        ("prices import", "FILE"),
        ("months close", "YYYY-MM"),
        ("quarantine show", "ID"),
        ("quarantine show 0", "too small"),
        ("quarantine show 9223372036854775808", "too large"),
    ],
)
def test_an_argument_that_cannot_be_used_is_one_line_and_exit_2(
    argv: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv.split()) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvledger: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert "--help`" in captured.err


@pytest.mark.parametrize("text", ["", " ", "a\nb", "x" * 513, "\x1b[31mred"])
def test_a_name_must_be_printable_and_short(text: str) -> None:
    with pytest.raises(UsageError, match="is no name"):
        arguments.parser().parse_args(["tenants", "add", text])


@pytest.mark.parametrize("start", ["2000-01-01T00:00:00Z", "2099-12-31T23:59:45Z"])
def test_a_replay_that_its_own_ledger_would_refuse_does_not_start(start: str) -> None:
    with pytest.raises(UsageError, match="outside 2020-01-01"):
        arguments.parser().parse_args(["replay", "trace.csv", "--start", start])
