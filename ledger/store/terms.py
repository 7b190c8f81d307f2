"""What is set once for the ledger (currency, billing zone) and once for a month (terms of allocation).

Invariants: one currency for ever; one zone, fixed by the first booking; the terms of a closed month stay as they
were; a correction is a new row, and the newest that speaks of a thing counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, tzinfo

from sqlalchemy import Connection, func, select

from ledger.core.periods import Month, month_interval, month_of, parse_zone, settle_length_us
from ledger.core.settlement import Basis, Terms
from ledger.errors import Refusal, StoreError, UsageError
from ledger.store import book_tables as t
from ledger.store.database import lock
from ledger.store.rows import append, canonical

CURRENCY, ZONE, TERMS = "currency", "billing_zone", "terms"
FROM_THE_START = "0000-00"
"""The month of the first terms: they hold for whatever comes before others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTerms:
    """The settings of a ledger as they now count; ``by_month`` are (first month, terms), in order."""

    currency: str
    zone_name: str
    zone: tzinfo
    by_month: tuple[tuple[str, Terms], ...]

    @classmethod
    def of_new(cls, *, currency: str, zone_name: str, terms: Terms) -> LedgerTerms:
        """What :func:`ensure_terms` would write in a ledger that has none."""
        return cls(currency=currency, zone_name=zone_name, zone=_zone(zone_name), by_month=((FROM_THE_START, terms),))

    @property
    def interval_us(self) -> int:
        """Length of a settle interval."""
        return settle_length_us(self.zone)

    def month(self, at_us: int) -> str:
        """The month of the billing zone that holds ``at_us``, as ``YYYY-MM``."""
        return str(month_of(at_us, self.zone))

    def month_bounds(self, month: str) -> tuple[int, int]:
        """Start and end of a month in microseconds."""
        year, number = month.split("-")
        bounds = month_interval(Month(int(year), int(number)), self.zone)
        return bounds.start_us, bounds.end_us

    def terms(self, month: str) -> Terms:
        """The terms that hold for a month."""
        return [terms for first, terms in self.by_month if first <= month][-1]


def read_terms(connection: Connection) -> LedgerTerms:
    """The ledger's settings; StoreError where none are written yet."""
    found = find_terms(connection)
    if found is None:
        raise StoreError(
            "the ledger has no currency and no billing zone yet; `kvledger settle` writes those of the settings "
            "(`kvledger config show`), as a first price, a replay or the service does: run it, then ask again"
        )
    return found


def find_terms(connection: Connection) -> LedgerTerms | None:
    """The ledger's settings; None where none are written yet."""
    newest: dict[tuple[str, str], str] = {}
    for row in connection.execute(select(t.settings).order_by(t.settings.c.id)):
        newest[row.name, row.month] = row.value
    if (CURRENCY, "") not in newest:
        return None
    zone_name = newest[ZONE, ""]
    return LedgerTerms(
        currency=newest[CURRENCY, ""],
        zone_name=zone_name,
        zone=_zone(zone_name),
        by_month=tuple((month, _terms(value)) for (name, month), value in sorted(newest.items()) if name == TERMS),
    )


def ensure_terms(connection: Connection, *, currency: str, zone_name: str, terms: Terms, now_us: int) -> LedgerTerms:
    """Write the settings of a new ledger, or see that those given fit the ones it has.

    Another currency is refused, and another zone once something is booked. Other terms hold from the month
    after that of ``now_us`` on; :func:`set_terms` corrects an open month.
    """
    lock(connection, "config")
    known = find_terms(connection)
    if known is None:
        _write(connection, CURRENCY, "", currency, now_us)
        _write(connection, ZONE, "", zone_name, now_us)
        _write(connection, TERMS, FROM_THE_START, _text(terms), now_us)
        return read_terms(connection)
    if currency != known.currency:
        raise UsageError(
            f"this ledger is in {known.currency} and {currency} was given; "
            "a ledger has one currency: use another database for the other one"
        )
    if zone_name != known.zone_name:
        if connection.execute(select(func.count()).select_from(t.transactions)).scalar_one():
            raise UsageError(
                f"this ledger bills in the zone {known.zone_name} and {zone_name} was given; "
                "the zone is fixed once something is booked: use another database for the other one"
            )
        _write(connection, ZONE, "", zone_name, now_us)
    if terms != known.by_month[-1][1]:
        following = str(month_of(now_us, known.zone).next())
        if known.terms(following) != terms:
            _write(connection, TERMS, following, _text(terms), now_us)
    return read_terms(connection)


def set_terms(connection: Connection, month: str, terms: Terms, *, now_us: int) -> None:
    """Let ``terms`` hold from ``month`` on, which must not be closed; settling then books the difference."""
    lock(connection, "config")
    last = connection.execute(select(func.max(t.statements.c.month))).scalar_one()
    if last is not None and month <= last:
        raise UsageError(f"the terms of {month} cannot change, {last} is closed; set them for a later month")
    known = read_terms(connection)
    if (month, terms) not in known.by_month:
        _write(connection, TERMS, month, _text(terms), now_us)


def check_currency(connection: Connection, currency: str) -> None:
    """Refuse a currency other than the ledger's; UsageError says which that is."""
    known = find_terms(connection)
    if known is not None and known.currency != currency:
        raise UsageError(f"this ledger is in {known.currency} and a price in {currency} was given; convert it first")


def terms_value(terms: Terms) -> dict[str, int | str]:
    """The terms as they are written down."""
    return {
        "active_weight_milli": terms.active_weight_milli,
        "cached_weight_milli": terms.cached_weight_milli,
        "kv_share_ppm": terms.kv_share_ppm,
        "basis": terms.basis.value,
    }


def _text(terms: Terms) -> str:
    return canonical(terms_value(terms))


def _write(connection: Connection, name: str, month: str, value: str, now_us: int) -> None:
    append(connection, t.settings, {"name": name, "month": month, "value": value, "created_us": now_us})


def _zone(name: str) -> tzinfo:
    zone = UTC if name == "UTC" else parse_zone(name)
    if isinstance(zone, Refusal):
        raise StoreError(f"the ledger's zone cannot be used here: {zone.detail}")
    return zone


def _terms(text: str) -> Terms:
    value = json.loads(text)
    return Terms(
        active_weight_milli=value["active_weight_milli"],
        cached_weight_milli=value["cached_weight_milli"],
        kv_share_ppm=value["kv_share_ppm"],
        basis=Basis(value["basis"]),
    )
