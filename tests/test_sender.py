"""The sender: which batch goes where next, and what a reply means for it."""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import limits
from ledger.outbox.line import Entry
from ledger.outbox.post import Reply, Unreachable
from ledger.outbox.sender import Sender
from ledger.outbox.tally import Loss, Tally
from ledger.wire import answer as answers
from ledger.wire.answer import Answer, Receipt, Setpoints


class Waiting:
    """A backlog in memory."""

    def __init__(self, count: int) -> None:
        self.entries = deque(Entry(payload=b"%d" % n, stamped_us=0, segment=Path(), end=n) for n in range(1, count + 1))

    def peek(self) -> Entry | None:
        return self.entries[0] if self.entries else None

    def acknowledge(self, entry: Entry) -> None:
        assert self.entries[0] == entry
        self.entries.popleft()


class Script:
    """An address that replies what it is told to, and remembers what it got and when."""

    def __init__(self, name: str, clock: list[float], *replies: Reply | str) -> None:
        self.name, self.clock, self.replies = name, clock, deque(replies)
        self.got: list[tuple[float, bytes]] = []

    def __call__(self, payload: bytes, note: str) -> Reply:
        self.got.append((self.clock[0], payload))
        reply = self.replies.popleft() if self.replies else ok()
        if isinstance(reply, str):
            raise Unreachable(reply)
        return reply

    def close(self) -> None:
        pass


def ok(status: Receipt = Receipt.ACCEPTED, code: int = 200, **fields: object) -> Reply:
    return Reply(status=code, body=answers.encode(Answer(status=status, service_time_us=5_000_000, **fields)))  # type: ignore[arg-type]


def code(status: int, retry_after_s: float | None = None, body: bytes = b"") -> Reply:
    return Reply(status=status, body=body, retry_after_s=retry_after_s)


def run(count: int, *scripts: tuple[Reply | str, ...], until_s: float = 1e9) -> tuple[Sender, list[Script], Tally]:
    """Steps a sender, its clock going where it says, until there is nothing left to send."""
    clock, tally = [0.0], Tally()
    posts = [Script(f"http://{n}", clock, *replies) for n, replies in enumerate(scripts)]
    sender = Sender(Waiting(count), posts, tally=tally, uniform=lambda: 1.0, mono_s=lambda: clock[0], wall_us=lambda: 0)
    while (wait_s := sender.step()) is not None and clock[0] <= until_s:
        assert wait_s >= 0
        clock[0] += wait_s
    return sender, posts, tally


def test_batches_go_in_order_one_at_a_time() -> None:
    sender, (post,), tally = run(3, (ok(), ok(Receipt.DUPLICATE), ok(Receipt.QUARANTINED, 202)))
    assert [payload for _, payload in post.got] == [b"1", b"2", b"3"]
    assert dict(sender.delivery.receipts) == dict.fromkeys(Receipt, 1)
    assert tally.total == 0


@pytest.mark.parametrize("status", [401, 408, 413, 429, 500, 502, 503, 504, 301, 302, 307, 100])
def test_what_may_be_gone_the_next_time_is_tried_again_and_nothing_passes_it(status: int) -> None:
    sender, (post,), tally = run(2, (code(status), code(status), ok(), ok()))
    assert [payload for _, payload in post.got] == [b"1", b"1", b"1", b"2"]
    assert sender.delivery.failures[str(status)] == 2
    assert tally.total == 0


@pytest.mark.parametrize("status", [400, 403, 404, 405, 409, 410, 415, 422, 431, 451])
def test_any_other_4xx_is_final_counted_and_passed(status: int, caplog: pytest.LogCaptureFixture) -> None:
    reply = code(status, body=b'{"title":"Unprocessable","detail":"law 1: \\u001b[31m 3 blocks are missing"}')
    _, (post,), tally = run(2, (reply, ok()))
    assert [payload for _, payload in post.got] == [b"1", b"2"]
    assert tally.counts[Loss.REFUSED] == 1
    assert f"{status} law 1:  [31m 3 blocks are missing" in caplog.text


@pytest.mark.parametrize(
    "body", [b"", b"<html>Welcome to the hotel</html>", b"[]", b'{"status":"accepted"}', b'{"status":"ok"}', b"\xff"]
)
def test_a_success_without_a_receipt_of_ours_takes_nothing(body: bytes) -> None:
    sender, (post,), tally = run(1, (Reply(status=200, body=body), ok()))
    assert [payload for _, payload in post.got] == [b"1", b"1"]
    assert sender.delivery.failures["no_receipt"] == 1
    assert tally.total == 0


def test_the_pauses_double_up_to_a_minute_and_start_anew_after_a_success() -> None:
    _, (post,), _ = run(2, (*["refused"] * 10, ok(), "refused", ok()))
    times = [at for at, _ in post.got]
    pauses = [round(after - before, 3) for before, after in itertools.pairwise(times)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 0, 0.5]


@given(st.floats(0, 1), st.integers(1, 30))
def test_jitter_takes_away_up_to_half_of_a_pause_and_no_more(jitter: float, failures: int) -> None:
    clock = [0.0]
    post = Script("http://0", clock, *["reset"] * failures)
    sender = Sender(Waiting(1), [post], tally=Tally(), uniform=lambda: jitter, mono_s=lambda: clock[0])
    for failure in range(failures):
        assert sender.step() == 0.0
        wait_s = sender.step()
        whole_s = min(60.0, 0.5 * 2**failure)
        assert wait_s is not None
        assert whole_s / 2 <= wait_s <= whole_s
        clock[0] += wait_s


def test_what_the_service_asks_for_is_waited_for_with_jitter_on_top() -> None:
    _, (post,), _ = run(1, (code(429, 30.0), code(503, 5.0), ok()))
    assert [at for at, _ in post.got] == [0.0, 30.5, 36.5]


def test_pressure_in_a_receipt_delays_the_next_batch_not_this_one() -> None:
    _, (post,), _ = run(2, (ok(retry_after_ms=1500), ok()))
    assert post.got == [(0.0, b"1"), (1.5, b"2")]


def test_an_absurd_request_to_wait_is_cut() -> None:
    _, (post,), _ = run(2, (ok(retry_after_ms=10**15), ok()))
    assert post.got[1][0] == limits.SEND_RETRY_AFTER_S_MAX


def test_the_next_address_is_tried_at_once_and_the_first_again_after_its_pause() -> None:
    _, (one, two), _ = run(2, ("refused", ok()), (code(503), ok()))
    assert one.got == [(0.0, b"1"), (0.5, b"1"), (0.5, b"2")]
    assert two.got == [(0.0, b"1")]


def test_while_one_address_rests_the_other_takes_everything() -> None:
    _, (one, two), _ = run(3, (code(503, 600.0),), ())
    assert [payload for _, payload in one.got] == [b"1"]
    assert two.got == [(0.0, b"1"), (0.0, b"2"), (0.0, b"3")]


def test_the_answer_is_remembered_for_people_and_hooks() -> None:
    sender, _, _ = run(1, (ok(setpoints=Setpoints(revision=7)),))
    assert sender.delivery.setpoints_revision == 7
    assert sender.delivery.service_ahead_us == 5_000_000
    assert sender.delivery.last_failure == ""


def test_a_failure_is_told_once_with_its_way_out_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    run(1, (code(401), code(401), code(401), ok()))
    assert [record.message for record in caplog.records] == [
        (
            "http://0: 401: without a word; batches wait and are tried again. "
            "See to KVLEDGER_TOKEN: the service does not know it"
        ),
        "http://0 takes batches again",
    ]


def test_without_an_address_the_spool_is_only_filled() -> None:
    sender, _, _ = run(3)
    assert sender.step() is None


@given(st.lists(st.sampled_from(["ok", "dup", "reset", "500", "429", "422", "junk"]), max_size=40), st.integers(1, 10))
def test_whatever_the_service_does_each_batch_is_received_or_refused_once_and_in_order(
    mood: list[str], count: int
) -> None:
    replies: dict[str, Reply | str] = {
        "ok": ok(), "dup": ok(Receipt.DUPLICATE), "reset": "reset", "500": code(500), "429": code(429, 1.0),
        "422": code(422), "junk": Reply(status=200, body=b"{}"),
    }  # fmt: skip
    sender, (post,), tally = run(count, tuple(replies[word] for word in mood))
    assert sum(sender.delivery.receipts.values()) + tally.counts[Loss.REFUSED] == count
    sequence = [int(payload) for _, payload in post.got]
    assert sequence == sorted(sequence)
    assert set(sequence) == set(range(1, count + 1))


@given(
    st.sampled_from(Receipt),
    st.integers(0, limits.INT_MAX),
    st.none() | st.integers(0, limits.INT_MAX),
    st.integers(0, limits.INT_MAX),
)
def test_answers_come_back_as_they_were_written(
    status: Receipt, time_us: int, retry_ms: int | None, revision: int
) -> None:
    answer = Answer(
        status=status, service_time_us=time_us, retry_after_ms=retry_ms, setpoints=Setpoints(revision=revision)
    )
    assert answers.decode(answers.encode(answer)) == answer
    wider = answers.encode(answer)[:-1] + b',"of_tomorrow":{"a":[1.5]}}'
    assert answers.decode(wider) == answer


@given(st.binary(max_size=200) | st.builds(lambda n: b"[" * n, st.integers(1, 60_000)))
def test_no_bytes_make_an_answer_raise(raw: bytes) -> None:
    assert answers.decode(raw) is None or isinstance(answers.decode(raw), Answer)
