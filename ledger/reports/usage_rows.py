"""A row of a usage report, and the sums that it is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CHARGES = {"active": "active_nanos", "cached": "cached_nanos", "compute": "compute_nanos"}
"""The figure that each kind of cost goes to."""

TOKENS = (
    "computed_tokens",
    "cached_own_tokens",
    "cached_others_tokens",
    "transferred_tokens",
    "unprocessed_tokens",
    "recomputed_tokens",
    "output_tokens",
    "drafted_tokens",
    "rejected_tokens",
)
"""Token counts, in the order of the keys of a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """One row: the first attributes name it (which of them, says the report), the others are figures.

    A figure is None where it is not known: of a request that the range cuts, and wherever it does not apply.
    ``request`` is None in the residual row of a session.
    """

    tenant: str = ""
    session: str = ""
    request: str | None = None
    outcome: str = ""
    model: str = ""
    engine: str = ""
    pool: str = ""
    active_block_us: int | None = None
    cached_block_us: int | None = None
    cached_charged_block_us: int | None = None
    unfilled_slot_us: int | None = None
    compute_us: int | None = None
    weighted_milliunits: int | None = None
    active_nanos: int | None = None
    cached_nanos: int | None = None
    compute_nanos: int | None = None
    computed_tokens: int | None = None
    cached_own_tokens: int | None = None
    cached_others_tokens: int | None = None
    transferred_tokens: int | None = None
    unprocessed_tokens: int | None = None
    recomputed_tokens: int | None = None
    output_tokens: int | None = None
    drafted_tokens: int | None = None
    rejected_tokens: int | None = None
    free_block_us: int | None = None
    capacity_block_us: int | None = None

    @property
    def cost_nanos(self) -> int:
        """All that is charged."""
        return (self.active_nanos or 0) + (self.cached_nanos or 0) + (self.compute_nanos or 0)

    def key(self, names: Iterable[str]) -> tuple[str, ...]:
        """The row's name, for sorting."""
        return tuple(str(getattr(self, name) or "") for name in names)


SUMMED = tuple(
    name
    for name in UsageRow.__slots__
    if name not in ("tenant", "session", "request", "outcome", "model", "engine", "pool")
    and name not in ("free_block_us", "capacity_block_us")
)
"""Figures that :class:`Figures` keeps."""


class Figures:
    """Running sums of a row's figures."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[str, int] = dict.fromkeys(SUMMED, 0)

    def __getitem__(self, name: str) -> int:
        return self._sums[name]

    def add(self, other: Figures) -> None:
        for name, value in other._sums.items():
            self._sums[name] += value

    def subtract(self, name: str, value: int) -> None:
        self._sums[name] -= value

    def add_named(self, name: str, value: int) -> None:
        self._sums[name] += value

    def set(self, name: str, value: int) -> None:
        self._sums[name] = value

    def add_columns(self, names: Sequence[str], values: Sequence[int]) -> None:
        """Add what is a figure among the columns of a stored row."""
        for name, value in zip(names, values, strict=True):
            if name in self._sums:
                self._sums[name] += value

    def any(self) -> bool:
        return any(self._sums.values())

    def onto(self, row: UsageRow, **more: int) -> UsageRow:
        """The row with these figures."""
        named: dict[str, Any] = {**self._sums, **more}
        return replace(row, **named)
