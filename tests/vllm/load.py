"""The load of the suite: ShareGPT's requests cut to a tiny model, of 8 tenants and 40 sessions, over HTTP.

Invariant: what was asked and what came back is written down request by request, by the client alone, so that the books
can be compared with it. The plan is a function of its seed.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai

if TYPE_CHECKING:
    from collections.abc import Iterable

TRACES = Path(os.environ.get("KVLEDGER_TRACES", Path(__file__).parents[3] / "shared" / "data"))
WORDS = 250
"""Token ids of prompts are below this, and above the special ones."""

CUT_OFF = 599
"""In place of a status, where the connection broke or an answer ended with an error."""


@dataclass(frozen=True)
class Ask:
    """One request of HTTP: who, what, and how it is meant to end. ``name`` goes along as X-Request-Id."""

    name: str
    tenant: str
    session: str
    prompts: tuple[tuple[int, ...], ...]
    """Token ids; several are a batch of prompts."""
    max_tokens: int
    samples: int = 1
    stream: bool = False
    chat: bool = False
    give_up_after: int | None = None
    """Tokens after which the client hangs up; 0: at once, most likely while it is queued."""
    patience_s: float = 300.0
    """After it the client hangs up."""
    priority: int = 0


@dataclass
class Answer:
    """What the client saw of an :class:`Ask`."""

    ask: Ask
    status: int = 200
    hung_up: bool = False
    prompt_tokens: int = 0
    """Of all samples of all prompts."""
    output_tokens: int = 0
    texts: tuple[str, ...] = ()


def recorded_prompts(limit: int = 300) -> list[list[int]]:
    """ShareGPT's prompts as token ids of the tiny vocabulary; a missing folder skips on a laptop and fails in CI."""
    path = TRACES / "traces" / "sharegpt_300_token_ids.jsonl.gz"
    if not path.is_file():
        import pytest  # noqa: PLC0415 - only here

        message = f"no recorded traces at {TRACES}: set KVLEDGER_TRACES to the folder that has traces/"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line)["input_tok_ids"] for line in itertools.islice(lines, limit)]
    return [[2 + token % WORDS for token in row] for row in rows]


def plan(
    prefix: str, count: int, *, seed: int, tenants: int = 8, sessions: int = 40, longest: int = 320,
    answers: int = 120, hang_up_ratio: float = 0.0,
) -> list[Ask]:  # fmt: skip
    """``count`` requests; every tenant has a system prompt of its own that all of its sessions begin with.

    Answers have fewer than ``answers`` tokens: what a request takes beyond its prompt is what preempts others.
    Those that hang up ask for so many tokens that they are not done by then.
    """
    rng = random.Random(seed)
    prompts = [row for row in recorded_prompts() if len(row) >= 16]
    system = {
        tenant: tuple(rng.randrange(2, WORDS) for _ in range(rng.choice((64, 96, 128)))) for tenant in range(tenants)
    }
    asks = []
    for number in range(count):
        session = rng.randrange(sessions) if number >= sessions else number
        tenant = session % tenants
        rest = longest - len(system[tenant])
        # Requests of a session go on from one another, as a conversation does.
        body = tuple(prompts[session % len(prompts)][: rng.randrange(16, rest)])
        shape = rng.random()
        gives_up = rng.random() < hang_up_ratio
        asks.append(
            Ask(
                name=f"{prefix}{number}",
                tenant=f"tenant-{tenant}",
                session=f"session-{session}",
                prompts=(system[tenant] + body,) * (3 if shape > 0.95 else 1),
                max_tokens=1200 if gives_up else rng.randrange(8, answers),
                samples=3 if 0.9 < shape <= 0.95 else 1,
                stream=shape < 0.5,
                chat=0.8 < shape <= 0.9,
                give_up_after=rng.choice((0, 3, 20)) if gives_up else None,
                priority=rng.randrange(3),
            )
        )
    return asks


def drive(url: str, asks: Iterable[Ask], *, at_once: int) -> list[Answer]:
    """Send them in their order, ``at_once`` at a time, and note what comes back; asks may be made as they go."""

    async def run() -> list[Answer]:
        # vLLM closes a connection that is idle for 5 s, and one must not be taken up again in that instant.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(limits=limits) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as client,
        ):
            waiting = iter(asks)

            async def worker() -> list[Answer]:
                return [await _sent(client, ask) for ask in waiting]

            found = await asyncio.gather(*(worker() for _ in range(at_once)))
            return [answer for some in found for answer in some]

    return asyncio.run(run())


def name_of(request: str) -> str:
    """The name of the :class:`Ask` behind a core request; vLLM calls it ``[SAMPLE_]cmpl-NAME[-PROMPT]-RANDOM``."""
    found = re.fullmatch(r"(?:\d+_)?(?:chat)?cmpl-([^-]+)(?:-\d+)?-[0-9a-f]{8}", request)
    assert found, request
    return found[1]


async def _sent(client: openai.AsyncOpenAI, ask: Ask) -> Answer:
    answer = Answer(ask=ask)
    headers = {
        "X-Request-Id": ask.name,
        "X-Tenant-ID": ask.tenant,
        "X-Session-ID": ask.session,
        "X-Scenario": "chat" if ask.chat else "completion",
        "X-Vllm-Priority": str(ask.priority),
    }
    common: dict[str, Any] = {
        "model": "tiny", "max_tokens": ask.max_tokens, "n": ask.samples, "extra_headers": headers,
        # No seed: on the CPU a seeded sample ends vLLM 0.32 ("CPU Generator does not use offset").
        "timeout": ask.patience_s, "temperature": 1.0 if ask.samples > 1 else 0.0, "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    try:
        if ask.chat:
            text = " ".join(str(token) for token in ask.prompts[0][:60])
            await _finished(answer, client.chat.completions.create(
                messages=[{"role": "user", "content": text}], **common
            ))  # fmt: skip
        elif ask.stream or ask.give_up_after is not None:
            await _streamed(answer, client, common | {"prompt": [list(prompt) for prompt in ask.prompts]})
        else:
            await _finished(
                answer, client.completions.create(prompt=[list(prompt) for prompt in ask.prompts], **common)
            )
    except openai.APIStatusError as error:
        answer.status = error.status_code
    except openai.APITimeoutError:
        answer.hung_up = True
    except openai.APIError:
        answer.status = CUT_OFF
    return answer


async def _finished(answer: Answer, call: Any) -> None:
    done = await call
    ask = answer.ask
    # vLLM says a prompt's tokens once for all of its samples.
    answer.prompt_tokens = done.usage.prompt_tokens * ask.samples
    answer.output_tokens = done.usage.completion_tokens
    answer.texts = tuple(choice.message.content if ask.chat else choice.text for choice in done.choices)


async def _streamed(answer: Answer, client: openai.AsyncOpenAI, call: dict[str, Any]) -> None:
    ask = answer.ask
    if ask.give_up_after == 0:
        answer.hung_up = True
        asked = asyncio.ensure_future(client.completions.create(stream=True, **call))
        done, _ = await asyncio.wait({asked}, timeout=0.05)
        if done:
            await asked.result().close()
        asked.cancel()
        return
    parts: dict[int, str] = {}
    got = 0
    async with await client.completions.create(stream=True, stream_options={"include_usage": True}, **call) as stream:
        async for event in stream:
            for choice in event.choices:
                parts[choice.index] = parts.get(choice.index, "") + choice.text
                got += 1
            if ask.give_up_after is not None and got >= ask.give_up_after:
                answer.hung_up = True
                return
            if event.usage is not None:
                answer.prompt_tokens = event.usage.prompt_tokens * ask.samples
                answer.output_tokens = event.usage.completion_tokens
    answer.texts = tuple(parts[index] for index in sorted(parts))
