"""One part of a segment's bill, divided over tenants and then over their sessions.

Invariant (law 5): the lines of a part sum to it, and the sessions of a line sum to the line, to the nano-unit. Nothing
is clamped: what the tenants do not take is ``idle``, and where they take more than there is, the difference stands
negative on ``over_allocation``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger.core.money import apportion
from ledger.core.settlement import Account, Kind, Line, SessionCost

if TYPE_CHECKING:
    from ledger.core.findings import Findings
    from ledger.core.records import Dimensions

Weights = Mapping[Kind, Mapping[int, int]]
"""By kind and session (an index), in the unit of the whole."""


@dataclass(slots=True)
class Amounts:
    """The amounts of an interval under one basis, gathered part by part."""

    dims: Sequence[Dimensions]
    findings: Findings
    lines: dict[tuple[Account, Kind, str], int] = field(default_factory=dict)
    asset_us: dict[Account, int] = field(default_factory=dict)
    sessions: dict[tuple[Kind, int], int] = field(default_factory=dict)

    def state(self, account: Account, nanos: int, asset_us: int) -> None:
        """Time in a state that costs ``nanos`` and is no tenant's."""
        self._line(account, Kind.NONE, "", nanos)
        self.asset_us[account] = self.asset_us.get(account, 0) + asset_us

    def divide(self, nanos: int, whole: int, weights: Weights, where: str) -> None:
        """Divide ``nanos`` so that a session with weight ``w`` has ``nanos * w / whole``, and idle what is left."""
        if not nanos:
            return
        by_tenant: dict[tuple[str, Kind], list[int]] = {}
        for kind, of_kind in weights.items():
            for session, weight in of_kind.items():
                if weight:
                    by_tenant.setdefault((self.dims[session].tenant, kind), []).append(session)
        keys = sorted(by_tenant)
        sums = [sum(weights[key[1]][session] for session in by_tenant[key]) for key in keys]
        rest = whole - sum(sums)
        # Ties go by tenant and kind, idle last. Where there is no whole, nobody can have a part of it.
        parts = apportion(nanos, [*sums, rest], range(len(sums) + 1)) if whole else [0] * len(sums) + [nanos]
        if rest < 0:
            self.findings.add("over_allocation", f"{where}: tenants have {sum(sums)} of {whole}; {parts[-1]} nanos")
        account = Account.OVER_ALLOCATION if rest < 0 else Account.IDLE
        self._line(account, Kind.NONE, "", parts[-1])
        for (tenant, kind), amount in zip(keys, parts, strict=False):
            self._line(Account.TENANT, kind, tenant, amount)
            self._divide_line(amount, kind, by_tenant[tenant, kind], weights[kind])

    def total_lines(self) -> tuple[Line, ...]:
        """The lines in the order of accounts, tenants and kinds; nothing that is nought."""
        order = list(Account)
        keys = set(self.lines) | {(account, Kind.NONE, "") for account in self.asset_us}
        found = []
        for account, kind, tenant in sorted(keys, key=lambda key: (order.index(key[0]), key[2], key[1])):
            amount = self.lines.get((account, kind, tenant), 0)
            asset_us = self.asset_us.get(account)
            if amount or asset_us:
                found.append(Line(account=account, kind=kind, tenant=tenant, amount_nanos=amount, asset_us=asset_us))
        return tuple(found)

    def session_costs(self) -> tuple[SessionCost, ...]:
        """Each session's part of its tenant's lines, by dimensions and kind; nothing that is nought."""
        costs = (
            SessionCost(dims=self.dims[session], kind=kind, amount_nanos=amount)
            for (kind, session), amount in self.sessions.items()
            if amount
        )
        return tuple(sorted(costs, key=lambda cost: (cost.dims, cost.kind)))

    def _divide_line(self, amount: int, kind: Kind, sessions: Sequence[int], weights: Mapping[int, int]) -> None:
        keys = [self.dims[session] for session in sessions]
        parts = apportion(amount, [weights[session] for session in sessions], keys)
        for session, part in zip(sessions, parts, strict=True):
            self.sessions[kind, session] = self.sessions.get((kind, session), 0) + part

    def _line(self, account: Account, kind: Kind, tenant: str, nanos: int) -> None:
        key = (account, kind, tenant)
        self.lines[key] = self.lines.get(key, 0) + nanos
