"""One GET of a `/metrics`, within a time and a size, from the address that was named and from no other.

Invariants: a fetch ends within its time however slowly bytes come; nothing beyond the bound is read; a redirect is an
answer, not an order; a text that was cut off is none. Where the address lies (the loopback, a private network) is the
choice of who named it. Names of :class:`Why` are labels of a metric.
"""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import SplitResult, urlsplit

import ledger
from ledger import limits
from ledger.core.records import one_line
from ledger.errors import UsageError
from ledger.outbox.deadline import Deadline

ACCEPT: Final = "text/plain;version=0.0.4, */*;q=0.1"
"""The text format: OpenMetrics has nothing that is read here, and would rename counters."""

PATH: Final = "/metrics"


class Why(StrEnum):
    """Why no text came."""

    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    REDIRECT = "redirect"
    STATUS = "status"
    TOO_LARGE = "too_large"
    CUT_OFF = "cut_off"
    NOT_HTTP = "not_http"
    NOT_METRICS = "not_metrics"
    NO_FIGURES = "no_figures"
    FAULT = "fault"


class Unfetched(Exception):  # noqa: N818 - an everyday answer of a network
    """No text came; ``why`` is a label, the message says more."""

    def __init__(self, why: Why, detail: str) -> None:
        super().__init__(one_line(detail))  # some of it is what a server says, and people read it at a terminal
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An address that may be fetched, checked by :func:`place_of`."""

    scheme: str
    host: str
    port: int | None
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (f":{self.port}" if self.port is not None else "") + self.path


def place_of(url: str) -> Place:
    """The address in a URL; `/metrics` where it names no path. UsageError for what cannot be fetched or kept."""
    way_out = "write it as http://HOST:PORT or http://HOST:PORT/metrics"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{url[:80]!r} is no URL ({error}); {way_out}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or len(url) > limits.TEXT_CHARS_MAX:
        raise UsageError(f"{url[:80]!r} is no URL of at most {limits.TEXT_CHARS_MAX} characters; {way_out}")
    if parts.username is not None or parts.password is not None:
        raise UsageError("a URL with a password would be kept and shown by the ledger; leave it out")
    if parts.fragment or not (url.isascii() and url.isprintable()) or " " in url:
        raise UsageError(f"{url[:80]!r} has what no address has (a blank, or something behind #); {way_out}")
    return Place(scheme=parts.scheme, host=parts.hostname, port=port, path=_path(parts))


def fetch(place: Place, *, timeout_s: float = limits.SCRAPE_TIMEOUT_S) -> bytes:
    """The text at an address; :class:`Unfetched` where none comes within the time."""
    deadline = Deadline(timeout_s)
    connection = _connection(place, timeout_s)
    deadline.rules(connection)
    try:
        connection.request(
            "GET", place.path, headers={"Accept": ACCEPT, "User-Agent": f"kvledger/{ledger.__version__}"}
        )
        sock = connection.sock
        if sock is not None:
            sock.settimeout(deadline.left_s())
        with connection.getresponse() as response:
            return _body(response)
    except TimeoutError as error:
        raise Unfetched(Why.TIMEOUT, f"no whole answer within {timeout_s:g} s") from error
    except http.client.IncompleteRead as error:
        raise Unfetched(Why.CUT_OFF, f"{len(error.partial)} bytes came and then no more") from error
    except ssl.SSLError as error:
        raise Unfetched(Why.UNREACHABLE, f"no TLS with it: {error.reason}") from error
    except (ConnectionError, OSError) as error:
        raise Unfetched(Why.UNREACHABLE, error.strerror or str(error) or type(error).__name__) from error
    except (http.client.HTTPException, ValueError) as error:
        raise Unfetched(Why.NOT_HTTP, f"what answers speaks no HTTP ({type(error).__name__})") from error
    finally:
        connection.close()


def _body(response: http.client.HTTPResponse) -> bytes:
    if 300 <= response.status < 400:
        to = response.headers.get("Location", "nowhere")[:80]
        raise Unfetched(
            Why.REDIRECT, f"it answers {response.status} and points to {to}: name that address, if it is right"
        )
    if response.status != 200:
        raise Unfetched(Why.STATUS, f"it answers {response.status} {response.reason}"[:80])
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise Unfetched(Why.NOT_METRICS, f"it answers in {encoding[:20]}, which was not asked for")
    body = response.read(limits.SCRAPE_BYTES_MAX + 1)
    if len(body) > limits.SCRAPE_BYTES_MAX:
        raise Unfetched(Why.TOO_LARGE, f"more than {limits.SCRAPE_BYTES_MAX} bytes")
    if response.length:  # a read with a bound says nothing of an early end
        raise Unfetched(Why.CUT_OFF, f"{len(body)} bytes came, and {response.length} of those announced did not")
    if body and response.headers.get("Content-Length") is None and not response.chunked and not body.endswith(b"\n"):
        raise Unfetched(Why.CUT_OFF, f"the text of {len(body)} bytes ends within a line")
    return body


def _path(parts: SplitResult) -> str:
    path = parts.path if parts.path not in ("", "/") else PATH
    return path + (f"?{parts.query}" if parts.query else "")


def _connection(place: Place, timeout_s: float) -> http.client.HTTPConnection:
    if place.scheme == "https":
        return http.client.HTTPSConnection(
            place.host, place.port, timeout=timeout_s, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(place.host, place.port, timeout=timeout_s)
