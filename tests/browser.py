"""The page in a real browser: Chromium, found by its usual names or by CHROMIUM.

Without one the tests that ask for it skip with one clear line, and in CI they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import uvicorn

from ledger.web.app import make_app
from ledger.web.listening import listen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ledger.web.service import Service


@pytest.fixture(scope="session")
def chromium() -> str:
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome", "headless_shell")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        message = "no Chromium to look at the page with: install chromium, or name one with CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


@contextmanager
def on_a_socket(service: Service) -> Iterator[str]:
    """The address of a service that really listens."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(service), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def browse(chromium: str, profile: Path, url: str) -> str:
    """The document of ``url`` once its scripts have run for some (virtual) seconds."""
    command = [
        chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={profile}", "--virtual-time-budget=9000", "--dump-dom", url,
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout
