"""The spool: batches on disk until the service has acknowledged them, in the order they were appended.

Invariants: what :meth:`Spool.append` answered with True is handed out by :meth:`Spool.peek` until it is acknowledged
or a bound drops it, through any kill of the process; nothing is handed out that was not appended; what a bound or
damage takes is counted; no method but the constructor raises. The idea is the write-ahead log's.

* **Owners.** A process writes into a directory of its own below the root, and holds a lock (``flock``) on it while
  it lives. A directory without a living owner is adopted: its segments are moved into the adopter's. So engines may
  share a root, and a crashed one's batches are sent by whoever comes next.
* **Durability.** An append is in the page cache when it returns: it survives SIGKILL. With ``fsync`` (the default)
  it is on the disk too, and survives a loss of power. Acknowledgements are never synced: losing one costs a repeat,
  which the service recognises.
* **Bounds.** In bytes and in age, by whole segments, the oldest first. The age of what this process wrote goes by the
  monotonic clock, so a step of the wall clock drops nothing.
* **Damage.** See :mod:`ledger.outbox.segment`. A new process never continues an old file, so a torn tail stays a tail.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import threading
import time
import weakref
from itertools import count
from typing import TYPE_CHECKING, Final, Self

from ledger import limits
from ledger.errors import LedgerError
from ledger.outbox.line import Entry, File, Line, entry_of
from ledger.outbox.segment import RECORD_HEAD_BYTES, RECORDS_AT, Foreign, Segment
from ledger.outbox.tally import Loss, Tally, log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

_OWNER: Final = re.compile(r"\d{16}-[0-9a-f]{8}")
_SEGMENT: Final = re.compile(r"\d{16}-[0-9a-f]{8}-\d{8}\.seg")
_LOCK: Final = "lock"


def wall_us() -> int:
    """The system's wall clock, microseconds."""
    return time.time_ns() // 1000


class Spool:
    """A spool below ``root``, for one process; its methods may be called from any of its threads.

    ``bytes_max`` and ``age_s_max`` bound what this process keeps, what it adopted included. Raises ``OSError`` where
    ``root`` cannot be made, written or locked.
    """

    def __init__(
        self,
        root: Path,
        *,
        tally: Tally,
        bytes_max: int = limits.SPOOL_BYTES_MAX,
        age_s_max: float = limits.SPOOL_AGE_S_MAX,
        fsync: bool = True,
        wall_us: Callable[[], int] = wall_us,
        mono_s: Callable[[], float] = time.monotonic,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root = root
        self._tally = tally
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._segment_bytes = min(limits.SPOOL_SEGMENT_BYTES, bytes_max // 8)
        self._segment_s = min(3600.0, age_s_max / 8)
        self._fsync = fsync
        self._wall_us = wall_us
        self._mono_s = mono_s
        self._numbers = count(1)
        self._mutex = threading.Lock()
        self._line = Line(tally)
        self._told: str | None = None
        self._pid = os.getpid()
        self._directory, self._lock_fd = _claim(root, wall_us())
        _SPOOLS.add(self)
        self.adopt()

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        with self._mutex:
            return self._line.size

    @property
    def segments(self) -> int:
        """Files on the disk."""
        with self._mutex:
            return len(self._line.files)

    def append(self, payload: bytes) -> bool:
        """Keep ``payload``; False where the disk does not take it, which is told but not counted here."""
        if self._gone():
            return False
        with self._mutex:
            needed = RECORD_HEAD_BYTES + len(payload)
            if needed + RECORDS_AT > self._bytes_max or len(payload) > limits.SPOOL_RECORD_BYTES_MAX:
                return False
            try:
                file = self._growing(needed)
                self._trim(needed)
                assert file.segment is not None
                file.segment.append(payload, stamp_us=max(0, self._wall_us()))
                if self._fsync:
                    file.segment.sync()
            except OSError as error:
                self._rest()
                if error.strerror != self._told:
                    self._told = error.strerror
                    log.warning("%s takes no batch: %s", self._directory, error.strerror)
                return False
            finally:
                self._measure()
            self._told = None
            return True

    def peek(self) -> Entry | None:
        """The oldest batch that is not acknowledged; the same one until it is."""
        if self._gone():
            return None
        with self._mutex:
            self._trim(0)
            return self._line.peek()

    def acknowledge(self, entry: Entry) -> None:
        """The service has ``entry``: it is never handed out again, save after a crash at this moment."""
        if not self._gone():
            with self._mutex:
                self._line.acknowledge(entry)

    def adopt(self) -> int:
        """Take over the segments of owners that no longer live; says how many."""
        if self._gone():
            return 0
        with self._mutex:
            before = len(self._line.files)
            try:
                found = _owners(self.root)
            except OSError as error:
                log.warning("%s cannot be listed: %s", self.root, error.strerror)
                return 0
            for directory in found:
                if directory != self._directory:
                    for path in _moved(directory, self._directory):
                        self._line.add(path)
            adopted = len(self._line.files) - before
            self._trim(0)
            return adopted

    def close(self) -> None:
        """Let go of the files and of the lock; what is not acknowledged waits for the next owner."""
        if self._gone():
            return
        with self._mutex:
            self._rest()
            self._line.peek()  # deletes what was sent whole
            self._line.close()
            fd, self._lock_fd = self._lock_fd, -1
            _leave(self._directory, fd)

    def forget(self) -> None:
        """In the child of a fork: the parent keeps the spool, and this copy of it is dead."""
        if self._lock_fd >= 0:
            fd, self._lock_fd = self._lock_fd, -1
            os.close(fd)  # without unlocking, which would unlock the parent's, too

    def _gone(self) -> bool:
        return self._lock_fd < 0 or os.getpid() != self._pid

    def _growing(self, needed: int) -> File:
        """The file that is written to, with room for ``needed`` bytes: a new one where the last is full or old."""
        now_s = self._mono_s()
        if self._line.growing:
            file = self._line.files[-1]
            assert file.created_mono_s is not None
            if file.size + needed <= self._segment_bytes and now_s - file.created_mono_s < self._segment_s:
                return file
            self._rest()
        name = f"{self._directory.name}-{next(self._numbers):08d}.seg"
        segment = Segment.create(self._directory / name, now_us=max(0, self._wall_us()))
        if self._fsync:
            _sync_directory(self._directory)
        file = File(
            path=segment.path, size=segment.end, created_us=segment.created_us, created_mono_s=now_s, segment=segment
        )
        self._line.files.append(file)
        self._line.growing = True
        return file

    def _rest(self) -> None:
        """The file that grew is finished."""
        if self._line.growing:
            self._line.growing = False
            if len(self._line.files) > 1:
                self._line.files[-1].shut()

    def _measure(self) -> None:
        if self._line.growing:
            file = self._line.files[-1]
            assert file.segment is not None
            file.size = file.segment.end

    def _trim(self, needed: int) -> None:
        """Drop the oldest segments until the bounds hold with ``needed`` more bytes."""
        files, now_s = self._line.files, self._mono_s()
        while files:
            if self._line.size + needed > self._bytes_max or len(files) > limits.SPOOL_SEGMENTS_MAX:
                loss = Loss.SPOOL_BYTES
            elif self._age_s(files[0], now_s) > self._age_s_max:
                loss = Loss.SPOOL_AGE
            else:
                return
            if self._line.growing and len(files) == 1:
                return  # an empty or young file: what it holds was appended less than one segment's time ago
            self._tally.add(loss, self._line.pending(files[0]))
            self._line.drop_first()

    def _age_s(self, file: File, now_s: float) -> float:
        if file.created_mono_s is not None:
            return now_s - file.created_mono_s
        return (self._wall_us() - file.created_us) / 1e6


class Reading:
    """The batches of a spool that has no sender, in order; see :func:`read`."""

    def __init__(self, directory: Path) -> None:
        self.tally = Tally()
        """Damage that was met."""
        self.busy: list[Path] = []
        """Owners that were left out, since a process that lives writes there."""
        self.damaged: dict[Path, int] = {}
        """Segments in which damage was met, and its bytes."""
        self._directory = directory
        self._segments: dict[Path, Segment] = {}
        self._locks: list[tuple[Path, int]] = []
        if not directory.is_dir():
            raise LedgerError(f"{directory}: there is no such directory; name the one that KVLEDGER_SPOOL names")
        self._owners = [directory] if _segments(directory) else _owners(directory)
        if not self._owners:
            raise LedgerError(f"{directory}: no spool is in it; name the directory that KVLEDGER_SPOOL names")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        while self._locks:
            _leave(*self._locks.pop())

    def __iter__(self) -> Iterator[Entry]:
        for owner in self._owners:
            try:
                fd = _lock(owner)
            except OSError as error:
                raise LedgerError(f"{owner}: {error.strerror}; copy the spool to where it can be written") from error
            if fd is None:
                self.busy.append(owner)
                continue
            self._locks.append((owner, fd))
            for path in _segments(owner):
                yield from self._entries(path)

    def acknowledge(self, entry: Entry) -> None:
        """``entry`` is booked, and everything before it in its segment; it is read no more."""
        try:
            self._segments[entry.segment].acknowledge(entry.end)
        except OSError as error:
            raise LedgerError(f"{entry.segment}: what was booked cannot be noted there: {error.strerror}") from error

    def _entries(self, path: Path) -> Iterator[Entry]:
        try:
            segment = Segment.open(path)
        except Foreign as error:
            raise LedgerError(f"{path} is of a later version; read it with a kvledger that is not older") from error
        except OSError as error:
            raise LedgerError(f"{path}: {error.strerror}") from error
        self._segments[path] = segment
        at = last = segment.acknowledged
        while True:
            record, skipped = segment.read(at)
            if skipped:
                self.tally.damage(skipped)
                self.damaged[path] = self.damaged.get(path, 0) + skipped
            if record is None:
                break
            at = last = record.end
            yield entry_of(path, record)
        if segment.acknowledged >= last:
            path.unlink()
        self._segments.pop(path).close()


def read(directory: Path) -> Reading:
    """The batches of a spool that no sender drains, oldest first, for ``kvledger ingest``.

    ``directory`` is a spool's root or one owner's directory below it. Used as::

        with spool.read(directory) as reading:
            for entry in reading:
                book(entry.raw)             # the bytes of a batch, as wire.decode takes them
                reading.acknowledge(entry)  # from here on it is never read again

    An entry that is not acknowledged is read again the next time; segments that are acknowledged whole are
    deleted. Owners that live are left out (``reading.busy``), damage is counted (``reading.tally``). Raises
    :class:`LedgerError` where there is no spool or it cannot be read.
    """
    return Reading(directory)


_SPOOLS: Final[weakref.WeakSet[Spool]] = weakref.WeakSet()


def _forget_all() -> None:
    for spool in _SPOOLS:
        spool.forget()


os.register_at_fork(after_in_child=_forget_all)


def _claim(root: Path, now_us: int) -> tuple[Path, int]:
    """A new owner's directory, and the lock on it."""
    for _ in range(16):
        directory = root / f"{max(0, now_us):016d}-{secrets.token_hex(4)}"
        directory.mkdir(mode=0o700)
        # Between the two somebody may take it for an abandoned one and remove it; then it is the next try.
        try:
            fd = _lock(directory)
        except FileNotFoundError:
            fd = None
        if fd is not None:
            return directory, fd
    raise OSError(f"{root}: every directory made there was taken away")


def _lock(directory: Path) -> int | None:
    """The lock on an owner's directory; None where somebody has it."""
    path = directory / _LOCK
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(fd).st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def is_owned(directory: Path) -> bool:
    """Whether a living process writes into this owner's directory. Raises ``OSError`` where that cannot be seen."""
    fd = os.open(directory / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Shared, and for an instant: at worst somebody who would adopt the directory comes back for it in a minute.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _leave(directory: Path, fd: int) -> None:
    """Give up the lock, and the directory where nothing is left in it."""
    try:
        if not _segments(directory):
            (directory / _LOCK).unlink(missing_ok=True)
            directory.rmdir()
    except OSError:
        pass  # something else lies in it, or it cannot be written: an empty directory costs nothing
    os.close(fd)


def _owners(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if _OWNER.fullmatch(path.name) and path.is_dir())


def _segments(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if _SEGMENT.fullmatch(path.name))


def _moved(source: Path, target: Path) -> Iterator[Path]:
    """The segments of ``source``, each moved into ``target``; none where somebody owns it."""
    try:
        fd = _lock(source)
        if fd is None:
            return
        try:
            for path in _segments(source):
                yield path.rename(target / path.name)
        finally:
            _leave(source, fd)
    except FileNotFoundError:
        pass  # somebody else adopted it at the same time
    except OSError as error:
        log.warning("%s: what an earlier process left there cannot be taken over: %s", source, error.strerror)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
