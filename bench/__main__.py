"""Every bench, quick, one after the other. Prints; judges nothing: these figures are read, not asserted.

The one on a real vLLM is left out: it wants an environment of 4 GB. `make evidence` has it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> None:
    for path in sorted(set(Path(__file__).parent.glob("bench_*.py")) - {Path(__file__).with_name("bench_vllm.py")}):
        print(f"\n{path.stem}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"bench.{path.stem}", "--quick"], check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"{path.stem} broke: exit {done.returncode}")


if __name__ == "__main__":
    main()
