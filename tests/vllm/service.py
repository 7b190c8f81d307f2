"""A `kvledger serve` of its own beside an engine, on SQLite, and the command line that asks its books."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server import Program, answers, free_port, program, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
PRICE_PER_HOUR = "2.95"


@dataclass
class Service:
    """The service's process, its ledger, and a token for engines."""

    folder: Path
    url: str
    token: str = ""
    """For engines."""
    read_token: str = ""
    program: Program | None = None

    @property
    def engine_side(self) -> dict[str, str]:
        """What an engine's environment needs."""
        return {"KVLEDGER_URL": self.url, "KVLEDGER_TOKEN": self.token}

    def ask(self, *arguments: str, status: int = 0) -> str:
        """What `kvledger ARGUMENTS` prints on the ledger of this service."""
        done = subprocess.run(
            [kvledger(), *arguments], check=False, capture_output=True, text=True,
            env={**_clean(os.environ), **self._settings()}, cwd=self.folder,
        )  # fmt: skip
        assert done.returncode == status, (
            f"kvledger {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """The same as data."""
        return json.loads(self.ask(*arguments, "--format", "json"))

    def get(self, path: str) -> Any:
        """An answer of the JSON interface."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.read_token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def requests(self) -> list[dict[str, Any]]:
        """Every terminal record so far, and each session's residual row left out."""
        return [row for row in self.rows("usage", "--by", "request") if row["request"] is not None]

    @contextlib.contextmanager
    def running(self) -> Iterator[Program]:
        """The service, started; again on the same ledger and port, if you like."""
        command = [kvledger(), "serve", "--listen", self.url.removeprefix("http://")]
        log = self.folder / "service.log"
        given = self._settings()
        with program(command, log=log, environ=given, cwd=self.folder, url=self.url) as started:
            wait_for(lambda: answers(f"{self.url}/healthz"), started, f"{self.url}/healthz")
            self.program = started
            yield started

    def _settings(self) -> dict[str, str]:
        return {"KVLEDGER_STATE_DIR": str(self.folder), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


@contextlib.contextmanager
def service(folder: Path) -> Iterator[Service]:
    """A service with an empty ledger and a price for every GPU."""
    folder.mkdir(parents=True, exist_ok=True)
    made = prepared(folder)
    with made.running():
        yield made


def prepared(folder: Path) -> Service:
    """The ledger and the token of a service that is not started."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Service(folder=folder, url=f"http://127.0.0.1:{free_port()}")
    made.ask("db", "upgrade")
    made.token, made.read_token = (
        re.findall(r"kvl_\w+", made.ask("tokens", "add", "--scope", scope))[0] for scope in ("ingest", "read")
    )
    return made


def kvledger() -> str:
    """The command of the service's install, which vLLM's environment has not got."""
    found = os.environ.get("TEST_KVLEDGER") or str(ROOT / ".venv/bin/kvledger")
    assert shutil.which(found), f"no {found}: `make test-vllm` names it, or set TEST_KVLEDGER"
    return found


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environ.items() if not key.startswith(("KVLEDGER_", "VLLM_"))}
