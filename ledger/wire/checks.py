"""The values of a document, checked one by one: the first fault located and named.

Nothing below trusts the sender: a bool is no integer, a text is bounded and can be stored, a list is bounded.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ledger import limits
from ledger.refusals import Reason
from ledger.wire.fields import ABSENT, Ints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Object = dict[str, Any]

_UNWRITABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""PostgreSQL stores no NUL, UTF-8 no lone surrogate, and no identifier needs another control character."""


class Bad(Exception):  # noqa: N818 - it never leaves the wire: it becomes a Refusal there
    """The first fault found in a batch."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail

    def within(self, where: str) -> Bad:
        """The same fault, seen from one level further out."""
        return Bad(self.reason, f"{where}.{self.detail}")


def fault(name: str, value: object, low: int, high: int) -> Bad:
    if value is ABSENT:
        return Bad(Reason.MISSING_FIELD, f"{name}: missing")
    if type(value) is not int:
        return Bad(Reason.WRONG_TYPE, f"{name} = {str(value)[:40]!r}: must be an integer")
    if value == limits.BLANK_INT64:
        return Bad(Reason.SENTINEL, f"{name} = {value}: a blank value; leave the field out instead")
    if value < 0 <= low:
        return Bad(Reason.NEGATIVE, f"{name} = {short(value)}: must be {low} … {high}")
    return Bad(Reason.OUT_OF_BOUNDS, f"{name} = {short(value)}: must be {low} … {high}")


def short(value: int) -> str:
    return str(value) if abs(value) < 10**40 else "a number of more than 40 digits"


def ints(item: Object, fields: Ints) -> dict[str, Any]:
    """The integers of one object; a field's default is ``ABSENT`` where it has to be there."""
    found = {}
    for name, default, low, high in fields:
        value = item.get(name, default)
        if type(value) is not int or not low <= value <= high:
            raise fault(name, value, low, high)
        found[name] = value
    return found


def int_or_none(item: Object, name: str, low: int, high: int) -> int | None:
    value = item.get(name)
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise fault(name, value, low, high)
    return value


def figures_or_none(item: Object, fields: Iterable[tuple[str, int, int]]) -> dict[str, Any]:
    """The integers of one object that may be left out, by name, low and high bound."""
    return {name: int_or_none(item, name, low, high) for name, low, high in fields}


def text(item: Object, name: str, *, default: str | None = "") -> str:
    """A text; ``default=None`` asks for one that is there and not empty."""
    value = item.get(name, default)
    if not isinstance(value, str):
        if value is None and name not in item:
            raise Bad(Reason.MISSING_FIELD, f"{name}: missing")
        raise Bad(Reason.WRONG_TYPE, f"{name} = {str(value)[:40]!r}: must be a text")
    if len(value) > limits.TEXT_CHARS_MAX:
        raise Bad(Reason.TOO_LONG, f"{name}: {len(value)} characters; at most {limits.TEXT_CHARS_MAX}")
    if _UNWRITABLE.search(value):
        raise Bad(Reason.BAD_TEXT, f"{name} = {value[:40]!a}: has a control character or a lone surrogate")
    if not value and default is None:
        raise Bad(Reason.BAD_TEXT, f"{name}: must not be empty")
    return value


def texts(item: Object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: text(item, name) for name in names}


def flag(item: Object, name: str, *, default: bool) -> bool:
    value = item.get(name, default)
    if not isinstance(value, bool):
        raise Bad(Reason.WRONG_TYPE, f"{name} = {str(value)[:40]!r}: must be true or false")
    return value


def word(item: Object, name: str, words: Mapping[str, Any], default: str | None = None) -> Any:
    value = text(item, name, default=default)
    if value not in words:
        raise Bad(Reason.UNKNOWN_WORD, f"{name} = {value[:40]!r}: must be one of {', '.join(words)}")
    return words[value]


def object_of(item: Object, name: str) -> Object:
    """The object in a field that has to be there."""
    value = item.get(name, ABSENT)
    if value is ABSENT:
        raise Bad(Reason.MISSING_FIELD, f"{name}: missing")
    if not isinstance(value, dict):
        raise Bad(Reason.WRONG_TYPE, f"{name}: must be an object")
    return value


def inner(item: Object, name: str, fields: Ints, make: type[Any], empty: Any) -> Any:
    """A record of integers within a row; left out where all are zero."""
    value = item.get(name)
    if value is None and name not in item:
        return empty
    if not isinstance(value, dict):
        raise Bad(Reason.WRONG_TYPE, f"{name}: must be an object")
    try:
        return make(**ints(value, fields))
    except Bad as bad:
        raise bad.within(name) from None


def listed(item: Object, name: str, read: Callable[[Any], Any], most: int) -> tuple[Any, ...]:
    value = item.get(name, ())
    if value == () and name not in item:
        return ()
    if not isinstance(value, list):
        raise Bad(Reason.WRONG_TYPE, f"{name}: must be a list")
    if len(value) > most:
        raise Bad(Reason.TOO_MANY, f"{name}: {len(value)} entries; at most {most}")
    found = []
    try:
        for entry in value:
            if not isinstance(entry, dict):
                raise Bad(Reason.WRONG_TYPE, "must be an object")  # noqa: TRY301 - located by the handler below
            found.append(read(entry))
    except Bad as bad:
        raise bad.within(f"{name}[{len(found)}]") from None
    return tuple(found)


def pairs(item: Object, name: str, most: int, read: Callable[[Any, Any], Any]) -> tuple[Any, ...]:
    value = item.get(name, [])
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise Bad(Reason.WRONG_TYPE, f"{name}: must be a list of pairs")
    if len(value) > most:
        raise Bad(Reason.TOO_MANY, f"{name}: {len(value)} entries; at most {most}")
    found = tuple(read(*pair) for pair in value)
    if any(before[0] >= after[0] for before, after in pairwise(found)):
        raise Bad(Reason.BAD_ORDER, f"{name}: must be sorted, each once")
    return found
