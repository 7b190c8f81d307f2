"""Processes as the kernel shows them: threads, processor time, memory, and the thread that is busiest.

Invariants: a process is known by its id and when it started, so an id that is used again is another process; what the
kernel does not show (a process that has ended, another user's) is absent; reading costs one file a process a period,
and one a thread only of a process that used most of a core, since no other can have a thread at its limit.

A thread that is at 100 % while others wake often and get little done is what the interpreter's lock looks like from
outside: they wait for it, 200 times a second each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledger import limits
from ledger.core.samples import ProcessPeriod, Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")

HOT_PPM: Final = 800_000
"""Processor time of a process, in millionths of one core, from which on its threads are looked at."""

WAKES_PER_S: Final = 50
"""A thread that gives up its core by itself more often than this has something to do all the time."""

LITTLE_PPM: Final = 50_000
"""What such a thread may use of a core and still count as waiting."""

PARENTS_MAX: Final = 3
"""Levels above a process on a GPU: an API server, an engine core, a worker."""

NAMES_EVERY: Final = 4
"""Periods between two searches for processes by name: reading every name takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Threads that do a process's work, as that process itself counts them."""

    workers: int
    busy: int
    queued: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    """A line of ``/proc/PID/stat``: what of it is used here."""

    name: str
    parent: int
    group: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    rss_bytes: int


@dataclass(slots=True, kw_only=True)
class _Known:
    """A process that is watched: what it is, and how it stood at the end of the period before."""

    start_ticks: int
    inner_pid: int | None
    cpu_ticks: int
    threads: dict[int, tuple[int, int]] | None = None
    """Processor ticks and times that it gave up its core, by thread; None: not looked at."""


class Processes:
    """The watched processes of this host. One thread asks, once a period."""

    def __init__(self, *, root: Path = Path("/proc"), own: int | None = None, names: Iterable[str] = ()) -> None:
        self._root = root
        self._own = own
        self._names = frozenset(names)
        self._known: dict[int, _Known] = {}
        self._named: tuple[int, ...] = ()
        self._periods = 0
        self._boot_us = self._read_boot_us()

    def period(
        self, on_gpus: Iterable[int], length_us: int, pools: Mapping[int, Pool] | None = None
    ) -> tuple[ProcessPeriod, ...]:
        """Every watched process at the end of a period of ``length_us``, by id; ``pools`` by id where known."""
        if self._names and self._periods % NAMES_EVERY == 0:
            self._named = tuple(self._find_named())
        self._periods += 1
        watched: dict[int, tuple[Watch, _Stat]] = {}
        for pid in self._named:
            self._watch(watched, pid, Watch.NAMED)
        for pid in on_gpus:
            self._watch(watched, pid, Watch.GPU)
            self._watch_parents(watched, pid)
        if self._own is not None:
            self._watch(watched, self._own, Watch.OWN)
        for pid in self._known.keys() - watched.keys():
            del self._known[pid]
        pids = sorted(watched)[: limits.PROCESSES_MAX]
        return tuple(self._row(pid, *watched[pid], length_us, (pools or {}).get(pid)) for pid in pids)

    def _watch(self, watched: dict[int, tuple[Watch, _Stat]], pid: int, why: Watch) -> None:
        stat = watched[pid][1] if pid in watched else self._stat(pid)
        if stat is not None:
            watched[pid] = (why, stat)

    def _watch_parents(self, watched: dict[int, tuple[Watch, _Stat]], pid: int) -> None:
        for _ in range(PARENTS_MAX):
            if pid not in watched:
                return
            child = watched[pid][1]
            pid = child.parent
            stat = self._stat(pid) if pid > 1 and pid not in watched else None
            if stat is None or stat.group != child.group:
                return
            watched[pid] = (Watch.PARENT, stat)

    def _row(self, pid: int, why: Watch, stat: _Stat, length_us: int, pool: Pool | None) -> ProcessPeriod:
        known = self._known.get(pid)
        cpu_us = None
        if known is None or known.start_ticks != stat.start_ticks:
            inner = self._inner_pid(pid)
            known = _Known(start_ticks=stat.start_ticks, inner_pid=inner, cpu_ticks=stat.cpu_ticks)
            self._known[pid] = known
        else:
            cpu_us = max(0, stat.cpu_ticks - known.cpu_ticks) * 1_000_000 // TICKS
            known.cpu_ticks = stat.cpu_ticks
        busiest, busiest_us, waiting = "", None, None
        if cpu_us is not None and cpu_us * 1_000_000 >= HOT_PPM * length_us:
            busiest, busiest_us, waiting = self._threads(pid, known, length_us)
        else:
            known.threads = None
        started_us = None
        if self._boot_us is not None:
            started_us = self._boot_us + stat.start_ticks * 1_000_000 // TICKS
        return ProcessPeriod(
            pid=pid,
            inner_pid=known.inner_pid,
            name=stat.name,
            watch=why,
            started_us=started_us,
            threads=stat.threads,
            rss_bytes=stat.rss_bytes,
            cpu_us=cpu_us,
            busiest=busiest,
            busiest_us=busiest_us,
            waiting_threads=waiting,
            workers=None if pool is None else pool.workers,
            workers_busy=None if pool is None else pool.busy,
            queued=None if pool is None else pool.queued,
        )

    # -- threads ---------------------------------------------------------------------------------------

    def _threads(self, pid: int, known: _Known, length_us: int) -> tuple[str, int | None, int | None]:
        """The busiest thread's name and time, and how many others wait; unknown where there is nothing to compare."""
        before, now, names = known.threads, {}, {}
        for tid in self._numbers(self._root / str(pid) / "task"):
            folder = self._root / str(pid) / "task" / str(tid)
            stat, gave_up = _parsed(_text(folder / "stat")), _switches(_text(folder / "status"))
            if stat is not None:
                now[tid], names[tid] = (stat.cpu_ticks, gave_up), stat.name
        known.threads = now
        if before is None or not now:
            return "", None, None
        used = {tid: max(0, ticks - before.get(tid, (0, 0))[0]) for tid, (ticks, _) in now.items()}
        top = max(used, key=lambda tid: (used[tid], -tid))
        waiting = 0
        for tid, (_, gave_up) in now.items():
            wakes = gave_up - before.get(tid, (0, gave_up))[1]
            often = wakes * 1_000_000 >= WAKES_PER_S * length_us
            waiting += tid != top and often and used[tid] * 10**12 < LITTLE_PPM * length_us * TICKS
        return names[top], used[top] * 1_000_000 // TICKS, waiting

    # -- files -----------------------------------------------------------------------------------------

    def _stat(self, pid: int) -> _Stat | None:
        return _parsed(_text(self._root / str(pid) / "stat"))

    def _inner_pid(self, pid: int) -> int | None:
        """The process's id in its innermost namespace, where that is not the agent's own."""
        for line in _text(self._root / str(pid) / "status").splitlines():
            if line.startswith("NSpid:"):
                inner = line.split()[-1]
                return int(inner) if inner.isdecimal() and int(inner) != pid else None
        return None

    def _find_named(self) -> Iterator[int]:
        for pid in self._numbers(self._root):
            if _text(self._root / str(pid) / "comm").rstrip("\n") in self._names:
                yield pid

    def _numbers(self, folder: Path) -> list[int]:
        try:
            return [int(name) for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208 - a third of the time
        except OSError:
            return []

    def _read_boot_us(self) -> int | None:
        for line in _text(self._root / "stat").splitlines():
            if line.startswith("btime "):
                return int(line.split()[1]) * 1_000_000
        return None


def _text(path: Path) -> str:
    """The file's text; empty where it cannot be read: the process has ended, or is somebody else's."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - half the time
            return file.read()
    except OSError:
        return ""


def _parsed(line: str) -> _Stat | None:
    """A line of ``stat``; the name may have spaces and brackets, so what follows it is found from the end."""
    head, closed, tail = line.rpartition(")")
    fields = tail.split()
    if not closed or len(fields) < 22:
        return None
    name = head.partition("(")[2]
    return _Stat(
        name="".join(c if c.isprintable() else "?" for c in name),
        parent=int(fields[1]),
        group=int(fields[2]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE,
    )


def _switches(status: str) -> int:
    """How often a thread gave up its core by itself."""
    at = status.find("\nvoluntary_ctxt_switches:")
    return int(status[at:].split(None, 2)[1]) if at >= 0 else 0
