"""Step times on their way from an engine's worker processes to its core: one small file of shared memory for each rank.

Invariants: one writer, one reader, and neither waits for the other; a record is taken whole or counted as lost (it
bears its number and a sum); the file has a fixed size that is reserved before it is used, and is gone once the core has
opened it, whoever dies after that. Both sides use plain file calls: a mapped page that cannot be had would end the
engine by a signal.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledger.hook.histograms import METHODS
from ledger.limits import RING_AGE_S_MAX, RING_RECORDS

FOLDER: Final = Path("/dev/shm")  # noqa: S108 - names bear the user, files are made anew and for the user alone
"""Memory that processes share; vLLM's own message queues live there, so where it is missing vLLM has no workers."""

_HEAD: Final = struct.Struct("<8siii44x")
_RECORD: Final = struct.Struct("<qqqqq")
_MAGIC: Final = b"KVSTEPS1"
_SIZE: Final = _HEAD.size + RING_RECORDS * _RECORD.size
_METHODS: Final = tuple(sorted(METHODS))
_PLACES: Final = {method: place for place, method in enumerate(_METHODS)}
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What a rank has timed of one step, in microseconds."""

    number: int
    """Steps of this rank, from 1."""
    execute_us: int
    communication_us: int | None
    """None: not known."""
    method: str


def path_of(instance: str, dp: int, rank: int, folder: Path = FOLDER) -> Path:
    """Where ``rank`` of an engine writes; ``instance`` is vLLM's name of the engine, the same in all its processes."""
    return folder / f"{prefix()}{re.sub(r'[^A-Za-z0-9_-]', '_', instance)[:64]}-dp{dp}-{rank}"


def prefix() -> str:
    return f"kvledger-{os.getuid()}-"


class RingWriter:
    """The side of a worker process. Raises OSError where there is no room; writing does not raise for want of any."""

    def __init__(self, path: Path, *, dp: int, pp: int, tp: int) -> None:
        _sweep(path.parent)
        path.unlink(missing_ok=True)
        self.path = path
        self._number = 0
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._file, 0, _SIZE)
            os.pwrite(self._file, _HEAD.pack(_MAGIC, dp, pp, tp), 0)
        except OSError:
            self.close()
            raise

    def write(self, execute_us: int, communication_us: int | None, method: str) -> None:
        """The next step's times; after :data:`RING_RECORDS` unread ones the oldest is overwritten."""
        number = self._number = self._number + 1
        known = _UNKNOWN if communication_us is None else communication_us
        place = _PLACES[method]
        record = _RECORD.pack(number, execute_us, known, place, _sum(number, execute_us, known, place))
        os.pwrite(self._file, record, _HEAD.size + (number - 1) % RING_RECORDS * _RECORD.size)

    def close(self) -> None:
        """Close the file, and delete it if the core has not."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self.path.unlink(missing_ok=True)


class RingReader:
    """The side of the engine core. Raises FileNotFoundError where the rank has not begun, OSError, ValueError."""

    def __init__(self, path: Path) -> None:
        self.lost = 0
        """Steps that were overwritten before they were read, or could not be read."""
        self._next = 1
        self._torn = 0
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self.dp, self.pp, self.tp = self._head(path)
        except BaseException:
            self.close()
            raise
        # Both ends are open: from here on nothing is left behind.
        path.unlink(missing_ok=True)

    def _head(self, path: Path) -> tuple[int, int, int]:
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise ValueError(f"{path} is not a file of this user's")
        head = os.pread(self._file, _HEAD.size, 0)
        if found.st_size < _SIZE or head[: len(_MAGIC)] != _MAGIC:
            # It is just being made.
            raise FileNotFoundError(path)
        _, dp, pp, tp = _HEAD.unpack(head)
        return dp, pp, tp

    @property
    def shard(self) -> str:
        """The rank as the meter calls it."""
        return f"dp{self.dp}pp{self.pp}tp{self.tp}"

    @property
    def number(self) -> int:
        """The last step that was read, or was lost."""
        return self._next - 1

    def read(self, limit: int) -> list[StepTimes]:
        """What was written since, oldest first, at most ``limit``."""
        slot = (self._next - 1) % RING_RECORDS
        count = min(limit, RING_RECORDS - slot)
        raw = os.pread(self._file, count * _RECORD.size, _HEAD.size + slot * _RECORD.size)
        taken: list[StepTimes] = []
        for record in _RECORD.iter_unpack(raw):
            if (times := self._take(*record)) is None:
                break
            taken.append(times)
        return taken

    def _take(self, number: int, execute_us: int, communication_us: int, place: int, total: int) -> StepTimes | None:
        """The next step's times; None where the slot does not have them, or not whole."""
        if not number:
            return None
        if total != _sum(number, execute_us, communication_us, place):
            # It is just being written and whole the next time, or it never will be.
            self._torn += 1
            if self._torn > 1:
                self._skip(self._next + 1)
            return None
        self._torn = 0
        if number > self._next:
            # The writer is a round ahead, or more. Half a round of what is left is given up: he goes on meanwhile.
            self._skip(number - RING_RECORDS // 2)
        if number != self._next:
            return None
        self._next += 1
        return StepTimes(
            number=number,
            execute_us=execute_us,
            communication_us=None if communication_us == _UNKNOWN else communication_us,
            method=_METHODS[place],
        )

    def _skip(self, number: int) -> None:
        self.lost += number - self._next
        self._next = number
        self._torn = 0

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _sum(number: int, execute_us: int, communication_us: int, place: int) -> int:
    """What the parts of a record give together, and those of two records mixed do not."""
    return 3 * number + 5 * execute_us + 7 * communication_us + 11 * place + 1


def _sweep(folder: Path) -> None:
    """Delete what workers of this user's have left whose core has never opened it."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{prefix()}*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_ctime > RING_AGE_S_MAX:
                    path.unlink()
