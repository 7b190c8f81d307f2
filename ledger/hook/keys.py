"""Which tenant an API key belongs to: a file that is followed while the engine runs. Standard library only.

Invariants: a lookup waits for no disk, reading is another thread's; a file that cannot be used changes nothing, is
counted, and is told once; a key that has left the file is forgotten within :data:`LOOK_S` and the next lookup after it.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ledger import limits
from ledger.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

log: Final = logging.getLogger("kvledger.identity")

LOOK_S: Final = 5.0
"""Between two looks at the file: keys are given out and taken back by people, and a look is a system call."""

WAY_OUT: Final = "a line is TENANT sha256:HEX, HEX by: printf %s KEY | sha256sum"

_Version = tuple[int, int, int]


class KeyFile(Mapping[bytes, str]):
    """The map from the SHA-256 of API keys to tenants, as the file has it now, or had it when it could last be used."""

    def __init__(
        self,
        path: Path,
        *,
        mono_s: Callable[[], float] = time.monotonic,
        apart: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Raises :class:`UsageError` where the file cannot be used. ``apart`` runs a look elsewhere than here."""
        self.path = path
        self.refused = 0
        """Versions of the file that could not be used."""
        self._mono_s = mono_s
        self._apart = apart or _in_a_thread
        self._version = _version(path)
        self._tenants = read_keys(path)
        self._looked_s = mono_s()
        self._looking = threading.Lock()

    def __getitem__(self, key: bytes) -> str:
        self._look_now_and_then()
        return self._tenants[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._tenants)

    def __len__(self) -> int:
        self._look_now_and_then()
        return len(self._tenants)

    def _look_now_and_then(self) -> None:
        now_s = self._mono_s()
        if now_s - self._looked_s >= LOOK_S and self._looking.acquire(blocking=False):
            self._looked_s = now_s
            self._apart(self._look)

    def _look(self) -> None:
        try:
            version = _version(self.path)
            if version != self._version:
                # Taken before it is read: what is written meanwhile makes another version.
                self._version = version
                self._take()
        finally:
            self._looking.release()

    def _take(self) -> None:
        try:
            self._tenants = read_keys(self.path)
        except UsageError as error:
            self.refused += 1
            log.error("the keys of before hold, as the file cannot be used: %s", error)  # noqa: TRY400 - it says it all
        else:
            log.warning("%s has changed: %d keys from now on", self.path, len(self._tenants))


def read_keys(path: Path) -> dict[bytes, str]:
    """The map in a file; blank lines and lines that begin with # are left out. Raises :class:`UsageError`."""
    found: dict[bytes, str] = {}
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"KVLEDGER_KEYS = {path}: it cannot be read: {error}; {WAY_OUT}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        tenant, _, digest = line.strip().rpartition(" ")
        tenant = tenant.strip()
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest) or not 0 < len(tenant) <= limits.IDENTITY_CHARS_MAX:
            raise UsageError(f"{path}:{number}: it is no pair of tenant and key; {WAY_OUT}")
        raw = bytes.fromhex(digest[7:])
        if found.setdefault(raw, tenant) != tenant:
            raise UsageError(f"{path}:{number}: the same key belongs to {found[raw]} already; a key has one tenant")
        if len(found) > limits.IDENTITY_KEYS_MAX:
            raise UsageError(f"{path}: more than {limits.IDENTITY_KEYS_MAX} keys")
    return found


def _version(path: Path) -> _Version | None:
    """What tells one content of the file from another, as far as can be told without reading; None: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _in_a_thread(look: Callable[[], None]) -> None:
    threading.Thread(target=look, name="kvledger-keys", daemon=True).start()
