"""One exchange with the service over HTTP: a gzipped batch out, a reply in, within a deadline.

Invariants: an exchange ends within its time however the other side dawdles; what comes back is bounded; the token
goes to the address that was configured and nowhere else (no redirect is followed, no proxy of the environment used).
The standard library's client is used; a connection is kept, and made anew where the service had closed it.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import ledger
from ledger import limits
from ledger.outbox.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PATH: Final = "/v1/batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back. ``retry_after_s`` is what the header asks for, bounded; None where it asks nothing."""

    status: int
    body: bytes
    retry_after_s: float | None = None


class Unreachable(Exception):  # noqa: N818 - an everyday answer of a network
    """No whole reply came: refused, reset, timed out, cut short, not HTTP. The message says which."""


class Post(Protocol):
    """Something that carries a batch to one address of the service."""

    name: str

    def __call__(self, payload: bytes, note: str) -> Reply:
        """The reply to ``payload``; :class:`Unreachable` where there is none. ``note`` is for the service's eyes."""

    def close(self) -> None:
        """End the exchange that is under way, from any thread, and let the connection go."""


class HttpPost:
    """Posts to ``url`` + ``/v1/batches``. ``token`` is asked each time, so that a rotated one is used at once."""

    def __init__(
        self,
        url: str,
        *,
        token: Callable[[], str],
        timeout_s: float = limits.SEND_TIMEOUT_S,
        ca_file: str | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(url)
        assert parts.scheme in {"http", "https"}
        assert parts.hostname
        self.name = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "") + parts.path
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/") + PATH
        self._token = token
        self._timeout_s = timeout_s
        self._wall_s = wall_s
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def __call__(self, payload: bytes, note: str) -> Reply:
        """See :class:`Post`."""
        deadline = Deadline(self._timeout_s)
        reused = self._connection is not None
        try:
            return self._exchange(payload, note, deadline)
        except (ConnectionError, http.client.BadStatusLine) as error:
            self.close()
            if not reused:
                raise Unreachable(_said(error)) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise Unreachable(_said(error)) from error
        # The service had closed the kept connection; a batch that it took all the same is recognised as a repeat.
        try:
            return self._exchange(payload, note, deadline)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise Unreachable(_said(error)) from error

    def close(self) -> None:
        """See :class:`Post`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if connection.sock is not None:
                with contextlib.suppress(OSError):  # it may not be connected any more
                    connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _exchange(self, payload: bytes, note: str, deadline: Deadline) -> Reply:
        connection = self._connected(deadline)
        sock = connection.sock
        if sock is None:  # closed by another thread this moment
            raise http.client.NotConnected
        sock.settimeout(deadline.left_s())
        connection.request("POST", self._path, body=payload, headers=self._headers(note))
        response = connection.getresponse()
        body = response.read(limits.ANSWER_BYTES_MAX + 1)
        reply = Reply(status=response.status, body=body, retry_after_s=self._retry_after_s(response.headers))
        if response.will_close or not response.isclosed():
            self.close()  # more is coming than an answer has: not ours to wait for
        return reply

    def _connected(self, deadline: Deadline) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._tls is None:
                made = http.client.HTTPConnection(self._host, self._port, timeout=deadline.left_s())
            else:
                made = http.client.HTTPSConnection(self._host, self._port, timeout=deadline.left_s(), context=self._tls)
            made.auto_open = 0  # a connection that close() ended stays ended
            made.connect()
            made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = made
        deadline.rules(self._connection)
        return self._connection

    def _headers(self, note: str) -> Mapping[str, str]:
        return {
            "Authorization": f"Bearer {self._token()}",
            "Content-Type": "application/json",
            "Content-Encoding": "gzip",
            "Accept": "application/json",
            "User-Agent": f"kvledger/{ledger.__version__}",
            "Kvledger-Outbox": note,
        }

    def _retry_after_s(self, headers: http.client.HTTPMessage) -> float | None:
        text = (headers.get("Retry-After") or "").strip()
        if text.isascii() and text.isdigit():
            asked = float(text[:9])
        else:
            try:
                asked = parsedate_to_datetime(text).timestamp() - self._wall_s()
            except (ValueError, OverflowError):
                return None
        return min(max(asked, 0.0), limits.SEND_RETRY_AFTER_S_MAX)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
