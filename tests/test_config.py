"""Settings: where they come from, and what is said about those that cannot be used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import config
from ledger.core.allocation import Basis
from ledger.errors import UsageError

DOC = Path(__file__).parents[1] / "docs/settings.md"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str | None = None, environ: dict[str, str] | None = None, **arguments: str) -> config.Settings:
    file = None
    if text is not None:
        file = Path("settings.toml")
        file.write_text(text)
    given = {name: config.Given(text=value, where=f"--{name}") for name, value in arguments.items()}
    return config.load(environ=environ or {}, file=file, arguments=given)


def test_defaults_are_the_articles_weights_and_an_embedded_database() -> None:
    settings = load()
    assert (settings.active_weight_milli, settings.cached_weight_milli, settings.kv_share_ppm) == (2500, 300, 1_000_000)
    assert settings.basis is Basis.CAPACITY
    assert settings.database == f"sqlite:///{Path.home()}/.local/state/kvledger/kvledger.db"


def test_an_argument_wins_over_the_environment_and_that_over_the_file() -> None:
    file = 'database = "sqlite:///file.db"\nbasis = "full"\ncurrency = "EUR"'
    environ = {"KVLEDGER_DATABASE": "sqlite:///env.db", "KVLEDGER_BASIS": "capacity"}
    settings = load(file, environ, database="sqlite:///argument.db")
    assert (settings.database, settings.basis, settings.currency) == ("sqlite:///argument.db", Basis.CAPACITY, "EUR")


def test_the_file_in_the_current_directory_is_read_unless_another_is_named(tmp_path: Path) -> None:
    Path("kvledger.toml").write_text('currency = "CHF"')
    assert load().currency == "CHF"
    (tmp_path / "other.toml").write_text('currency = "JPY"')
    assert load(environ={"KVLEDGER_CONFIG": "other.toml"}).currency == "JPY"
    assert load('currency = "SEK"', {"KVLEDGER_CONFIG": "other.toml"}).currency == "SEK"


def test_decimals_of_the_file_are_exact() -> None:
    settings = load("cached_weight = 0.3\nactive_weight = 0.301\nkv_share = 0.000001")
    assert (settings.cached_weight_milli, settings.active_weight_milli, settings.kv_share_ppm) == (300, 301, 1)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("cached_weight", "3", "above active_weight, 2.5"),
        ("cached_weight", "-0.1", "too small"),
        ("cached_weight", "nan", "not a finite number"),
        ("cached_weight", "0.0001", "more than 3 decimals"),
        ("cached_weight", "1e999999999", "out of all proportion"),
        ("active_weight", "0", "it is zero"),
        ("active_weight", "1e7", "too large"),
        ("kv_share", "1.000001", "too large"),
        ("kv_share", "half", "not a number"),
        ("kv_share", "inf", "not a finite number"),
        ("basis", "fair", "no such basis"),
        ("currency", "usd", "did you mean USD?"),
        ("currency", "XXX", "not a currency code"),
        ("billing_timezone", "Europe/Nowhere", "not a time zone"),
        ("billing_timezone", "../../etc/passwd", "not a time zone"),
        ("billing_timezone", "", "not a time zone"),
        ("fact_retention_days", "31", "too small"),
        ("fact_retention_days", "40.5", "not a whole number"),
        ("fact_retention_days", "99999999999999999999", "out of all proportion"),
        ("database", "mysql://host/db", "nothing here speaks mysql"),
        ("database", "books.db", "write sqlite:///books.db"),
        ("database", "sqlite://", "names no file"),
        ("state_dir", "", "names no directory"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_limit_and_default(name: str, value: str, says: str) -> None:
    variable = f"KVLEDGER_{name.upper()}"
    setting = next(setting for setting in config.DECLARED if setting.name == name)
    with pytest.raises(UsageError) as caught:
        load(environ={variable: value})
    message = str(caught.value)
    assert message.startswith(f"{variable}: {name} = {value!r}: ")
    assert says in message
    assert setting.limit in message
    assert "Default: " in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("basis = full", "this is not TOML"),
        ("basis = [1]", "a setting is text or a number"),
        ("basis = true", "a setting is text or a number"),
        ("[ledger]\nbasis = 'full'", "no setting ledger"),
        ("baisis = 'full'", "did you mean basis?"),
        ("\x00", "this is not TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=r"settings\.toml") as caught:
        load(text)
    assert says in str(caught.value)


def test_files_that_are_missing_or_directories_or_binary_or_endless_say_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00basis")
    (tmp_path / "large.toml").write_bytes(b"#" * (config.CONFIG_BYTES_MAX + 1))
    for name, says in [
        ("absent.toml", "No such file"),
        (".", "Is a directory"),
        ("binary.toml", "not TOML"),
        ("large.toml", "more than 1000000 bytes"),
    ]:
        with pytest.raises(UsageError, match=says):
            config.load(environ={"KVLEDGER_CONFIG": name})


def test_a_misspelt_variable_is_an_error_and_what_kubernetes_adds_is_not() -> None:
    with pytest.raises(UsageError, match="did you mean KVLEDGER_DATABASE"):
        load(environ={"KVLEDGER_DATABSE": "sqlite:///x.db"})
    load(
        environ={
            "KVLEDGER_PORT_8080_TCP_ADDR": "10.0.0.1",
            "KVLEDGER_SERVICE_HOST": "10.0.0.1",
            "KVLEDGER_TRACES": "/x",
        }
    )


def test_a_password_is_never_said() -> None:
    with pytest.raises(UsageError) as caught:
        load(environ={"KVLEDGER_DATABASE": "mysql://me:hunter2@host/db"})
    assert "hunter2" not in str(caught.value)
    assert config.masked("postgresql://me:hunter2@host/db") == "postgresql://me:***@host/db"


@given(st.integers(0, 10**9), st.integers(0, 6))
def test_scaled_decimals_come_back_exactly(units: int, digits: int) -> None:
    text = f"{units // 10**digits}.{units % 10**digits:0{digits}d}" if digits else str(units)
    assert config.scaled(text, digits=digits, low=0, high=10**9) == units


def test_the_document_lists_every_setting_with_its_default_and_limit() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+?) \| (.+?) \|$", DOC.read_text(), re.MULTILINE)
    documented = [(name, env, default.strip("`").replace("empty", ""), limit) for name, env, default, limit in rows]
    assert documented == [(s.name, s.env, s.default, s.limit) for s in config.DECLARED]
    page = " ".join(DOC.read_text().split())
    assert [s.name for s in config.DECLARED if f"- `{s.name}`: {s.about}" not in page] == []


def test_every_default_is_allowed() -> None:
    for setting in config.DECLARED:
        setting.parse(setting.default)
