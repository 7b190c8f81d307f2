"""Engines as they are seen from outside, for the interface and the page: targets, and what each said last.

Invariant: an engine that has a hook keeps its own row, with what was scraped beside it; one without has a row of which
nothing is made up: what only a hook knows is null or empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ledger.collectors.known import AUTO, source_of
from ledger.collectors.scraper import ROUND_LAG_US
from ledger.core.records import PERIOD_US, Origin
from ledger.store import scrapes
from ledger.store.fleet import SILENT_US, State

if TYPE_CHECKING:
    from ledger.core.scraped import ScrapedPeriod
    from ledger.store.database import Connection
    from ledger.store.scrapes import Failing, Target
    from ledger.web.service import Service

EXPORTER: Final = "dcgm"
"""The kind of targets that tell of GPUs."""

LATE_US: Final = ROUND_LAG_US + PERIOD_US + SILENT_US
"""How old the newest record of a target that answers can be: two minutes."""

AWAITED: Final = "awaited"
"""The state of an engine that was added so lately that it need not be known yet; no engine with a hook has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A target and its newest record of the last hour; None where there is none."""

    target: Target
    record: ScrapedPeriod | None
    answers: bool
    """Whether the record is as new as one of a target that answers."""
    failing: Failing | None = None
    """Why it could not be read when it was asked last."""

    exporter: bool = False
    """Whether it tells of GPUs, so that it is no engine and has no records."""

    down: bool = False
    """Whether it cannot be read: it did not answer when it was asked, or nothing came for as long as a record takes.

    Of one that was well, the first is no trouble before it has lasted as long as the second.
    """

    @property
    def awaited(self) -> bool:
        """Whether it need not be known yet: it was added a moment ago, and no attempt has failed."""
        return not (self.answers or self.down or self.exporter)

    @property
    def named(self) -> str:
        """The engine, with the reason why it is not read."""
        return f"{self.target.engine} ({self.failing.detail if self.failing else 'nothing for two minutes'})"

    @property
    def dead(self) -> list[str]:
        """Gauges that were known to be dead in it."""
        words = [word.partition(":") for word, _ in self.record.signs] if self.record else []
        return [figure for sign, _, figure in words if sign == "dead_gauge"]


def outside(service: Service) -> dict[str, Seen]:
    """Every target in force, by engine; some seconds old at most."""

    def made() -> dict[str, Seen]:
        with service.database.read() as connection:
            return {seen.target.engine: seen for seen in seen_in(connection, service.clock_us())}

    found: dict[str, Seen] = service.kept.get("outside", made)
    return found


def seen_in(connection: Connection, now_us: int) -> tuple[Seen, ...]:
    """Every target in force, by engine, as the ledger has it."""
    targets = scrapes.list_targets(connection)
    if not targets:
        return ()
    last, failing = scrapes.last_records(connection, now_us), scrapes.failures(connection)
    late_us = now_us - LATE_US
    asked = (scrapes.last_round_us(connection) or 0) > late_us

    def made(target: Target) -> Seen:
        record, fails = last.get(target.engine), failing.get(target.number)
        # One that is asked, fails not and yet has no record of an engine told of GPUs.
        new = target.since_us >= late_us
        silent = asked and record is None and fails is None and not new
        exporter = target.kind == EXPORTER or (target.kind == AUTO and silent)
        answers = record is not None and record.end_us > late_us
        if exporter:
            down = fails is not None and (new or fails.since_us < late_us)
        else:
            down = not answers and (fails is not None or not new)
        return Seen(target=target, record=record, answers=answers, failing=fails, exporter=exporter, down=down)

    return tuple(made(target) for target in targets)


def scraped_value(seen: Seen) -> dict[str, Any]:
    """What was scraped of an engine, with the names of :class:`ledger.web.shapes.Scraped`."""
    record = seen.record
    length_us = 1 if record is None else record.end_us - record.start_us

    def mean(integral: int | None) -> float | None:
        return None if integral is None else round(integral / length_us, 3)

    return {
        "url": seen.target.url,
        "kind": record.kind if record else seen.target.kind,
        "model": record.model if record else "",
        "since_us": seen.target.since_us,
        "answers": seen.answers,
        "awaited": seen.awaited,
        "last_us": record.end_us if record else None,
        "failing_us": seen.failing.since_us if seen.failing else None,
        "why": seen.failing.why if seen.failing else None,
        "detail": seen.failing.detail if seen.failing else None,
        "started_us": record.started_us if record else None,
        "busy_ratio": round(record.busy_us / length_us, 6) if record else None,
        "running": mean(record.running_us) if record else None,
        "waiting": mean(record.waiting_us) if record else None,
        "kv_active_ratio": _share(record.kv_active_ppm) if record else None,
        "kv_cached_ratio": _share(record.kv_cached_ppm) if record else None,
        "capacity_tokens": record.capacity_tokens if record else None,
        "output_tokens": record.output_tokens if record else None,
        "signs": [word for word, _ in record.signs] if record else [],
    }


def row_of(seen: Seen) -> dict[str, Any]:
    """The row of an engine that is only scraped, with the names of :class:`ledger.web.shapes.Engine`."""
    record = seen.record
    kind = record.kind if record else seen.target.kind
    return {
        "engine": seen.target.engine,
        "method": "scraped",
        "state": AWAITED if seen.awaited else (State.OPEN if seen.answers else State.SILENT).value,
        "origin": Origin.LIVE.value,
        **dict.fromkeys(("cluster", "namespace", "pod", "host", "boot_id", "hook_off"), ""),
        "software": source_of(kind).title if record else "",
        "started_us": record.started_us if record else None,
        **dict.fromkeys(("last_seq", "received_us", "skew_us", "missing")),
        "last_end_us": record.end_us if record else None,
        "pools": [],
        "scraped": scraped_value(seen),
    }


def _share(ppm: int | None) -> float | None:
    return None if ppm is None else ppm / 1_000_000
