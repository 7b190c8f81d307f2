"""Agent sessions: closed-loop conversations with sub-agents, re-encoded as prefix length plus new block ids.

A line is a session. A request's ids are the first ``p`` of the request before it in the same agent, and ``new``;
each agent starts empty and ids are local to the session. A request starts when the one before has ended and its
``think_time`` is over, whatever the engine's speed; an entry with ``requests`` is a sub-agent, which begins as
long after the end of the request before it as was recorded and then runs beside the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.records import Dimensions
from ledger.reference.request import TraceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.reference.traces.reading import Row, TraceFile

SESSION_GAP_US = 60_000_000
"""The recording has no common clock: a session begins so long after the one before it in the file."""

ENTRIES_MAX = 100_000
"""Requests in one session; the longest recorded one has 3 700."""


def agent_sessions(file: TraceFile) -> Iterator[tuple[int, TraceRequest]]:
    """The first request of each session; what follows hangs on it."""
    started = 0
    for line, text in file.lines():
        row = file.row(line, text)
        session = row.text("id")
        size = row.tokens("block_size", least=1, most=4096)
        flow = _agent(row.rows("requests", most=ENTRIES_MAX), session, session, size, "agent")
        first = next(flow, None)
        if first is None:
            continue
        yield line, _begin(first, flow, started * SESSION_GAP_US, forks=False)
        started += 1


def _begin(first: TraceRequest, flow: Iterator[TraceRequest], at_us: int, *, forks: bool) -> TraceRequest:
    return TraceRequest(
        request=first.request,
        dims=first.dims,
        arrival_us=at_us,
        prompt_tokens=first.prompt_tokens,
        output_tokens=first.output_tokens,
        content=first.content,
        content_tokens=first.content_tokens,
        content_covers=first.content_covers,
        cache_salt=first.cache_salt,
        then=flow,
        forks=forks,
    )


def _agent(entries: list[Row], session: str, name: str, size: int, scenario: str) -> Iterator[TraceRequest]:
    """The requests of one agent, in order; ``ids`` grows and shrinks with the context."""
    ids: list[int] = []
    ended_us = 0
    for number, row in enumerate(entries):
        if "requests" in row.values:
            if scenario != "agent":
                row.fail("requests", "a list", "absent: a sub-agent has no sub-agents in this format")
            label = f"{name}/{row.text('agent_id')}-{number}"
            flow = _agent(row.rows("requests", most=ENTRIES_MAX), session, label, size, "subagent")
            first = next(flow, None)
            if first is not None:
                begun_us = row.micros("t", per_unit=1_000_000)
                yield _begin(first, flow, max(0, begun_us - ended_us), forks=True)
            continue
        shared = row.tokens("p", most=len(ids))
        new = row.ids("new")
        # A new list each time: the request before may still be looked at.
        ids = ids[:shared] + new
        prompt = row.tokens("in", least=1)
        if len(ids) * size > prompt + size:
            row.fail("new", len(ids), f"at most {-(-prompt // size)} ids of {size} in all for {prompt} tokens")
        ended_us = row.micros("t", per_unit=1_000_000) + row.micros("api_time", per_unit=1_000_000, default=0)
        yield TraceRequest(
            request=f"{name}/{number}",
            dims=Dimensions(tenant="agents", session=session, model=row.text("model"), scenario=scenario),
            arrival_us=row.micros("think_time", per_unit=1_000_000, default=0),
            prompt_tokens=prompt,
            output_tokens=max(1, row.tokens("out")),
            content=ids,
            content_tokens=size,
            content_covers=min(prompt, len(ids) * size),
            shared_ids=shared,
            cache_salt=session,
        )
