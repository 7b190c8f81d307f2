"""The OpenAI server itself: it starts beside the hook, and answers the official client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest
from server import Program, vllm_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("server")
    options = ["--max-model-len", "1024", "--num-gpu-blocks-override", "200"]
    with vllm_server(llama, folder=folder, options=options) as started:
        yield started


def test_it_completes_a_prompt_greedily_and_the_same_twice(server: Program) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    texts = {
        client.completions.create(model="tiny", prompt="The quick brown fox", max_tokens=16, temperature=0)
        .choices[0]
        .text
        for _ in range(2)
    }
    assert len(texts) == 1
    assert texts != {""}
