"""vLLM's own counters, read from its /metrics."""

from __future__ import annotations

import re
import urllib.request

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Samples:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._samples: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            if found := _LINE.match(line):
                labels = dict(_LABEL.findall(found["labels"] or ""))
                self._samples.append((found["name"], labels, float(found["value"])))

    def total(self, name: str, **labels: str) -> int:
        """The sum of a counter's series that have these labels; fails where there is none."""
        found = [v for n, has, v in self._samples if n == name and labels.items() <= has.items()]
        assert found, f"no {name} {labels}"
        assert sum(found) == int(sum(found)), name
        return int(sum(found))

    def by(self, name: str, label: str) -> dict[str, int]:
        """A counter by one of its labels."""
        found: dict[str, int] = {}
        for n, has, value in self._samples:
            if n == name:
                found[has[label]] = found.get(has[label], 0) + int(value)
        return found


def scrape(url: str) -> Samples:
    """What the server says at this moment."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return Samples(answer.read().decode())
