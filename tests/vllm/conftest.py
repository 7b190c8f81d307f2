"""Shared by the suite of the real vLLM: models, a service, a server with the hook beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import models
import pytest

if TYPE_CHECKING:
    from pathlib import Path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--steps", type=int, default=1500, help="of each of the four plain walks (evidence: 5000)")


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--steps"))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.llama(tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="session")
def sliding_window(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.sliding_window(tmp_path_factory.mktemp("model") / "gemma")
