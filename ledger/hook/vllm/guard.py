"""What keeps the hook's faults from the engine: each is caught, counted by place, told once; after a few it lets go.

Invariant: a guarded call returns ``None`` and never raises, whatever its body does.
"""

# ruff: noqa: LOG004 - ``fault`` is called where an exception is handled

from __future__ import annotations

import functools
import logging
from collections import Counter
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from ledger.limits import HOOK_FAULTS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

log: Final = logging.getLogger("kvledger.hook")

P = ParamSpec("P")
Self = TypeVar("Self", bound="Guarded")


class Guarded:
    """Something whose methods the engine's thread runs through; ``off`` once it has let go."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()
        self.off = False

    def fault(self, where: str) -> None:
        """Called while an exception is handled: count it, tell the first of its place, let go after a few."""
        self.faults[where] += 1
        if self.faults[where] == 1:
            log.exception("kvledger: a fault of the hook's own in %s, kept away from the engine", where)
        if not self.off and self.faults.total() >= HOOK_FAULTS_MAX:
            self.off = True
            log.error("kvledger: the hook lets go of the engine after %d faults of its own", self.faults.total())
            try:
                self.let_go()
            except Exception:
                log.exception("kvledger: and could not do it cleanly")

    def let_go(self) -> None:
        """Undo what was attached; called once, and guarded."""


def guarded(method: Callable[Concatenate[Self, P], None]) -> Callable[Concatenate[Self, P], None]:
    """The method, skipped once the hook is off, and with its exceptions kept in."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.off:
            return
        try:
            method(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - a guest: whatever it is, it ends here, counted
            self.fault(name)

    return call
