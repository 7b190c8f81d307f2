"""A whole HTTP exchange within a deadline, however slowly the other side's bytes come.

Invariant: a time-out of a socket is one of each read; here every read has only what is left of the exchange's own time.
"""

from __future__ import annotations

import http.client
import io
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket


class Deadline:
    """Runs out ``timeout_s`` after it was made."""

    def __init__(self, timeout_s: float) -> None:
        self._until_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """What is left; TimeoutError where nothing is."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s

    def rules(self, connection: http.client.HTTPConnection) -> None:
        """Have every response on this connection read within the deadline."""

        def respond(sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
            response = http.client.HTTPResponse(sock, *args, **options)
            response.fp = io.BufferedReader(_Timed(response.fp.detach(), sock, self))
            return response

        connection.response_class = respond  # type: ignore[assignment]


class _Timed(io.RawIOBase):
    """A socket's bytes until the deadline of the whole exchange: a byte now and then does not prolong it."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, deadline: Deadline) -> None:
        self._raw, self._sock, self._deadline = raw, sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left_s())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
