"""What the commands of the service take. Standard library only, as :mod:`ledger.commands.arguments`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ledger.commands.argument_types import name, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.commands.arguments import Commands


class _BesideAnEngine(argparse.Action):
    """Another module runs, since the bare install has no database to look at."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        del parser, option_string
        setattr(namespace, self.dest, values)
        namespace.handler = "ledger.commands.doctor_engine:run"


def _parent(made: argparse.ArgumentParser) -> None:
    made.add_argument("--parent", metavar="PID", type=int, help="stop when this process, our parent, is gone")


def add(commands: Commands) -> None:
    """Add the commands of the service."""
    made = commands.add(
        "serve",
        "serve:serve",
        "Run the service: ingest, the JSON interface, the page, metrics and the jobs.",
        "kvledger serve --listen 127.0.0.1:8790",
        more=(
            "The first start makes the ledger and an admin token, and prints a login link once. A replica more on\n"
            "PostgreSQL is the same command again; one of them runs the jobs. Ctrl-C ends it cleanly."
        ),
    )
    made.add_argument("--listen", metavar="ADDRESS:PORT", help="default: 127.0.0.1:8790 (port 0: any that is free)")
    made.add_argument(
        "--demo", action="store_true",
        help="in a ledger of its own (service.db of --state-dir): back-fill a simulated day, then run two engines",
    )  # fmt: skip
    made.add_argument(
        "--agent",
        choices=("auto", "on", "off"),
        default="auto",
        help="sample this machine's GPUs as well; default: auto, where it has NVIDIA's driver and the binding",
    )
    made.add_argument(
        "--hours", metavar="N", type=int, default=24, choices=range(25), help="of the back-filled day; default: 24"
    )
    _parent(made)

    made = commands.add(
        "agent",
        "agent:run",
        "Sample this host's GPUs and processes, and report to a service.",
        "kvledger agent --once",
        more=(
            "Where to is said by KVLEDGER_URL (http://127.0.0.1:8790) and KVLEDGER_TOKEN (one for ingest), the rest\n"
            "by the hook's variables, KVLEDGER_AGENT and KVLEDGER_WATCH (docs/agent.md). Wants nvidia-ml-py."
        ),
        ledger=False,
    )
    made.add_argument("--once", action="store_true", help="print what is seen, and end; exit 1 if anything is wrong")
    made.add_argument("--format", choices=("table", "json"), default="table", help="of --once; default: table")

    made = commands.add(
        "engines",
        "engines:run",
        "Run reference engines in real time under the mixed workload, reporting to a service.",
        "kvledger engines --engines 2",
        more=(
            "Where to is said by KVLEDGER_URL (http://127.0.0.1:8790) and KVLEDGER_TOKEN (one for ingest), or by\n"
            "KVLEDGER_TOKEN_FILE; KVLEDGER_CA_FILE and KVLEDGER_TIMEOUT count, too (docs/hook-settings.md).\n"
            "Simulated engines, for a simulated ledger."
        ),
        ledger=False,
    )
    made.add_argument("--engines", metavar="N", type=int, default=2, choices=range(1, 17), help="default: 2")
    made.add_argument("--name", metavar="NAME", type=name, default="engine", help="goes before their numbers")
    made.add_argument("--seed", metavar="N", type=int, default=1, help="of the workload; default: 1")
    made.add_argument("--spool", metavar="DIR", help="where batches wait that cannot be sent; default: in memory")
    _parent(made)

    made = commands.add(
        "ingest",
        "spooled:run",
        "Book a spool that had no network; what was booked is deleted there.",
        "kvledger ingest /mnt/usb/spool",
        interrupted="what was booked is whole, run it again to go on",
        more=(
            "DIR is the directory that KVLEDGER_SPOOL names, or a copy of it. Killed or run again, it goes on where\n"
            "it was, and no batch counts twice. Exit 1 if something in it could not be booked."
        ),
    )
    made.add_argument("directory", metavar="DIR")

    tokens = commands.group(
        "tokens",
        "Who may talk to the service.",
        "kvledger tokens add --scope read --name grafana",
        "kvledger tokens list",
    )
    made = tokens.add(
        "add",
        "access:token_add",
        "Make a token; it is printed once, and kept as a digest only.",
        "kvledger tokens add --scope read --tenant acme --for 90d",
        more="To rotate one: add a new token, move clients to it, let the old one end (`tokens revoke ID --in 1h`).",
    )
    made.add_argument("--scope", choices=("ingest", "read", "admin"), default="read", help="default: read")
    made.add_argument("--tenant", metavar="T", type=name, help="with read: this tenant's figures alone")
    made.add_argument("--name", metavar="TEXT", type=name, help="for people")
    made.add_argument("--for", dest="lasts", metavar="TIME", type=span, help="as 90d; default: without an end")
    made = tokens.add("list", "access:token_list", "Every token, without its secret.", "kvledger tokens list")
    made.add_argument("--format", choices=("table", "json", "csv"), default="table", help="default: table")
    made = tokens.add(
        "revoke", "access:token_revoke", "End a token, at once or in a while.", "kvledger tokens revoke 3 --in 1h"
    )
    made.add_argument("id", metavar="ID", type=int)
    made.add_argument("--in", dest="delay", metavar="TIME", type=span, default=0, help="as 1h; default: now")

    sources = commands.group("sources", "Who reports to the ledger.", "kvledger sources list")
    made = sources.add(
        "list", "fleet:source_list", "Every engine that reported, how far it has come, what is missing.",
        "kvledger sources list",
    )  # fmt: skip
    made.add_argument("--format", choices=("table", "json", "csv"), default="table", help="default: table")

    config = commands.group("config", "Settings (docs/settings.md).", "kvledger config show", "kvledger config check")
    config.add(
        "show", "fleet:config_show", "Every setting, its value, and where it comes from.", "kvledger config show"
    )
    config.add(
        "check", "fleet:config_check", "Whether the settings can be used; exit 2 if not.", "kvledger config check"
    )

    made = commands.add(
        "doctor",
        "doctor:run",
        "Check this installation and its deployment, and say what to do; exit 1 if anything is bad.",
        "kvledger doctor",
        more=(
            "Settings, database, migrations, disk, tokens, clocks, engines heard of, gaps, refused batches, findings,\n"
            "laws, the service and its metrics. With --engine, beside an engine and with the bare install: the hook's\n"
            "settings (KVLEDGER_URL, KVLEDGER_TOKEN, …), its spool, and whether the service takes what it would send."
        ),
    )
    made.add_argument(
        "--engine", metavar="URL", nargs="?", action=_BesideAnEngine,
        help="check as an engine of this machine; URL: another than KVLEDGER_URL",
    )  # fmt: skip
    made.add_argument("--quick", action="store_true", help="audit the last day alone, not all that is stored")
    made.add_argument("--format", choices=("table", "json"), default="table", help="default: table")

    drills = commands.group(
        "drill", "Rehearsals on a ledger of their own: what happens when something breaks.", "kvledger drill outage"
    )
    made = drills.add(
        "outage",
        "drill:outage",
        "Kill and restore the way to a service under load, and show that the books are whole; exit 1 if not.",
        "kvledger drill outage",
        interrupted="the files of the drill are gone; run it again to start anew",
        more=(
            "A service on a scratch SQLite file and two reference engines, for about a minute. Real outboxes, HTTP on\n"
            "the loopback, SIGKILL; the engines' time is simulated, a hundred times as fast as the clock."
        ),
        ledger=False,
    )
    made.add_argument("--seed", metavar="N", type=int, default=1, help="of the workload; default: 1")
