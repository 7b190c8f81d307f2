"""Shared fixtures: where the recorded traces lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Speed is measured in bench/, never asserted by a test: what is slow here is somebody else's load.
settings.register_profile("kvledger", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvledger")

pytest_plugins = ["browser", "commandline", "databases", "nvml.stub", "serving", "leaks"]

collect_ignore = ["vllm"]
"""The suite of a real vLLM runs in vLLM's own environment: `make test-vllm`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crash-stride", type=int, default=7, help="the slow tests kill settling at every so many steps (evidence: 1)"
    )
    parser.addoption("--worlds", type=int, default=300, help="worlds of delivery in the slow tests (evidence: 2000)")


TRACES = Path(os.environ.get("KVLEDGER_TRACES", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """The folder of recorded traces; a missing one skips on a laptop and fails in CI."""
    if not TRACES.is_dir():
        message = f"no recorded traces at {TRACES}: set KVLEDGER_TRACES to the folder that has traces/ and prices/"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return TRACES
