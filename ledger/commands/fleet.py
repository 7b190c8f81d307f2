"""Who reports, and the settings in force, from the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ledger import config
from ledger.cli import settings_of
from ledger.commands.opening import now_us, opened
from ledger.reports.render import Column, Shape, Sheet, show
from ledger.store.fleet import engine_states

if TYPE_CHECKING:
    from argparse import Namespace


def source_list(args: Namespace) -> int:
    """Every engine that reported."""
    with opened(args) as ledger, ledger.database.read() as connection:
        engines = engine_states(connection, now_us(), all_of_them=True)
    columns = (
        Column(key="engine", title="engine"),
        Column(key="state", title="state"),
        Column(key="origin", title="origin"),
        Column(key="cluster", title="cluster"),
        Column(key="namespace"),
        Column(key="pod", title="pod"),
        Column(key="host", title="host"),
        Column(key="software", title="software"),
        Column(key="boot_id"),
        Column(key="last_seq", title="seq", shape=Shape.COUNT),
        Column(key="last_end_us", title="until", shape=Shape.TIME),
        Column(key="received_us", title="received", shape=Shape.TIME),
        Column(key="skew_us"),
        Column(key="missing", title="missing", shape=Shape.COUNT),
        Column(key="dropped", title="dropped", shape=Shape.COUNT),
        Column(key="faults", title="faults", shape=Shape.COUNT),
        Column(key="hook_off", title="off because", sentence=True),
    )
    rows = [
        (
            engine.engine,
            engine.state.value,
            engine.origin,
            engine.cluster,
            engine.namespace,
            engine.pod,
            engine.host,
            engine.software,
            engine.boot_id,
            engine.last_seq,
            engine.last_end_us,
            engine.received_us,
            engine.skew_us,
            engine.missing,
            engine.dropped,
            engine.faults,
            engine.hook.off,
        )
        for engine in engines
    ]
    empty = "nobody has reported yet; set KVLEDGER_URL and KVLEDGER_TOKEN at an engine (`kvledger tokens add`)"
    show(Sheet(columns=columns, rows=rows, empty=empty), args.format, sys.stdout)
    return 0


def config_show(args: Namespace) -> int:
    """Every setting, its value, and where that comes from."""
    settings_of(args)
    given = config.texts(environ=os.environ, file=Path(args.config) if args.config else None)
    for name in ("database", "state_dir"):
        if (text := getattr(args, name)) is not None:
            given[name] = config.Given(text=text, where=f"--{name.replace('_', '-')}")
    width = max(len(setting.name) for setting in config.DECLARED)
    for setting in config.DECLARED:
        at = given.get(setting.name) or config.Given(text=setting.default, where="default")
        print(f"{setting.name:<{width}} = {config.masked(at.text)!r:<40} {at.where}")
    return 0


def config_check(args: Namespace) -> int:
    """Read the settings; whatever cannot be used is an error that names it."""
    settings = settings_of(args)
    print(f"the settings can be used; the ledger is {config.masked(settings.database)}")
    return 0
