"""`make run` as a person meets it: it starts, says where to look, answers, and Ctrl-C ends it cleanly. Run in CI.

On a port of its own; standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
WAIT_S = 600
PERIOD_S = 40


def ask(url: str, token: str = "") -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def main() -> int:
    with tempfile.TemporaryDirectory() as state:
        log = Path(state) / "log"
        command = ["make", "run", f"STATE={state}/state"]
        with log.open("w") as out:
            made = subprocess.Popen(
                command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "KVLEDGER_LISTEN": "127.0.0.1:0", "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        try:
            token, url = "", ""
            deadline = time.monotonic() + WAIT_S
            while not url:
                if made.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"make run did not come up:\n{log.read_text()}")
                if found := re.search(r"log in\s+(http\S+)/login#(\S+)", log.read_text()):
                    url, token = found[1], found[2]
                time.sleep(0.5)
            deadline = time.monotonic() + PERIOD_S
            while "kvledger_engine_steps_total{" not in ask(f"{url}/metrics"):
                if time.monotonic() > deadline:
                    raise SystemExit(f"no engine reported:\n{log.read_text()}")
                time.sleep(1)
            assert '"status":"ok"' in ask(f"{url}/healthz")
            assert '"bill_nanos"' in ask(f"{url}/v1/statements/current", token)
            assert "What is wrong" in ask(f"{url}/")
        finally:
            os.killpg(made.pid, signal.SIGINT)
            made.wait(60)
        text = log.read_text()
        if "the books are whole" not in text or "Traceback" in text:
            raise SystemExit(f"it did not end cleanly:\n{text}")
    print("make run came up, answered, and ended cleanly")
    return 0


if __name__ == "__main__":
    sys.exit(main())
