"""Replaying: a recorded trace into a ledger, or the demonstration that `make run` shows."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from ledger.cli import settings_of
from ledger.commands.arguments import price
from ledger.commands.opening import Ledger, make_folder, opened_or_made
from ledger.core.periods import HOUR_US, SECOND_US, format_time, months_between, parse_time
from ledger.errors import UsageError
from ledger.producer import Plan, Prepared, prepare
from ledger.replay import Replayed, run
from ledger.reports.bill import show_bill
from ledger.reports.monthly import read_statement
from ledger.reports.render import console, counted, duration
from ledger.store.terms import read_terms

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from ledger.reference.replay import ReplaySummary

DEMO_START = "2026-11-03T00:00:00Z"
"""A Tuesday, so that the day is a working day."""

PLAIN_S = 5
"""Seconds between two lines of progress where there is no terminal to draw a bar on."""


def replay(args: Namespace) -> int:
    """Replay a trace into the ledger of the arguments."""
    plan = Plan(
        trace=Path(args.trace),
        format=args.format,
        limit=args.limit,
        engines=args.engines,
        blocks=args.blocks,
        block_size=args.block_size,
        start_us=args.start,
    )
    events = _events_file(args.events, plan)
    settings = settings_of(args)
    prepared = prepare(plan)
    with opened_or_made(settings, durable=False) as ledger:
        done = _run(prepared, ledger, price_nanos=args.price, events=events)
        _tell(prepared, done, ledger, args)
    return 0


def demo(args: Namespace) -> int:
    """Replay the mixed day into a fresh file; the one that was there is kept until the new one is whole."""
    settings = settings_of(args)
    if args.database is not None:
        raise UsageError("the demo makes a ledger of its own, demo.db in --state-dir; leave out --database")
    start_us = parse_time(DEMO_START)
    assert isinstance(start_us, int)
    final = settings.state_dir / "demo.db"
    _sweep(settings.state_dir)
    fresh = settings.state_dir / f"demo.{os.getpid()}.new.db"
    made = replace(settings, database=f"sqlite:///{fresh}")
    make_folder(made.database)
    prepared = prepare(Plan(seed=args.seed, hours=args.hours, engines=2, start_us=start_us))
    try:
        began = time.monotonic()
        with opened_or_made(made, durable=False) as ledger:
            migrated_s = time.monotonic() - began
            done = _run(prepared, ledger, price_nanos=price("2.95"), events=None)
            _show_day(ledger, done)
        _take_place(fresh, final)
    finally:
        for rest in (fresh, *_beside(fresh)):
            rest.unlink(missing_ok=True)
    _tell_next(final, done, migrated_s)
    return 0


def _run(prepared: Prepared, ledger: Ledger, *, price_nanos: int, events: Path | None) -> Replayed:
    plan = prepared.plan
    what = plan.trace.name if plan.trace is not None else f"a day of ten tenants (seed {plan.seed})"
    engines = "one engine" if plan.engines == 1 else f"{plan.engines} engines"
    print(f"replaying {what} on {engines} of {prepared.blocks:,} blocks x {prepared.block_size} tokens")
    total = prepared.requests or plan.hours * HOUR_US
    with _progress(total) as (progress, settling):

        def tell(ended: int, at_us: int) -> None:
            progress(ended if prepared.requests else at_us - plan.start_us, f"{ended:,} requests", at_us)

        return run(
            prepared,
            ledger.database,
            ledger.settings,
            price_nanos=price_nanos,
            events=events,
            progress=tell,
            settling=settling,
        )


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[int, str, int], None], Callable[[], None]]]:
    """A bar on a terminal, a line now and then elsewhere; on standard error, since it is no part of the answer."""
    screen = console(sys.stderr)
    if not screen.is_terminal:
        told = time.monotonic()

        def line(done: int, text: str, at_us: int) -> None:
            nonlocal told
            if time.monotonic() - told >= PLAIN_S:
                told = time.monotonic()
                percent = min(100, 100 * done // total)
                print(f"  {percent:3d} %  {text}  {format_time(at_us - at_us % SECOND_US)}", file=sys.stderr)

        yield line, lambda: None
        return
    columns = (
        TextColumn("  {task.description:<9}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[what]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=False, expand=True) as bar:
        task = bar.add_task("replaying", total=total, what="")

        def move(done: int, text: str, at_us: int) -> None:
            shown = format_time(at_us - at_us % (60 * SECOND_US))[5:16].replace("T", " ")
            bar.update(task, completed=min(done, total), what=f"{text}  {shown}")

        def settling() -> None:
            bar.update(task, completed=total, description="settling")

        yield move, settling
        bar.update(task, description="done")


def _tell(prepared: Prepared, done: Replayed, ledger: Ledger, args: Namespace) -> None:
    """What became of the replay, and where to look next."""
    summary = done.summary
    if not done.accepted:
        print("all of it was in this ledger already; nothing was written twice")
    elif done.duplicates:
        print(f"went on where an earlier run ended: {done.duplicates:,} of {done.accepted + done.duplicates:,} batches")
    print(
        f"{_requests(summary)} in {duration(done.end_us - summary.start_us)} of simulated time "
        f"({done.replay_s:.1f} s): {summary.finished:,} finished, {summary.aborted:,} aborted, "
        f"{summary.abandoned:,} abandoned, {summary.refused:,} refused, {counted(summary.preemptions, 'preemption')}"
    )
    print(f"engines {', '.join(done.engines)}; settled {_settled(done)} in {done.settle_s:.1f} s")
    if summary.refused:
        print(f"  refused: longer than the pool holds; more than {prepared.blocks:,} --blocks would take them")
    with ledger.database.read() as connection:
        months = months_between(summary.start_us, done.end_us, read_terms(connection).zone)
    which = "".join(f" --{name} {shlex.quote(value)}" for name, value in _given(args))
    commands = [*(f"report --month {month}" for month in months), "usage --by session"]
    for index, command in enumerate(commands):
        print(f"{'      ' if index else 'next: '}kvledger {command}{which}")


def _settled(done: Replayed) -> str:
    settled = done.settled
    parts = [counted(settled.booked, "interval")]
    parts += [f"{settled.revised:,} again"] if settled.revised else []
    parts += [counted(settled.findings, "finding")] if settled.findings else []
    return ", ".join(parts)


def _requests(summary: ReplaySummary) -> str:
    """The trace's requests, and apart from them those that the engines sent to themselves."""
    asked = counted(summary.received - summary.warmups, "request")
    return f"{asked} and {counted(summary.warmups, 'warm-up')}"


def _given(args: Namespace) -> list[tuple[str, str]]:
    names = (("database", args.database), ("state-dir", args.state_dir), ("config", args.config))
    return [(name, value) for name, value in names if value is not None]


def _show_day(ledger: Ledger, done: Replayed) -> None:
    print()
    with ledger.database.read() as connection:
        month = read_terms(connection).month(done.summary.start_us)
    show_bill(read_statement(ledger.database, month, now_us=done.end_us), sys.stdout)


def _tell_next(final: Path, done: Replayed, migrated_s: float) -> None:
    summary = done.summary
    print()
    simulated = duration(done.end_us - summary.start_us)
    print(
        f"{_requests(summary)}, {counted(summary.steps, 'step')}, {simulated} simulated\n"
        f"made tables in {migrated_s:.1f} s, replayed in {done.replay_s:.1f} s, settled in {done.settle_s:.1f} s"
    )
    print(f"Look further, in {final}:")
    print(f"  export KVLEDGER_DATABASE=sqlite:///{final}")
    program = _program()
    for command, what in (
        ("usage --by session", "who held what"),
        ("report --tenant alder", "one tenant's statement"),
        ("report --basis full", "the same bill without idle"),
        ("audit", "every law, on what is stored"),
    ):
        print(f"  {f'{program} {command}':<44}  {what}")


def _program() -> str:
    """How this command was called: by name where the shell would find it, else by its path."""
    called = Path(sys.argv[0])
    found = shutil.which("kvledger")
    if called.name != "kvledger" or (found is not None and Path(found).resolve() == called.resolve()):
        return "kvledger"
    return str(called.relative_to(Path.cwd()) if called.is_relative_to(Path.cwd()) else called)


def _events_file(text: str | None, plan: Plan) -> Path | None:
    """Where the events go; what cannot be written is said before the replay begins."""
    if text is None:
        return None
    events = Path(text)
    if plan.trace is not None and events.exists() and plan.trace.exists() and events.samefile(plan.trace):
        raise UsageError(f"--events {events} is the trace itself; name another file")
    if events.is_dir():
        raise UsageError(f"--events {events} is a directory; name a file in it")
    if not os.access(events.parent, os.W_OK):
        raise UsageError(f"--events {events}: {events.parent} is no directory that can be written; name another place")
    return events


def _sweep(folder: Path) -> None:
    """Remove what demonstrations that were killed have left."""
    for left in folder.glob("demo.*.new.db*"):
        owner = left.name.split(".")[1]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            left.unlink(missing_ok=True)


def _take_place(fresh: Path, final: Path) -> None:
    # Closed, the fresh file has no journal beside it; one of the old file must not be taken for its own.
    for old in _beside(final):
        old.unlink(missing_ok=True)
    fresh.replace(final)


def _beside(file: Path) -> tuple[Path, ...]:
    return tuple(file.with_name(file.name + ending) for ending in ("-wal", "-shm"))
