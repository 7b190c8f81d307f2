"""Every recorded trace is read whole; every broken row is refused by name."""

from __future__ import annotations

import gzip
import json
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import pytest

from ledger.errors import UsageError
from ledger.reference.content import block_hashes
from ledger.reference.request import TraceRequest
from ledger.reference.traces import FORMATS, detect, open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = {
    "agent-sessions": ("traces/agent_sessions.jsonl.gz", 355),
    "mooncake": ("traces/mooncake_conversation.jsonl", 12_031),
    "azure": ("traces/azure_2023_conv.csv", 19_366),
    "sharegpt": ("traces/sharegpt_300_token_ids.jsonl.gz", 300),
    "lmsys": ("traces/lmsys_27_tenants_fcfs.jsonl", 1500),
    "dynamo": ("traces/dynamo_request_trace.jsonl.gz", 17),
    "llmservingsim": ("runs/RTX4090_Llama-3.1-8B__requests.jsonl", 300),
}

MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def unrolled(first: TraceRequest) -> Iterator[TraceRequest]:
    """A session's requests, sub-agents' behind the request that called them."""
    yield first
    for following in first.then or ():
        if following.forks:
            yield from unrolled(following)
        else:
            yield following


@pytest.mark.parametrize("name", FILES)
def test_a_recorded_trace_is_told_by_its_first_row_and_read_whole(traces_dir: Path, name: str) -> None:
    file, count = FILES[name]
    assert detect(traces_dir / file) == name
    trace = open_trace(traces_dir / file)
    requests = list(trace.requests())
    assert len(requests) == count
    assert requests[0].arrival_us < 1_000_000
    assert all(a.arrival_us <= b.arrival_us for a, b in pairwise(requests))
    assert len({request.request for request in requests}) == count


def test_every_format_has_a_recorded_file_here() -> None:
    assert set(FORMATS) == {"auto", *FILES}


def test_all_requests_of_the_agent_sessions_are_found_with_the_tokens_that_the_recording_totals(
    traces_dir: Path,
) -> None:
    count = prompt = answer = subagents = 0
    names = set()
    for first in open_trace(traces_dir / FILES["agent-sessions"][0]).requests():
        for request in unrolled(first):
            count += 1
            prompt += request.prompt_tokens
            answer += request.output_tokens
            subagents += request.dims.scenario == "subagent"
            names.add(request.request)
    assert (count, subagents, len(names)) == (24_015, 524, 24_015)
    assert prompt == 3_012_680_174
    assert answer >= 10_652_197


def test_mooncake_blocks_that_share_a_hash_share_engine_blocks_of_any_size(traces_dir: Path) -> None:
    first, second = islice(open_trace(traces_dir / FILES["mooncake"][0]).requests(), 2)
    for size, shared in ((16, 32), (64, 8), (512, 1), (96, 5), (1024, 0)):
        hashes = [block_hashes(request, size) for request in (first, second)]
        assert [len(one) for one in hashes] == [first.prompt_tokens // size, second.prompt_tokens // size]
        same = [a == b for a, b in zip(*hashes, strict=False)]
        assert same.index(False) == shared
        assert not any(same[shared:])


def test_hashes_taken_over_from_the_request_before_are_those_it_would_have_itself(traces_dir: Path) -> None:
    session = next(open_trace(traces_dir / FILES["agent-sessions"][0]).requests())
    earlier: dict[int, list[int]] = {16: [], 48: [], 64: []}
    for request in islice(unrolled(session), 60):
        for size, before in earlier.items():
            whole = block_hashes(request, size)
            assert block_hashes(request, size, before) == whole
            earlier[size] = whole


def test_token_ids_are_hashed_with_the_answer_so_that_a_next_turn_hits_it(traces_dir: Path) -> None:
    request = next(open_trace(traces_dir / FILES["sharegpt"][0]).requests())
    whole = block_hashes(request, 16)
    assert len(whole) == (request.prompt_tokens + request.output_tokens) // 16
    turn = TraceRequest(
        request="next",
        dims=request.dims,
        arrival_us=0,
        prompt_tokens=request.prompt_tokens + request.output_tokens,
        output_tokens=1,
        content=request.content,
        content_covers=len(request.content),
    )
    assert block_hashes(turn, 16) == whole


def test_requests_with_different_salts_share_nothing() -> None:
    def hashes(salt: str) -> list[int]:
        request = TraceRequest(
            request="r",
            dims=None,  # type: ignore[arg-type]
            arrival_us=0,
            prompt_tokens=32,
            output_tokens=1,
            content=range(32),
            content_covers=32,
            cache_salt=salt,
        )
        return block_hashes(request, 16)

    assert hashes("a") == hashes("a")
    assert not set(hashes("a")) & set(hashes("b"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_length": -1}, "input_length is -1: it must be from 1 to 16777216"),
        ({"input_length": 1.5}, "input_length is 1.5: it must be a whole number"),
        ({"input_length": True}, "input_length is True"),
        ({"input_length": 10**12}, "input_length is 1000000000000"),
        ({"input_length": "600"}, "input_length is '600'"),
        ({"output_length": -7}, "output_length is -7"),
        ({"output_length": 9223372036854775794}, "output_length is 9223372036854775794"),
        ({"timestamp": -5}, "timestamp is -5"),
        ({"timestamp": float("nan")}, "NaN is no number"),
        ({"timestamp": float("inf")}, "Infinity is no number"),
        ({"timestamp": 10**15}, "timestamp is 1000000000000000: it must be from 0 to 31622400000"),
        ({"hash_ids": [0]}, "hash_ids is 1: it must be 2 ids of 512 for 600 tokens"),
        ({"hash_ids": [0, -1]}, "hash_ids is -1"),
        ({"hash_ids": [0, True]}, "hash_ids is True"),
        ({"hash_ids": None}, "hash_ids is None"),
    ],
)
def test_a_broken_value_is_refused_with_file_line_value_and_limit(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(MOONCAKE) + "\n" + json.dumps(MOONCAKE | change) + "\n")
    with pytest.raises(UsageError) as error:
        list(open_trace(path).requests())
    assert f"{path}, line 2: " in str(error.value)
    assert said in str(error.value)
    assert "correct or remove the row" in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the file is empty"),
        ("\n\n", "line 1: the file is empty"),
        ("{", "no known format"),
        ("[1, 2]\n", "no known format"),
        ('{"a": 1}\n', "say which: one of agent-sessions, mooncake"),
        (json.dumps(MOONCAKE) + "\n" + json.dumps(MOONCAKE)[:40], "line 2: no JSON at column"),
        (json.dumps(MOONCAKE) + "\n[]\n", "line 2: [] is not an object with keys"),
        (json.dumps(MOONCAKE) + '\n{"timestamp": 3}\n', "line 2: there is no input_length"),
        (json.dumps(MOONCAKE) + "\n" + "[" * 100_000, "line 2: "),
        (AZURE + "2023-11-16 18:15:46.68,10,2\n2023-11-16 18:15", "line 3: 1 cells"),
        (AZURE + "2023-11-16 18:15:46.68,10,nan\n", "GeneratedTokens is 'nan'"),
        (AZURE + "2023-11-16 18:15:46.68,-10,3\n", "ContextTokens is '-10'"),
        (AZURE + "yesterday,10,3\n", "TIMESTAMP is 'yesterday'"),
        (AZURE, "there is no request in it"),
    ],
)
def test_a_broken_file_is_refused_with_its_line_and_a_way_out(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        list(open_trace(path).requests())
    assert str(path) in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize("text", [json.dumps(MOONCAKE) + "\n", AZURE + "2023-11-16 18:15:46.68,10,2\n"])
def test_a_byte_order_mark_before_a_trace_changes_nothing(tmp_path: Path, text: str) -> None:
    for name, encoding in (("bare", "utf-8"), ("marked", "utf-8-sig")):
        (tmp_path / name).write_text(text, encoding=encoding)
    bare, marked = (open_trace(tmp_path / name) for name in ("bare", "marked"))
    assert marked.format == bare.format
    assert list(marked.requests()) == list(bare.requests())


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(json.dumps(MOONCAKE).encode() + b"\n\xff\xfe\n")
    with pytest.raises(UsageError, match="line 2: byte 0xff is not UTF-8"):
        list(open_trace(path).requests())


def test_a_compressed_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    rows = "".join(json.dumps(MOONCAKE | {"timestamp": number}) + "\n" for number in range(5000))
    path.write_bytes(gzip.compress(rows.encode())[:-200])
    with pytest.raises(UsageError, match="the file is cut or damaged"):
        list(open_trace(path, "mooncake").requests())


def test_rows_written_as_requests_ended_are_sorted_by_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("".join(json.dumps(MOONCAKE | {"timestamp": at}) + "\n" for at in (5, 3, 9, 0)))
    assert [request.arrival_us for request in open_trace(path).requests()] == [0, 3000, 5000, 9000]


def test_rows_too_far_out_of_order_to_be_sorted_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    times = [*range(1000, 6000), 0]
    path.write_text("".join(json.dumps(MOONCAKE | {"timestamp": at}) + "\n" for at in times))
    with pytest.raises(UsageError, match=r"line 5001: .*sort the file"):
        list(open_trace(path).requests())


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"format": "csv"}, "format 'csv' is not known"),
        ({"limit": 0}, "limit is 0"),
    ],
)
def test_unusable_arguments_are_refused(tmp_path: Path, keys: dict[str, object], said: str) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps(MOONCAKE))
    with pytest.raises(UsageError, match=said):
        open_trace(path, **keys)  # type: ignore[arg-type]


def test_a_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file: give the path of a trace"):
        open_trace(tmp_path / "none")


def test_a_context_that_claims_more_of_the_one_before_than_there_was_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    request = {"t": 0.0, "type": "n", "model": "m", "in": 128, "out": 2, "p": 0, "new": [1, 2]}
    session = {"id": "s", "block_size": 64, "requests": [request, request | {"p": 3, "new": []}]}
    path.write_text(json.dumps(session))
    first = next(open_trace(path).requests())
    with pytest.raises(UsageError, match="line 1: p is 3: it must be from 0 to 2"):
        list(unrolled(first))
