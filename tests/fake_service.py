"""A service on loopback with moods: takes batches as the real one does, or breaks in every way a network knows.

It speaks HTTP by hand, since a library would not send half an answer.
"""

from __future__ import annotations

import gzip
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from ledger import wire
from ledger.errors import Refusal
from ledger.wire import answer as answers
from ledger.wire.answer import Answer, Receipt

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.records import Batch


class FakeService:
    """Listens at :attr:`url`. Each request takes the next of ``moods``, then ``ok`` for ever."""

    def __init__(self, *moods: str) -> None:
        self.moods = deque(moods)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        """Headers (names in lower case) and the decompressed body of each."""
        self.batches: dict[tuple[str, str, int], Batch] = {}
        """What was booked, once each."""
        self.order: list[int] = []
        self.repeats = 0
        self.connections = 0
        self.changed = threading.Condition()
        self.never = threading.Event()
        """Set when the service ends: what is slow waits for it."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        self._workers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.never.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for worker in self._workers:
            worker.join(10)

    def wait(self, until: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Until something holds that requests bring about."""
        with self.changed:
            assert self.changed.wait_for(until, timeout_s), (self.order, self.moods)

    def _accept(self) -> None:
        while not self.never.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            worker = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._workers.append(worker)
            worker.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(0.2)
            while self._one(connection):
                pass

    def _receive(self, connection: socket.socket) -> tuple[dict[str, str], bytes] | None:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := self._more(connection)):
                return None
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {"": lines[0]} | {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        while len(body) < int(headers.get("content-length", "0")):
            if not (more := self._more(connection)):
                return None
            body += more
        return headers, gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body

    def _more(self, connection: socket.socket) -> bytes:
        while not self.never.is_set():
            with suppress(TimeoutError):
                return connection.recv(1 << 20)
        return b""

    def _one(self, connection: socket.socket) -> bool:
        request = self._receive(connection)
        if request is None:
            return False
        with self.changed:
            self.requests.append(request)
            mood = self.moods.popleft() if self.moods else "ok"
            self.changed.notify_all()
        return self._answer(connection, request[1], mood)

    def _answer(self, connection: socket.socket, raw: bytes, mood: str) -> bool:
        match mood.split(":"):
            case ["ok"] | ["close"]:
                reply = answers.encode(Answer(status=self._book(raw), service_time_us=1_800_000_000_000_000))
                extra = "Connection: close\r\n" if mood == "close" else ""
                connection.sendall(_response(200, reply, extra))
                return mood == "ok"
            case ["booked", "reset"]:  # the answer gets lost
                self._book(raw)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case ["reset"]:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case ["half"]:
                self._book(raw)
                reply = answers.encode(Answer(status=Receipt.ACCEPTED, service_time_us=1))
                connection.sendall(_response(200, reply)[:-9])
            case ["hang"]:
                self.never.wait(60)
            case ["drip"]:
                for byte in _response(200, b"{}" + b" " * 5000):
                    connection.sendall(bytes([byte]))
                    if self.never.wait(0.02):
                        break
            case ["endless"]:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not self.never.is_set():
                    connection.sendall(bytes(65536))
            case ["junk"]:
                connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
            case ["chunked"]:
                reply = answers.encode(Answer(status=self._book(raw), service_time_us=1))
                head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                connection.sendall(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(reply), reply))
                return True
            case [status, *retry_after]:
                extra = f"Retry-After: {':'.join(retry_after)}\r\n" if retry_after else ""
                connection.sendall(_response(int(status), b'{"detail":"in a mood"}', extra))
                return True
        return False

    def _book(self, raw: bytes) -> Receipt:
        decoded = wire.decode(raw)
        assert not isinstance(decoded, Refusal), decoded
        batch = decoded.batch
        key = (wire.chain_of(batch)[1], batch.boot.boot_id, batch.seq)
        with self.changed:
            known = key in self.batches
            self.repeats += known
            self.batches[key] = batch
            self.order.append(batch.seq)
            self.changed.notify_all()
        return Receipt.DUPLICATE if known else Receipt.ACCEPTED


def _response(status: int, body: bytes, extra: str = "") -> bytes:
    return f"HTTP/1.1 {status} Mood\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body
