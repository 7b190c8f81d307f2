"""A pool's part of the meter: who takes which blocks, and lets them go. The interface is docs/hook.md.

As in :mod:`ledger.hook.meter` nothing raises: what cannot be is a fault, counted by reason.
"""

# ruff: noqa: BLE001
# Whatever goes wrong in here must not reach the engine: each call catches everything, and counts it.

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.holders import Table
from ledger.core.sharing import Cell
from ledger.hook.requests import OTHERS, OWN, TRANSFERRED, Request, cover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.holders import Owner
    from ledger.hook.boot import BootAccount, PoolAccount


class PoolMeter:
    """The account of one pool: made by :meth:`Meter.open`."""

    def __init__(self, boot: BootAccount, pool: PoolAccount) -> None:
        self._boot = boot
        self._pool = pool
        self._tables = pool.tables

    @property
    def name(self) -> str:
        return self._pool.name

    @property
    def counts(self) -> tuple[int, int, int]:
        """Active, cached and free blocks at this moment."""
        accounts = self._pool.accounts
        active = accounts.active
        return active, accounts.cached, accounts.blocks - active - accounts.cached

    def block_size(self, group: int) -> int:
        """Slots of a block of ``group``."""
        return self._pool.accounts.groups[group].block_size

    def is_held(self, block: int) -> bool:
        """Whether some request has the block."""
        return isinstance(self._pool.accounts.owner[block], Table | Cell)

    def is_shared(self, block: int) -> bool:
        """Whether several requests have the block."""
        return isinstance(self._pool.accounts.owner[block], Cell)

    def acquire(
        self,
        t_us: int,
        request: str,
        group: int,
        *,
        hit: Sequence[int] = (),
        loaded: Sequence[int] = (),
        new: Sequence[int] = (),
        covered_tokens: int | None = None,
        skipped_tokens: int = 0,
    ) -> None:
        """``request`` takes blocks, in the order of its block table: first hits, then loaded, then new ones.

        ``skipped_tokens`` is for a window's first hit on group 0: what it covers before the first block that is named.
        """
        boot = self._boot
        try:
            if t_us != boot.now:
                if not boot.now <= t_us < boot.next:
                    t_us = boot.turn(t_us)
                boot.now = t_us
            table = self._tables[group].get(request)
            if table is None:
                table = self._new_table(t_us, request, group)
            elif table.falls and len(new) == 1 and not hit and not loaded and self._grow(t_us, group, (request,), new):
                return
            holder: Request = table.holder  # type: ignore[assignment]  # the meter's holders are requests
            if hit or loaded:
                self._take_content(
                    t_us,
                    holder,
                    table,
                    hit=hit,
                    loaded=loaded,
                    covered_tokens=covered_tokens,
                    skipped_tokens=skipped_tokens,
                )
            elif group and not table.order:
                self._align(holder, table, 0)
            if new:
                self._pool.accounts.take_new(t_us, table, new)
            if not holder.steady and holder.ended_t is None:
                boot.steps.partial[request] = holder
        except Exception:
            boot.broken()

    def grow(self, t_us: int, group: int, requests: Sequence[str], blocks: Sequence[int]) -> None:
        """Each of ``requests`` takes one new block, in order: as so many calls of :meth:`acquire`, for less."""
        boot = self._boot
        try:
            if t_us != boot.now:
                if not boot.now <= t_us < boot.next:
                    t_us = boot.turn(t_us)
                boot.now = t_us
            place = 0
            while (place := self._grow(t_us, group, requests, blocks, place)) < len(requests):
                self.acquire(t_us, requests[place], group, new=(blocks[place],))
                place += 1
        except Exception:
            boot.broken()

    def _grow(self, t: int, group: int, requests: Sequence[str], blocks: Sequence[int], start: int = 0) -> int:
        """The first place from ``start`` on whose block needs more than a note; those before it have theirs."""
        return self._pool.accounts.take_next(t, group, self._tables[group], names=requests, blocks=blocks, start=start)

    def _new_table(self, t: int, name: str, group: int) -> Table:
        boot = self._boot
        request = boot.steps.requests.get(name)
        if request is None:
            boot.fault("unknown_request")
            request = boot.adopt(t, name)
        elif request.ended_t is not None:
            boot.fault("ended_request")
        table = self._pool.accounts.table(request, group)
        self._pool.tables[group][name] = table
        return table

    def _align(self, holder: Request, table: Table, full: int, skipped: int = 0) -> None:
        """Where the first block of a table lies: groups beside the first skip what they need not hold."""
        if not table.group:
            table.base = table.tail = skipped
            return
        if not self._pool.leads or not table.size:
            return
        frontier = holder.frontier + (self._boot.steps.ticks.n if holder.steady else 0)
        size = table.size
        end = max(full * size, -(-frontier // size) * size) if full else frontier // size * size
        table.base = table.tail = end - full * size

    def _take_content(
        self,
        t: int,
        holder: Request,
        table: Table,
        *,
        hit: Sequence[int],
        loaded: Sequence[int],
        covered_tokens: int | None,
        skipped_tokens: int,
    ) -> None:
        steps = self._boot.steps
        accounts = self._pool.accounts
        cells = accounts.whole_leaves(hit)
        owners = () if cells else accounts.owners(hit)
        if loaded:
            # Of these only that they are blocks of the pool.
            accounts.owners(loaded)
        if holder.steady:
            steps.rouse(t, holder)
        if (table.group or skipped_tokens) and not table.order:
            self._align(holder, table, len(hit) + len(loaded), skipped_tokens)
        if self._pool.leads and not table.group and holder.ended_t is None:
            size = table.size or 1
            runs = self._classes(holder, hit, owners, cells, size)
            if loaded:
                runs.append((TRANSFERRED, len(loaded) * size))
            tokens = (len(hit) + len(loaded)) * size if covered_tokens is None else max(covered_tokens, 0)
            if table.base and not table.order:
                runs.insert(0, (runs[0][0], table.base))
                tokens += table.base
            cover(holder, steps.counts(holder), tokens, runs)
            steps.moved(t, holder)
        if owners:
            accounts.take_hit(t, table, hit, owners)
        elif cells:
            accounts.take_leaves(t, table, hit, cells)
        if loaded:
            accounts.take_full(t, table, loaded)

    def _classes(
        self, holder: Request, hit: Sequence[int], owners: tuple[Owner, ...], cells: Sequence[Cell], size: int
    ) -> list[tuple[int, int]]:
        """Whose work is hit, in runs of positions; ``cells`` are the leaves that it consists of, if it does."""
        key = holder.key
        if len(cells) == 1 and (writer := cells[0].writer) is not None:
            return [(OWN if writer == key else OTHERS, len(hit) * size)]
        writers = [cell.writer for cell in cells]
        if writers and None not in writers:
            return [(OWN if cell.writer == key else OTHERS, cell.node.blocks * size) for cell in cells]
        accounts = self._pool.accounts
        authors = accounts.authors(hit, owners or accounts.owners(hit))
        return [(OWN if author == key else OTHERS, size) for author in authors]

    def release(
        self, t_us: int, request: str, blocks: Sequence[int], *, cached: Sequence[int] = (), freed: Sequence[int] = ()
    ) -> None:
        """``request`` lets ``blocks`` go; ``cached`` and ``freed`` are those among them that nobody holds any more."""
        boot = self._boot
        try:
            if t_us != boot.now:
                if not boot.now <= t_us < boot.next:
                    t_us = boot.turn(t_us)
                boot.now = t_us
            if not blocks:
                return
            holder = boot.steps.requests.get(request)
            if holder is None:
                boot.fault("unknown_request")
                return
            accounts = self._pool.accounts
            if accounts.release_all(t_us, holder, blocks, cached, freed):
                holder.note_peak(len(blocks))
            else:
                holder.note_peak(holder.held)
                accounts.release(t_us, holder, blocks, cached, freed)
                if holder.holds:
                    return
            boot.has_let_go(t_us, holder)
        except Exception:
            boot.broken()

    def evict(self, t_us: int, blocks: Sequence[int]) -> None:
        """Cached blocks lose their content and become free."""
        boot = self._boot
        try:
            if t_us != boot.now:
                if not boot.now <= t_us < boot.next:
                    t_us = boot.turn(t_us)
                boot.now = t_us
            if blocks:
                self._pool.accounts.evict(t_us, blocks)
        except Exception:
            boot.broken()

    def close(self, t_us: int, reason: str = "shutdown") -> None:
        """The pool goes away with all that is in it; the period is cut at ``t_us``."""
        boot = self._boot
        try:
            if self._pool not in boot.pools:
                boot.fault("pool_not_open")
                return
            boot.close_pools(boot.event(t_us, closing=True), (self._pool,), reason)
        except Exception:
            boot.broken()
