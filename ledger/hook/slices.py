"""The settling's work in small slices: sorting, the tree of tenants, sessions and requests, and the rests between.

Whoever computes in Python keeps the engine's thread waiting for the interpreter, so nothing here goes on for long.
"""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING, Any, TypeVar

from ledger.core.sharing import SHIFT, divide
from ledger.hook.requests import Request
from ledger.limits import LIGHT_ROWS, SLICE_ROWS, SORT_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ledger.core.records import Dimensions

Item = TypeVar("Item")


def in_slices(items: Iterable[Item], rest: Callable[[], None], rows: int = SLICE_ROWS) -> Iterator[Item]:
    """The items, with a rest after every few: the thread that settles holds the interpreter's lock meanwhile."""
    for i, item in enumerate(items, 1):
        yield item
        if not i % rows:
            rest()


def in_order(items: Iterable[Item], key: Callable[[Item], Any], rest: Callable[[], None]) -> list[Item]:
    """The items sorted by ``key``, which tells each from each: in runs that are merged, with rests between."""
    every = list(in_slices(items, rest, LIGHT_ROWS))
    if rest is no_rest or len(every) <= SORT_ROWS:
        return sorted(every, key=key)
    runs = []
    for start in range(0, len(every), SORT_ROWS):
        runs.append(sorted(every[start : start + SORT_ROWS], key=key))
        rest()
    return list(in_slices(merge(*runs, key=key), rest, LIGHT_ROWS))


def no_rest() -> None:
    """Settle in one go: nobody is waiting."""


class Tree:
    """Requests under their sessions under their tenants, in the order of their names."""

    def __init__(self, members: Iterable[Request | Dimensions], rest: Callable[[], None]) -> None:
        self._rest = rest
        keyed = in_order(
            (
                (member.dims, member.id, member) if isinstance(member, Request) else (member, "", member)
                for member in members
            ),
            lambda entry: (sort_key(entry[0]), entry[1]),
            rest,
        )
        self.members = [member for _, _, member in keyed]
        self.tenants: list[list[tuple[Dimensions, int, int]]] = []
        tenant = None
        for i, (dims, _, _) in enumerate(in_slices(keyed, rest, LIGHT_ROWS)):
            if dims.tenant != tenant:
                tenant = dims.tenant
                self.tenants.append([(dims, i, i + 1)])
            elif (last := self.tenants[-1][-1])[0] == dims:
                self.tenants[-1][-1] = (dims, last[1], i + 1)
            else:
                self.tenants[-1].append((dims, i, i + 1))

    def settle(self, total: int, exact: list[int]) -> tuple[dict[Dimensions, int], list[int]]:
        """Whole units of ``total`` for each session and each member; ``exact`` is aligned with ``members``."""
        units = [part >> SHIFT for part in exact]
        if sum(units) == total:
            sessions = {
                dims: sum(units[a:b])
                for tenant in self.tenants
                for dims, a, b in in_slices(tenant, self._rest, LIGHT_ROWS)
            }
            return sessions, units
        sums = [[sum(exact[a:b]) for _, a, b in in_slices(tenant, self._rest, LIGHT_ROWS)] for tenant in self.tenants]
        sessions = {}
        for share, tenant, parts in zip(divide(total, [sum(of) for of in sums]), self.tenants, sums, strict=True):
            for part, (dims, a, b) in in_slices(zip(divide(share, parts), tenant, strict=True), self._rest, LIGHT_ROWS):
                sessions[dims] = part
                units[a:b] = (part,) if b == a + 1 else divide(part, exact[a:b])
        return sessions, units


def sort_key(dims: Dimensions) -> tuple[str, str, str, str, str, int]:
    return (dims.tenant, dims.session, dims.model, dims.adapter, dims.scenario, dims.priority)
