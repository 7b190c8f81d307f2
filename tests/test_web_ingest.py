"""POST /v1/batches: what is taken, what is turned away, and that nothing of it takes the service down."""

from __future__ import annotations

import gzip
import json
import threading
import zlib

import pytest
from serving import START, Served
from sqlalchemy.exc import OperationalError

from ledger import limits, wire
from ledger import metrics as m
from ledger.core.records import Batch, Boot, Origin, Source
from ledger.wire import answer


def announcement(engine: str = "e", *, seq: int = 1, start_us: int = START, prev: bytes = b"") -> bytes:
    batch = Batch(
        source=Source(engine=engine, origin=Origin.SIMULATED),
        boot=Boot(boot_id="b", anchor_us=START, started_us=START),
        seq=seq,
        start_us=start_us,
        end_us=start_us,
    )
    return wire.encode(batch, prev)


def post(served: Served, body: bytes, kind: str = "ingest", **headers: str):
    return served.client.post("/v1/batches", content=body, headers=served.headers(kind) | headers)


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_is_taken_and_answered_with_the_services_clock(empty: Served, packed: bool) -> None:
    raw = announcement()
    encoding = {"content-encoding": "gzip"} if packed else {}
    got = post(empty, gzip.compress(raw) if packed else raw, **encoding)
    assert got.status_code == 200
    said = answer.decode(got.content)
    assert said is not None
    assert (said.status, said.service_time_us, said.setpoints.revision) == ("accepted", empty.clock.us, 0)


def test_a_repeat_is_a_success_and_changes_nothing(empty: Served) -> None:
    raw = announcement()
    assert post(empty, raw).json()["status"] == "accepted"
    again = post(empty, raw)
    assert (again.status_code, again.json()["status"]) == (200, "duplicate")
    assert [row["last_seq"] for row in empty.get("/v1/sources").json()["rows"]] == [1]


def test_an_unknown_major_version_is_kept_and_answered_202(empty: Served) -> None:
    raw = announcement().replace(b'"kvledger":1', b'"kvledger":7')
    got = post(empty, raw)
    assert (got.status_code, got.json()["status"]) == (202, "quarantined")
    kept = empty.get("/v1/quarantine").json()["rows"]
    assert [row["reason"] for row in kept] == ["unknown_version"]
    assert empty.get(f"/v1/quarantine/{kept[0]['id']}", "admin").content == raw


@pytest.mark.parametrize(("change", "status", "reason"), [
    (lambda raw: raw[:-1], 422, "not_json"),
    (lambda raw: b"\xff" + raw, 422, "not_utf8"),
    (lambda raw: raw.replace(b'"seq":1', b'"seq":-1'), 422, "negative"),
    (lambda raw: raw.replace(b'"seq":1', b'"seq":NaN'), 422, "not_a_number"),
    (lambda raw: raw.replace(b'"seq":1', b'"seq":9223372036854775794'), 422, "sentinel"),
    (lambda raw: raw.replace(b'"seq":1', b'"seq":2'), 422, "digest_mismatch"),
    (lambda _: b"[" * 100_000, 422, "not_json"),
    (lambda _: b"", 422, "not_json"),
    (lambda _: announcement(start_us=START + 10 * limits.AHEAD_US_MAX), 422, "from_the_future"),
    (lambda _: announcement(seq=2), 409, "broken_chain"),
])  # fmt: skip
def test_a_bad_batch_is_a_4xx_that_names_its_reason(empty: Served, change, status: int, reason: str) -> None:
    got = post(empty, change(announcement()))
    assert got.headers["content-type"] == "application/problem+json"
    assert (got.status_code, got.json()["reason"]) == (status, reason)
    assert empty.service.metrics.value(m.BATCHES, ("refused", reason)) == 1
    assert empty.get("/v1/quarantine").json()["rows"][0]["reason"] == reason


def test_a_zip_bomb_costs_its_limit_and_not_its_size(empty: Served) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(400)) + packer.flush()
    assert len(bomb) < 500_000
    got = post(empty, bomb, **{"content-encoding": "gzip"})
    assert (got.status_code, got.json()["type"]) == (413, "urn:kvledger:too-large")


@pytest.mark.parametrize(("body", "encoding", "status"), [
    pytest.param(b"{}", "gzip", 400, id="no gzip"),
    pytest.param(gzip.compress(b"{}")[:-4], "gzip", 400, id="cut short"),
    pytest.param(gzip.compress(b"{}") + b"x", "gzip", 400, id="something behind it"),
    pytest.param(gzip.compress(b"{}") * 2, "gzip", 400, id="twice"),
    pytest.param(b"{}", "br", 415, id="another coding"),
    pytest.param(b"{}", "gzip, gzip", 415, id="two codings"),
])  # fmt: skip
def test_a_body_that_cannot_be_unpacked_is_told_so(empty: Served, body: bytes, encoding: str, status: int) -> None:
    assert post(empty, body, **{"content-encoding": encoding}).status_code == status
    assert empty.service.metrics.value(m.INGEST_TURNED_AWAY, (str(status),)) == 1


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(empty: Served) -> None:
    pieces = (bytes(1 << 20) for _ in range(limits.BATCH_BODY_BYTES_MAX // (1 << 20) + 1))
    assert post(empty, pieces).status_code == 413  # without a length
    assert post(empty, b"{}", **{"content-length": str(limits.BATCH_BODY_BYTES_MAX + 1)}).status_code == 413


@pytest.mark.parametrize(("kind", "status"), [("read", 403), ("acme", 403), ("ingest", 200), ("admin", 200)])
def test_sending_wants_a_token_for_it(empty: Served, kind: str, status: int) -> None:
    assert post(empty, announcement(), kind).status_code == status


def test_a_pages_login_cannot_send(empty: Served) -> None:
    empty.client.post("/login", json={"token": empty.tokens["admin"]})
    assert empty.client.get("/v1/whoami").status_code == 200
    assert empty.client.post("/v1/batches", content=announcement()).status_code == 401


def test_more_batches_than_can_be_booked_at_once_wait_at_their_senders(empty: Served) -> None:
    for _ in range(limits.INGESTS_MAX):
        assert empty.service.ingests.acquire(blocking=False)
    got = post(empty, announcement())
    assert (got.status_code, got.headers["retry-after"]) == (429, "1")
    empty.service.ingests.release()
    assert post(empty, announcement()).status_code == 200
    for _ in range(limits.INGESTS_MAX - 1):
        empty.service.ingests.release()


def test_a_database_that_does_not_answer_is_503_and_the_batch_can_be_sent_again(empty: Served, monkeypatch) -> None:
    assert empty.get("/v1/whoami").status_code == 200
    engine = empty.service.database.engine

    def down(*_args: object, **_more: object) -> None:
        raise OperationalError("SELECT 1", {}, Exception("database is locked away"))

    with monkeypatch.context() as broken:
        broken.setattr(type(engine), "connect", down)
        got = post(empty, announcement())
    assert (got.status_code, got.headers["retry-after"]) == (503, "5")
    assert "locked away" not in got.text
    assert post(empty, announcement()).status_code == 200


def test_engines_at_the_same_time_are_all_taken(empty: Served) -> None:
    codes: list[int] = []

    def send(number: int) -> None:
        codes.append(post(empty, announcement(f"e{number}")).status_code)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [200] * 6


def test_the_documents_schema_is_a_batch(empty: Served) -> None:
    described = empty.client.get("/openapi.json").json()["paths"]["/v1/batches"]["post"]
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) <= json.loads(announcement()).keys()
