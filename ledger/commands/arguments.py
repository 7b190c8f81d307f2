"""What every command takes, with an example each. Standard library only; nothing here touches a ledger.

Invariant: an argument that leaves here is checked: a time is aware and UTC microseconds, a price is whole
nano-units, a count is within its bounds.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn, TypeVar

import ledger
from ledger.commands import collecting_arguments, service_arguments
from ledger.commands.argument_types import instant, name, taken
from ledger.config import scaled
from ledger.core.money import parse_nanos
from ledger.core.periods import Month, format_time, on_grid, parse_month, parse_zone
from ledger.errors import UsageError
from ledger.limits import INT_MAX, PPM_MAX, TABLE_ROWS, TIME_US_MAX, TIME_US_MIN

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line, and whose help ends with an example."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


GOES_ON = "what was written is whole, run it again to go on"
"""What an interrupted command has to say that is made to be run again."""


class Commands:
    """Adds commands to a parser; a command is a help line, an example and the handler that runs it.

    ``interrupted`` is what it says after a Ctrl-C: whether anything is left, and what running it again would do.
    """

    def __init__(self, parser: argparse.ArgumentParser, *, title: str) -> None:
        self._under: argparse._SubParsersAction[Parser] = parser.add_subparsers(
            title=title, metavar="COMMAND", required=True, parser_class=Parser
        )

    def add(
        self,
        name: str,
        handler: str,
        about: str,
        example: str,
        *,
        more: str = "",
        ledger: bool = True,
        interrupted: str = "what was written is whole",
    ) -> Parser:
        made = self._under.add_parser(
            name,
            help=about,
            description=f"{about}\n\n{more}".strip(),
            epilog=_examples(example),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.set_defaults(
            handler=f"ledger.commands.{handler}",
            command=made.prog.removeprefix("kvledger "),
            interrupted=interrupted,
        )
        if ledger:
            _ledger_options(made)
        return made

    def group(self, name: str, about: str, *examples: str) -> Commands:
        made = self._under.add_parser(
            name,
            help=about,
            description=about,
            epilog=_examples(*examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        return Commands(made, title="commands")


def _examples(*lines: str) -> str:
    """What a help page ends with: commands that are taken as they stand."""
    return "\n".join([f"example{'s' * (len(lines) > 1)}:", *(f"  {line}" for line in lines)])


def first_instant(text: str) -> int:
    """When a replay starts: on the grid, and where the ledger takes facts of the whole year that follows."""
    at_us = grid_instant(text)
    last_us = TIME_US_MAX - 366 * 86_400_000_000
    if not TIME_US_MIN <= at_us <= last_us:
        raise argparse.ArgumentTypeError(
            f"{text!r} is outside {format_time(TIME_US_MIN)} … {format_time(last_us)}: choose a start within"
        )
    return at_us


def grid_instant(text: str) -> int:
    """A time on the 15-second grid, on which prices and assignments change."""
    at_us = instant(text)
    if not on_grid(at_us):
        raise argparse.ArgumentTypeError(f"{text!r} is not on the 15-second grid; write seconds 00, 15, 30 or 45")
    return at_us


def month(text: str) -> Month:
    return taken(parse_month(text))


def price(text: str) -> int:
    """A price per hour in decimal text, as nano-units exactly."""
    return taken(parse_nanos(text, what="price"))


def share(text: str) -> int:
    """A part of a GPU from above 0 to 1, in millionths."""
    return _exactly(text, digits=6, low=1, high=PPM_MAX, like="0.5, above 0 and at most 1, 6 decimals at most")


def label(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no label; write KEY=VALUE")
    return name(key), name(value)


def _clearable(text: str) -> str:
    """A field of a tenant that may be emptied, as the code calls it."""
    found = text.replace("-", "_")
    if found not in ("display", "cost_center", "labels", "profile", "zone", "contacts"):
        problem = f"{text[:40]!r} cannot be emptied; write display, cost-center, labels, profile, zone or contacts"
        raise argparse.ArgumentTypeError(problem)
    return found


def zone(text: str) -> str:
    return text if text == "UTC" else str(taken(parse_zone(text)))


def count(low: int, high: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        return _exactly(text, digits=0, low=low, high=high, like=f"a whole number from {low} to {high}")

    return whole


def _exactly(text: str, *, digits: int, low: int, high: int, like: str) -> int:
    try:
        return scaled(text, digits=digits, low=low, high=high)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}; write {like}") from None


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="kvledger",
        description="Who held every paid GPU-second of LLM inference, and what of it was wasted.",
        epilog=_examples("kvledger demo", "kvledger usage --help")
        + "\n\nEvery command has its own --help with an example.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"kvledger {ledger.__version__}")
    commands = Commands(top, title="commands")
    _replays(commands)
    _reports(commands)
    _registers(commands)
    _books(commands)
    _upkeep(commands)
    service_arguments.add(commands)
    collecting_arguments.add(commands)
    return top


def _ledger_options(made: Parser) -> None:
    group = made.add_argument_group("which ledger (docs/settings.md)")
    group.add_argument(
        "--database", metavar="URL", help="sqlite:///FILE or postgresql://…; default: kvledger.db in the state dir"
    )
    group.add_argument(
        "--state-dir", metavar="DIR", help="where the embedded database lies; default: ~/.local/state/kvledger"
    )
    group.add_argument("--config", metavar="FILE", help="settings; default: ./kvledger.toml if there is one")


def _format(made: Parser) -> None:
    made.add_argument("--format", choices=("table", "json", "csv"), default="table", help="default: table")


def _replays(commands: Commands) -> None:
    made = commands.add(
        "replay",
        "replay:replay",
        "Replay a recorded trace through reference engines and book what it cost.",
        "kvledger replay mooncake_conversation.jsonl --limit 2000 --engines 2 --blocks 8192",
        interrupted=GOES_ON,
        more=(
            "Virtual time, as fast as this machine can. Each engine is one GPU, paid from --start to the end of its\n"
            "last period. A replay is reproducible: the same command into the same ledger changes nothing, and one\n"
            "that was killed goes on where it was when it is run again. A SQLite file that is not there is made."
        ),
    )
    made.add_argument("trace", metavar="TRACE", help="a trace file, plain or .gz")
    made.add_argument(
        "--format",
        choices=("auto", "agent-sessions", "mooncake", "azure", "sharegpt", "lmsys", "dynamo", "llmservingsim"),
        default="auto",
        help="default: auto, by what the file looks like",
    )
    made.add_argument(
        "--limit", metavar="N", type=count(1, 10**9),
        help="the first N requests only (agent sessions: the first N sessions, each with all its requests); "
        "the warm-ups that every engine sends to itself come on top and are counted apart",
    )  # fmt: skip
    _engine_options(made, engines=1)
    made.add_argument("--events", metavar="FILE", help="write every metered event there, as JSON lines (docs/cli.md)")

    made = commands.add(
        "demo",
        "replay:demo",
        "Replay a day of a shared fleet into a fresh ledger, and show who pays for what.",
        "kvledger demo",
        interrupted="the ledger of the demo before, if any, is as it was; run it again to start anew",
        more="Ten tenants (chat, long documents, code completion) on two engines; its ledger: demo.db of --state-dir.",
    )
    made.add_argument("--seed", metavar="N", type=count(0, 2**32 - 1), default=1, help="of the workload; default: 1")
    made.add_argument("--hours", metavar="N", type=count(1, 24), default=24, help="of the day; default: 24")


def _engine_options(made: Parser, *, engines: int) -> None:
    made.add_argument("--engines", metavar="N", type=count(1, 64), default=engines, help=f"default: {engines}")
    made.add_argument("--blocks", metavar="N", type=count(2, 10**7), help="usable blocks of each engine's pool")
    made.add_argument("--block-size", metavar="B", type=count(1, 2**16), help="tokens of a block")
    made.add_argument(
        "--price", metavar="USD_PER_GPU_HOUR", type=price, default=price("2.95"), help="decimal, exact; default: 2.95"
    )
    made.add_argument(
        "--start", metavar="T", type=first_instant, default=instant("2026-11-03T00:00:00Z"),
        help="when the first engine starts, on the 15-second grid; default: 2026-11-03T00:00:00Z",
    )  # fmt: skip


def _reports(commands: Commands) -> None:
    made = commands.add(
        "usage",
        "reports:usage",
        "Block time, tokens and cost by tenant, session, request, model or pool.",
        "kvledger usage --by session --from 2026-11-03T00:00:00Z --to 2026-11-04T00:00:00Z --format csv",
        more="JSON and CSV carry exact integers (docs/cli.md); the table rounds.\n"
        "What comes late for a settled hour is in whole hours after `kvledger settle`.",
    )
    made.add_argument(
        "--from", dest="start", metavar="T", type=grid_instant, help="on the 15-second grid; default: the first fact"
    )
    made.add_argument(
        "--to", dest="end", metavar="T", type=grid_instant, help="on the 15-second grid; default: the last fact"
    )
    made.add_argument(
        "--by", choices=("tenant", "session", "request", "model", "pool"), default="tenant", help="default: tenant"
    )
    _format(made)
    made.add_argument(
        "--top", metavar="N", type=count(0, 10**6), default=TABLE_ROWS,
        help=f"rows of a table, the rest summed up in one; 0: all; default: {TABLE_ROWS}",
    )  # fmt: skip

    made = commands.add(
        "report",
        "reports:report",
        "The statement of a month: the whole bill, on exactly one account each nano-unit.",
        "kvledger report --month 2026-11 --format json",
    )
    made.add_argument("--month", metavar="YYYY-MM", type=month, help="default: the last month with bookings")
    made.add_argument("--tenant", metavar="T", help="this tenant's lines only, and their sum")
    made.add_argument("--basis", choices=("capacity", "full"), help="default: the basis that is booked")
    _format(made)


def _registers(commands: Commands) -> None:
    assets = commands.group(
        "assets",
        "What is paid for: GPUs and other machines, and which engine has them.",
        "kvledger assets list",
        "kvledger assets add gpu-7 --model H100 --price 2.95",
        "kvledger assets assign gpu-7 chat-0",
    )
    made = assets.add(
        "add",
        "registers:asset_add",
        "Register a GPU (or another machine): it is paid for from then on, seen or not. What is not named "
        "of one that is registered stays.",
        "kvledger assets add gpu-7 --model H100 --price 2.95 --from 2026-11-01T00:00:00Z",
    )
    made.add_argument("asset", metavar="ASSET", type=name)
    made.add_argument("--kind", choices=("gpu", "other"), help="default: gpu")
    made.add_argument("--uuid", metavar="UUID", type=name, help="of the GPU, as engines report it")
    _rule_options(made)
    made.add_argument(
        "--price", metavar="PER_HOUR", type=price, help="its own price, decimal, exact; default: by the rules"
    )
    _since(made, "--from", "when paying begins")
    _format(assets.add("list", "registers:asset_list", "Every asset, and who has it now.", "kvledger assets list"))
    made = assets.add(
        "assign",
        "registers:asset_assign",
        "Give an engine an asset, or a part of it. The parts of one asset sum to 1 at most.",
        "kvledger assets assign gpu-7 chat-0 --share 0.5 --from 2026-11-01T00:00:00Z",
    )
    made.add_argument("asset", metavar="ASSET", type=name)
    made.add_argument("engine", metavar="ENGINE", type=name)
    made.add_argument("--share", metavar="S", type=share, default=PPM_MAX, help="above 0, at most 1; default: 1")
    _since(made, "--from", "when it begins")
    made.add_argument("--to", dest="end", metavar="T", type=grid_instant, help="when it ends; default: open")
    made = assets.add(
        "retire",
        "registers:asset_retire",
        "End an asset: nothing is paid for it from then on.",
        "kvledger assets retire gpu-7 --at 2026-12-01T00:00:00Z",
    )
    made.add_argument("asset", metavar="ASSET", type=name)
    _since(made, "--at", "when paying ends")

    prices = commands.group(
        "prices",
        "What an hour of an asset costs, since when.",
        "kvledger prices list",
        "kvledger prices add 3.50 --model H100",
    )
    made = prices.add(
        "add",
        "registers:price_add",
        "A price of one asset, or a rule by model, cluster and capacity type.",
        "kvledger prices add 3.50 --model H100 --valid-from 2026-12-01T00:00:00Z",
        more="The asset's own price beats a rule, a narrow rule beats a wide one, a later one beats an earlier one.",
    )
    made.add_argument("price", metavar="PER_HOUR", type=price, help="decimal, exact to nine places")
    made.add_argument("--asset", metavar="ASSET", type=name, help="the price of this asset, not a rule")
    _rule_options(made)
    _since(made, "--valid-from", "when it begins")
    made.add_argument("--valid-to", dest="end", metavar="T", type=grid_instant, help="when it ends; default: open")
    _format(prices.add("list", "registers:price_list", "Every price and rule.", "kvledger prices list --format csv"))
    made = prices.add(
        "import",
        "registers:price_import",
        "Take the prices of a CSV file: all of them, or none.",
        "kvledger prices import gpu_hourly_prices.csv --valid-from 2026-11-01T00:00:00Z",
        more=(
            "The columns are found by name (docs/cli.md); gpu and price_usd_per_gpu_hour must be there. Each line\n"
            "becomes a rule for its GPU model in the cluster provider/instance_type/region, or in --cluster."
        ),
    )
    made.add_argument("file", metavar="FILE")
    made.add_argument("--cluster", metavar="NAME", type=name, help="these are the prices of this cluster")
    _since(made, "--valid-from", "when they begin")

    tenants = commands.group(
        "tenants", "Who is billed.", "kvledger tenants list", "kvledger tenants add acme --display 'Acme Ltd'"
    )
    made = tenants.add(
        "add",
        "registers:tenant_add",
        "Register a tenant, or say something else about one; usage is booked on unknown ones as well.",
        "kvledger tenants add acme --display 'Acme Ltd' --cost-center 4711 --label team=search",
        more="What is not said of a tenant that is registered stays; labels and contacts join those that are there.",
    )
    made.add_argument("tenant", metavar="TENANT", type=name)
    made.add_argument("--display", metavar="TEXT", type=name, help="the name for people")
    made.add_argument("--cost-center", metavar="TEXT", type=name)
    made.add_argument("--label", metavar="KEY=VALUE", type=label, action="append", default=[], help="may be repeated")
    made.add_argument("--profile", metavar="TEXT", type=name, help="the industry, as finance or medical")
    made.add_argument("--zone", metavar="ZONE", type=zone, help="its own time zone, for day and night")
    made.add_argument("--contact", metavar="TEXT", type=name, action="append", default=[], help="may be repeated")
    made.add_argument(
        "--clear", metavar="WHAT", type=_clearable, action="append", default=[],
        help="empty it first (display, cost-center, labels, profile, zone, contacts); may be repeated",
    )  # fmt: skip
    _format(tenants.add("list", "registers:tenant_list", "Every tenant, registered or seen.", "kvledger tenants list"))


def _rule_options(made: Parser) -> None:
    made.add_argument("--model", metavar="GPU_MODEL", type=name, help="as H100")
    made.add_argument("--cluster", metavar="NAME", type=name, help="where it stands")
    made.add_argument("--capacity", metavar="TYPE", type=name, help="how it was bought, as on-demand or spot")


def _since(made: Parser, flag: str, about: str) -> None:
    made.add_argument(
        flag, dest="start", metavar="T", type=grid_instant, help=f"{about}, on the 15-second grid; default: now"
    )


def _books(commands: Commands) -> None:
    commands.add(
        "settle",
        "books:settle",
        "Book every hour that is over and whose facts have arrived; again where its inputs have changed.",
        "kvledger settle",
        interrupted=GOES_ON,
    )
    months = commands.group(
        "months", "Months, open and closed.", "kvledger months list", "kvledger months close 2026-11"
    )
    made = months.add(
        "close",
        "books:month_close",
        "Freeze a month: its statement gets a digest, and what comes late is an adjustment.",
        "kvledger months close 2026-11",
    )
    made.add_argument("month", metavar="YYYY-MM", type=month)
    _format(months.add("list", "books:month_list", "Every month and its state.", "kvledger months list"))
    commands.add(
        "audit",
        "books:audit",
        "Check every law on what is stored: a line for each breach, exit 1 if there is any.",
        "kvledger audit && echo sound",
    )


def _upkeep(commands: Commands) -> None:
    db = commands.group("db", "The database's schema.", "kvledger db upgrade", "kvledger db check")
    db.add("upgrade", "upkeep:db_upgrade", "Make the tables, or bring them up to this version.", "kvledger db upgrade")
    db.add("current", "upkeep:db_current", "The schema's version here, and the newest one.", "kvledger db current")
    db.add(
        "check",
        "upkeep:db_check",
        "Whether the schema is what this version expects; exit 1 if not.",
        "kvledger db check",
    )
    quarantine = commands.group(
        "quarantine",
        "Batches that were refused, kept to be read and tried again.",
        "kvledger quarantine list",
        "kvledger quarantine retry",
    )
    made = quarantine.add(
        "list", "upkeep:quarantine_list", "What was refused, and why.", "kvledger quarantine list --format json"
    )
    _format(made)
    made = quarantine.add(
        "show", "upkeep:quarantine_show", "One refused batch, as it came.", "kvledger quarantine show 3"
    )
    made.add_argument("id", metavar="ID", type=count(1, INT_MAX))
    made = quarantine.add(
        "retry",
        "upkeep:quarantine_retry",
        "Try a refused batch again (all of them without an ID); exit 1 if any stays refused.",
        "kvledger quarantine retry 3",
        interrupted=GOES_ON,
    )
    made.add_argument("id", metavar="ID", type=count(1, INT_MAX), nargs="?")
