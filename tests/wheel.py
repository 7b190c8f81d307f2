"""The wheel in an empty environment: bare beside an engine first, then as the service. Run by `make wheel-test`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

CARRIED = {"ledger/alerts/ledger_health.yml", "ledger/alerts/alertmanager.yml", "ledger/dashboards/fleet.json"}
"""What a deployment takes out of the installed package and gives to Prometheus, Alertmanager and Grafana."""

BARE = """
import sys
import ledger.hook.meter
loaded = {name.partition(".")[0] for name in sys.modules}
# Brought by the environment itself: Python 3.11 puts setuptools into a new one, whose .pth loads a module.
its_own = {"ledger", "__main__", "sitecustomize", "_virtualenv", "_distutils_hack"}
strangers = sorted(loaded - set(sys.stdlib_module_names) - its_own)
assert not strangers, f"the hook loads {strangers}"
"""

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\\n" + "".join(
    f"2023-11-16 18:15:{second:02d}.0000000,{200 + 37 * second},{20 + second}\\n" for second in range(40)
)


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command; its failure, with both outputs, ends the check."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("KVLEDGER_", "PYTHON"))}
    parts = [str(part) for part in command]
    done = subprocess.run(parts, check=False, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(parts)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", here, ROOT, cwd=here)
        (wheel,) = here.glob("kvledger-*.whl")
        names = set(zipfile.ZipFile(wheel).namelist())
        assert names >= CARRIED, f"the wheel lacks {CARRIED - names}"
        tops = {name.partition("/")[0] for name in names}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"ledger"}, f"the wheel installs {tops}"

        venv.create(here / "env", with_pip=True)
        python, kvledger = here / "env/bin/python", here / "env/bin/kvledger"
        run(python, "-m", "pip", "install", "--quiet", "--no-index", wheel, cwd=here)
        run(python, "-W", "error", "-c", BARE, cwd=here)
        assert "kvledger" in run(kvledger, "--version", cwd=here)
        assert "replay" in run(kvledger, "--help", cwd=here)

        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[agent]", cwd=here)
        tried = subprocess.run([kvledger, "agent", "--once"], capture_output=True, text=True, check=False)
        assert "GPU" in tried.stdout, tried

        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[service]", cwd=here)
        (here / "trace.csv").write_text(TRACE.replace("\\n", "\n"))
        database = f"sqlite:///{here / 'books.db'}"
        run(kvledger, "replay", "trace.csv", "--database", database, "--start", "2026-11-03T00:00:00Z", cwd=here)
        report = json.loads(
            run(kvledger, "report", "--month", "2026-11", "--format", "json", "--database", database, cwd=here)
        )
        assert report["bill_nanos"] > 0, report
        assert sum(line["amount_nanos"] for line in report["lines"]) == report["bill_nanos"], report
        run(kvledger, "audit", "--database", database, cwd=here)
        print(f"{wheel.name}: bare, agent and service installs work from an empty environment")


if __name__ == "__main__":
    main()
