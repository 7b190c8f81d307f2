"""`kvledger engines`: what it is told about where to report is checked before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ledger.commands import engines
from ledger.hook import settings as hook

if TYPE_CHECKING:
    from commandline import CommandLine

TOKEN = {"KVLEDGER_TOKEN": "kvl_1_secret"}


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "set both"),
        (TOKEN, "set both"),
        ({"KVLEDGER_URL": "http://127.0.0.1:8790"}, "KVLEDGER_URL is set and no token"),
        (TOKEN | {"KVLEDGER_URL": "http://"}, "KVLEDGER_URL = 'http://': an address is http://HOST"),
        (TOKEN | {"KVLEDGER_URL": "http://:8790"}, "an address is http://HOST"),
        (TOKEN | {"KVLEDGER_URL": "http://host:seven"}, "it is no URL"),
        (TOKEN | {"KVLEDGER_URL": "http://[::1"}, "it is no URL"),
        (TOKEN | {"KVLEDGER_URL": "127.0.0.1:8790"}, "an address is http://HOST"),
        (TOKEN | {"KVLEDGER_URL": "ftp://host"}, "an address is http://HOST"),
        ({"KVLEDGER_URL": "http://host", "KVLEDGER_TOKEN": "not a token"}, "KVLEDGER_TOKEN = …: it has a character"),
        (TOKEN | {"KVLEDGER_URL": "https://host", "KVLEDGER_CA_FILE": "/nowhere"}, "KVLEDGER_CA_FILE = /nowhere"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_it(
    kvledger: CommandLine, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], says: str
) -> None:
    monkeypatch.delenv("KVLEDGER_DATABASE")
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    assert says in kvledger.fails("engines")


def test_what_is_said_of_engines_of_another_kind_is_not_about_these() -> None:
    environ = TOKEN | {"KVLEDGER_URL": "http://127.0.0.1:8790", "KVLEDGER_KEYS": "/nowhere", "KVLEDGER_SPOOL": "x"}
    found = engines._settings(environ)
    assert (found.urls, found.read_token()) == (("http://127.0.0.1:8790",), "kvl_1_secret")
    assert found.spool != hook.load({"KVLEDGER_SPOOL": "x"}).spool
