"""What is paid for and who is billed: assets, their prices and assignments, tenants.

Invariant: a command writes all of what it was asked in one transaction, or nothing; saying the same thing twice
writes one row.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ledger import pricelist
from ledger.commands.opening import fit_terms, now_us, opened
from ledger.core.money import decimal_text
from ledger.core.periods import format_time, period_start
from ledger.errors import UsageError
from ledger.limits import TIME_US_MAX, TIME_US_MIN
from ledger.pricebook import Asset, AssetKind, Assignment, Price
from ledger.reports.render import Column, Shape, Sheet, counted, show
from ledger.store import prices as store

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from typing import Any

    from ledger.config import Settings
    from ledger.store.database import Connection

TENANT_TEXTS = ("display", "cost_center", "profile", "zone")
EMPTY: Mapping[str, Any] = {**dict.fromkeys(TENANT_TEXTS, ""), "labels": {}, "contacts": ()}
"""What can be said of a tenant, and what that is while nothing is said."""


def asset_add(args: Namespace) -> int:
    """Register an asset, or say more of one: what is not named stays. With its own price if one is given."""
    since_us = _since(args)
    with opened(args) as ledger:

        def work(connection: Connection) -> tuple[bool, Asset]:
            known = {found.asset_id: found for found in store.list_assets(connection)}.get(args.asset)
            asset = _asset(args, known, since_us)
            new = store.add_asset(connection, asset, now_us=now_us())
            if args.price is not None:
                from_us = asset.valid_from_us if known is None or args.start is not None else since_us
                price = Price(asset_id=asset.asset_id, nanos_per_hour=args.price, valid_from_us=from_us)
                new |= _add_price(connection, price, ledger.settings)
            return new, asset

        new, asset = ledger.database.write(work)
        until = "" if asset.valid_to_us is None else f" until {format_time(asset.valid_to_us)}"
        _said(f"{asset.asset_id} is paid for from {format_time(asset.valid_from_us)}{until}", new=new)
    return 0


def _asset(args: Namespace, known: Asset | None, since_us: int) -> Asset:
    """The asset as it is to be: ``known`` with what is named. UsageError where it would lose what it cost before."""
    named = {"model": args.model, "uuid": args.uuid, "cluster": args.cluster, "capacity_type": args.capacity}
    said: dict[str, Any] = {field: value for field, value in named.items() if value is not None}
    if args.kind is not None:
        said["kind"] = AssetKind(args.kind)
    if known is None:
        return Asset(asset_id=args.asset, valid_from_us=since_us, **said)
    if args.start is not None:
        if known.valid_to_us is not None and since_us >= known.valid_to_us:
            raise UsageError(
                f"{known.asset_id} was retired at {format_time(known.valid_to_us)}, and has one stretch of time: "
                "what it cost until then would go; register what comes later under another name"
            )
        if since_us > known.valid_from_us:
            before = f"{format_time(known.valid_from_us)} to {format_time(since_us)}"
            _warn(f"{known.asset_id} was paid for from {before} as well: settling takes that back")
        said["valid_from_us"] = since_us
    return replace(known, **said)


def asset_list(args: Namespace) -> int:
    """Every registered asset, and who has it."""
    with opened(args) as ledger, ledger.database.read() as connection:
        assets, assignments = store.list_assets(connection), store.list_assignments(connection)
    columns = (
        Column(key="asset", title="asset", name=True),
        Column(key="kind", title="kind", spare=5),
        Column(key="model", title="model", spare=2),
        Column(key="uuid"),
        Column(key="cluster", title="cluster", spare=2),
        Column(key="capacity_type", title="capacity", spare=3),
        Column(key="valid_from_us", title="from", shape=Shape.TIME, spare=1),
        Column(key="valid_to_us", title="to", shape=Shape.TIME, spare=4),
        Column(key="engines", title="engines", name=True),
    )
    rows = [
        (
            asset.asset_id,
            asset.kind.value,
            asset.model,
            asset.uuid,
            asset.cluster,
            asset.capacity_type,
            asset.valid_from_us,
            asset.valid_to_us,
            " ".join(
                f"{held.engine}:{held.share_ppm / 1e6:g}" for held in assignments if held.asset_id == asset.asset_id
            ),
        )
        for asset in assets
    ]
    empty = "no assets are registered; `kvledger assets add` registers one, and engines bring the GPUs that they see"
    show(Sheet(columns=columns, rows=rows, empty=empty), args.format, sys.stdout)
    return 0


def asset_assign(args: Namespace) -> int:
    """Give an engine a share of an asset."""
    held = Assignment(
        asset_id=args.asset,
        engine=args.engine,
        share_ppm=args.share,
        valid_from_us=_since(args),
        valid_to_us=args.end,
    )
    with opened(args) as ledger:

        def work(connection: Connection) -> tuple[Asset, bool]:
            asset = next((found for found in store.list_assets(connection) if found.asset_id == held.asset_id), None)
            if asset is None:
                raise UsageError(f"no asset is called {held.asset_id!r}; `kvledger assets add` registers it")
            return asset, store.assign(connection, held, now_us=now_us())

        asset, new = ledger.database.write(work)
        sentence = (
            f"{held.engine} has {held.share_ppm / 1e6:g} of {held.asset_id} from {format_time(held.valid_from_us)}"
        )
        _said(sentence, new=new)
        _warn(_beside(held, asset))
    return 0


def _beside(held: Assignment, asset: Asset) -> str:
    """What of an assignment counts for nothing, since the asset is not paid for then; empty where all of it counts."""
    paid = f"{asset.asset_id} is paid for from {format_time(asset.valid_from_us)}"
    if asset.valid_to_us is not None:
        paid += f" to {format_time(asset.valid_to_us)}"
    never = (held.valid_to_us is not None and held.valid_to_us <= asset.valid_from_us) or (
        asset.valid_to_us is not None and held.valid_from_us >= asset.valid_to_us
    )
    if never:
        return f"{paid}: the assignment counts for nothing; `kvledger assets list` shows what is paid for when"
    if held.valid_from_us < asset.valid_from_us:
        return f"{paid}: until then the assignment counts for nothing"
    return ""


def asset_retire(args: Namespace) -> int:
    """End an asset."""
    at_us = _since(args)
    with opened(args) as ledger:
        new = ledger.database.write(lambda c: store.retire_asset(c, args.asset, at_us, now_us=now_us()))
        _said(f"{args.asset} is paid for until {format_time(at_us)}", new=new)
    return 0


def price_add(args: Namespace) -> int:
    """Add a price or a rule."""
    if args.asset and (args.model or args.cluster or args.capacity):
        raise UsageError(
            "--asset is the price of one asset, --model, --cluster and --capacity make a rule: give one kind"
        )
    price = Price(
        asset_id=args.asset or "",
        model=args.model or "",
        cluster=args.cluster or "",
        capacity_type=args.capacity or "",
        nanos_per_hour=args.price,
        valid_from_us=_since(args),
        valid_to_us=args.end,
    )
    with opened(args) as ledger:
        currency = ledger.settings.currency
        new = ledger.database.write(lambda c: _add_price(c, price, ledger.settings))
        with ledger.database.read() as connection:
            known = {asset.asset_id for asset in store.list_assets(connection)}
        sentence = f"{decimal_text(price.nanos_per_hour)} {currency} per hour from {format_time(price.valid_from_us)}"
        _said(sentence, new=new)
        if price.asset_id and price.asset_id not in known:
            _warn(
                f"no asset is called {price.asset_id!r} yet: the price counts once `kvledger assets add` "
                "has registered it; `kvledger assets list` shows those that are"
            )
    return 0


def price_list(args: Namespace) -> int:
    """Every price that counts."""
    with opened(args) as ledger, ledger.database.read() as connection:
        prices = store.list_prices(connection)
    columns = (
        Column(key="price", title="no."),
        Column(key="asset", title="asset", name=True),
        Column(key="model", title="model", spare=1),
        Column(key="cluster", title="cluster", spare=1),
        Column(key="capacity_type", title="capacity", spare=2),
        Column(key="nanos_per_hour"),
        Column(key="per_hour", title="per hour"),
        Column(key="valid_from_us", title="from", shape=Shape.TIME),
        Column(key="valid_to_us", title="to", shape=Shape.TIME, spare=3),
    )
    rows = [
        (
            price.price_id,
            price.asset_id,
            price.model,
            price.cluster,
            price.capacity_type,
            price.nanos_per_hour,
            decimal_text(price.nanos_per_hour),
            price.valid_from_us,
            price.valid_to_us,
        )
        for price in prices
    ]
    empty = "there are no prices; `kvledger prices add` adds one, `kvledger prices import` a file of them"
    show(Sheet(columns=columns, rows=rows, empty=empty), args.format, sys.stdout)
    return 0


def price_import(args: Namespace) -> int:
    """Take a whole price file as rules, in one transaction."""
    start_us = _since(args)
    rules = _rules(pricelist.read(Path(args.file)), args.cluster, args.file, start_us)
    with opened(args) as ledger:
        currency = ledger.settings.currency
        if currency != "USD":
            raise UsageError(
                f"{args.file}: its prices are in USD and this ledger's currency is {currency}; convert them"
            )
        new = ledger.database.write(lambda c: sum(_add_price(c, rule, ledger.settings) for rule in rules))
    known = f"; there already: {len(rules) - new:,}" if new < len(rules) else ""
    print(f"{args.file}: {new:,} of {counted(len(rules), 'price')} new, valid from {format_time(start_us)}{known}")
    return 0


def tenant_add(args: Namespace) -> int:
    """Register a tenant, or say something else about one: what is not said stays as it was."""
    labels: dict[str, str] = {}
    for key, value in args.label:
        if labels.setdefault(key, value) != value:
            raise UsageError(f"--label {key} is given as {labels[key]!r} and as {value!r}; a label has one value")

    def work(connection: Connection) -> bool:
        known = {tenant.tenant: tenant for tenant in store.list_tenants(connection)}
        before = replace(known.get(args.tenant, store.Tenant(tenant=args.tenant)), **{f: EMPTY[f] for f in args.clear})
        tenant = replace(
            before,
            labels={**before.labels, **labels},
            contacts=tuple(dict.fromkeys((*before.contacts, *args.contact))),
            **{name: text for name in TENANT_TEXTS if (text := getattr(args, name)) is not None},
        )
        return store.add_tenant(connection, tenant, now_us=now_us())

    with opened(args) as ledger:
        _said(f"tenant {args.tenant} is registered", new=ledger.database.write(work))
    return 0


def tenant_list(args: Namespace) -> int:
    """Every tenant, registered or seen in facts."""
    with opened(args) as ledger, ledger.database.read() as connection:
        registered = {tenant.tenant: tenant for tenant in store.list_tenants(connection)}
        names = sorted({*registered, *store.seen_tenants(connection)})
    columns = (
        Column(key="tenant", title="tenant", name=True),
        Column(key="registered", title="registered"),
        Column(key="display", title="name"),
        Column(key="cost_center", title="cost center"),
        Column(key="labels", title="labels", spare=1),
        Column(key="profile", title="profile", spare=2),
        Column(key="zone", title="zone", spare=3),
        Column(key="contacts"),
    )
    rows = []
    for name in names:
        tenant = registered.get(name, store.Tenant(tenant=name))
        labels = " ".join(f"{key}={value}" for key, value in sorted(tenant.labels.items()))
        rows.append(
            (
                name,
                name in registered,
                tenant.display,
                tenant.cost_center,
                labels,
                tenant.profile,
                tenant.zone,
                " ".join(tenant.contacts),
            )
        )
    empty = "no tenants are registered and none were seen; `kvledger tenants add` registers one"
    show(Sheet(columns=columns, rows=rows, empty=empty), args.format, sys.stdout)
    return 0


def _add_price(connection: Connection, price: Price, settings: Settings) -> bool:
    """Add a price; a ledger's first one fixes its currency and zone."""
    fit_terms(connection, settings, at_us=now_us())
    return store.add_price(connection, price, currency=settings.currency, now_us=now_us())


def _since(args: Namespace) -> int:
    if args.start is not None:
        return int(args.start)
    at_us = now_us()
    if not TIME_US_MIN <= at_us < TIME_US_MAX:
        raise UsageError(
            f"this machine's clock shows {format_time(at_us)}, outside {format_time(TIME_US_MIN)} … "
            f"{format_time(TIME_US_MAX)}: set the clock, or say when"
        )
    return period_start(at_us)


def _said(sentence: str, *, new: bool) -> None:
    print(sentence if new else f"{sentence} (as it was already)")


def _warn(sentence: str) -> None:
    """Something was done that may not be what was meant."""
    if sentence:
        print(f"kvledger: {sentence}", file=sys.stderr)


def _rules(
    listed: tuple[pricelist.ListedPrice, ...], cluster: str | None, name: str, start_us: int
) -> tuple[Price, ...]:
    """A rule for each listed price; where ``cluster`` takes them all, two that differ for one model are refused."""
    rules: dict[tuple[str, str, str], tuple[Price, int]] = {}
    for price in listed:
        where = cluster or "/".join(filter(None, (price.provider, price.instance_type, price.region)))
        key = (price.gpu, where, price.capacity.value)
        if key in rules and rules[key][0].nanos_per_hour != price.nanos_per_hour:
            other, line = rules[key]
            raise UsageError(
                f"{name}, line {price.line}: {price.gpu} {price.capacity.value} costs "
                f"{decimal_text(price.nanos_per_hour)}, and {decimal_text(other.nanos_per_hour)} in line {line}; "
                "a cluster has one price: leave out --cluster, or keep one provider's lines (nothing was imported)"
            )
        rule = Price(
            model=price.gpu,
            cluster=where,
            capacity_type=price.capacity.value,
            nanos_per_hour=price.nanos_per_hour,
            valid_from_us=start_us,
        )
        rules.setdefault(key, (rule, price.line))
    return tuple(rule for rule, _ in rules.values())
