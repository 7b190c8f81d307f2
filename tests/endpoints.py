"""Engines for tests that only have a `/metrics`: a loopback server whose answers the test chooses."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Answer = "Callable[[BaseHTTPRequestHandler], None]"


class Endpoint:
    """A server on the loopback; ``answer`` is called for every GET and writes what it likes."""

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
        self.answer = answer
        self.asked = 0
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.asked += 1
                try:
                    endpoint.answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def endpoint(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[Endpoint]:
    made = Endpoint(answer)
    try:
        yield made
    finally:
        made.close()


def text(body: bytes | str, *, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answers with a text and its length."""
    raw = body.encode() if isinstance(body, str) else body

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Type", "text/plain; version=0.0.4")
        request.send_header("Content-Length", str(len(raw)))
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(raw)

    return answer


def raw_bytes(body: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answers with these very bytes and closes."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(body)
        request.close_connection = True

    return answer


def hanging(released: threading.Event, *, first: bytes = b"", drip: bytes = b"") -> Callable[..., None]:
    """Writes ``first`` and then nothing (or ``drip`` again and again) until it is released."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(first)
        while not released.wait(0.02):
            if drip:
                request.wfile.write(drip)
        request.close_connection = True

    return answer
