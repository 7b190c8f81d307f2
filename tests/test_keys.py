"""The map of API keys follows its file: some seconds and a request later, and never on a request's time."""

from __future__ import annotations

import hashlib
import logging
import time
from typing import TYPE_CHECKING

import pytest

from ledger.core.records import UNATTRIBUTED
from ledger.hook.identity import Identity, Trust
from ledger.hook.keys import LOOK_S, KeyFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Following:
    """A file of keys, an identity that goes by it, and a clock and a reader that the test moves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_s = 0.0
        self.writes("acme old")
        self.looks: list[Callable[[], None]] = []
        self.keys = KeyFile(path, mono_s=lambda: self.now_s, apart=self.looks.append)
        self.identity = Identity(Trust(tenants_by_key=self.keys))

    def writes(self, *pairs: str) -> None:
        lines = [f"{tenant} sha256:{digest(key).hex()}" for tenant, key in (pair.split() for pair in pairs)]
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join(lines))
        fresh.replace(self.path)

    def tenant(self, key: str, *, later_s: float = 0.0) -> str:
        """Whom a request with this key is of; what it set going is done afterwards."""
        self.now_s += later_s
        found = self.identity.resolve("203.0.113.9", [(b"x-api-key", key.encode())]).tenant
        while self.looks:
            self.looks.pop()()
        return found


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


@pytest.fixture
def following(tmp_path: Path) -> Following:
    return Following(tmp_path / "keys")


def test_a_key_that_is_added_counts_and_one_that_is_taken_back_does_not(following: Following) -> None:
    following.writes("beta new")
    assert following.tenant("old", later_s=LOOK_S - 1) == "acme", "it was looked at not so long ago"
    assert following.tenant("old", later_s=2) == "acme", "the request that sets the look going does not wait for it"
    assert (following.tenant("old"), following.tenant("new")) == (UNATTRIBUTED, "beta")


def test_a_file_that_cannot_be_used_leaves_the_keys_of_before_and_is_told_once(
    following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    following.path.write_text("acme my-plain-key")
    for _ in range(3):
        assert following.tenant("old", later_s=LOOK_S) == "acme"
    following.path.unlink()
    for _ in range(3):
        assert following.tenant("old", later_s=LOOK_S) == "acme"
    assert following.keys.refused == 2
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 2
    assert "keys:1: it is no pair of tenant and key" in told[0]
    assert "it cannot be read" in told[1]
    assert "my-plain-key" not in caplog.text
    following.writes("beta new")
    following.tenant("new", later_s=LOOK_S)
    assert following.tenant("new") == "beta"


def test_a_file_that_did_not_change_is_not_read_again(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.hook.keys.read_keys", lambda _path: pytest.fail("it was read"))
    for _ in range(5):
        assert following.tenant("old", later_s=LOOK_S) == "acme"


def test_one_look_is_under_way_at_a_time(following: Following) -> None:
    following.now_s = LOOK_S
    for _ in range(3):
        following.now_s += LOOK_S
        assert following.keys.get(digest("old")) == "acme"
    assert len(following.looks) == 1


def test_left_to_itself_it_looks_in_a_thread_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.hook.keys.LOOK_S", 0.0)
    following = Following(tmp_path / "keys")
    keys = KeyFile(following.path)
    following.writes("beta new")
    until_s = time.monotonic() + 20
    while keys.get(digest("new")) != "beta":
        assert time.monotonic() < until_s
        time.sleep(0.01)
