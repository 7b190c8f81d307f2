"""Assets, prices, assignments and tenants: append-only rows, and the price book made of those that count.

Invariants: a row is never changed, a later one supersedes it; validity lies on the 15-second grid; the stated
shares of an asset sum to at most the whole at any instant; saying the same thing twice writes one row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from ledger.core.periods import format_time, on_grid
from ledger.core.pricing import WHOLE_PPM
from ledger.errors import UsageError
from ledger.pricebook import Asset, AssetKind, Assignment, Price
from ledger.store import book_tables as t
from ledger.store.database import lock
from ledger.store.rows import Value, append, canonical
from ledger.store.tables import dimensions
from ledger.store.terms import check_currency

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who is charged, for people: everything but ``tenant`` may be empty."""

    tenant: str
    display: str = ""
    cost_center: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    profile: str = ""
    zone: str = ""
    contacts: tuple[str, ...] = ()


# --- assets ---------------------------------------------------------------------------------------------


def add_asset(connection: Connection, asset: Asset, *, now_us: int) -> bool:
    """Register an asset, or correct a registration (same id); False where that is what is written already."""
    assert not asset.discovered, asset
    lock(connection, "config")
    _check_validity(f"asset {asset.asset_id}", asset.valid_from_us, asset.valid_to_us)
    known = {a.asset_id: a for a in list_assets(connection)}
    if known.get(asset.asset_id) == asset:
        return False
    for other in known.values():
        if asset.uuid and other.uuid == asset.uuid and other.asset_id != asset.asset_id and _overlap(other, asset):
            raise UsageError(f"GPU {asset.uuid} is registered as {other.asset_id} for that time; retire that one first")
    append(
        connection,
        t.assets,
        {
            "asset_id": asset.asset_id,
            "kind": asset.kind.value,
            "model": asset.model,
            "uuid": asset.uuid,
            "memory_bytes": asset.memory_bytes,
            "cluster": asset.cluster,
            "capacity_type": asset.capacity_type,
            "valid_from_us": asset.valid_from_us,
            "valid_to_us": asset.valid_to_us,
            "created_us": now_us,
        },
    )
    return True


def retire_asset(connection: Connection, asset_id: str, at_us: int, *, now_us: int) -> bool:
    """End an asset's validity at ``at_us``; False where it ends there already."""
    for asset in list_assets(connection):
        if asset.asset_id == asset_id:
            return add_asset(connection, _until(asset, at_us), now_us=now_us)
    raise UsageError(f"no asset is called {asset_id!r}; `kvledger assets list` shows those that are registered")


def list_assets(connection: Connection) -> tuple[Asset, ...]:
    """The registered assets as they now count, by id."""
    rows = {row["asset_id"]: row for row in connection.execute(select(t.assets).order_by(t.assets.c.id)).mappings()}
    return tuple(
        Asset(
            asset_id=asset_id,
            kind=AssetKind(row["kind"]),
            model=row["model"],
            uuid=row["uuid"],
            memory_bytes=row["memory_bytes"],
            cluster=row["cluster"],
            capacity_type=row["capacity_type"],
            valid_from_us=row["valid_from_us"],
            valid_to_us=row["valid_to_us"],
        )
        for asset_id, row in sorted(rows.items())
    )


# --- prices ---------------------------------------------------------------------------------------------


def add_price(
    connection: Connection, price: Price, *, currency: str, now_us: int, supersedes: int | None = None
) -> bool:
    """Add a price or a rule; False where the very same one counts already.

    ``supersedes``: the id of the row that this one takes the place of; to withdraw a price, supersede it with
    one that ends where it begins.
    """
    lock(connection, "config")
    _check_validity("the price", price.valid_from_us, price.valid_to_us)
    check_currency(connection, currency)
    counting = list_prices(connection)
    _check_superseded(supersedes, {p.price_id for p in counting})
    # Of rows that speak of the same thing from the same instant on the last one counts, so only it can be the same.
    rivals = [p for p in counting if _subject(p) == _subject(price)]
    if supersedes is None and rivals and _said(rivals[-1]) == _said(price):
        return False
    append(
        connection,
        t.prices,
        {
            "asset_id": price.asset_id,
            "model": price.model,
            "cluster": price.cluster,
            "capacity_type": price.capacity_type,
            "currency": currency,
            "nanos_per_hour": price.nanos_per_hour,
            "valid_from_us": price.valid_from_us,
            "valid_to_us": price.valid_to_us,
            "supersedes": supersedes,
            "created_us": now_us,
        },
    )
    return True


def list_prices(connection: Connection) -> tuple[Price, ...]:
    """The prices that are not superseded, in the order of their writing."""
    rows = connection.execute(select(t.prices).order_by(t.prices.c.id)).mappings().all()
    gone = {row["supersedes"] for row in rows}
    return tuple(
        Price(
            price_id=row["id"],
            asset_id=row["asset_id"],
            model=row["model"],
            cluster=row["cluster"],
            capacity_type=row["capacity_type"],
            nanos_per_hour=row["nanos_per_hour"],
            valid_from_us=row["valid_from_us"],
            valid_to_us=row["valid_to_us"],
        )
        for row in rows
        if row["id"] not in gone
    )


# --- assignments ----------------------------------------------------------------------------------------


def assign(connection: Connection, assignment: Assignment, *, now_us: int, supersedes: int | None = None) -> bool:
    """Give an engine a share of an asset; False where that is written already.

    A sum of stated shares above the whole, at any instant, is refused.
    """
    lock(connection, "config")
    what = f"the assignment of {assignment.asset_id} to {assignment.engine}"
    _check_validity(what, assignment.valid_from_us, assignment.valid_to_us)
    if not 0 < assignment.share_ppm <= WHOLE_PPM:
        raise UsageError(f"a share of {assignment.share_ppm} millionths: write more than 0 and at most {WHOLE_PPM}")
    counting = _assignments(connection)
    _check_superseded(supersedes, set(counting))
    if supersedes is None and assignment in counting.values():
        return False
    others = [a for number, a in counting.items() if number != supersedes and a.asset_id == assignment.asset_id]
    at_us, total = _fullest(others, assignment)
    if total > WHOLE_PPM:
        raise UsageError(
            f"{what} would bring its shares to {total} millionths at {format_time(at_us)}, "
            f"the most is {WHOLE_PPM}; end another assignment first, or give a smaller share"
        )
    append(
        connection,
        t.assignments,
        {
            "asset_id": assignment.asset_id,
            "engine": assignment.engine,
            "share_ppm": assignment.share_ppm,
            "valid_from_us": assignment.valid_from_us,
            "valid_to_us": assignment.valid_to_us,
            "supersedes": supersedes,
            "created_us": now_us,
        },
    )
    return True


def end_assignment(connection: Connection, asset_id: str, engine: str, at_us: int, *, now_us: int) -> bool:
    """End the assignment of ``asset_id`` to ``engine`` that holds at ``at_us``; False where none does."""
    for number, found in _assignments(connection).items():
        holds = found.valid_from_us <= at_us and (found.valid_to_us is None or found.valid_to_us > at_us)
        if found.asset_id == asset_id and found.engine == engine and holds:
            ended = Assignment(
                asset_id=asset_id,
                engine=engine,
                share_ppm=found.share_ppm,
                valid_from_us=found.valid_from_us,
                valid_to_us=at_us,
            )
            return assign(connection, ended, now_us=now_us, supersedes=number)
    return False


def list_assignments(connection: Connection) -> tuple[Assignment, ...]:
    """The assignments that are not superseded, in the order of their writing."""
    return tuple(_assignments(connection).values())


def _assignments(connection: Connection) -> dict[int, Assignment]:
    rows = connection.execute(select(t.assignments).order_by(t.assignments.c.id)).mappings().all()
    gone = {row["supersedes"] for row in rows}
    return {
        row["id"]: Assignment(
            asset_id=row["asset_id"],
            engine=row["engine"],
            share_ppm=row["share_ppm"],
            valid_from_us=row["valid_from_us"],
            valid_to_us=row["valid_to_us"],
        )
        for row in rows
        if row["id"] not in gone
    }


# --- tenants --------------------------------------------------------------------------------------------


def add_tenant(connection: Connection, tenant: Tenant, *, now_us: int) -> bool:
    """Register a tenant, or correct a registration (same name); False where that is what is written already."""
    lock(connection, "config")
    if {known.tenant: known for known in list_tenants(connection)}.get(tenant.tenant) == tenant:
        return False
    row: dict[str, Value] = {
        "tenant": tenant.tenant,
        "display": tenant.display,
        "cost_center": tenant.cost_center,
        "labels": canonical(tenant.labels),
        "profile": tenant.profile,
        "zone": tenant.zone,
        "contacts": canonical(list(tenant.contacts)),
        "created_us": now_us,
    }
    append(connection, t.tenants, row)
    return True


def list_tenants(connection: Connection) -> tuple[Tenant, ...]:
    """The registered tenants as they now count, by name."""
    rows = {row["tenant"]: row for row in connection.execute(select(t.tenants).order_by(t.tenants.c.id)).mappings()}
    return tuple(
        Tenant(
            tenant=name,
            display=row["display"],
            cost_center=row["cost_center"],
            labels=json.loads(row["labels"]),
            profile=row["profile"],
            zone=row["zone"],
            contacts=tuple(json.loads(row["contacts"])),
        )
        for name, row in sorted(rows.items())
    )


def seen_tenants(connection: Connection) -> tuple[str, ...]:
    """Every tenant that facts speak of, registered or not."""
    return tuple(connection.execute(select(dimensions.c.tenant).distinct().order_by(dimensions.c.tenant)).scalars())


# --- checks ---------------------------------------------------------------------------------------------


def _check_validity(what: str, from_us: int, to_us: int | None) -> None:
    for at_us in (from_us, to_us):
        if at_us is not None and not on_grid(at_us):
            raise UsageError(
                f"{what} would change at {format_time(at_us)}, off the 15-second grid; write seconds 00, 15, 30 or 45"
            )
    if to_us is not None and to_us < from_us:
        raise UsageError(f"{what} would end at {format_time(to_us)}, before it begins at {format_time(from_us)}")


def _check_superseded(number: int | None, counting: set[int]) -> None:
    if number is not None and number not in counting:
        raise UsageError(f"no row {number} counts that could be superseded; list them to see the ids that do")


def _subject(price: Price) -> tuple[str, str, str, str, int]:
    return price.asset_id, price.model, price.cluster, price.capacity_type, price.valid_from_us


def _said(price: Price) -> tuple[int, int | None]:
    return price.nanos_per_hour, price.valid_to_us


def _overlap(a: Asset, b: Asset) -> bool:
    return (b.valid_to_us is None or a.valid_from_us < b.valid_to_us) and (
        a.valid_to_us is None or b.valid_from_us < a.valid_to_us
    )


def _until(asset: Asset, at_us: int) -> Asset:
    return Asset(
        asset_id=asset.asset_id,
        kind=asset.kind,
        model=asset.model,
        uuid=asset.uuid,
        memory_bytes=asset.memory_bytes,
        cluster=asset.cluster,
        capacity_type=asset.capacity_type,
        valid_from_us=asset.valid_from_us,
        valid_to_us=at_us,
    )


def _fullest(others: Sequence[Assignment], added: Assignment) -> tuple[int, int]:
    """The instant within ``added`` at which the stated shares sum highest, and that sum."""
    rows = [*others, added]
    best = (added.valid_from_us, 0)
    for at_us in {added.valid_from_us} | {a.valid_from_us for a in others}:
        held = [a for a in rows if a.valid_from_us <= at_us and (a.valid_to_us is None or a.valid_to_us > at_us)]
        if added in held:
            best = max(best, (at_us, sum(a.share_ppm for a in held)), key=lambda found: (found[1], -found[0]))
    return best
