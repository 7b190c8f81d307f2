"""A function of vLLM's replaced by one around it, once, however often plugins are loaded."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MARK: Final = "_kvledger"


def wrap_once(owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``around(original)`` in the place of ``owner.name``; nothing where it stands there already.

    ``owner`` is a class or a module. What is put in is a plain function: a static or class method of vLLM's, which
    comes bound, is called through its class alone.
    """
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return
    wrapped = functools.wraps(original)(around(original))
    setattr(wrapped, _MARK, True)
    is_bound = getattr(original, "__self__", None) is not None
    setattr(owner, name, staticmethod(wrapped) if is_bound else wrapped)
