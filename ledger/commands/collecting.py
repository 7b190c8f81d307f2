"""What is looked at from outside, from the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ledger.collectors.fetch import Unfetched, fetch, place_of
from ledger.collectors.inspection import inspect
from ledger.commands.inspecting import named
from ledger.commands.opening import now_us, opened
from ledger.reports.render import Column, Shape, Sheet, show
from ledger.store import prices, scrapes

if TYPE_CHECKING:
    from argparse import Namespace

    from ledger.collectors.fetch import Place


def target_add(args: Namespace) -> int:
    """Have an engine scraped, and say what is there now."""
    place = place_of(args.url)
    with opened(args) as ledger:
        at_us = now_us()
        new = ledger.database.write(
            lambda c: scrapes.add_target(c, engine=args.engine, url=str(place), kind=args.kind, now_us=at_us)
        )
        with ledger.database.read() as connection:
            held = [
                one
                for one in prices.list_assignments(connection)
                if one.engine == args.engine and (one.valid_to_us is None or one.valid_to_us > at_us)
            ]
    print(f"{args.engine} is scraped at {place}" if new else f"{args.engine} is scraped there already")
    seen = _seen(place, args.kind)
    if seen:
        print(f"kvledger: {seen}", file=sys.stderr)
    elif not held and args.kind != "dcgm":
        print(
            f"kvledger: nothing that is paid for is assigned to {args.engine}, so its time costs nothing; "
            f"kvledger assets assign ASSET {args.engine}",
            file=sys.stderr,
        )
    return 0


def _seen(place: Place, kind: str) -> str:
    """Says what is there; a sentence for whoever should look, where it is not what it should be."""
    try:
        found = inspect(fetch(place), kind)
    except Unfetched as error:
        return f"it does not answer now ({error}); it is asked again and again"
    if not found.kind:
        return f"it answers with {found.families} families, and none is known; `kvledger inspect {place}` lists them"
    of = f" of {named(found.models)}" if found.models else ""
    print(f"{found.title}: {len(found.found) or len(found.gpus)} {'figures' if found.found else 'GPUs'}{of}")
    return ""


def target_list(args: Namespace) -> int:
    """Every target in force, and what it said last."""
    with opened(args) as ledger, ledger.database.read() as connection:
        targets = scrapes.list_targets(connection)
        last = scrapes.last_records(connection, now_us())
    columns = (
        Column(key="engine", title="engine", name=True),
        Column(key="url", title="url", name=True),
        Column(key="kind", title="kind", spare=2),
        Column(key="since_us", title="since", shape=Shape.TIME, spare=3),
        Column(key="last_us", title="watched until", shape=Shape.TIME),
        Column(key="is", title="is", spare=1),
        Column(key="signs", title="odd"),
    )
    rows = []
    for target in targets:
        record = last.get(target.engine)
        signs = "" if record is None else ", ".join(word.replace("_", " ") for word, _ in record.signs)
        read_as, until_us = ("", None) if record is None else (record.kind, record.end_us)
        rows.append((target.engine, target.url, target.kind, target.since_us, until_us, read_as, signs))
    empty = "nothing is scraped; `kvledger collect add` begins to, and the service does it"
    show(Sheet(columns=columns, rows=rows, empty=empty), args.format, sys.stdout)
    return 0


def target_remove(args: Namespace) -> int:
    """Stop scraping an engine."""
    with opened(args) as ledger:
        new = ledger.database.write(lambda c: scrapes.remove_target(c, args.engine, now_us=now_us()))
    print(f"{args.engine} is not scraped any more" if new else f"{args.engine} is not scraped")
    return 0
