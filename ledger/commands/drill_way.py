"""The way from engines to a service, for drills: a service process that can be killed, and a relay that can fail.

Invariant: engines are told one address for the whole drill; what happens behind it is what happens to a network.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import ledger
from ledger.errors import LedgerError

START_S = 30.0
"""For the service to answer; it takes about three seconds."""

STOP_S = 20.0
"""For the service to end in order: longer than it waits for answers that are under way."""

CHUNK_BYTES = 65_536


def free_port() -> int:
    """A port of the loopback that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class ServiceProcess:
    """`kvledger serve` as a process of its own, on one port through all of its lives."""

    def __init__(self, folder: Path, database: str) -> None:
        self.port = free_port()
        self.starts = 0
        self.log = folder / "service.log"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        # Nothing of the caller's own deployment reaches the drill.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KVLEDGER_")}
        package = str(Path(ledger.__file__).resolve().parents[1])
        self._environ = inherited | {
            "KVLEDGER_DATABASE": database,
            "KVLEDGER_STATE_DIR": str(folder),
            "KVLEDGER_LISTEN": f"127.0.0.1:{self.port}",
            "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", "")))),
        }

    def start(self) -> None:
        """Start it; :meth:`wait` says when it answers."""
        self.starts += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                # A drill that is killed cannot end its service, which then ends itself.
                [sys.executable, "-m", "ledger", "serve", "--parent", str(os.getpid())],
                cwd=self._folder, env=self._environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Until it answers. LedgerError where it does not come up."""
        until_s = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=1):
                    return
            except (OSError, ValueError) as error:
                ended = self._process is None or self._process.poll() is not None
                if ended or time.monotonic() >= until_s:
                    last = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
                    raise LedgerError(f"the service of the drill did not come up ({error}); it said: {last}") from error
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, as the kernel does it when memory is short."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it in order; its exit code (negative: the signal that ended it instead)."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL


class Relay:
    """Carries bytes between an address of its own and the service; or refuses, or holds the answers back."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._address: tuple[str, int] = self._listener.getsockname()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._wake = threading.Event()
        self._held_s = 0.0
        self._accept()

    @property
    def url(self) -> str:
        """What engines are told."""
        return f"http://{self._address[0]}:{self._address[1]}"

    def refuse(self) -> None:
        """From now on connections are refused, and those that there are end."""
        # Without the shutdown the thread that accepts would keep the address open.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            there, self._open = self._open, set()
        for each in there:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def admit(self) -> None:
        """Listen again, at the same address."""
        self._listener = socket.create_server(self._address)
        self._accept()

    def hold_answers(self, seconds: float) -> None:
        """From now on every answer waits so long on its way back; 0: none."""
        self._held_s = seconds
        if not seconds:
            self._wake.set()
            self._wake = threading.Event()

    def close(self) -> None:
        """End everything."""
        self._wake.set()
        self.refuse()

    def _accept(self) -> None:
        threading.Thread(target=self._accepting, args=(self._listener,), name="relay", daemon=True).start()

    def _accepting(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return  # refused from now on
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            for source, sink, answers in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._carry, args=(source, sink, answers), name="relay", daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                if answers and self._held_s:
                    self._wake.wait(self._held_s)
                sink.sendall(chunk)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()
