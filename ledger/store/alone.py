"""One service on one SQLite file: a second one is told who has it.

Invariant: the claim is the kernel's lock on a file beside the database, so it ends with the process however that ends;
what stands in that file is for people and is believed only while the lock is held.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ledger.errors import LedgerError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOTE_BYTES_MAX = 200
"""Of what is written into the file: a process and an address."""


@contextmanager
def alone(database: Path) -> Iterator[Callable[[str], None]]:
    """Serve ``database`` alone for as long as the context lasts. LedgerError where somebody else does.

    What comes back takes the address that the service is at, for the next one who tries.
    """
    true = database.resolve()
    path = true.with_name(true.name + ".serving")
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path} cannot be made ({error.strerror}); see that the folder can be written") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(file, NOTE_BYTES_MAX, 0).decode("utf-8", "replace").strip()
            raise LedgerError(
                f"{database} is served already by {holder or 'another process'}: use that one, stop it first, or name "
                "another ledger with --state-dir or --database (several services on one ledger want PostgreSQL)"
            ) from None

        def note(address: str) -> None:
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} at {address}\n".encode(), 0)

        note("an address that it has yet to open")
        yield note
    finally:
        os.close(file)
