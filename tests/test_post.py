"""One exchange over HTTP, on loopback, with everything that a network does to it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from fake_service import FakeService

from ledger import wire
from ledger.core.records import Batch, Boot, Origin, Source
from ledger.outbox.post import HttpPost, Reply, Unreachable
from ledger.wire import answer as answers
from ledger.wire.answer import Receipt

if TYPE_CHECKING:
    import socket
    from pathlib import Path

NOW_US = 1_800_000_000_000_000


def packed(seq: int = 1) -> bytes:
    batch = Batch(
        source=Source(engine="e", origin=Origin.SIMULATED),
        boot=Boot(boot_id="b", anchor_us=NOW_US, started_us=NOW_US),
        seq=seq,
        start_us=NOW_US,
        end_us=NOW_US,
    )
    return zlib.compress(wire.encode(batch), wbits=31)


def poster(service: FakeService, path: str = "", **options: object) -> HttpPost:
    return HttpPost(service.url + path, token=lambda: "secret", **options)  # type: ignore[arg-type]


def received(reply: Reply) -> Receipt | None:
    answer = answers.decode(reply.body)
    return answer.status if answer is not None else None


def test_a_batch_arrives_whole_with_its_token_and_one_connection_serves_many() -> None:
    with FakeService() as service:
        post = poster(service, "/ledger/")
        replies = [post(packed(seq), f"queued={seq}") for seq in (1, 2, 2)]
        assert [received(reply) for reply in replies] == [Receipt.ACCEPTED, Receipt.ACCEPTED, Receipt.DUPLICATE]
        headers, body = service.requests[1]
        assert headers[""] == "POST /ledger/v1/batches HTTP/1.1"
        assert headers["authorization"] == "Bearer secret"
        assert headers["content-type"] == "application/json"
        assert headers["kvledger-outbox"] == "queued=2"
        assert body == zlib.decompress(packed(2), wbits=31)
        assert service.connections == 1
        post.close()


def test_a_chunked_answer_and_one_that_closes_are_answers() -> None:
    with FakeService("chunked", "close", "ok") as service:
        post = poster(service)
        assert [received(post(packed(seq), "")) for seq in (1, 2, 3)] == [Receipt.ACCEPTED] * 3
        assert service.connections == 2
        post.close()


def test_a_kept_connection_that_the_service_has_closed_is_made_anew_at_once() -> None:
    with FakeService("ok", "booked:reset", "ok") as service:
        post = poster(service)
        post(packed(1), "")
        assert received(post(packed(2), "")) is Receipt.DUPLICATE
        post.close()


@pytest.mark.parametrize("mood", ["reset", "booked:reset", "junk"])
def test_a_connection_that_breaks_is_unreachable_and_the_next_try_works(mood: str) -> None:
    with FakeService(mood) as service:
        post = poster(service)
        with pytest.raises(Unreachable):
            post(packed(), "")
        assert received(post(packed(), "")) is not None
        post.close()


def test_half_an_answer_is_no_receipt() -> None:
    with FakeService("half") as service:
        post = poster(service)
        with suppress(Unreachable):
            assert received(post(packed(), "")) is None
        assert received(post(packed(), "")) is Receipt.DUPLICATE
        post.close()


@pytest.mark.parametrize("mood", ["hang", "drip"])
def test_an_exchange_ends_in_its_time_however_the_service_dawdles(mood: str) -> None:
    with FakeService(mood) as service:
        post = poster(service, timeout_s=0.4)
        started_s = time.monotonic()
        with pytest.raises(Unreachable, match="timed out"):
            post(packed(), "")
        assert time.monotonic() - started_s < 5
        post.close()


def test_an_endless_answer_is_read_up_to_its_bound() -> None:
    with FakeService("endless", "ok") as service:
        post = poster(service)
        assert received(post(packed(), "")) is None
        assert received(post(packed(), "")) is Receipt.ACCEPTED
        post.close()


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("7", 7.0),
        ("99999999999", 900.0),
        ("Fri, 15 Jan 2027 08:00:20 GMT", 20.0),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        ("1e3", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_bounded(asked: str, seconds: float | None) -> None:
    with FakeService(f"503:{asked}") as service:
        post = poster(service, wall_s=lambda: NOW_US / 1e6)
        reply = post(packed(), "")
        assert (reply.status, reply.retry_after_s) == (503, seconds)
        post.close()


def test_a_redirect_is_not_followed_and_the_token_stays_here() -> None:
    with FakeService("ok") as other, FakeService("307") as service:
        post = poster(service)
        assert post(packed(), "").status == 307
        assert other.requests == []
        post.close()


def test_nobody_listening_and_a_name_that_is_none_are_unreachable() -> None:
    with FakeService() as service:
        url = service.url
    for address in (url, "http://kvledger.invalid"):
        with pytest.raises(Unreachable):
            HttpPost(address, token=lambda: "", timeout_s=5)(packed(), "")


def test_a_rotated_token_is_used_from_the_next_batch_on() -> None:
    tokens = iter(["old", "new"])
    with FakeService() as service:
        post = HttpPost(service.url, token=lambda: next(tokens))
        post(packed(1), "")
        post(packed(2), "")
        assert [headers["authorization"] for headers, _ in service.requests] == ["Bearer old", "Bearer new"]
        post.close()


def test_a_token_that_is_no_header_fails_the_exchange_and_nothing_else() -> None:
    with FakeService() as service:
        with pytest.raises(Unreachable):
            HttpPost(service.url, token=lambda: "a\r\nX-Evil: 1")(packed(), "")
        assert service.requests == []


def test_closing_ends_an_exchange_that_is_under_way() -> None:
    with FakeService("hang") as service:
        post = poster(service, timeout_s=60)
        service_got = service.changed

        def close_when_asked() -> None:
            with service_got:
                service_got.wait_for(lambda: bool(service.requests), 10)
            post.close()

        closer = threading.Thread(target=close_when_asked)
        closer.start()
        started_s = time.monotonic()
        with pytest.raises(Unreachable):
            post(packed(), "")
        assert time.monotonic() - started_s < 10
        closer.join()


class Encrypted(FakeService):
    """The same behind TLS."""

    def __init__(self, certificate: Path, key: Path, *moods: str) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate, key)
        super().__init__(*moods)

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            super()._serve(self._tls.wrap_socket(connection, server_side=True))
        connection.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command to make a certificate with")
def test_over_https_the_service_is_known_by_its_certificate_and_the_deadline_holds(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate),
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    with Encrypted(certificate, key, "ok", "ok", "hang") as service:
        url = service.url.replace("http://127.0.0.1", "https://localhost")
        post = HttpPost(url, token=lambda: "t", ca_file=str(certificate), timeout_s=1.0)
        assert [received(post(packed(seq), "")) for seq in (1, 2)] == [Receipt.ACCEPTED] * 2
        assert service.connections == 1
        with pytest.raises(Unreachable, match="timed out"):
            post(packed(3), "")
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            HttpPost(url, token=lambda: "t")(packed(1), "")
        assert len(service.requests) == 3
        post.close()
