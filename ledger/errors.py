"""What can go wrong in the world, said once.

Three kinds of trouble are told apart throughout the project. A bug is an ``assert``. Bad data is a
returned :class:`Refusal`, counted by its reason, never an exception. A broken world (a missing file, a
database that is down, an unusable argument) is a :class:`LedgerError`, whose message carries the value,
the limit it broke and the way out; the command line prints it as one line and exits.
"""

from __future__ import annotations

from dataclasses import dataclass


class LedgerError(Exception):
    """A broken world. The message names the value, the limit and the way out."""


class UsageError(LedgerError):
    """An argument or a setting that cannot be used."""


class StoreError(LedgerError):
    """The database did not do what it was asked to; the driver's error is the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a piece of data was not taken: a short stable reason for counting, and a sentence for a person."""

    reason: str
    detail: str
