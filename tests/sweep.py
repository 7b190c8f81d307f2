"""The second method: an offline auditor that recounts every batch from an audit log, block by block.

It reads the events that ``kvledger replay --events`` writes and shares nothing with the meter but the records
that are compared (:mod:`tests.recount` has the count). Every figure of a batch is compared: pools, counts, tokens
and milestones exactly, divided time to within 1 µs a period.

    python -m tests.sweep EVENTS BATCHES      compare (batches as lines of wire documents; ``-``: both on stdin)
    python -m tests.sweep --replay TRACE      replay a trace and print both, events and batches, to stdout
    python -m tests.sweep --audit TRACE       the last two piped into each other: a whole trace, on two cores

A trace may be named as it lies in the folder of recorded traces (``KVLEDGER_TRACES``).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ledger import wire
from ledger.core.records import PERIOD_US, Batch, Dimensions, Preemptions, RequestRecord, SessionPeriod, Tokens
from ledger.errors import Refusal
from tests.recount import EngineSweep, Held, Period, SessionSum, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BREACHES_MAX = 50
"""Beyond so many they are not kept: one error usually drags others along."""


class Sweep:
    """Events in, batches in; ``breaches`` out. Batches may run behind the events, never ahead of their period."""

    def __init__(self) -> None:
        self.engines: dict[str, EngineSweep] = defaultdict(EngineSweep)
        self.breaches: list[str] = []
        self.events = self.periods = self.rows = self.records = 0
        self._standing: dict[str, dict[Dimensions, int]] = defaultdict(dict)
        self._early: list[Batch] = []

    def event(self, line: str) -> None:
        event = json.loads(line)
        self.events += 1
        try:
            self.engines[event["engine"]].feed(event)
        except (AssertionError, KeyError) as error:
            self._breach(f"event {self.events}: {type(error).__name__} {error}: {line[:200]}")

    def batch(self, batch: Batch) -> None:
        """Compare ``batch``, now or as soon as its period is over in the events."""
        self._early.append(batch)

    def compare(self) -> None:
        """Compare what can be compared by now."""
        waiting = []
        for batch in self._early:
            sweep = self.engines[batch.source.engine]
            if batch.start_us == batch.end_us:
                # It announces a boot, or a close on the grid: no time has passed in it.
                if batch.sessions or batch.requests or any(pool.active_block_us for pool in batch.pools):
                    self._breach(f"{batch.source.engine} seq {batch.seq}: facts without time")
                continue
            while sweep.closed and sweep.closed[0].end_us <= batch.start_us:
                missed = sweep.closed.pop(0)
                self._breach(f"{batch.source.engine}: no batch for the period {missed.start_us}..{missed.end_us}")
            if not sweep.closed:
                waiting.append(batch)
                continue
            self._compare(batch, sweep.closed.pop(0))
        self._early = waiting

    def finish(self) -> None:
        """Nothing more comes: every period must have found its batch, and the other way round."""
        self.compare()
        for batch in self._early:
            self._breach(f"{batch.source.engine} seq {batch.seq}: a batch without a period in the events")
        for engine, sweep in self.engines.items():
            for period in sweep.closed:
                self._breach(f"{engine}: no batch for the period {period.start_us}..{period.end_us}")

    def _breach(self, text: str) -> None:
        if len(self.breaches) < BREACHES_MAX:
            self.breaches.append(text)

    def _compare(self, batch: Batch, period: Period) -> None:
        self.periods += 1
        where = f"{batch.source.engine} seq {batch.seq}"

        def same(name: str, told: object, counted: object) -> None:
            if told != counted:
                self._breach(f"{where}: {name} is {told} in the batch, {counted} by the events")

        def near(name: str, told: int, counted: Fraction, allowed: int = 1) -> None:
            if abs(told - counted) > allowed:
                self._breach(f"{where}: {name} is {told} in the batch, {float(counted)} by the events")

        size = self.engines[batch.source.engine].size
        same("period", (batch.start_us, batch.end_us), (period.start_us, period.end_us))
        (pool,) = batch.pools
        length = period.end_us - period.start_us
        same("blocks", pool.blocks, period.blocks)
        same("active", pool.active_block_us, period.active_us)
        same("cached", pool.cached_block_us, period.cached_us)
        same("free", pool.free_block_us, period.blocks * length - period.active_us - period.cached_us)
        same("unfilled", pool.unfilled_slot_us, period.unfilled_us)
        same("held slots", pool.held_slot_us, period.active_us * size)
        same(
            "blocks at the end",
            (pool.active_blocks_end, pool.cached_blocks_end),
            (period.active_end, period.cached_end),
        )
        same("steps", (pool.steps, pool.step_us), (period.steps, period.step_us))
        rows = {row.dims: row for row in batch.sessions}
        self.rows += len(rows)
        same("rows", len(rows), len(batch.sessions))
        same("active of all rows", sum(row.holding.active_block_us for row in rows.values()), period.active_us)
        same("unfilled of all rows", sum(row.holding.unfilled_slot_us for row in rows.values()), period.unfilled_us)
        same("compute of all rows", sum(row.compute_us for row in rows.values()), period.step_us)
        standing = self._standing[batch.source.engine]
        for dims, sums in period.sessions.items():
            before = standing.get(dims, 0)
            quiet = sums.cached_end == before and sums.cached_us == before * length
            self._session(f"{dims.tenant}/{dims.session}", rows.pop(dims, None), sums, size, quiet, same, near)
            standing[dims] = sums.cached_end
        for dims, row in rows.items():
            same(f"row of {dims.tenant}/{dims.session}", row, None)
        if batch.standing is not None:
            counted = {dims: count for dims, count in standing.items() if count}
            same("standing", {one.dims: one.cached_blocks for one in batch.standing}, counted)
        for dims in [dims for dims, count in standing.items() if not count]:
            del standing[dims]
        records = {record.request: record for record in batch.requests}
        self.records += len(records)
        same("admissions", {one.request for one in batch.admissions}, period.admitted)
        same("records", set(records), set(period.ended))
        for request in set(records) & set(period.ended):
            self._record(records[request], period.ended[request], size, same, near)

    def _session(
        self, who: str, row: SessionPeriod | None, sums: SessionSum, size: int, quiet: bool, same: Any, near: Any
    ) -> None:
        busy = sums.block_us or sums.compute or sums.scheduled or sums.ended or any(sums.tokens.values())
        if row is None:
            # A quiet session: it kept its cached count for the whole period.
            if busy or not quiet:
                same(f"row of {who}", None, "something")
            return
        active = total(sums.block_us)
        near(f"active of {who}", row.holding.active_block_us, active)
        near(f"unfilled of {who}", row.holding.unfilled_slot_us, total(sums.slot_us))
        near(f"held slots of {who}", row.holding.held_slot_us, active * size, size)
        near(f"compute of {who}", row.compute_us, total(sums.compute))
        same(f"cached of {who}", row.cached_block_us, sums.cached_us)
        same(f"cached at the end of {who}", row.cached_blocks_end, sums.cached_end)
        same(f"tokens of {who}", row.tokens, Tokens(**sums.tokens))
        same(f"preemptions of {who}", row.preemptions, Preemptions(**sums.preemptions))

    def _record(self, record: RequestRecord, held: Held, size: int, same: Any, near: Any) -> None:
        who = held.request
        periods = len(held.uses)
        active = sum((use[1] for use in held.uses), Fraction())
        same(f"{who}", (record.dims, record.parent, record.prompt_tokens), (held.dims, held.parent, held.prompt))
        same(f"end of {who}", (str(record.outcome), record.finish_reason), (held.outcome, held.finish_reason))
        same(f"tokens of {who}", record.tokens, Tokens(**held.tokens))
        same(f"preemptions of {who}", record.preemptions, Preemptions(**held.preemptions))
        same(f"peak of {who}", record.peak_blocks, held.peak)
        told = (record.arrived_us, record.scheduled_us, record.first_token_us, record.last_token_us, record.ended_us)
        same(f"times of {who}", told, (held.arrived_us, held.scheduled_us, held.first_us, held.last_us, held.ended_us))
        near(f"active of {who}", record.holding.active_block_us, active, periods)
        near(f"unfilled of {who}", record.holding.unfilled_slot_us, held.unfilled_total, periods)
        near(f"held slots of {who}", record.holding.held_slot_us, active * size, periods * size)
        near(f"compute of {who}", record.compute_us, sum((use[2] for use in held.uses), Fraction()), periods)
        told_uses = {use.start_us: use for use in record.uses}
        for start_us, blocks, compute in held.uses:
            use = told_uses.pop(start_us, None)
            near(f"active of {who} from {start_us}", use.active_block_us if use else 0, blocks)
            near(f"compute of {who} from {start_us}", use.compute_us if use else 0, compute)
        for use in told_uses.values():
            same(f"use of {who} from {use.start_us}", (use.active_block_us, use.compute_us), (0, 0))


def audit(lines: Iterable[str]) -> Sweep:
    """Sweep lines that are events or batches (wire documents), in the order in which they came out."""
    sweep = Sweep()
    for line in lines:
        if line.startswith('{"t_us"'):
            sweep.event(line)
        else:
            decoded = wire.decode(line.rstrip("\n").encode())
            assert not isinstance(decoded, Refusal), decoded
            sweep.batch(decoded.batch)
            sweep.compare()
    sweep.finish()
    return sweep


def _open_text(path: str) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else Path(path).open(encoding="utf-8")


def _merged(events: str, batches: str) -> Iterator[str]:
    """Events with each batch as soon as its period is over, so that few periods wait."""
    with _open_text(events) as event_lines, _open_text(batches) as batch_lines:
        batch = next(batch_lines, None)
        for line in event_lines:
            t_us = int(line[len('{"t_us":') : line.index(",")])
            while batch is not None and json.loads(batch)["batch"]["end_us"] + PERIOD_US < t_us:
                yield batch
                batch = next(batch_lines, None)
            yield line
        if batch is not None:
            yield batch
            yield from batch_lines


def _replay(arguments: argparse.Namespace) -> None:
    from ledger.reference.replay import replay  # noqa: PLC0415 - the auditor itself does not need the engine
    from ledger.reference.traces import open_trace  # noqa: PLC0415

    trace = open_trace(_trace(arguments.replay), limit=arguments.limit)
    previous: dict[str, bytes] = {}

    def emit(batch: Batch) -> None:
        raw = wire.encode(batch, previous.get(batch.source.engine, b""))
        previous[batch.source.engine] = wire.digest_of(raw)
        sys.stdout.write(raw.decode() + "\n")

    summary = replay(
        trace.requests(),
        engines=arguments.engines,
        blocks=arguments.blocks,
        block_size=arguments.block_size or trace.block_size,
        start_us=1_793_664_000_000_000,
        emit=emit,
        events=sys.stdout.write,
    )
    sys.stderr.write(f"{summary}\n")


def _trace(name: str) -> Path:
    folder = Path(os.environ.get("KVLEDGER_TRACES", Path(__file__).parents[2] / "shared" / "data"))
    return Path(name) if Path(name).exists() else folder / name


def _replayed_lines(arguments: argparse.Namespace) -> Iterator[str]:
    """What ``--replay`` prints, from a process of its own; raises if that fails."""
    command = [sys.executable, "-m", "tests.sweep", "--replay", arguments.audit]
    for name in ("limit", "engines", "blocks", "block_size"):
        value = getattr(arguments, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1 << 20) as child:
        assert child.stdout is not None
        yield from child.stdout
    assert child.returncode == 0, f"the replay ended with {child.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("events", nargs="?", default="-", help="the audit log, or - for both on standard input")
    parser.add_argument("batches", nargs="?", help="wire documents, one a line")
    parser.add_argument("--replay", metavar="TRACE", help="replay a trace instead, and print events and batches")
    parser.add_argument("--audit", metavar="TRACE", help="replay a trace in another process and compare")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=20_000)
    parser.add_argument("--block-size", type=int)
    arguments = parser.parse_args()
    if arguments.replay:
        _replay(arguments)
        return 0
    began = time.monotonic()
    lines: Iterable[str] = sys.stdin
    if arguments.audit:
        lines = _replayed_lines(arguments)
    elif arguments.batches is not None:
        lines = _merged(arguments.events, arguments.batches)
    sweep = audit(lines)
    for breach in sweep.breaches:
        sys.stdout.write(breach + "\n")
    sys.stdout.write(
        f"{sweep.events} events, {sweep.periods} periods, {sweep.rows} session rows, {sweep.records} records:"
        f" {len(sweep.breaches)} breaches ({time.monotonic() - began:.0f} s)\n"
    )
    return 1 if sweep.breaches else 0


if __name__ == "__main__":
    raise SystemExit(main())
