"""`kvledger inspect`: what was recognised, what not, and what the ledger could do with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from endpoints import endpoint, text

if TYPE_CHECKING:
    from pathlib import Path

    from commandline import CommandLine

TEXT = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:generation_tokens_total{engine="0",model_name="m"} 1234567
vllm:num_preemptions_total{engine="0",model_name="m"} -4
vllm:something_new{engine="0"} 1
vllm:request_time_per_output_token_seconds_count 1
process_open_fds 8
this line is broken
"""


@pytest.fixture
def file(plain: Path) -> str:
    (plain / "m.prom").write_text(TEXT)
    return "m.prom"


def test_a_person_reads_what_was_found_and_what_was_not(kvledger: CommandLine, file: str) -> None:
    answer = kvledger("inspect", file)
    assert answer.code == 0
    shown = " ".join(answer.out.split())
    for part in (
        "vLLM", "9 lines, 7 series", "running 3 vllm:num_requests_running", "kv_active 25.00 %", "1,234,567",
        "What the ledger could do with it bills the engine's GPUs",
        "What it should have and has not", "queue: from arrival to the first schedule",
        "Values that cannot be, left out vllm:num_preemptions_total is -4 in line 5",
        "Not recognised vllm:something_new",
        "1 bad line line 9: no value behind it: this line is broken",
    ):  # fmt: skip
        assert part in shown, shown
    assert "process_open_fds" not in shown


def test_json_has_all_of_it(kvledger: CommandLine, file: str) -> None:
    found = kvledger("inspect", file, "--format", "json").json
    assert found["kind"] == "vllm"
    figures = {each["figure"]: each for each in found["figures"]}
    assert figures["running"] == {"figure": "running", "value": 3, "from": "vllm:num_requests_running"}
    assert figures["kv_active"]["value"] == {"0": 250_000}
    assert found["bad"] == [{"line": 9, "text": "this line is broken", "why": "no value behind it"}]
    assert found["unknown"] == ["vllm:something_new"]
    assert "preemptions" in found["missing"]


def test_a_byte_order_mark_before_a_text_is_no_bad_line(kvledger: CommandLine, file: str, plain: Path) -> None:
    (plain / "marked.prom").write_text(TEXT, encoding="utf-8-sig")
    assert (
        kvledger("inspect", "marked.prom", "--format", "json").json
        == kvledger("inspect", file, "--format", "json").json
    )


def test_a_url_is_fetched(kvledger: CommandLine) -> None:
    with endpoint(text(TEXT)) as engine:
        assert kvledger("inspect", engine.url, "--format", "json").json["kind"] == "vllm"


def test_an_address_that_does_not_answer_with_a_text_is_one_line(kvledger: CommandLine) -> None:
    with endpoint(text("", status=404)) as engine:
        said = kvledger.fails("inspect", engine.url, code=3)
    assert "it answers 404" in said
    assert engine.url in said


def test_a_file_that_is_not_there_is_one_line(kvledger: CommandLine) -> None:
    assert "No such file" in kvledger.fails("inspect", "nothing.prom")


def test_a_text_that_is_nobodys_is_exit_1_and_its_families_are_listed(kvledger: CommandLine, plain: Path) -> None:
    (plain / "node.prom").write_text("node_load1 0.3\n")
    answer = kvledger("inspect", "node.prom")
    assert answer.code == 1
    assert "Nothing in it is known" in answer.out
    assert "node_load1" in answer.out


def test_a_text_of_another_kind_than_was_said_has_nothing(kvledger: CommandLine, file: str) -> None:
    answer = kvledger("inspect", file, "--kind", "sglang", "--format", "json")
    assert answer.code == 1
    assert json.loads(answer.out)["kind"] is None


def test_every_recorded_text_can_be_inspected(kvledger: CommandLine, traces_dir: Path) -> None:
    for path in (traces_dir / "metrics").iterdir():
        assert kvledger("inspect", str(path)).code == 0, path


def test_a_text_cannot_speak_to_the_terminal_nor_flood_it(kvledger: CommandLine, plain: Path) -> None:
    evil = "\x1b[31mred\x1b]0;pwn\x07" + "m" * 5000
    (plain / "evil.prom").write_text(
        f'vllm:num_requests_running{{engine="0",model_name="{evil}"}} 3\n{evil} is a broken line\n'
    )
    answer = kvledger("inspect", "evil.prom")
    assert "\x1b" not in answer.out
    assert "\x07" not in answer.out
    assert "m" * 600 not in "".join(answer.out.split())
