"""Traces whose requests arrive when they arrived: Mooncake, Azure, ShareGPT, LLMServingSim, LMSYS, Dynamo.

What a format does not tell is not made up: a trace without tenants has one, named after it; without content
nothing is shared.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ledger.core.records import Dimensions
from ledger.reference.request import TraceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.reference.traces.reading import Row, TraceFile

MOONCAKE_BLOCK = 512
"""Tokens that a hash id of a Mooncake trace stands for."""

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"

LMSYS_BYTES_MAX = 64 * 1024 * 1024
"""The whole result is one JSON document: it is read at once."""


def mooncake(file: TraceFile) -> Iterator[tuple[int, TraceRequest]]:
    """``timestamp`` in ms, lengths in tokens, and ``hash_ids`` of 512 tokens, the last one cut with the prompt."""
    dims = Dimensions(tenant="mooncake", scenario="chat")
    for line, text in file.lines():
        row = file.row(line, text)
        prompt = row.tokens("input_length", least=1)
        ids = row.ids("hash_ids")
        if len(ids) != -(-prompt // MOONCAKE_BLOCK):
            row.fail(
                "hash_ids", len(ids), f"{-(-prompt // MOONCAKE_BLOCK)} ids of {MOONCAKE_BLOCK} for {prompt} tokens"
            )
        yield (
            line,
            TraceRequest(
                request=f"mooncake-{line}",
                dims=dims,
                arrival_us=row.micros("timestamp", per_unit=1000),
                prompt_tokens=prompt,
                output_tokens=max(1, row.tokens("output_length")),
                content=ids,
                content_tokens=MOONCAKE_BLOCK,
                content_covers=prompt,
            ),
        )


def azure(file: TraceFile) -> Iterator[tuple[int, TraceRequest]]:
    """A CSV of arrival time and two lengths."""
    dims = Dimensions(tenant="azure", scenario="chat")
    for line, text in file.lines():
        if line == 1:
            if text != AZURE_HEADER:
                file.fail(line, f"the header is {text[:60]!r}", f"it must be {AZURE_HEADER}")
            continue
        cells = text.split(",")
        if len(cells) != 3:
            file.fail(line, f"{len(cells)} cells", f"there must be 3 ({AZURE_HEADER}); the row is cut or damaged")
        row = file.of(line, {"ContextTokens": _whole(cells[1]), "GeneratedTokens": _whole(cells[2])})
        yield (
            line,
            TraceRequest(
                request=f"azure-{line}",
                dims=dims,
                arrival_us=_azure_us(row, cells[0]),
                prompt_tokens=row.tokens("ContextTokens", least=1),
                output_tokens=max(1, row.tokens("GeneratedTokens")),
            ),
        )


def llmservingsim(file: TraceFile) -> Iterator[tuple[int, TraceRequest]]:
    """Lengths with ``arrival_time_ns``, or with ``arrival_time`` in Unix seconds as in a recorded run.

    With ``input_tok_ids`` (and ``output_tok_ids``) contexts are shared as they were: that is the format
    ``sharegpt`` of the recorded workload.
    """
    for line, text in file.lines():
        row = file.row(line, text)
        prompt = row.tokens("input_toks", least=1)
        answer = max(1, row.tokens("output_toks"))
        content: list[int] = []
        if "input_tok_ids" in row.values:
            content = row.ids("input_tok_ids")
            if len(content) != prompt:
                row.fail("input_tok_ids", len(content), f"{prompt} ids, as input_toks says")
            if "output_tok_ids" in row.values:
                content = content + row.ids("output_tok_ids")[:answer]
        if "arrival_time_ns" in row.values:
            at_us = row.micros("arrival_time_ns", per_unit=0)
        else:
            at_us = row.wall_us("arrival_time", per_unit=1_000_000)
        yield (
            line,
            TraceRequest(
                request=row.text("request_id") if "request_id" in row.values else f"sharegpt-{line}",
                dims=Dimensions(tenant="sharegpt", scenario="chat"),
                arrival_us=at_us,
                prompt_tokens=prompt,
                output_tokens=answer,
                content=content,
                content_covers=len(content),
            ),
        )


def lmsys(file: TraceFile) -> Iterator[tuple[int, TraceRequest]]:
    """One JSON document with ``result.responses``; the LoRA adapter stands for the tenant."""
    if file.bytes_total > LMSYS_BYTES_MAX:
        file.fail(1, f"{file.bytes_total} bytes", f"a document of this format is read whole, up to {LMSYS_BYTES_MAX}")
    lines = list(file.lines())
    document = file.row(lines[0][0], "\n".join(text for _line, text in lines))
    for number, row in enumerate(document.nested("result").rows("responses"), 1):
        adapter = row.text("adapter_dir")
        yield (
            number,
            TraceRequest(
                request=f"lmsys-{number}",
                dims=Dimensions(tenant=adapter, adapter=adapter, scenario="chat"),
                arrival_us=row.micros("req_time", per_unit=1_000_000),
                prompt_tokens=row.tokens("prompt_len", least=1),
                output_tokens=max(1, row.tokens("output_len")),
            ),
        )


def dynamo(file: TraceFile) -> Iterator[tuple[int, TraceRequest]]:
    """``request_end`` events of ``dynamo.request.trace.v1``; tool events are no requests and are passed over."""
    for line, text in file.lines():
        event = file.row(line, text).nested("event")
        if event.text("event_type") != "request_end":
            continue
        request = event.nested("request")
        shape = request.nested("replay")
        size = shape.tokens("trace_block_size", least=1, most=4096)
        prompt = request.tokens("input_tokens", least=1)
        ids = shape.ids("input_sequence_hashes")
        yield (
            line,
            TraceRequest(
                request=request.text("request_id"),
                dims=Dimensions(
                    tenant="dynamo",
                    session=event.nested("agent_context").text("session_id"),
                    model=request.text("model"),
                    scenario="agent",
                ),
                arrival_us=request.wall_us("request_received_ms", per_unit=1000),
                prompt_tokens=prompt,
                output_tokens=max(1, request.tokens("output_tokens")),
                content=ids,
                content_tokens=size,
                content_covers=min(prompt, size * len(ids)),
            ),
        )


def _whole(cell: str) -> int | str:
    return int(cell) if cell.strip().isascii() and cell.strip().isdigit() else cell


def _azure_us(row: Row, cell: str) -> int:
    """Wall µs of ``2023-11-16 18:15:46.6805900``: the seventh digit is cut off."""
    try:
        head, _, fraction = cell.partition(".")
        whole = datetime.strptime(head, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        return int(whole.timestamp()) * 1_000_000 + int(fraction.ljust(6, "0")[:6])
    except ValueError:
        row.fail("TIMESTAMP", cell, "a time like 2023-11-16 18:15:46.6805900")
