"""Alerts: made of the declared metrics, tested for firing and for silence, each with a runbook; names in dashboards."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from programs import output

from alerts import ledger_health, rules
from ledger import metrics as m

ROOT = Path(__file__).parents[1]
ALERTS = ROOT / "alerts"
CASES = sorted((ALERTS / "tests").glob("*.yml"))
QUERIES = [*sorted(ALERTS.rglob("*.yml")), *sorted((ROOT / "dashboards").glob("*.json"))]

OF_THE_CLIENT = {"process_start_time_seconds"}
"""What prometheus_client's own collectors expose, as far as it is used."""


def exposed() -> dict[str, set[str]]:
    """Every name that can be asked for, with its labels."""
    names: dict[str, set[str]] = {}
    for metric in m.DECLARED:
        if metric.kind is m.Kind.HISTOGRAM:
            names |= {f"{metric.name}_{part}": set(metric.labels) for part in ("sum", "count")}
            names[f"{metric.name}_bucket"] = {*metric.labels, "le"}
        else:
            names[metric.name] = set(metric.labels)
    return names


def test_the_rule_file_is_made_of_the_figures() -> None:
    text = (ALERTS / "ledger_health.yml").read_text()
    assert text == ledger_health.document()
    found = yaml.safe_load(text)["groups"]
    assert [group["name"] for group in found] == [group.name for group in ledger_health.GROUPS]
    for group, made in zip(found, ledger_health.GROUPS, strict=True):
        for rule, alert in zip(group["rules"], made.alerts, strict=True):
            assert (rule["alert"], rule["expr"], rule.get("for", "0s")) == (alert.name, alert.expr, alert.holds)
            assert rule["annotations"]["summary"] == alert.summary


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / rules.RUNBOOKS).read_text(), re.MULTILINE)
    assert headings == [alert.name for alert in ledger_health.ALERTS]


@pytest.mark.parametrize("alert", [alert.name for alert in ledger_health.ALERTS])
def test_every_alert_has_a_case_of_firing_and_one_of_silence(alert: str) -> None:
    asked = [
        bool(query["exp_samples"])
        for file in CASES for case in yaml.safe_load(file.read_text())["tests"] for query in case["promql_expr_test"]
        if f'alertname="{alert}"' in query["expr"]
    ]  # fmt: skip
    assert set(asked) == {True, False}


@pytest.mark.parametrize("file", QUERIES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_metric_that_is_asked_for_is_exposed_with_these_labels(file: Path) -> None:
    text = file.read_text()
    if file.suffix == ".json":
        text = "\n".join(asked for asked in _strings(json.loads(text)) if "kvledger_" in asked)
    names = exposed()
    found = set(re.findall(r"\b(?:kvledger|process|python)_\w+", text))
    groups = {group.name for group in ledger_health.GROUPS}
    assert found - names.keys() - OF_THE_CLIENT - groups == set()
    for name, matchers in re.findall(r"\b(kvledger_\w+)\{([^}]*)\}", text):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers)) - {"job", "instance"}
        assert asked <= names[name], (name, asked)


def test_a_name_that_is_not_exposed_would_be_found() -> None:
    assert "kvledger_gpu_cache_usage_perc" not in exposed()
    assert "kvledger_request_seconds" not in exposed()
    assert {"kvledger_request_seconds_bucket", "kvledger_batches_total"} <= exposed().keys()


def test_no_label_of_a_metric_is_one_that_prometheus_gives_to_the_target() -> None:
    # It would be renamed to `exported_job` on the way, and every query with it would find nothing.
    assert not [metric.name for metric in m.DECLARED if {"job", "instance"} & set(metric.labels)]


def test_promtool_takes_the_rules() -> None:
    said = output("promtool", "check", "rules", ALERTS / "ledger_health.yml")
    assert f"SUCCESS: {len(ledger_health.ALERTS)} rules found" in said


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_alerts_fire_and_are_silent_as_their_cases_say(file: Path) -> None:
    assert "SUCCESS" in output("promtool", "test", "rules", file)


def test_alertmanager_takes_the_routes_and_the_severe_ones_go_to_the_page() -> None:
    routes = ALERTS / "alertmanager.yml"
    output("amtool", "check-config", routes)
    for severity, receiver in (("critical", "kvledger-page"), ("warning", "kvledger-ticket")):
        got = output(
            "amtool", "config", "routes", "test", f"--config.file={routes}", "service=kvledger", f"severity={severity}"
        )
        assert receiver in got
    assert "nobody" in output("amtool", "config", "routes", "test", f"--config.file={routes}", "service=other")


def test_inhibitions_name_alerts_that_there_are() -> None:
    text = (ALERTS / "alertmanager.yml").read_text()
    assert set(re.findall(r"Kvledger\w+", text)) <= {alert.name for alert in ledger_health.ALERTS}


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _strings(each)]
