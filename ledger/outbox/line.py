"""The line of segments that wait to be sent, and the place in the first of them.

Invariant: the entry handed out stays the same until it is acknowledged or its segment is dropped; a segment is
deleted once everything that can be read of it was acknowledged. The caller locks.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger import limits
from ledger.outbox.segment import Foreign, Record, Segment
from ledger.outbox.tally import Tally, log

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A batch of the spool. ``payload`` is what was appended: an encoded batch, gzipped."""

    payload: bytes
    stamped_us: int
    """The wall clock when it was appended."""
    segment: Path
    end: int

    @property
    def raw(self) -> bytes:
        """The encoded batch, decompressed, never more than one byte above ``BATCH_BYTES_MAX``.

        Bytes that are no gzip come back as they are, for the reader of batches to refuse by name.
        """
        try:
            return zlib.decompressobj(wbits=31).decompress(self.payload, limits.BATCH_BYTES_MAX + 1)
        except zlib.error:
            return self.payload


@dataclass(slots=True, kw_only=True)
class File:
    """A segment of the line. ``segment`` is None while it is not open."""

    path: Path
    size: int
    created_us: int
    created_mono_s: float | None
    """None: another process wrote it."""
    at: int = 0
    """Where the next record to hand out begins."""
    segment: Segment | None = None

    def shut(self) -> None:
        """Close the file; it is opened again when its turn comes."""
        if self.segment is not None:
            self.segment.close()
            self.segment = None


class Line:
    """Segments in order, and the place in the first of them. The caller locks."""

    def __init__(self, tally: Tally) -> None:
        self.files: list[File] = []
        self.growing = False
        """Whether the last of ``files`` is still written to."""
        self._tally = tally
        self._head: Entry | None = None

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.size for file in self.files)

    def add(self, path: Path) -> None:
        """Take in a segment that lies on the disk, before the one that grows; one that cannot be read is told."""
        try:
            segment = Segment.open(path)
        except Foreign:
            log.warning("%s is of a later version; it stays where it is until such a version reads it", path)
            return
        except OSError as error:
            log.warning("%s cannot be read (%s); it stays where it is", path, error.strerror)
            return
        segment.close()
        self.files.insert(
            len(self.files) - self.growing,
            File(path=path, size=segment.end, created_us=segment.created_us, created_mono_s=None),
        )

    def peek(self) -> Entry | None:
        """The oldest entry; finished segments before it are deleted, except the one that grows."""
        while self._head is None and self.files:
            file = self.files[0]
            segment = self._opened(file)
            if segment is None:
                self.files.pop(0)
                continue
            file.at = max(file.at, segment.acknowledged)
            try:
                record, skipped = segment.read(file.at)
            except OSError as error:
                log.warning("%s cannot be read at byte %d (%s): the rest of it is lost", file.path, file.at, error)
                record, skipped = None, segment.end - file.at
            if skipped:
                self._tally.damage(skipped)
            if record is None:
                file.at = max(file.at, segment.end)
                if self.growing and len(self.files) == 1:
                    break
                self.drop_first()
            else:
                file.at = record.end
                self._head = entry_of(file.path, record)
        return self._head

    def acknowledge(self, entry: Entry) -> None:
        """``entry`` and what stood before it in its segment is done with."""
        for file in self.files:
            if file.path == entry.segment:
                segment = self._opened(file)
                if segment is not None:
                    try:
                        segment.acknowledge(entry.end)
                    except OSError as error:
                        # Kept in memory all the same: only a restart would send it again.
                        log.warning("%s: the acknowledgement could not be written: %s", file.path, error.strerror)
                break
        if self._head == entry:
            self._head = None

    def drop_first(self) -> None:
        """Forget the first segment, and delete it."""
        file = self.files.pop(0)
        if self._head is not None and self._head.segment == file.path:
            self._head = None
        file.shut()
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be deleted: %s", file.path, error.strerror)

    def pending(self, file: File) -> int:
        """Records of ``file`` that are not acknowledged."""
        segment = self._opened(file)
        if segment is None:
            return 0
        at, found = segment.acknowledged, 0
        try:
            while (record := segment.read(at)[0]) is not None:
                at, found = record.end, found + 1
        except OSError:
            pass  # What cannot be read cannot be counted; that it cannot be read was told already.
        return found

    def close(self) -> None:
        """Close the files, which stay."""
        for file in self.files:
            file.shut()

    def _opened(self, file: File) -> Segment | None:
        if file.segment is None:
            try:
                file.segment = Segment.open(file.path)
            except (OSError, Foreign) as error:
                log.warning("%s can no longer be read: %s", file.path, error)
                self._tally.damage(file.size)
        return file.segment


def entry_of(path: Path, record: Record) -> Entry:
    """``record`` of the segment at ``path``, as it is handed out."""
    return Entry(payload=record.payload, stamped_us=record.stamped_us, segment=path, end=record.end)
