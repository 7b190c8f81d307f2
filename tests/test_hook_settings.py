"""The hook's settings: what may be set beside an engine, and that nothing of it breaks the engine."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from pathlib import Path

import pytest
from fake_service import FakeService
from hypothesis import example, given
from hypothesis import strategies as st

from ledger import config
from ledger.core.records import Batch, Boot, Group, Origin, Source
from ledger.errors import UsageError
from ledger.hook import settings as hook
from ledger.hook.identity import Ignored, Pseudonyms
from ledger.hook.keys import read_keys
from ledger.hook.meter import Meter
from ledger.outbox.drain import Outbox

DOC = Path(__file__).parents[1] / "docs/hook-settings.md"
TOKEN = {"KVLEDGER_TOKEN": "kvl_secret"}


def test_without_any_variable_the_spool_is_filled_and_only_this_machine_is_trusted() -> None:
    found = hook.load({})
    assert found.enabled
    assert found.urls == ()
    assert found.spool == Path("~/.local/state/kvledger/spool").expanduser()
    assert found.trust.networks == (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
    assert not found.trust.unix
    assert found.trust.pseudonyms is Pseudonyms.NONE


def test_every_variable_is_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# ours\n\nacme corp sha256:{hashlib.sha256(b'k').hexdigest()}\n")
    found = hook.load(
        {
            "KVLEDGER_ENABLED": "off",
            "KVLEDGER_URL": "https://a.example:8443/ledger, http://10.0.0.1",
            "KVLEDGER_TOKEN": " kvl_secret\n",
            "KVLEDGER_CA_FILE": "/etc/ca.pem",
            "KVLEDGER_TIMEOUT": "2m",
            "KVLEDGER_SPOOL": "none",
            "KVLEDGER_SPOOL_BYTES": "512M",
            "KVLEDGER_SPOOL_AGE": "36h",
            "KVLEDGER_SPOOL_FSYNC": "No",
            "KVLEDGER_ENGINE": "llama/1",
            "KVLEDGER_CLUSTER": "c",
            "KVLEDGER_NAMESPACE": "n",
            "KVLEDGER_POD": "p",
            "KVLEDGER_HOST": "h",
            "KVLEDGER_TRUSTED_PEERS": "unix 10.0.0.0/8",
            "KVLEDGER_KEYS": str(keys),
            "KVLEDGER_PSEUDONYMS": "all",
            "KVLEDGER_PSEUDONYM_KEY": "k" * 16,
            "KVLEDGER_HANDOVER_KEY": "h" * 16,
            "KVLEDGER_PROFILE_EVERY": "1000",
        }
    )
    assert not found.enabled
    assert found.urls == ("https://a.example:8443/ledger", "http://10.0.0.1")
    assert (found.token, found.timeout_s, found.spool) == ("kvl_secret", 120.0, None)
    assert (found.spool_bytes, found.spool_age_s, found.spool_fsync) == (512 * 1024**2, 129_600, False)
    assert (found.engine, found.cluster, found.namespace, found.pod, found.host) == ("llama/1", "c", "n", "p", "h")
    assert found.trust.unix
    assert found.trust.tenants_by_key == {hashlib.sha256(b"k").digest(): "acme corp"}
    assert (found.trust.pseudonyms, found.trust.pseudonym_key) == (Pseudonyms.ALL, b"k" * 16)
    assert found.handover_key == b"h" * 16
    assert found.profile_every == 1000


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ENABLED", "maybe", "neither yes nor no"),
        ("URL", "ledger:8080", "an address is http"),
        ("URL", "http://", "an address is http"),
        ("URL", "ftp://x", "an address is http"),
        ("URL", "http://x:99999", "no URL"),
        ("URL", "http://[::1", "no URL"),
        ("URL", "http://me:hunter2@x", "no user"),
        ("URL", "http://x?a=1", "no user, query"),
        ("URL", " ".join(["http://x"] * 9), "9 addresses"),
        ("TOKEN", "two words", "a character that no token has"),
        ("TOKEN", "caf\xe9", "a character that no token has"),
        ("TIMEOUT", "0s", "too small"),
        ("TIMEOUT", "1e3", "not a whole number"),
        ("TIMEOUT", "2G", "with a unit of s, m, h, d"),
        ("SPOOL_BYTES", "10K", "too small"),
        ("SPOOL_BYTES", "999999G", "too large"),
        ("SPOOL_BYTES", "1.5G", "not a whole number"),
        ("SPOOL_BYTES", "\u0661G", "not a whole number"),
        ("SPOOL_AGE", "61d", "too large"),
        ("SPOOL_AGE", "-1d", "not a whole number"),
        ("SPOOL_FSYNC", "2", "neither yes nor no"),
        ("ENGINE", "a\nb", "a control character"),
        ("ENGINE", "a" * 513, "too long"),
        ("TRUSTED_PEERS", "10.0.0.1/8", "host bits set"),
        ("TRUSTED_PEERS", "everybody", "does not appear to be"),
        ("TRUSTED_PEERS", ",".join(["10.0.0.0/8"] * 257), "257 networks"),
        ("PSEUDONYMS", "some", "no such choice"),
        ("PSEUDONYM_KEY", "short", "too short"),
        ("HANDOVER_KEY", "short", "too short"),
        ("PROFILE_EVERY", "99", "no such number"),
        ("PROFILE_EVERY", "2000000", "no such number"),
        ("PROFILE_EVERY", "-1", "no such number"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_limit_and_default(name: str, value: str, says: str) -> None:
    variable = next(variable for variable in hook.DECLARED if variable.name == f"KVLEDGER_{name}")
    with pytest.raises(UsageError) as caught:
        hook.load(TOKEN | {variable.name: value})
    message = str(caught.value)
    assert message.startswith(f"KVLEDGER_{name} = ")
    assert says in message
    assert f"Allowed: {variable.limit}. Default: {variable.default or 'empty'}" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"KVLEDGER_URL": "http://x"}, "no token: set KVLEDGER_TOKEN"),
        ({"KVLEDGER_TOKEN": "a", "KVLEDGER_TOKEN_FILE": "b"}, "both set"),
        ({"KVLEDGER_PSEUDONYMS": "all"}, "wants KVLEDGER_PSEUDONYM_KEY"),
        ({"KVLEDGER_KEYS": "/nowhere/keys"}, "cannot be read"),
    ],
)
def test_what_does_not_go_together_says_the_way_out(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        hook.load(environ)


@pytest.mark.parametrize("name", ["KVLEDGER_TOKEN", "KVLEDGER_PSEUDONYM_KEY", "KVLEDGER_HANDOVER_KEY"])
def test_a_secret_is_never_said(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        hook.load({name: "hunter 2" if name == "KVLEDGER_TOKEN" else "hunter"})
    assert "hunter" not in str(caught.value)


HEX = "ab" * 32


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("acme\n", "keys:1: it is no pair"),
        (f"a sha256:{HEX}\nb sha256:{HEX}\n", "keys:2: the same key belongs to a already"),
        (f"sha256:{HEX}\n", "keys:1: it is no pair"),
        (f"acme sha256:{HEX.upper()}\n", "keys:1: it is no pair"),
        (f"{'a' * 129} sha256:{HEX}\n", "keys:1: it is no pair"),
        ("acme my-plain-key\n", "sha256sum"),
        ("caf\xe9 x\n", "cannot be read"),
    ],
)
def test_a_map_of_keys_that_cannot_be_used_names_the_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=says) as caught:
        read_keys(path)
    assert "my-plain-key" not in str(caught.value)


def test_in_an_engine_a_bad_setting_switches_the_hook_off_and_believes_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environ = {"KVLEDGER_SPOOL_BYTES": "lots"}
    found = hook.load_or_off(environ)
    assert not found.enabled
    assert found.off_because.startswith("KVLEDGER_SPOOL_BYTES")
    assert found.trust.networks == ()
    assert found.handover_key
    assert "kvledger is switched off: KVLEDGER_SPOOL_BYTES = 'lots'" in caplog.text


@example({"KVLEDGER_CA_FILE": "~nobody-of-that-name/ca.pem"})
@given(st.dictionaries(st.sampled_from(sorted(hook.VARIABLES)), st.text(max_size=30), max_size=4))
def test_no_environment_makes_an_engine_raise(environ: dict[str, str]) -> None:
    found = hook.load_or_off(environ)
    assert found.enabled or found.off_because or "KVLEDGER_ENABLED" in environ


def test_the_hand_over_key_is_made_once_and_left_for_the_engines_children() -> None:
    environ: dict[str, str] = {"KVLEDGER_HANDOVER_KEY": " "}
    parent = hook.load_or_off(environ)
    child = hook.load_or_off(dict(environ))
    assert len(parent.handover_key) >= 16
    assert parent.handover_key == child.handover_key
    assert hook.load_or_off({}).handover_key != parent.handover_key


def test_switched_off_by_hand_nothing_is_said_and_nothing_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"KVLEDGER_ENABLED": "no", "KVLEDGER_URL": "no address", "KVLEDGER_TOKKEN": "x"}
    found = hook.load_or_off(environ)
    assert not found.enabled
    assert found.off_because == ""
    assert caplog.records == []
    assert "KVLEDGER_HANDOVER_KEY" not in environ


def test_a_variable_that_looks_like_one_of_ours_is_told(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"KVLEDGER_TOKENS": "x", "KVLEDGER_PORT_80_TCP": "y", "KVLEDGER_DATABASE": "sqlite:///x", "OTHER": "z"}
    assert hook.misspelt(environ) == ["KVLEDGER_TOKENS is no setting of the hook; did you mean KVLEDGER_TOKEN?"]
    hook.load_or_off(environ)
    assert "did you mean KVLEDGER_TOKEN?" in caplog.text


def test_the_services_settings_let_the_hooks_pass() -> None:
    assert [name for name in sorted(hook.VARIABLES) if not config.ENV_OF_OTHERS.fullmatch(name)] == []
    assert hook.VARIABLES.isdisjoint(setting.env for setting in config.DECLARED)


def test_a_token_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    found = hook.load({"KVLEDGER_TOKEN_FILE": str(path)})
    assert found.read_token() == "one"
    path.write_text("two\n")
    assert found.read_token() == "two"


def test_the_outbox_of_the_settings_delivers_with_their_token_and_leaves_the_rest_in_their_spool(
    tmp_path: Path,
) -> None:
    with FakeService() as service:
        environ = TOKEN | {"KVLEDGER_URL": f"http://127.0.0.1:9,{service.url}", "KVLEDGER_SPOOL": str(tmp_path / "s")}
        outbox = hook.outbox_of(hook.load(environ))
        outbox.start()
        boot = Boot(boot_id="b", anchor_us=1_800_000_000_000_000, started_us=1_800_000_000_000_000)
        at_us = boot.started_us
        source = Source(engine="e", origin=Origin.LIVE)
        outbox.emit(Batch(source=source, boot=boot, seq=1, start_us=at_us, end_us=at_us))
        service.wait(lambda: len(service.order) == 1)
        outbox.close()
        assert service.requests[0][0]["authorization"] == "Bearer kvl_secret"
        assert list((tmp_path / "s").iterdir()) == []


def test_the_documents_example_delivers_what_the_engine_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    with FakeService() as service:
        monkeypatch.setenv("KVLEDGER_URL", service.url)
        monkeypatch.setenv("KVLEDGER_TOKEN", "kvl_secret")
        monkeypatch.setenv("KVLEDGER_SPOOL", str(tmp_path / "spool"))
        monkeypatch.setenv("KVLEDGER_HANDOVER_KEY", "")
        boot = Boot(boot_id="b", anchor_us=1_800_000_000_000_000, started_us=1_800_000_000_000_000)
        clock_us = [1_000_000]
        engine = {"source": Source(engine="e", origin=Origin.LIVE), "boot": boot, "now_us": lambda: clock_us[0]}
        exec(example, engine)
        outbox, meter = engine["outbox"], engine["meter"]
        assert isinstance(outbox, Outbox)
        assert isinstance(meter, Meter)
        with meter.lock:
            meter.open(1_000_000, "gpu", blocks=10, groups=[Group(block_size=16)])
        clock_us[0] = 31_000_000
        # The announcement, and by the heartbeat of an idle engine two periods.
        service.wait(lambda: len(service.batches) == 3)
        outbox.close()
        assert [batch.end_us - boot.anchor_us for batch in service.batches.values()] == [0, 15_000_000, 30_000_000]


def test_a_file_of_certificates_that_is_none_is_an_error_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    environ = TOKEN | {"KVLEDGER_URL": "https://x", "KVLEDGER_CA_FILE": str(tmp_path / "ca.pem")}
    with pytest.raises(UsageError, match="KVLEDGER_CA_FILE"):
        hook.outbox_of(hook.load(environ))


def test_the_document_lists_every_variable_with_its_default_and_limit() -> None:
    text = DOC.read_text()
    rows = re.findall(r"^\| `(KVLEDGER_\w+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    documented = [(name, default.strip("`").replace("empty", ""), limit) for name, default, limit in rows]
    assert documented == [(v.name, v.default, v.limit) for v in hook.DECLARED]
    page = " ".join(text.split())
    assert [v.name for v in hook.DECLARED if f"- `{v.name}`: {v.about}" not in page] == []


def test_the_document_lists_every_reason_for_ignoring_an_identity() -> None:
    assert re.findall(r"^  - `(\w+)`: ", DOC.read_text(), re.MULTILINE) == [word.value for word in Ignored]


def test_every_default_is_allowed() -> None:
    for variable in hook.DECLARED:
        variable.parse(variable.default)
