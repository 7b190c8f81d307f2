"""One text for one record, and its SHA-256: two records have the same text exactly if they are equal.

Invariant: every field of a record is in its text, by its class's order of fields; so a field that is added later
changes digests, and says so in a test. Integers are written whole, and text as JSON with escapes.

A record is made of frozen dataclasses, tuples, enums, texts, integers, booleans and None; the module of a class has the
types of its fields at run time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, get_type_hints

_encode = json.JSONEncoder(separators=(",", ":")).encode
_SCALARS = (str, int, bool, type(None))

_Reader = tuple[Callable[[Any], tuple[Any, ...]], tuple[Callable[[Any], Any], ...]]
_readers: dict[type, _Reader] = {}
"""How each class is read, worked out once; there are as many entries as classes of records."""


def canonical(value: object) -> str:
    """The text of a record."""
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts)


def digest(*values: object) -> str:
    """SHA-256 of the records' texts, each on a line of its own, in hexadecimal."""
    hasher = hashlib.sha256()
    for value in values:
        hasher.update(canonical(value).encode())
        hasher.update(b"\n")
    return hasher.hexdigest()


def _write(value: object, parts: list[str]) -> None:
    if isinstance(value, _SCALARS):
        parts.append(_encode(value))
    elif isinstance(value, tuple):
        parts.append("[")
        for item in value:
            _write(item, parts)
            parts.append(";")
        parts.append("]")
    else:
        scalars, others = _readers.get(type(value)) or _reader(type(value))
        parts.append(_encode((type(value).__name__, *scalars(value))))
        for other in others:
            _write(other(value), parts)


def _reader(kind: type) -> _Reader:
    """How to read a class: its scalars at one go, those of records within it too, and the rest one by one.

    Tens of thousands of rows go into the digest of an hour; one call for all scalars of a row is five times as fast
    as a walk over its fields.
    """
    scalars, others = _paths(kind, "")
    getters = tuple(attrgetter(path) for path in scalars)
    # attrgetter returns a tuple only for two names and more.
    at_once: Callable[[Any], tuple[Any, ...]] = (
        attrgetter(*scalars) if len(scalars) > 1 else lambda value: tuple(get(value) for get in getters)
    )
    _readers[kind] = at_once, tuple(attrgetter(path) for path in others)
    return _readers[kind]


def _paths(kind: type, prefix: str) -> tuple[list[str], list[str]]:
    assert is_dataclass(kind), kind
    hints = get_type_hints(kind)
    scalars: list[str] = []
    others: list[str] = []
    for item in fields(kind):
        hint = hints[item.name]
        if isinstance(hint, type) and is_dataclass(hint):
            inner_scalars, inner_others = _paths(hint, f"{prefix}{item.name}.")
            scalars += inner_scalars
            others += inner_others
        elif isinstance(hint, type) and issubclass(hint, _SCALARS):
            scalars.append(prefix + item.name)
        else:
            others.append(prefix + item.name)
    return scalars, others
