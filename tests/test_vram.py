"""The memory of GPUs as loops log it, from what was kept."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from batches import T0
from sampled import GIB

from ledger.reports.vram import log_lines, readings, tool_lines
from ledger.store.gpu_history import MemoryRow

if TYPE_CHECKING:
    from pathlib import Path

    from commandline import CommandLine

SECOND = 1_000_000
MIB = 1024**2
HEADING = "memory.used [MiB], memory.free [MiB], memory.total [MiB]"


def row(second: int, used: int | None, *, marks: tuple[int, ...] = (), length: int = 15) -> MemoryRow:
    free = None if used is None else 80 * GIB - used
    return MemoryRow(
        start_us=T0 + second * SECOND, end_us=T0 + (second + length) * SECOND, gpu="GPU-1", of="device",
        least_bytes=used, mean_bytes=used, most_bytes=used, marks_bytes=marks, free_bytes=free, total_bytes=80 * GIB,
    )  # fmt: skip


def said(rows: list[MemoryRow], *, seconds: int, every: int = 15, extra: bool = False) -> list[str]:
    found = readings([(0, "GPU-1", rows)], T0, T0 + seconds * SECOND, every_us=every * SECOND)
    return list(tool_lines(found, extra=extra))


def line(used_mib: int) -> str:
    return f"{used_mib} MiB, {80 * 1024 - used_mib} MiB, 81920 MiB"


def test_a_row_holds_until_the_next_one_and_for_a_minute() -> None:
    rows = [row(0, 1024 * MIB), row(60, 2048 * MIB)]
    assert said(rows, seconds=90) == [HEADING] + [line(1024)] * 4 + [line(2048)] * 2
    assert len(said([row(0, GIB)], seconds=300)) == 1 + 5, "then nobody looked"
    assert said([], seconds=60) == [HEADING]


def test_an_instant_at_a_mark_is_what_was_read_then() -> None:
    rows = [row(0, 1002 * MIB, marks=(1000 * MIB, 1001 * MIB, 1005 * MIB))]
    assert said(rows, seconds=20, every=5) == [HEADING, line(1000), line(1001), line(1005), line(1002)]
    assert said([row(3, 7 * MIB, marks=(1, 2, 3), length=12)], seconds=15, every=5)[-1] == line(7), "a cut period"


def test_a_figure_that_is_not_known_is_not_available_and_no_zero() -> None:
    assert said([row(0, None)], seconds=15) == [HEADING, "[N/A], [N/A], 81920 MiB"]
    assert list(log_lines(readings([(0, "GPU-1", [row(0, None)])], T0, T0 + 15 * SECOND, every_us=5 * SECOND))) == []


def test_time_index_and_uuid_may_stand_before() -> None:
    assert said([row(0, GIB)], seconds=15, extra=True) == [
        f"timestamp, index, uuid, {HEADING}", f"2026/11/03 00:00:15.000, 0, GPU-1, {line(1024)}"
    ]  # fmt: skip


@pytest.fixture
def kept(kvledger: CommandLine, leaked: tuple[Path, int]) -> CommandLine:
    shutil.copyfile(leaked[0], kvledger.file)
    return kvledger


SPAN = ("--from", "2026-11-03T00:00:00Z", "--to", "2026-11-03T00:40:00Z")
BEGAN_S = 1_793_664_000


def test_a_leak_is_exported_as_the_loop_that_reads_used_every_five_seconds_logs_it(kept: CommandLine) -> None:
    answer = kept("collect", "export", "--format", "csv", "--gpu", "0", *SPAN)
    assert answer.code == 0, answer
    body = [one.split(",") for one in answer.out.splitlines()]
    assert [float(when) for when, _ in body] == [BEGAN_S + 5.0 * number for number in range(1, 481)]
    used = [int(value) for _, value in body]
    assert used == sorted(used)
    assert (used[-1] - used[0]) / MIB == pytest.approx(400, abs=4), "10 MiB a minute"
    steps = [int(one.split(",")[1]) for one in kept("collect", "export", "--gpu", "GPU-2", *SPAN).out.splitlines()]
    assert [after - before for before, after in pairwise(steps) if after != before] == [200 * MIB] * 3


def test_all_gpus_are_exported_as_the_tool_logs_them(kept: CommandLine) -> None:
    answer = kept("collect", "export", "--format", "nvidia-smi", "--every", "15s", *SPAN)
    head, *body = answer.out.splitlines()
    assert head == HEADING
    assert len(body) == 3 * 40 * 4, "three GPUs, an instant every 15 s"
    assert all(re.fullmatch(r"\d+ MiB, \d+ MiB, 81920 MiB", one) for one in body)
    asked = ("--format", "nvidia-smi", "--gpu", "2", "--every", "10m", "--timestamps")
    alone = kept("collect", "export", *asked, *SPAN).out.splitlines()
    assert [one.split(", ")[:3] for one in alone[1:]] == [
        [f"2026/11/03 00:{minute}:00.000", "2", "GPU-2"] for minute in (10, 20, 30, 40)
    ]


def test_what_cannot_be_exported_is_said_with_the_way_out(kept: CommandLine) -> None:
    several = kept.fails("collect", "export", *SPAN)
    assert "3 were seen (0 on h, 1 on h, 2 on h); name one with --gpu and --host" in several
    assert "--timestamps is of --format nvidia-smi" in kept.fails("collect", "export", "--timestamps", *SPAN)
    assert "no agent saw a GPU '9'" in kept.fails("collect", "export", "--gpu", "9", *SPAN)
    assert "no time between" in kept.fails(
        "collect", "export", "--from", "2026-11-03T00:00:00Z", "--to", "2026-11-03T00:00:00Z"
    )
    assert "5s, 15s" in kept("collect", "export", "--every", "7s").err
