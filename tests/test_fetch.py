"""One GET of a `/metrics`: bounded in time and size, from the named address alone."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from endpoints import endpoint, hanging, raw_bytes, text

from ledger import limits
from ledger.collectors.fetch import Unfetched, Why, fetch, place_of
from ledger.errors import UsageError


def test_the_text_comes_back_as_it_was_sent() -> None:
    with endpoint(text("vllm:num_requests_running 3\n")) as engine:
        assert fetch(place_of(engine.url)) == b"vllm:num_requests_running 3\n"


def test_the_text_format_is_asked_for_and_no_credentials_are_sent() -> None:
    headers: dict[str, str] = {}

    def answer(request) -> None:
        headers.update(request.headers)
        text("a 1\n")(request)

    with endpoint(answer) as engine:
        fetch(place_of(engine.url))
    assert headers["Accept"].startswith("text/plain;version=0.0.4")
    assert not {"Authorization", "Cookie"} & headers.keys()


@pytest.mark.parametrize(
    ("answer", "why", "says"),
    [
        (text("", status=302, Location="http://elsewhere/metrics"), Why.REDIRECT, "points to http://elsewhere/metrics"),
        (text("gone", status=404), Why.STATUS, "answers 404"),
        (text("a 1\n", Content_Encoding="gzip"), Why.NOT_METRICS, "in gzip"),
        (
            raw_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\na 1\n"),
            Why.CUT_OFF,
            "95 of those announced did not",
        ),
        (raw_bytes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n"), Why.CUT_OFF, "no more"),
        (raw_bytes(b"HTTP/1.0 200 OK\r\n\r\na 1\nb 12"), Why.CUT_OFF, "ends within a line"),
        (raw_bytes(b"SSH-2.0-OpenSSH_9.6\r\n"), Why.NOT_HTTP, "speaks no HTTP"),
        (raw_bytes(b""), Why.UNREACHABLE, "without response"),
    ],
)
def test_what_is_no_whole_text_has_its_reason(answer, why: Why, says: str) -> None:
    with endpoint(answer) as engine, pytest.raises(Unfetched, match=says) as refused:
        fetch(place_of(engine.url))
    assert refused.value.why is why


def test_a_text_without_a_length_counts_where_its_last_line_ends() -> None:
    with endpoint(raw_bytes(b"HTTP/1.0 200 OK\r\n\r\na 1\nb 12\n")) as engine:
        assert fetch(place_of(engine.url)) == b"a 1\nb 12\n"


def test_nothing_beyond_the_bound_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRAPE_BYTES_MAX", 1000)
    with endpoint(text(b"x" * 1000)) as engine:
        assert len(fetch(place_of(engine.url))) == 1000
    with endpoint(text(b"x" * 1001)) as engine, pytest.raises(Unfetched, match="more than 1000 bytes") as refused:
        fetch(place_of(engine.url))
    assert refused.value.why is Why.TOO_LARGE


@pytest.mark.parametrize(
    ("first", "drip"),
    [(b"", b""), (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"), (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"a")],
    ids=["silent", "endless head", "a byte now and then"],
)
def test_a_fetch_ends_within_its_time_however_slowly_bytes_come(first: bytes, drip: bytes) -> None:
    released = threading.Event()
    with endpoint(hanging(released, first=first, drip=drip)) as engine:
        began = time.monotonic()
        with pytest.raises(Unfetched) as refused:
            fetch(place_of(engine.url), timeout_s=0.2)
        took = time.monotonic() - began
        released.set()
    assert refused.value.why in (Why.TIMEOUT, Why.NOT_HTTP)  # a head of more than 100 lines is no HTTP
    assert took < 3


def test_nobody_there_is_unreachable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Unfetched, match="refused") as refused:
        fetch(place_of(f"http://127.0.0.1:{port}"))
    assert refused.value.why is Why.UNREACHABLE


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://engine:8000", "http://engine:8000/metrics"),
        ("https://engine/", "https://engine/metrics"),
        ("http://[::1]:8000/metrics?x=1", "http://[::1]:8000/metrics?x=1"),
        ("http://10.0.0.7:8000/engine-1/metrics", "http://10.0.0.7:8000/engine-1/metrics"),
    ],
)
def test_an_address_is_completed_and_reads_as_it_was_meant(url: str, kept: str) -> None:
    assert str(place_of(url)) == kept


@pytest.mark.parametrize(
    "url",
    ["engine:8000", "ftp://engine/metrics", "http://", "http://engine:99999", "http://a b/", "http://engine/\u00e4",
     "http://user:secret@engine/", "http://engine/metrics#x", "http://engine/" + "x" * 600],
)  # fmt: skip
def test_an_address_that_cannot_be_fetched_or_kept_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        place_of(url)
    assert "secret" not in str(refused.value)
