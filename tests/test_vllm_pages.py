"""What is written of vLLM is what the code says: variables, versions, log lines; and a manifest that fits together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

import ledger
from ledger.config import DECLARED
from ledger.hook.settings import VARIABLES, load
from ledger.hook.vllm import SUPPORTED

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/vllm.md").read_text()
MANIFEST = ROOT / "docs/examples/vllm_kubernetes.yaml"
SOURCES = "\n".join(path.read_text() for room in ("hook", "outbox") for path in (ROOT / "ledger" / room).rglob("*.py"))


def pod() -> dict[str, Any]:
    return yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]


def test_every_variable_that_is_written_down_is_one() -> None:
    pages = [ROOT / "docs/vllm.md", ROOT / "docs/examples/vllm_quickstart.md", MANIFEST, ROOT / "README.md"]
    named = {name for page in pages for name in re.findall(r"\bKVLEDGER_[A-Z_]*[A-Z]\b", page.read_text())}
    assert len(named) > 10
    assert named <= VARIABLES | {setting.env for setting in DECLARED}


def test_the_versions_are_those_that_the_hook_attaches_to() -> None:
    assert f"**{', '.join(SUPPORTED)}**" in PAGE
    texts = PAGE, MANIFEST.read_text(), (ROOT / "docs/examples/vllm_quickstart.md").read_text()
    for text in texts:
        tags = re.findall(r"vllm-openai:v([\d.]+)|vllm(?:-cpu)?==([\d.]+)", text)
        assert tags
        assert {".".join((image or package).split(".")[:2]) for image, package in tags} <= set(SUPPORTED)


def test_every_log_line_that_is_explained_is_said_somewhere() -> None:
    table = PAGE.partition("## When something is wrong")[2]
    quoted = re.findall(r"^\| `([^`]*)`", table, flags=re.MULTILINE)
    assert len(quoted) > 5
    said = SOURCES.replace('"\n            "', "")
    for line in quoted:
        for part in re.split(r"…|: |untrusted_peer", line):
            if part.strip() and part not in {"kvledger", "VLLM_PLUGINS"}:
                # The disk's own words are the system's.
                assert part.strip() in said or part == "No space left on device", line


def test_the_manifest_puts_the_hook_where_python_looks_and_its_files_where_they_are_mounted() -> None:
    (init,), (engine,) = pod()["initContainers"], pod()["containers"]
    environ = {entry["name"]: entry.get("value", "") for entry in engine["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in engine["volumeMounts"]}
    assert f"--target {environ['PYTHONPATH']} " in init["command"][-1]
    assert f"kvledger-{ledger.__version__}-py3" in init["command"][-1]
    assert mounts["hook"] == init["volumeMounts"][0]["mountPath"] == environ["PYTHONPATH"]
    assert environ["KVLEDGER_SPOOL"].startswith(f"{mounts['spool']}/")
    assert environ["KVLEDGER_TOKEN_FILE"].startswith(f"{mounts['token']}/")
    assert mounts.keys() == {volume["name"] for volume in pod()["volumes"]}


def test_the_hook_takes_the_manifests_environment() -> None:
    environ = {entry["name"]: entry.get("value", "from-the-pod") for entry in pod()["containers"][0]["env"]}
    found = load(environ)
    assert found.enabled
    assert found.pod == found.namespace == found.host == "from-the-pod"
