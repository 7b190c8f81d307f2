"""What people see of a running service, with the real programs: what every panel finds, and a notification."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from driven import VLLM, Driven
from observing import PERIOD_US, START_S, Prometheus, Serving, alertmanager, prometheus, serving, until, webhook
from programs import output
from serving import START, Clock

from ledger import ingest, wire
from ledger.collectors.fetch import Unfetched, Why
from ledger.core.records import Batch, Boot, HookReport, Origin, Source
from ledger.reference.replay import replay
from ledger.reference.workload import mixed_day

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
BEFORE_S, LIVE_S = 70 * 60, 12 * 60
"""The books have more than an hour; what is now lasts twelve simulated minutes, in a few real seconds."""

HOOKED = "engine-0"
"""One of the engines of the workload."""

HEARD = "max(kvledger_engine_last_period_timestamp_seconds)"

pytestmark = pytest.mark.slow


def now_us() -> int:
    return time.time_ns() // 1000


def days_batches(start_us: int, seconds: int) -> list[tuple[int, bytes]]:
    """Batches of two engines under the mixed workload, each with its end, in the order of their ends."""
    chains: dict[str, bytes] = {}
    made: list[tuple[int, bytes]] = []

    def emit(batch: Batch) -> None:
        # Their hooks had trouble once, so that what shows it has something to show.
        batch = replace(batch, hook=HookReport(dropped=(("queue_full", 1),), faults=(("unknown_request", 2),)))
        # What is scraped is live, and a ledger is live or simulated.
        batch = replace(batch, source=replace(batch.source, origin=Origin.LIVE))
        raw = wire.encode(batch, chains.get(batch.source.engine, b""))
        chains[batch.source.engine] = wire.digest_of(raw)
        made.append((batch.end_us, raw))

    load = mixed_day(7, load=4, duration_us=seconds * 1_000_000)
    replay(load.requests(), engines=2, blocks=load.blocks, block_size=16, start_us=start_us, emit=emit)
    return sorted((each for each in made if each[0] <= start_us + seconds * 1_000_000), key=lambda each: each[0])


def targets(here: Serving, clock: Clock) -> Driven:
    """Have an engine without a hook scraped, one of those that have one, and one that is down."""
    told = f"{VLLM}this line is broken\n"
    answers = {"chat-0": told, HOOKED: told, "down": Unfetched(Why.UNREACHABLE, "refused")}
    return Driven(SimpleNamespace(service=here.service, clock=clock), **answers)


def live(here: Serving, watch: Prometheus, batches: list[tuple[int, bytes]], clock: Clock) -> None:
    """Deliver and scrape period by period, the clock with it; Prometheus sees every fourth. One batch never comes."""
    lost = False
    driven = targets(here, clock)
    for number, (end_us, some) in enumerate(groupby(batches, key=lambda each: each[0] // PERIOD_US)):
        here.service.kept.forget()
        driven.live((end_us * PERIOD_US + 1_000_000 - clock.us) / 1e6)
        for end, raw in some:
            clock.us = max(clock.us, end + 1_000_000)
            if not lost and number == 8:
                lost = True
                continue
            assert here.post(raw) == 200
        if number % 4 == 0:
            for job in ("scan", "aggregate"):
                here.runner.run(job)
            until(
                lambda at=end_us: max(watch.values(HEARD).values(), default=0) * 1e6 // PERIOD_US >= at,
                within_s=START_S,
                what="Prometheus saw the period",
            )


def queries() -> Iterator[tuple[str, str]]:
    for panel in json.loads((ROOT / "dashboards/fleet.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$engine", ".*")


def test_every_panel_finds_finite_figures_of_a_service_under_load(tmp_path: Path) -> None:
    clock = Clock()
    batches = days_batches(START, BEFORE_S + LIVE_S)
    split_us = START + BEFORE_S * 1_000_000
    with serving(tmp_path, clock_us=clock.wall, start_us=START) as here:
        for end_us, raw in batches:
            if end_us <= split_us:
                clock.us = end_us
                assert ingest.accept(here.service.database, raw, end_us).refusal is None
        with prometheus(tmp_path / "prometheus", here.address) as watch:
            assert here.post(b"{") == 422
            live(here, watch, [each for each in batches if each[0] > split_us], clock)
            outcomes = [here.runner.run(job) for job in ("settle", "retention", "audit", "scan", "aggregate")]
            assert set(outcomes) == {"done"}
            for name in ("kvledger_laws_broken", "kvledger_settled_until_timestamp_seconds"):
                until(lambda name=name: watch.values(name), within_s=START_S, what=f"Prometheus saw {name}")
            found = {(title, expr): list(watch.values(expr).values()) for title, expr in queries()}
            complaints = output("promtool", "check", "metrics", given=here.metrics())
            names = set(watch.get("label/__name__/values"))
    assert not [asked for asked, values in found.items() if not any(map(math.isfinite, values))]
    assert not [asked for asked, values in found.items() if any(map(math.isinf, values))]
    assert complaints == []
    assert len([name for name in names if name.startswith("kvledger_")]) > 50


def announcement(seq: int, at_us: int, prev: bytes) -> bytes:
    """A batch that says nothing but its number."""
    batch = Batch(
        source=Source(engine="engine-with-a-gap", origin=Origin.SIMULATED),
        boot=Boot(boot_id="b", anchor_us=at_us, started_us=at_us),
        seq=seq,
        start_us=at_us,
        end_us=at_us,
    )
    return wire.encode(batch, prev)


def test_a_gap_and_a_refused_batch_are_told_to_somebody(tmp_path: Path) -> None:
    rules = (ROOT / "alerts/ledger_health.yml").read_text().replace("interval: 30s", "interval: 1s")
    routes = (ROOT / "alerts/alertmanager.yml").read_text().replace("group_wait: 30s", "group_wait: 1s")
    at_us = now_us()
    with webhook() as told, serving(tmp_path, clock_us=now_us, start_us=at_us) as here:
        routes = routes.replace("127.0.0.1:9095", told.address)
        with (
            alertmanager(tmp_path / "alertmanager", routes) as manager,
            prometheus(tmp_path / "prometheus", here.address, rules=rules, alertmanager=manager) as watch,
        ):
            first = announcement(1, at_us, b"")
            assert here.post(first) == 200
            until(lambda: watch.values("kvledger_batches_total"), within_s=20, what="Prometheus scrapes the service")
            assert not watch.values('ALERTS{alertstate="firing"}')
            assert not told.messages
            lost = announcement(2, at_us, wire.digest_of(first))
            assert here.post(announcement(3, at_us, wire.digest_of(lost))) == 200
            assert here.post(b"{") == 422
            for name in ("KvledgerBatchGaps", "KvledgerBatchesRefused"):
                path, alert = until(lambda name=name: told.alerts(name), within_s=60, what=f"{name} is delivered")[0]
                assert path == "/ticket"
                assert alert["labels"]["severity"] == "warning"
                assert alert["annotations"]["runbook"] == f"docs/runbooks.md#{name.lower()}"
            gap, refused = (told.alerts(name)[0][1] for name in ("KvledgerBatchGaps", "KvledgerBatchesRefused"))
    assert gap["annotations"]["summary"] == "1 batches of engine-with-a-gap are missing"
    assert refused["annotations"]["summary"] == "batches were refused: not_json"
