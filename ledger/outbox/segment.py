"""One file of a spool: checksummed records one after the other, and how far they were acknowledged.

Invariants: a record is delivered only if its checksum holds, so a byte that is flipped, lost or added costs
the record that it lies in and no other; a file is written by one process, once, and never continued by another;
acknowledging needs no space on the disk. The layout, little-endian:

    0    48  identity: magic 8, salt 16, created_us 8, checksum 16
    48   48  the same again
    96   64  two slots of: acknowledged end 8, how many times 8, checksum 16; written in turns
    160  …   records: magic 4, length 4, stamp_us 8, checksum 16, payload

Checksums are BLAKE2b of 16 bytes keyed with the salt, so that bytes of another file never pass for a record.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ledger import limits

if TYPE_CHECKING:
    from pathlib import Path

MAGIC: Final = b"KVLSPL\x01\n"
_FAMILY: Final = MAGIC[:6]
_RECORD_MAGIC: Final = b"\xabKVR"
_IDENTITY: Final = struct.Struct("<8s16sQ16s")
_ACK: Final = struct.Struct("<QQ16s")
_RECORD: Final = struct.Struct("<4sIQ16s")
_HEAD: Final = struct.Struct("<4sIQ")
_ACKS_AT: Final = 2 * _IDENTITY.size
RECORDS_AT: Final = _ACKS_AT + 2 * _ACK.size
RECORD_HEAD_BYTES: Final = _RECORD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record whose checksum holds. ``end`` is where the next begins, ``stamped_us`` the wall clock at its append."""

    payload: bytes
    stamped_us: int
    end: int


class Foreign(Exception):  # noqa: N818 - not a fault: the file is left alone
    """The file is of a later version of this format."""


class Segment:
    """An open segment; :meth:`create` and :meth:`open` make one. Every method may raise ``OSError``."""

    def __init__(self, path: Path, fd: int, salt: bytes | None, created_us: int, end: int) -> None:
        self.path = path
        self.created_us = created_us
        self.end = end
        """Bytes of the file that may hold records; what an append that failed left behind is not among them."""
        self.acknowledged = RECORDS_AT
        self._fd = fd
        self._salt = salt
        self._acks = 0

    @classmethod
    def create(cls, path: Path, *, now_us: int) -> Segment:
        """A new file at ``path``; none is left behind where that fails."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        salt = os.urandom(16)
        stated = _IDENTITY.pack(MAGIC, salt, now_us, b"")[:-16]
        identity = stated + _sum(b"", stated)
        try:
            _write(fd, identity + identity + bytes(2 * _ACK.size), 0)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return cls(path, fd, salt, now_us, RECORDS_AT)

    @classmethod
    def open(cls, path: Path, *, writable: bool = True) -> Segment:
        """The file at ``path``. With an unreadable identity it has no records; a later version is :class:`Foreign`."""
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            head = os.pread(fd, RECORDS_AT, 0)
            salt, created_us = _identity(head)
        except BaseException:
            os.close(fd)
            raise
        segment = cls(path, fd, salt, created_us, size)
        if salt is not None:
            for at in (_ACKS_AT, _ACKS_AT + _ACK.size):
                segment._take_ack(head[at : at + _ACK.size])
        return segment

    def append(self, payload: bytes, *, stamp_us: int) -> int:
        """Write one record and say where it ends. Where that fails the file is as it was before, or reads as if."""
        assert self._salt is not None
        assert len(payload) <= limits.SPOOL_RECORD_BYTES_MAX
        stated = _HEAD.pack(_RECORD_MAGIC, len(payload), stamp_us)
        start = self.end
        try:
            _write(self._fd, stated + _sum(self._salt, stated, payload) + payload, start)
        except OSError:
            try:
                os.ftruncate(self._fd, start)
            except OSError:
                # What cannot be cut off is skipped by readers: a piece of a record has no valid checksum.
                self.end = os.fstat(self._fd).st_size
            raise
        self.end = start + RECORD_HEAD_BYTES + len(payload)
        return self.end

    def sync(self) -> None:
        """What was appended survives a loss of power."""
        os.fdatasync(self._fd)

    def read(self, at: int) -> tuple[Record | None, int]:
        """The first whole record at or after ``at``, and the bytes before it that are none of any record.

        None with the bytes up to the end where there is no more.
        """
        if self._salt is None:
            return None, max(0, self.end - RECORDS_AT)
        record = self._whole(at)
        if record is not None or at >= self.end:
            return record, 0
        rest = os.pread(self._fd, self.end - at, at)
        found = rest.find(_RECORD_MAGIC, 1)
        while found >= 0:
            record = self._whole(at + found)
            if record is not None:
                return record, found
            found = rest.find(_RECORD_MAGIC, found + 1)
        return None, self.end - at

    def acknowledge(self, end: int) -> None:
        """Every record that ends at or before ``end`` is done with."""
        if end <= self.acknowledged or self._salt is None:
            return
        self.acknowledged = end
        self._acks += 1
        stated = struct.pack("<QQ", end, self._acks)
        # In turns: a write that is torn spoils the older of the two at most, and costs a repeat.
        _write(self._fd, stated + _sum(self._salt, b"ack", stated), _ACKS_AT + self._acks % 2 * _ACK.size)

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _whole(self, at: int) -> Record | None:
        if at + RECORD_HEAD_BYTES > self.end:
            return None
        head = os.pread(self._fd, RECORD_HEAD_BYTES, at)
        if len(head) < RECORD_HEAD_BYTES:
            return None
        magic, length, stamped_us, checksum = _RECORD.unpack(head)
        end = at + RECORD_HEAD_BYTES + length
        if magic != _RECORD_MAGIC or length > limits.SPOOL_RECORD_BYTES_MAX or end > self.end:
            return None
        payload = os.pread(self._fd, length, at + RECORD_HEAD_BYTES)
        assert self._salt is not None
        if len(payload) != length or _sum(self._salt, head[: _HEAD.size], payload) != checksum:
            return None
        return Record(payload=payload, stamped_us=stamped_us, end=end)

    def _take_ack(self, slot: bytes) -> None:
        if len(slot) < _ACK.size or self._salt is None:
            return
        end, times, checksum = _ACK.unpack(slot)
        if checksum == _sum(self._salt, b"ack", slot[:16]) and self.acknowledged < end <= self.end:
            self.acknowledged, self._acks = end, times


def _identity(head: bytes) -> tuple[bytes | None, int]:
    """Salt and creation time from either copy; (None, 0) where both are damaged."""
    for at in (0, _IDENTITY.size):
        copy = head[at : at + _IDENTITY.size]
        if len(copy) < _IDENTITY.size:
            continue
        magic, salt, created_us, checksum = _IDENTITY.unpack(copy)
        if checksum != _sum(b"", copy[:-16]):
            continue
        if magic != MAGIC:
            if magic.startswith(_FAMILY):
                raise Foreign
            continue
        return salt, created_us
    return None, 0


def _sum(salt: bytes, *parts: bytes) -> bytes:
    state = blake2b(key=salt, digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()


def _write(fd: int, data: bytes, at: int) -> None:
    """All of ``data`` at ``at``, or ``OSError``."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        if written == 0:
            raise OSError(errno.ENOSPC, "the disk takes no more bytes")
        view, at = view[written:], at + written
