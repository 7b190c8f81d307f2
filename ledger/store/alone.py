"""Who serves a ledger, and where: one service on one SQLite file, and an address for whoever looks.

Invariant: the claim is the kernel's lock on a file of its own, so it ends with the process however that ends; what
stands in that file is believed only while the lock is held.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ledger.errors import LedgerError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOTE_BYTES_MAX: Final = 200
"""Of what is written into the file: a process and an address."""

SERVING: Final = "service.serving"
"""In the state directory of a service on PostgreSQL."""

LOOK_S: Final = 0.5
"""Whoever looks holds the lock for an instant, so a claim is tried again for so long before it is refused."""


def lock_of(database: Path) -> Path:
    """The lock of an SQLite ledger, whichever of its names is given."""
    true = database.resolve()
    return true.with_name(true.name + ".serving")


@contextmanager
def alone(database: Path) -> Iterator[Callable[[str], None]]:
    """Serve ``database`` alone for as long as the context lasts. LedgerError where somebody else does.

    What comes back takes the address that the service is at, for whoever looks or tries next.
    """
    file = _opened(lock_of(database))
    try:
        if not _claimed(file):
            raise LedgerError(
                f"{database} is served already by {_note(file) or 'another process'}: use that one, stop it first, or "
                "name another ledger with --state-dir or --database (several services on one ledger want PostgreSQL)"
            )
        yield _noting(file)
    finally:
        os.close(file)


@contextmanager
def among_others(path: Path) -> Iterator[Callable[[str], None]]:
    """Where several may serve one ledger: the first with this file notes where it is, the others go without."""
    file = _opened(path)
    try:
        yield _noting(file) if _claimed(file) else lambda _address: None
    finally:
        os.close(file)


def served_at(path: Path) -> str | None:
    """Where the service is that holds the lock; empty where it has yet to listen, None where there is none.

    OSError where the file may not be read, so that nobody can tell.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        found = re.search(r"https?://\S+", _note(file))
        return found[0] if found else ""
    else:
        return None
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path} cannot be made ({error.strerror}); see that the folder can be written") from error


def _claimed(file: int) -> bool:
    until_s = time.monotonic() + LOOK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until_s:
                return False
            time.sleep(LOOK_S / 10)
        else:
            return True


def _note(file: int) -> str:
    return os.pread(file, NOTE_BYTES_MAX, 0).decode("utf-8", "replace").strip()


def _noting(file: int) -> Callable[[str], None]:
    def note(address: str) -> None:
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} at {address}\n".encode(), 0)

    note("an address that it has yet to open")
    return note
