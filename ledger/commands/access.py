"""Tokens, from the command line."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING

from ledger.commands.opening import now_us, opened
from ledger.core.periods import format_time
from ledger.reports.render import Column, Shape, Sheet, show
from ledger.store.tokens import SECRET_BYTES, Scope, add_token, end_token, list_tokens

if TYPE_CHECKING:
    from argparse import Namespace


def token_add(args: Namespace) -> int:
    """Make a token and print it: the one time that anybody can."""
    scope = Scope(args.scope)
    secret = secrets.token_bytes(SECRET_BYTES)
    with opened(args) as ledger:
        at_us = now_us()
        made = ledger.database.write(
            lambda c: add_token(
                c,
                name=args.name or "",
                scope=scope,
                tenant=args.tenant,
                secret=secret,
                now_us=at_us,
                ends_us=None if args.lasts is None else at_us + args.lasts,
            )
        )
    print(made)
    print("kept as a digest only: this is the one time that it is shown", file=sys.stderr)
    return 0


def token_list(args: Namespace) -> int:
    """Every token that ever was."""
    with opened(args) as ledger, ledger.database.read() as connection:
        found = list_tokens(connection)
    columns = (
        Column(key="token", title="no."),
        Column(key="name", title="name"),
        Column(key="scope", title="scope"),
        Column(key="tenant", title="tenant"),
        Column(key="in_force", title="in force"),
        Column(key="created_us", title="made", shape=Shape.TIME),
        Column(key="ends_us", title="ends", shape=Shape.TIME),
        Column(key="used_us", title="last used", shape=Shape.TIME),
    )
    rows = [
        (
            token.number,
            token.name,
            token.scope.value,
            token.tenant,
            token.holds(now_us()),
            token.created_us,
            token.ends_us,
            token.used_us,
        )
        for token in found
    ]
    empty = "there are no tokens; `kvledger tokens add` makes one, and `kvledger serve` its first"
    show(Sheet(columns=columns, rows=rows, empty=empty), args.format, sys.stdout)
    return 0


def token_revoke(args: Namespace) -> int:
    """End a token."""
    at_us = now_us() + args.delay
    with opened(args) as ledger:
        new = ledger.database.write(lambda c: end_token(c, args.id, at_us=at_us))
    print(f"token {args.id} ends at {format_time(at_us)}" if new else f"token {args.id} ends earlier already")
    return 0
