"""The long runs. Each writes its output to docs/evidence/NAME.txt with commit, machine, date and command.

    python -m bench.evidence [NAME ...]

Without names all of them run, which takes hours on two cores.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs" / "evidence"

RUNS: dict[str, str] = {
    "bench-meter": "python -m bench.bench_meter",
    "bench-store": "python -m bench.bench_store",
    "bench-replay": "python -m bench.bench_replay",
    "bench-outbox": "python -m bench.bench_outbox",
    "bench-statement": "python -m bench.bench_statement",
}
"""What is run, by the name of its file; ``python`` is the interpreter of this run."""


def machine() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    cpu = names[0].partition(":")[2].strip() if names else platform.machine()
    return f"{os.cpu_count()} x {cpu}, {memory_kib / 2**20:.0f} GiB, Python {platform.python_version()}"


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def run(name: str) -> int:
    """Run one and keep what it printed; its exit status."""
    command = RUNS[name]
    print(f"{name}: {command}", flush=True)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *shlex.split(command)[1:]],
        check=False,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "CI": "true"},
    )
    head = (
        f"command  {command}\ncommit   {commit()}\nmachine  {machine()}\n"
        f"date     {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\nseconds  {time.monotonic() - began:.0f}\n"
        f"exit     {done.returncode}\n\n"
    )
    EVIDENCE.mkdir(exist_ok=True)
    (EVIDENCE / f"{name}.txt").write_text(head + done.stdout)
    print(f"  exit {done.returncode}, {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    names = parser.parse_args().names or list(RUNS)
    if unknown := [name for name in names if name not in RUNS]:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(RUNS)}")
    return max(run(name) for name in names)


if __name__ == "__main__":
    sys.exit(main())
