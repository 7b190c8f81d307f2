"""Dashboards: made of code, without the SDK's silent defaults. What queries find: test_observed.py."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dashboards import fleet

ROOT = Path(__file__).parents[1]
FLEET = json.loads((ROOT / "dashboards/fleet.json").read_text())
PANELS = [panel for panel in FLEET["panels"] if panel["type"] != "row"]


def test_the_committed_dashboard_is_made_by_its_code() -> None:
    assert (ROOT / "dashboards/fleet.json").read_text() == fleet.document()


def test_panels_have_ids_of_their_own() -> None:
    ids = [panel.get("id") for panel in FLEET["panels"]]
    assert all(ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_and_where_from(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["datasource"]["uid"] == "${datasource}"
    assert [target["refId"] for target in panel["targets"]] == list("ABCDEF"[: len(panel["targets"])])
    if panel["type"] == "timeseries":
        assert panel["options"]["legend"]["showLegend"]
        assert panel["options"]["legend"]["calcs"]
        assert all(target["legendFormat"] and target["range"] for target in panel["targets"])
    else:
        assert panel["options"]["reduceOptions"]["calcs"] == ["lastNotNull"]
        assert all(target["instant"] for target in panel["targets"])


def test_panels_lie_in_the_grid_without_covering_each_other() -> None:
    places = [panel["gridPos"] for panel in FLEET["panels"]]
    taken = [
        (y, x) for at in places for y in range(at["y"], at["y"] + at["h"]) for x in range(at["x"], at["x"] + at["w"])
    ]
    assert len(set(taken)) == len(taken)
    assert all(at["x"] + at["w"] <= 24 for at in places)
    assert all(before["y"] <= after["y"] for before, after in pairwise(places))
