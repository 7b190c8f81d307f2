"""`kvledger collect export`: the memory of GPUs from what was kept, in the form of the logs that loops write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.commands.opening import now_us, opened
from ledger.core.periods import HOUR_US, format_time
from ledger.errors import UsageError
from ledger.limits import DAY_US
from ledger.reports.vram import HOLDS_US, Form, log_lines, readings, tool_lines
from ledger.store.gpu_history import known_gpus, memory_rows

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from ledger.reports.vram import Reading
    from ledger.store.database import Connection
    from ledger.store.gpu_history import KnownGpu

NAMED_MAX = 8
"""GPUs that a refusal names."""


def export(args: Namespace) -> int:
    """Print a line for every instant and GPU; a day is in memory at a time."""
    end_us = now_us() if args.end is None else args.end
    start_us = end_us - HOUR_US if args.start is None else args.start
    if start_us >= end_us:
        raise UsageError(f"from {format_time(start_us)} to {format_time(end_us)}: there is no time between the two")
    form = Form(args.format)
    if args.timestamps and form is Form.CSV:
        raise UsageError("--timestamps is of --format nvidia-smi; a line of csv begins with its time")
    with opened(args) as ledger, ledger.database.read() as connection:
        gpus = _chosen(known_gpus(connection, start_us, end_us), args.gpu, args.host)
        if not gpus:
            raise UsageError(_nothing(args, start_us, end_us))
        if form is Form.CSV and len(gpus) > 1:
            raise UsageError(_several(gpus))
        found = _days(connection, gpus, start_us, end_us, args.every)
        for line in log_lines(found) if form is Form.CSV else tool_lines(found, extra=args.timestamps):
            print(line)
    return 0


def _days(
    connection: Connection, gpus: Sequence[KnownGpu], start_us: int, end_us: int, every_us: int
) -> Iterator[Reading]:
    at_us = start_us
    while at_us < end_us:
        until_us = min(end_us, at_us - at_us % DAY_US + DAY_US)
        rows = [
            (gpu.index, gpu.uuid, list(memory_rows(connection, [gpu], at_us - HOLDS_US, until_us, devices_only=True)))
            for gpu in gpus
        ]
        yield from readings(rows, at_us, until_us, every_us=every_us)
        at_us = until_us


def _chosen(gpus: Sequence[KnownGpu], wanted: str | None, host: str | None) -> list[KnownGpu]:
    """Devices, or the one GPU or instance that was named by its UUID or index."""
    of_host = [gpu for gpu in gpus if host is None or gpu.host == host]
    if wanted is None:
        return [gpu for gpu in of_host if not gpu.parent]
    by_uuid = [gpu for gpu in of_host if gpu.uuid == wanted]
    return by_uuid or [gpu for gpu in of_host if not gpu.parent and str(gpu.index) == wanted]


def _several(gpus: Sequence[KnownGpu]) -> str:
    seen = ", ".join(f"{gpu.index} on {gpu.host or '?'}" for gpu in gpus[:NAMED_MAX])
    more = ", …" if len(gpus) > NAMED_MAX else ""
    return (
        f"--format csv is of one GPU, and {len(gpus)} were seen ({seen}{more}); name one with --gpu and --host, "
        "or write --format nvidia-smi --timestamps"
    )


def _nothing(args: Namespace, start_us: int, end_us: int) -> str:
    named = f"GPU {args.gpu!r}" if args.gpu is not None else "GPU"
    at = f" on {args.host!r}" if args.host is not None else ""
    span = f"from {format_time(start_us)} to {format_time(end_us)}"
    return f"no agent saw a {named}{at} {span}; --from and --to say when, `kvledger agent --once` what a host has"
