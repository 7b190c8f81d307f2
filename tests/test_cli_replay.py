"""Replays from the command line: once, twice, interrupted, and with traces that cannot be used."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commandline import MONTH, ROOT, START, azure, rows

import ledger.replay
from ledger import ingest
from ledger.cli import BROKEN_PIPE, INTERRUPTED, USAGE, WORLD

if TYPE_CHECKING:
    from commandline import Answer, CommandLine

KILL_AT = """
import os, signal
import ledger.{module} as module
real, left = module.{name}, {calls}
def deadly(*args, **options):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **options)
module.{name} = deadly
"""


def report(kvledger: CommandLine, *more: str) -> Any:
    return kvledger("report", "--month", MONTH, "--format", "json", *more).json


def replay(kvledger: CommandLine, *more: str) -> Answer:
    answer = kvledger("replay", "trace.csv", "--start", START, "--engines", "2", *more)
    assert answer.code == 0, answer
    return answer


def test_a_replay_makes_the_ledger_and_its_statement_closes(kvledger: CommandLine) -> None:
    Path("trace.csv").write_text(azure(*rows(20)))
    answer = replay(kvledger, "--price", "3.60")
    assert "20 requests and 6 warm-ups" in answer.out
    assert "1 preemptions" not in answer.out
    assert "settled 2 intervals" in answer.out, "one of each engine"
    assert f"kvledger report --month {MONTH}" in answer.out
    statement = report(kvledger)
    assert statement["bill_nanos"] > 0
    assert sum(line["amount_nanos"] for line in statement["lines"]) == statement["bill_nanos"]
    # Two GPUs, at a thousandth of a unit a second, from the start to a boundary of the grid.
    seconds = statement["bill_nanos"] / 2 / 1_000_000
    assert seconds % 15 == 0
    assert kvledger("audit").code == 0


def test_the_same_replay_again_changes_nothing(replayed: CommandLine) -> None:
    before = report(replayed), replayed("usage", "--by", "request", "--format", "csv").out
    answer = replay(replayed)
    assert "nothing was written twice" in answer.out
    assert (report(replayed), replayed("usage", "--by", "request", "--format", "csv").out) == before
    assert replayed("audit").code == 0


def test_two_replays_in_two_places_make_equal_ledgers(replayed: CommandLine) -> None:
    elsewhere = ("--database", "sqlite:///elsewhere.db")
    replay(replayed, *elsewhere)
    for command in (("report", "--month", MONTH), ("usage", "--by", "request"), ("assets", "list")):
        here, there = replayed(*command, "--format", "json"), replayed(*command, "--format", "json", *elsewhere)
        assert here.json == there.json


def test_another_price_reprices_the_same_engines_there_and_back(replayed: CommandLine) -> None:
    cheap = report(replayed)["bill_nanos"]
    replay(replayed, "--price", "3600")
    seconds = report(replayed)["bill_nanos"] // 10**9
    assert seconds % 15 == 0, "a unit a second, for two GPUs"
    assert cheap == 2 * (seconds // 2 * 2_950_000_000 // 3600)
    replay(replayed)
    assert report(replayed)["bill_nanos"] == cheap
    assert replayed("audit").code == 0


def test_another_replay_is_other_engines_beside_the_first(replayed: CommandLine) -> None:
    def engines() -> set[str]:
        return {row["engine"] for row in replayed("usage", "--by", "pool", "--format", "json").json}

    first = engines()
    replay(replayed, "--limit", "10")
    assert first < engines()
    assert len(engines()) == 4
    assert replayed("audit").code == 0


def test_events_are_written_whole_and_name_every_engine(kvledger: CommandLine) -> None:
    Path("trace.csv").write_text(azure(*rows(10)))
    replay(kvledger, "--events", "events.jsonl")
    events = [json.loads(line) for line in Path("events.jsonl").read_text().splitlines()]
    assert {event["ev"] for event in events} >= {"open", "request", "acquire", "step", "finish", "release", "close"}
    assert len({event["engine"] for event in events}) == 2
    assert not Path("events.jsonl.part").exists()


def test_the_events_of_a_trace_without_models_name_the_model_that_is_served(kvledger: CommandLine) -> None:
    Path("trace.csv").write_text(azure(*rows(4)))
    replay(kvledger, "--events", "events.jsonl")
    events = [json.loads(line) for line in Path("events.jsonl").read_text().splitlines()]
    assert {event["model"] for event in events if "model" in event} == {"reference"}


def test_a_replay_across_a_month_s_end_names_both_months(kvledger: CommandLine) -> None:
    Path("trace.csv").write_text(azure(*rows(20)))
    answer = kvledger("replay", "trace.csv", "--start", "2024-02-29T23:59:30Z")
    told = answer.out[answer.out.index("next:") :].split("\n")
    assert [line.split()[-1] for line in told[:2]] == ["2024-02", "2024-03"]
    for month in ("2024-02", "2024-03"):
        assert kvledger("report", "--month", month, "--format", "json").json["bill_nanos"] > 0


def test_events_that_cannot_be_written_are_told_before_anything_is(kvledger: CommandLine) -> None:
    Path("trace.csv").write_text(azure(*rows(3)))
    Path("folder").mkdir()
    for events, says in (
        ("trace.csv", "is the trace itself"),
        ("folder", "is a directory"),
        ("nowhere/events.jsonl", "no directory that can be written"),
    ):
        assert says in kvledger.fails("replay", "trace.csv", "--events", events)
    assert not kvledger.file.exists()
    assert Path("trace.csv").read_text() == azure(*rows(3))


# --- traces that cannot be used -------------------------------------------------------------------------

MOONCAKE = {"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}

BAD_TRACES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "header only": (azure().encode(), "no request"),
    "binary": (bytes(range(256)), "no known format"),
    "truncated gzip": (gzip.compress(azure(*rows(50)).encode())[:-20], "cut or damaged"),
    "no gzip inside": (b"\x1f\x8b not really", "cut or damaged"),
    "json of another world": (b'{"hello": 1}\n', "no known format"),
    "huge number": (
        azure(*rows(2), "2023-11-16 18:20:00.0000000,9223372036854775808,5").encode(),
        "9223372036854775808",
    ),
    "negative": (azure(*rows(2), "2023-11-16 18:20:00.0000000,-5,5").encode(), "-5"),
    "not a number": (azure(*rows(2), "2023-11-16 18:20:00.0000000,NaN,5").encode(), "NaN"),
    "late bad row": (azure(*rows(60), "2023-11-16 19:20:00.0000000,5").encode(), "line 62"),
    "NaN in JSON": (json.dumps({**MOONCAKE, "timestamp": float("nan")}).encode(), "NaN"),
    "infinite length": (json.dumps({**MOONCAKE, "input_length": float("inf")}).encode(), "Infinity"),
    "sentinel": (json.dumps({**MOONCAKE, "input_length": 9223372036854775794}).encode(), "9223372036854775794"),
    "years long": (json.dumps({**MOONCAKE, "timestamp": 10**15}).encode(), "a year"),
    "a flag for a number": (json.dumps({**MOONCAKE, "output_length": True}).encode(), "True"),
    "nested too deep": (b"[" * 100_000, "format"),
}


@pytest.mark.parametrize("name", BAD_TRACES)
def test_a_trace_that_cannot_be_used_is_one_line_and_nothing_is_written(kvledger: CommandLine, name: str) -> None:
    content, says = BAD_TRACES[name]
    Path("bad.trace").write_bytes(content)
    message = kvledger.fails("replay", "bad.trace")
    assert "bad.trace" in message
    assert says in message
    assert not kvledger.file.exists()


def test_a_trace_that_is_no_file_is_named(kvledger: CommandLine) -> None:
    Path("folder").mkdir()
    for trace in ("absent.csv", "folder", "absent/trace.csv", ""):
        assert "give the path of a trace" in kvledger.fails("replay", trace)
    assert not kvledger.file.exists()


def test_a_broken_row_beyond_the_limit_is_nobody_s_business(kvledger: CommandLine) -> None:
    Path("trace.csv").write_text(azure(*rows(3)) + "2023-11-16 19:20:00.0000000,5\n" * 5000)
    answer = kvledger("replay", "trace.csv", "--limit", "3", "--start", START)
    assert answer.code in (0, 2)  # the reader looks ahead to sort; either way the answer is whole
    assert kvledger.file.exists() == (answer.code == 0)


# --- interruptions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name", "calls"),
    [
        ("ingest", "accept_several", 0),
        ("ingest", "accept_several", 2),
        ("replay", "_register", 0),
        ("replay", "settle", 0),
    ],
)
def test_a_replay_that_was_killed_goes_on_where_it_was(
    kvledger: CommandLine, replayed_file: Path, module: str, name: str, calls: int
) -> None:
    Path("trace.csv").write_text(replayed_file.with_name("trace.csv").read_text())
    argv = ("replay", "trace.csv", "--start", START, "--engines", "2")
    killed = kvledger.child(KILL_AT.format(module=module, name=name, calls=calls), *argv)
    assert killed.returncode == -signal.SIGKILL, killed
    assert kvledger("audit").code == 0, "what a killed replay leaves behind is sound"
    asked = [("usage",), ("usage", "--by", "request"), ("report",), ("report", "--month", MONTH), ("months", "list")]
    assert [kvledger(*command).code for command in asked] == [0] * len(asked), "and can be asked about"

    replay(kvledger)
    whole = ("--database", f"sqlite:///{replayed_file}")
    assert report(kvledger) == report(kvledger, *whole)
    again = kvledger("usage", "--by", "request", "--format", "json").json
    assert again == kvledger("usage", "--by", "request", "--format", "json", *whole).json
    assert kvledger("audit").code == 0


def test_ctrl_c_ends_it_cleanly_and_the_next_run_completes_it(
    kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("trace.csv").write_text(azure(*rows(60)))
    real, calls = ingest.accept_several, iter(range(2))

    def interrupted(*args: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(ingest, "accept_several", interrupted)
    message = kvledger.fails(
        "replay", "trace.csv", "--start", START, "--engines", "2", "--events", "events.jsonl", code=INTERRUPTED
    )
    assert message == "kvledger: interrupted; what was written is whole, run it again to go on\n"
    assert not list(kvledger.folder.glob("*.part")), "an event log is whole or not there"
    monkeypatch.setattr(ingest, "accept_several", real)
    assert "went on where an earlier run ended: " in replay(kvledger).out
    assert kvledger("audit").code == 0


def test_the_engines_process_dying_is_said_with_the_way_out(
    kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than a pipe holds, so that the engines cannot have ended before they are killed.
    Path("trace.csv").write_text(azure(*rows(400)))
    real = ingest.accept_several

    def murderous(*args: Any) -> Any:
        for child in multiprocessing.active_children():
            child.kill()
        return real(*args)

    monkeypatch.setattr(ingest, "accept_several", murderous)
    message = kvledger.fails("replay", "trace.csv", "--start", START, code=WORLD)
    assert "ended early" in message
    assert "run the same command again" in message


@pytest.mark.parametrize("call", ["main({argv})", "sys.exit(main({argv}))", "code = main({argv})\nsys.exit(code)"])
def test_a_script_without_the_main_guard_is_told_to_have_one(kvledger: CommandLine, call: str) -> None:
    Path("trace.csv").write_text(azure(*rows(3)))
    script = kvledger.folder / "script.py"
    head = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom ledger.cli import main\n"
    argv = ["replay", "trace.csv", "--start", START]
    script.write_text(head + call.format(argv=argv) + "\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert "memory" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert "put what the script does under `if __name__" in line
    assert done.returncode == (0 if call == "main({argv})" else USAGE)
    guarded = "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in call.format(argv=argv).splitlines())
    script.write_text(head + guarded)
    assert subprocess.run([sys.executable, script], capture_output=True, timeout=60, check=False).returncode == 0


def test_a_refused_batch_stops_the_replay_and_says_why(kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("trace.csv").write_text(azure(*rows(5)))
    real = ingest.accept_several
    monkeypatch.setattr(
        ingest,
        "accept_several",
        lambda db, raws, at: real(db, [raw.replace(b'"kvledger":1', b'"kvledger":7') for raw in raws], at),
    )
    message = kvledger.fails("replay", "trace.csv", "--start", START, code=WORLD)
    assert "unknown_version" in message
    assert "kvledger quarantine list" in message


def test_a_live_ledger_takes_no_replay(replayed: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = report(replayed)
    monkeypatch.setattr(ledger.replay.receipt, "origin_of", lambda _: ledger.replay.Origin.LIVE)
    assert "this ledger is live" in replayed.fails("replay", "trace.csv", "--limit", "3")
    assert report(replayed) == before


# --- a full disk ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kilobytes", [64, 600])
def test_a_full_disk_is_said_and_the_next_run_completes_it(kvledger: CommandLine, kilobytes: int) -> None:
    """A limit on the size of files stands in for the disk: the first is met by the tables, the second by the facts."""
    Path("trace.csv").write_text(azure(*rows(40)))

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, kilobytes * 1024))

    argv = ("replay", "trace.csv", "--start", START, "--engines", "2")
    full = kvledger.child("", *argv, preexec_fn=small)
    assert full.returncode == WORLD, full
    assert full.stderr.splitlines()[-1].startswith("kvledger: "), full
    assert "Traceback" not in full.stderr
    replay(kvledger)
    assert kvledger("audit").code == 0


# --- a reader that has seen enough ----------------------------------------------------------------------


def test_a_closed_pipe_is_quiet(replayed: CommandLine) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = replayed.child("", "usage", "--by", "request", "--format", "csv", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, "")


# --- the production store -------------------------------------------------------------------------------


def test_postgresql_and_sqlite_give_the_same_answers(replayed: CommandLine, postgres_url: str) -> None:
    there = ("--database", postgres_url)
    answer = replay(replayed, *there)
    assert postgres_url in answer.out
    assert report(replayed, *there) == report(replayed)
    for by in ("request", "pool"):
        command = ("usage", "--by", by, "--format", "json")
        assert replayed(*command, *there).json == replayed(*command).json
    assert "nothing was written twice" in replay(replayed, *there).out
    assert replayed("audit", *there).code == 0
    assert replayed("db", "check", *there).code == 0
