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
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs" / "evidence"
TRACES = Path(os.environ.get("KVLEDGER_TRACES", ROOT.parent / "shared" / "data"))

SWEEP = "python -m tests.sweep --audit"
REPLAY = "python -m ledger replay {traces}/traces"
SLOW = "python -m pytest -m slow"
VLLM = "python tests/vllm/environment.py -m pytest -c tests/vllm/pytest.ini --confcutdir tests/vllm"

RUNS: dict[str, tuple[str, ...]] = {
    "bench-meter": ("python -m bench.bench_meter",),
    "bench-store": ("python -m bench.bench_store",),
    "bench-replay": ("python -m bench.bench_replay",),
    "bench-outbox": ("python -m bench.bench_outbox",),
    "bench-service": ("python -m bench.bench_service",),
    "bench-load": ("python -m bench.bench_load",),
    "bench-load-hour": ("python -m bench.bench_load --engines 20 --minutes 60",),
    "bench-statement": ("python -m bench.bench_statement",),
    "bench-vllm": ("python -m bench.bench_vllm",),
    "bench-agent": ("python -m bench.bench_agent",),
    "bench-scrape": ("python -m bench.bench_scrape",),
    "calibration": ("python -m bench.calibrate",),
    "meter-schedules": (f"{SLOW} tests/test_meter_oracle.py",),
    "settling-hours": (f"{SLOW} tests/test_allocation_laws.py",),
    "crashes": (f"{SLOW} -rP --crash-stride 1 tests/test_settle_crash.py tests/test_ingest_crash.py",),
    "deliveries": (f"{SLOW} -rP --show-capture=stdout --worlds 2000 tests/test_delivery.py",),
    "vllm-walks": (f"{VLLM} -s --steps 5000 tests/vllm/test_walk.py tests/vllm/test_ranks.py",),
    "agent-sessions": (
        f"{SWEEP} traces/agent_sessions.jsonl.gz --engines 2 --blocks 20000",
        f"{REPLAY}/agent_sessions.jsonl.gz --engines 2 --blocks 20000 --block-size 64 --database {{db}}",
        "python -m ledger audit --database {db}",
    ),
    "mooncake-conversation": (
        f"{SWEEP} traces/mooncake_conversation.jsonl --engines 2 --blocks 20000",
        f"{REPLAY}/mooncake_conversation.jsonl --engines 2 --blocks 20000 --database {{db}}",
        "python -m ledger audit --database {db}",
    ),
}
"""The commands of a run, by the name of its file; ``python`` is this interpreter, ``{db}`` a database of its own."""


def machine() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    cpu = names[0].partition(":")[2].strip() if names else platform.machine()
    return f"{os.cpu_count()} x {cpu}, {memory_kib / 2**20:.0f} GiB, Python {platform.python_version()}"


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def run(name: str, tree: str) -> int:
    """Run one and keep what it printed, with the commit ``tree``; the worst exit status of its commands."""
    began, worst, told = time.monotonic(), 0, ""
    with tempfile.TemporaryDirectory() as folder:
        for template in RUNS[name]:
            command = template.replace("{db}", f"sqlite:///{folder}/books.db").replace("{traces}", str(TRACES))
            print(f"{name}: {template}", flush=True)
            done = subprocess.run(
                [sys.executable, *shlex.split(command)[1:]],
                check=False,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "CI": "true", "KVLEDGER_TRACES": str(TRACES)},
            )
            worst = max(worst, abs(done.returncode))
            told += f"\n$ {template}\n{done.stdout.replace(folder, 'TMP').replace(str(TRACES), 'TRACES')}"
            told += f"(exit {done.returncode})\n"
    seconds = time.monotonic() - began
    EVIDENCE.mkdir(exist_ok=True)
    head = f"commit   {tree}\nmachine  {machine()}\ndate     {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n"
    (EVIDENCE / f"{name}.txt").write_text(f"{head}seconds  {seconds:.0f}\nexit     {worst}\n{told}")
    print(f"  exit {worst}, {seconds:.0f} s", flush=True)
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    names = parser.parse_args().names or list(RUNS)
    if unknown := [name for name in names if name not in RUNS]:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(RUNS)}")
    tree = commit()  # before the first result makes it dirty
    return max(run(name, tree) for name in names)


if __name__ == "__main__":
    sys.exit(main())
