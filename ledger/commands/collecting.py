"""What is looked at from outside, from the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ledger.collectors.fetch import Unfetched, Why, fetch, place_of
from ledger.collectors.inspection import inspect
from ledger.collectors.known import AUTO
from ledger.commands import checks
from ledger.commands.inspecting import named
from ledger.commands.opening import now_us, opened
from ledger.core.periods import format_time
from ledger.errors import UsageError
from ledger.reports.render import Column, Shape, Sheet, counted, show
from ledger.store import prices, scrapes
from ledger.web.outside import EXPORTER, LATE_US

if TYPE_CHECKING:
    from argparse import Namespace

    from ledger.collectors.fetch import Place


def target_add(args: Namespace) -> int:
    """Have an engine scraped, and say what is there now."""
    place = place_of(args.url)
    with opened(args) as ledger:
        at_us = now_us()
        found, seen = _seen(place, args.kind)
        # Once known an exporter stays one, so that nobody waits for an engine's records.
        kind = EXPORTER if args.kind == AUTO and found == EXPORTER else args.kind
        new = ledger.database.write(
            lambda c: scrapes.add_target(c, engine=args.engine, url=str(place), kind=kind, now_us=at_us)
        )
        with ledger.database.read() as connection:
            held = [
                one
                for one in prices.list_assignments(connection)
                if one.engine == args.engine and (one.valid_to_us is None or one.valid_to_us > at_us)
            ]
    print(f"{args.engine} is scraped at {place}" if new else f"{args.engine} is scraped there already")
    if found:
        print(seen)
    else:
        print(f"kvledger: {seen}", file=sys.stderr)
    if found and not held and kind != EXPORTER:
        print(
            f"kvledger: nothing that is paid for is assigned to {args.engine}, so its time costs nothing; "
            f"kvledger assets assign ASSET {args.engine}",
            file=sys.stderr,
        )
    return 0


def _seen(place: Place, kind: str) -> tuple[str, str]:
    """The kind of what is there and a sentence about it; no kind where somebody should look."""
    try:
        found = inspect(fetch(place), kind)
    except Unfetched as error:
        silent = error.why in (Why.TIMEOUT, Why.UNREACHABLE)
        said = "it does not answer now" if silent else "what it answers now is no /metrics"
        return "", f"{said} ({error}); it is asked again and again, and `kvledger collect list` says how that goes"
    if not found.kind:
        families = counted(found.families, "family", "families")
        return "", f"it answers with {families}, and none is known; `kvledger inspect {place}` lists them"
    of = f" of {named(found.models)}" if found.models else ""
    what = counted(len(found.found), "figure") if found.found else counted(len(found.gpus), "GPU")
    return found.kind, f"{found.title}: {what}{of}"


def target_list(args: Namespace) -> int:
    """Every target in force, what it said last, and why nothing can be read where that is so."""
    at_us = now_us()
    with opened(args) as ledger, ledger.database.read() as connection:
        targets = scrapes.list_targets(connection)
        last = scrapes.last_records(connection, at_us)
        failing = scrapes.failures(connection)
        scraped_us = scrapes.last_round_us(connection)
    columns = (
        Column(key="engine", title="engine", name=True),
        Column(key="url", title="url", name=True),
        Column(key="kind", title="kind", spare=2),
        Column(key="since_us", title="since", shape=Shape.TIME, spare=3),
        Column(key="last_us", title="watched until", shape=Shape.TIME),
        Column(key="is", title="is", spare=1),
        Column(key="signs", title="odd"),
        Column(key="failing_us", title="unread since", shape=Shape.TIME),
        Column(key="why"),
        Column(key="detail", title="because", sentence=True, absent=""),
    )
    rows = []
    for target in targets:
        record = last.get(target.engine)
        signs = "" if record is None else ", ".join(word.replace("_", " ") for word, _ in record.signs)
        read_as, until_us = ("", None) if record is None else (record.kind, record.end_us)
        fails = failing.get(target.number)
        why = (None, None, None) if fails is None else (fails.since_us, fails.why, fails.detail)
        rows.append((target.engine, target.url, target.kind, target.since_us, until_us, read_as, signs, *why))
    empty = "nothing is scraped; `kvledger collect add` begins to, and the service does it"
    show(Sheet(columns=columns, rows=rows, empty=empty), args.format, sys.stdout)
    if any(target.since_us < at_us - LATE_US for target in targets) and (scraped_us or 0) < at_us - LATE_US:
        when = "yet" if scraped_us is None else f"since {format_time(scraped_us)}"
        print(f"kvledger: nobody has asked them {when}; `kvledger serve` does", file=sys.stderr)
    return 0


def target_remove(args: Namespace) -> int:
    """Stop scraping an engine; UsageError where it is not scraped."""
    with opened(args) as ledger:
        if not ledger.database.write(lambda c: scrapes.remove_target(c, args.engine, now_us=now_us())):
            with ledger.database.read() as connection:
                there = [target.engine for target in scrapes.list_targets(connection)]
            known = f"these are: {checks.named(there)}" if there else "nothing is"
            raise UsageError(f"{args.engine} is not scraped; {known} (`kvledger collect list`)")
    print(f"{args.engine} is not scraped any more")
    return 0
