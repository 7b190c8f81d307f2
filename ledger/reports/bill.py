"""A statement for people: the bill as a bar that closes, who pays for what, and what of it was wasted.

Invariants: amounts are rounded for reading only, and the last line gives the bill and its parts exactly; the bar's
cells and the shares come from the exact figures; waste stands apart, since its lines overlap and are no part of a sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ledger.core.money import apportion, decimal_text
from ledger.core.periods import format_time
from ledger.limits import TABLE_ROWS
from ledger.reports.render import (
    ABSENT,
    PLACES,
    RULED,
    console,
    csv_text,
    duration,
    money,
    percent,
    shown_quantity,
)
from ledger.reports.statement import HOOK

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console

    from ledger.reports.statement import Statement

MINI = 10
"""Cells of the small bar beside a tenant; the largest tenant fills it."""

WASTE = {
    "cached": "the cached lines above",
    "unfilled": "of active: held, unfilled",
    "aborted": "of active: requests aborted",
    "abandoned": "of active: patience ran out",
    "recomputed": "of compute: done again",
    "rejected": "of compute: drafts rejected",
}
"""What each kind of waste is a part of, in one line; the exact base is in the JSON."""

TENANT, ACTIVE, CACHED, COMPUTE = "tenant", "active", "cached", "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a part of the bill is drawn, and what it is, in one line."""

    cell: str
    style: str
    meaning: str


LOOKS = {
    ACTIVE: Look(cell="█", style="green", meaning="blocks that a running request held"),
    CACHED: Look(cell="▓", style="yellow", meaning="blocks kept for reuse, charged to who held them last"),
    COMPUTE: Look(cell="▒", style="cyan", meaning="time of the engine's steps"),
    "idle": Look(cell="░", style="dim", meaning="engine up, blocks nobody took"),
    "starting": Look(cell="·", style="blue", meaning="booting, its pool not open yet"),
    "unobserved": Look(cell="?", style="red", meaning="pool open, facts missing"),
    "vacant": Look(cell="-", style="dim", meaning="paid for, no engine on it"),
    "unpriced": Look(cell=" ", style="dim", meaning="GPU time that has no price"),
    "over_allocation": Look(cell="!", style="bold red", meaning="beyond the bill: a finding"),
}
"""In the order of the bar. Told apart by their characters alone where there is no colour."""


def show_bill(statement: Statement, out: TextIO, *, width: int | None = None) -> None:
    """Write the statement for a person; ``width`` in columns, the terminal's by default."""
    screen = console(out, width=width)
    title = f"Statement of {statement.month}"
    screen.print(Text(title if statement.tenant is None else f"{title}, {statement.tenant}", style="bold"))
    screen.print(Text(_terms(statement), style="dim"))
    screen.print()
    if not statement.lines:
        screen.print(
            "Nothing is booked: no asset was paid for, or nothing is settled yet (`kvledger settle`)."
            if statement.tenant is None
            else f"Nothing is booked on {statement.tenant}; `kvledger tenants list` shows who there is.",
            soft_wrap=True,
        )
    else:
        _bar(statement, screen)
        _tenants(statement, screen)
        _others(statement, screen)
        _exactly(statement, screen)
    _waste(statement, screen)
    _adjustments(statement, screen)
    _engines(statement, screen)


def csv_of(statement: Statement) -> str:
    """The lines, the memo lines and the adjustments as CSV; ``section`` tells them apart, only lines may be summed."""
    header = ("section", "month", "account", "kind", "tenant", "amount_nanos", "asset_us", "quantity", "unit")
    lines = [
        ("line", statement.month, line.account, line.kind, line.tenant, line.amount_nanos, line.asset_us, None, None)
        for line in statement.lines
    ]
    memos = [
        ("memo", statement.month, TENANT, memo.memo, memo.tenant, memo.amount_nanos, None, memo.quantity, memo.unit)
        for memo in statement.memos
    ]
    adjustments = [
        ("adjustment", a.month, a.account, a.kind, a.tenant, a.amount_nanos, None, None, None)
        for a in statement.adjustments
    ]
    return csv_text([header, *lines, *memos, *adjustments])


def parts(statement: Statement) -> dict[str, int]:
    """The bill by what it went to: the tenants' kinds, then the other accounts, in the order of :data:`LOOKS`."""
    sums = dict.fromkeys(LOOKS, 0)
    for line in statement.lines:
        sums[line.kind if line.account == TENANT else line.account] += line.amount_nanos
    return {part: amount for part, amount in sums.items() if amount}


def _terms(statement: Statement) -> str:
    at_us = statement.provisional_from_us
    if statement.digest:
        state = f"closed, digest {statement.digest[:12]}"
    elif at_us is not None:
        state = f"provisional from {format_time(at_us)}"
    else:
        state = "open, all of it booked"
    share = f"{statement.kv_share_ppm / 1_000_000:g}"
    return f"{statement.currency}, zone {statement.timezone}, basis {statement.basis.value}, KV share {share}; {state}"


def _bar(statement: Statement, screen: Console) -> None:
    drawn = parts(statement)
    if any(amount < 0 for amount in drawn.values()) or statement.bill_nanos <= 0:
        return  # a bar has no cells for less than nothing; the lines below say what happened
    cells = apportion(screen.width - 2, list(drawn.values()), list(drawn))
    bar, legend = Text(" "), Text()
    for part, count in zip(drawn, cells, strict=True):
        look = LOOKS[part]
        bar.append(look.cell * count, look.style)
        entry = f"{look.cell} {part} {percent(drawn[part], statement.bill_nanos)}"
        if legend and len(legend.plain.rpartition("\n")[2]) + len(entry) + 3 > screen.width:
            legend.append("\n")
        elif legend:
            legend.append("   ")
        legend.append(" " if not legend or legend.plain.endswith("\n") else "")
        legend.append(look.cell, look.style)
        legend.append(entry[1:])
    screen.print(bar, soft_wrap=True)
    screen.print(legend, soft_wrap=True)
    screen.print()


def _tenants(statement: Statement, screen: Console) -> None:
    sums: dict[str, dict[str, int]] = {}
    for line in statement.lines:
        if line.account == TENANT:
            row = sums.setdefault(line.tenant, {})
            row[line.kind] = row.get(line.kind, 0) + line.amount_nanos
    if not sums:
        return
    kinds = [kind for kind in (ACTIVE, CACHED, COMPUTE) if any(kind in row for row in sums.values())]
    totals = {tenant: sum(row.values()) for tenant, row in sums.items()}
    largest = max(1, *totals.values())
    table = Table(box=RULED, show_edge=False, pad_edge=False, show_footer=True, header_style="bold")
    table.footer_style = "bold"
    whole = sum(totals.values())
    label = "all tenants" if statement.tenant is None else "total"
    table.add_column("tenant", label, overflow="fold", min_width=len(label))
    for kind in kinds:
        amount = sum(row.get(kind, 0) for row in sums.values())
        table.add_column(kind, money(amount), justify="right", no_wrap=True)
    table.add_column("total", money(whole), justify="right", no_wrap=True)
    table.add_column("share", percent(whole, statement.bill_nanos), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    order = sorted(totals, key=lambda tenant: (-totals[tenant], tenant))
    for tenant in order[:TABLE_ROWS]:
        amounts = [money(sums[tenant][kind]) if kind in sums[tenant] else ABSENT for kind in kinds]
        table.add_row(
            Text(tenant),
            *amounts,
            money(totals[tenant]),
            percent(totals[tenant], statement.bill_nanos),
            Text(_mini(totals[tenant], largest), style="green"),
        )
    if rest := order[TABLE_ROWS:]:
        amounts = [money(sum(sums[tenant].get(kind, 0) for tenant in rest)) for kind in kinds]
        left = sum(totals[tenant] for tenant in rest)
        table.add_row(f"{len(rest):,} more", *amounts, money(left), percent(left, statement.bill_nanos), style="dim")
    screen.print(table)
    screen.print()


def _mini(amount: int, largest: int) -> str:
    """A bar of at most :data:`MINI` cells, to an eighth of a cell; what is above nothing shows."""
    eighths = max(0, -(-amount * MINI * 8 // largest))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _others(statement: Statement, screen: Console) -> None:
    others = [line for line in statement.lines if line.account != TENANT]
    if statement.tenant is not None:
        return
    table = Table(box=RULED, show_edge=False, pad_edge=False, show_footer=True, header_style="bold")
    table.footer_style = "bold"
    table.add_column("no tenant's", "bill", no_wrap=True)
    table.add_column("total", money(statement.bill_nanos), justify="right", no_wrap=True)
    table.add_column("share", percent(statement.bill_nanos, statement.bill_nanos), justify="right", no_wrap=True)
    table.add_column("GPU time", justify="right", no_wrap=True)
    table.add_column("which is", overflow="fold")
    for line in sorted(others, key=lambda line: list(LOOKS).index(line.account)):
        table.add_row(
            _name(line.account),
            money(line.amount_nanos),
            percent(line.amount_nanos, statement.bill_nanos),
            ABSENT if line.asset_us is None else duration(line.asset_us),
            Text(LOOKS[line.account].meaning, style="dim"),
        )
    screen.print(table)
    screen.print()


def _exactly(statement: Statement, screen: Console) -> None:
    bill = f"{'bill' if statement.tenant is None else 'total'} {decimal_text(statement.bill_nanos)}"
    drawn = parts(statement).items()
    words = [f"Rounded to {PLACES} places above. Exactly, in {statement.currency}:", f"{bill} ="]
    words += [f"{'+ ' * (index > 0)}{decimal_text(amount)} {_name(part)}" for index, (part, amount) in enumerate(drawn)]
    if not drawn:
        words[1:] = [f"{bill}; every line of it is 0."]
    lines = [""]
    for word in words:  # an amount is never torn from its name
        if lines[-1] and len(lines[-1]) + 1 + len(word) > screen.width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    screen.print(Text("\n".join(lines), style="dim"), soft_wrap=True)


def _name(part: str) -> str:
    return part.replace("_", " ")


def _waste(statement: Statement, screen: Console) -> None:
    if not statement.memos:
        return
    sums: dict[str, tuple[int, int | None, str]] = {}  # by kind, over the tenants
    for memo in statement.memos:
        quantity, amount, unit = sums.get(memo.memo, (0, None, memo.unit))
        if memo.amount_nanos is not None:
            amount = (amount or 0) + memo.amount_nanos
        sums[memo.memo] = (quantity + memo.quantity, amount, unit)
    screen.print()
    screen.print(Text("Of that, wasted", style="bold") + Text(" (these overlap: never add them up)", style="dim"))
    table = Table(box=RULED, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("kind", no_wrap=True)
    table.add_column("how much", justify="right", no_wrap=True)
    table.add_column("cost", justify="right", no_wrap=True)
    table.add_column("of bill", justify="right", no_wrap=True)
    table.add_column("part of what", overflow="fold")
    for kind, (quantity, amount, unit) in sums.items():
        table.add_row(
            kind,
            shown_quantity(quantity, unit),
            ABSENT if amount is None else money(amount),
            ABSENT if amount is None else percent(amount, statement.bill_nanos),
            Text(WASTE[kind], style="dim"),
        )
    screen.print(table)


def _adjustments(statement: Statement, screen: Console) -> None:
    if not statement.adjustments:
        return
    screen.print()
    screen.print(Text("Adjustments of months that are closed, in no sum above", style="bold"))
    table = Table(box=RULED, show_edge=False, pad_edge=False, header_style="bold")
    for title in ("month", "account", "kind"):
        table.add_column(title, no_wrap=True)
    table.add_column("tenant", overflow="fold", min_width=len("tenant"))
    table.add_column("amount", justify="right", no_wrap=True)
    for a in statement.adjustments:
        table.add_row(a.month, _name(a.account), a.kind, Text(a.tenant), decimal_text(a.amount_nanos))
    screen.print(table)


def _engines(statement: Statement, screen: Console) -> None:
    """Compute beside blocks: a tenant that only reads can fill a GPU with few blocks."""
    if not statement.engines:
        return
    screen.print()
    screen.print(Text("How busy, beside how full", style="bold"))
    table = Table(box=RULED, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("engine", overflow="fold", min_width=len("engine"))
    ways = {e.method for e in statement.engines} != {HOOK}
    if ways:
        table.add_column("method", no_wrap=True)
    for title in ("observed", "compute busy", "blocks active", "cached", "free"):
        table.add_column(title, justify="right", no_wrap=True)
    for e in statement.engines:
        capacity = e.active_block_us + e.cached_block_us + e.free_block_us
        table.add_row(
            Text(e.engine),
            *([e.method] if ways else []),
            duration(e.observed_us),
            percent(e.step_us, e.observed_us),
            percent(e.active_block_us, capacity),
            percent(e.cached_block_us, capacity),
            percent(e.free_block_us, capacity),
        )
    screen.print(table)
