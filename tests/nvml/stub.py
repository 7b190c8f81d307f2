"""The NVML of the tests, from Python: built with the compiler, told what to answer through a mapped file.

The structures are those of stub.c. A field is written by assignment and holds from the next call of NVML on.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import mmap
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).with_name("stub.c")
GIB = 1024**3
NOT_SUPPORTED, UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, NO_PERMISSION, UNKNOWN = 3, 1, 9, 15, 4, 999

_I = ctypes.c_int64


class Process(ctypes.Structure):
    _fields_ = [("pid", _I), ("used", _I), ("kind", _I)]


class Unit(ctypes.Structure):
    _fields_ = [
        ("uuid", ctypes.c_char * 96), ("name", ctypes.c_char * 96), ("parent", _I), ("instance", _I), ("error", _I),
        ("hang_ms", _I), ("memory_error", _I), ("total", _I), ("reserved", _I), ("used", _I), ("busy_error", _I),
        ("busy", _I), ("memory_busy", _I), ("power_error", _I), ("power", _I), ("ecc_error", _I), ("corrected", _I),
        ("uncorrected", _I), ("throttle_error", _I), ("throttles", _I), ("occupancy", _I), ("mig", _I),
        ("list_error", _I), ("processes", _I), ("process", Process * 64),
    ]  # fmt: skip

    def put(self, processes: dict[int, int | None], *, kind: int = 0, rest: int = 0) -> None:
        """So many bytes by pid (None: blank), and ``rest`` beside them; the device's own use is their sum."""
        for place, (pid, used) in enumerate(processes.items()):
            self.process[place] = Process(pid, -1 if used is None else used, kind)
        self.processes = len(processes)
        self.used = sum(used or 0 for used in processes.values()) + rest


class _Control(ctypes.Structure):
    _fields_ = [
        ("devices", _I), ("units", _I), ("begin_error", _I), ("begin_hang_ms", _I), ("restarts", _I), ("calls", _I),
        ("driver", ctypes.c_char * 80), ("unit", Unit * 32),
    ]  # fmt: skip


class Stub:
    """What the stub answers: ``control`` and its units are live."""

    def __init__(self, path: Path, *, devices: int = 2) -> None:
        path.write_bytes(bytes(ctypes.sizeof(_Control)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.path = path
        self.control = _Control.from_buffer(self._map)
        self.control.driver = b"550.54.15"
        for _ in range(devices):
            self.add()

    def __getitem__(self, index: int) -> Unit:
        return self.control.unit[index]

    def add(self) -> Unit:
        """One more device, as good as new."""
        assert self.control.devices == self.control.units, "devices come before instances"
        return self._new(f"GPU-{self.control.devices}", "NVIDIA A100-SXM4-80GB", -1, 80 * GIB, device=True)

    def cut(self, device: int, instance: int, total: int = 10 * GIB) -> Unit:
        """An instance of a device."""
        self[device].mig = 1
        name = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
        made = self._new(f"MIG-{device}-{instance}", name, device, total, device=False)
        made.instance = instance
        return made

    def restart(self) -> None:
        """The driver is loaded anew: every handle is dead."""
        self.control.restarts += 1

    def _new(self, uuid: str, name: str, parent: int, total: int, *, device: bool) -> Unit:
        made = self[self.control.units]
        made.uuid, made.name, made.parent, made.total = uuid.encode(), name.encode(), parent, total
        made.reserved, made.power, made.occupancy = GIB // 2, 250_000, -1
        self.control.units += 1
        self.control.devices += device
        return made


def build(folder: Path, *, old: bool = False) -> Path:
    """The library, compiled; the one without ``old`` has the name by which the binding looks for it."""
    compiler = shutil.which("gcc")
    if compiler is None:
        message = "no gcc to compile the tests' NVML with: install it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    name = "libnvidia-ml-old.so.1" if old else "libnvidia-ml.so.1"
    files = importlib.metadata.files("nvidia-nvml-dev") or ()
    header = next(Path(str(file.locate())) for file in files if file.name == "nvml.h")
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{header.parent}"]
    command += [f"-Wl,-soname,{name}", *(["-DOLD_DRIVER"] if old else []), "-o", str(folder / name), str(SOURCE)]
    subprocess.run(command, check=True)
    return folder / name


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml-old"), old=True)


@pytest.fixture
def stub(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """Two devices, behind the binding of this process."""
    yield from behind_the_binding(nvml_library, tmp_path, monkeypatch)


@pytest.fixture
def old_stub(old_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """The same behind a driver that lacks what came with 510."""
    yield from behind_the_binding(old_nvml_library, tmp_path, monkeypatch)


def behind_the_binding(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """A copy of the library for each test: what is loaded keeps its state and its mapped file."""
    import pynvml  # noqa: PLC0415 - of this room's tests alone

    made = Stub(tmp_path / "nvml.stub")
    monkeypatch.setenv("NVML_STUB", str(made.path))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(shutil.copy(library, tmp_path / f"own-{library.name}")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield made
