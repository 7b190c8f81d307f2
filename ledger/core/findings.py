"""What settlement noticed: one sentence for each kind of trouble, however often it was seen."""

from __future__ import annotations


class Findings:
    """Collects findings by code; each keeps its first sentence and how many there were."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._count: dict[str, int] = {}

    def add(self, code: str, sentence: str) -> None:
        self._first.setdefault(code, sentence)
        self._count[code] = self._count.get(code, 0) + 1

    def sentences(self) -> tuple[str, ...]:
        """``code: sentence``, by code, with the number of further ones of the same code."""
        return tuple(
            f"{code}: {first}" + (f" (and {self._count[code] - 1} more)" if self._count[code] > 1 else "")
            for code, first in sorted(self._first.items())
        )
