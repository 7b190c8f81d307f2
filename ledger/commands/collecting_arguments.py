"""What the commands take that look at engines from outside. Standard library only."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ledger.commands.argument_types import instant, name, span
from ledger.core.periods import HOUR_US

if TYPE_CHECKING:
    from ledger.commands.arguments import Commands

KINDS = ("auto", "vllm", "sglang", "triton_trtllm", "llamacpp", "dynamo", "dcgm")
"""What may stand behind ``--kind``; a test compares them with those that there are."""


def _every(text: str) -> int:
    length_us = span(text)
    if not 5_000_000 <= length_us <= HOUR_US or length_us % 5_000_000:
        raise argparse.ArgumentTypeError(f"{text[:20]!r}: memory is read at marks of 5 s; write 5s, 15s, 1m, up to 1h")
    return length_us


def add(commands: Commands) -> None:
    """Put the commands under the top one."""
    collect = commands.group(
        "collect",
        "Engines without a hook, looked at from outside by `kvledger serve`.",
        "kvledger collect add --engine chat-0 --url http://10.0.0.7:8000",
        "kvledger collect list",
    )
    made = collect.add(
        "add",
        "collecting:target_add",
        "Have an engine's /metrics read every 15 seconds from now on, in place of where it was read.",
        "kvledger collect add --engine chat-0 --url http://10.0.0.7:8000 --kind auto",
        more=(
            "The address is asked once, to say what is there; it is kept whether it answers or not. Where it lies is\n"
            "your choice, private addresses included; redirects are not followed. The running service takes it up\n"
            "within 10 seconds. Money follows the engine's assets (`kvledger assets assign`). An exporter of GPUs\n"
            "(dcgm) is no engine: give it a name of its own."
        ),
    )
    made.add_argument("--engine", metavar="NAME", type=name, required=True, help="as hooks and assets name it")
    made.add_argument("--url", metavar="URL", required=True, help="http://HOST:PORT; /metrics unless it has a path")
    made.add_argument("--kind", choices=KINDS, default="auto", help="default: auto, by the names in the text")
    made = collect.add(
        "list", "collecting:target_list", "What is scraped, and when it last answered.", "kvledger collect list"
    )
    made.add_argument("--format", choices=("table", "json", "csv"), default="table", help="default: table")
    made = collect.add(
        "remove", "collecting:target_remove", "Stop reading an engine's /metrics.", "kvledger collect remove chat-0"
    )
    made.add_argument("engine", metavar="ENGINE", type=name)
    made = collect.add(
        "export",
        "collect_export:export",
        "The memory of GPUs from what was kept, as a loop would have logged it.",
        "kvledger collect export --format csv --gpu 0 --from 2026-11-03T00:00:00Z",
        more=(
            "csv: seconds since 1970 and bytes used, of one GPU, a line every 5 s, without a heading.\n"
            "nvidia-smi: used, free and total memory, a line for each instant and GPU, as\n"
            "  nvidia-smi --query-gpu=memory.used,memory.free,memory.total --format=csv -l 5\n"
            "would have said. Of the last hour unless --from or --to says otherwise; agents sample (docs/agent.md)."
        ),
    )
    made.add_argument("--format", choices=("csv", "nvidia-smi"), default="csv", help="default: csv")
    made.add_argument("--from", dest="start", metavar="T", type=instant, help="default: an hour before --to")
    made.add_argument("--to", dest="end", metavar="T", type=instant, help="default: now")
    made.add_argument("--gpu", metavar="UUID_OR_INDEX", type=name, help="this one only; a MIG instance by its UUID")
    made.add_argument("--host", metavar="NAME", type=name, help="the GPUs of this host only")
    made.add_argument(
        "--every", metavar="SPAN", type=_every, default=5_000_000, help="5s or a multiple, up to 1h; default: 5s"
    )
    made.add_argument(
        "--timestamps", action="store_true", help="with nvidia-smi: time (UTC), index and UUID before each line"
    )
    made = commands.add(
        "inspect",
        "inspecting:inspect",
        "Read any /metrics text: what was recognised, what not, and what the ledger could do with it.",
        "kvledger inspect http://engine-0:8000/metrics",
        more=(
            "FILE, or the URL of an engine or exporter: vLLM, SGLang, TensorRT-LLM on Triton, llama.cpp, Dynamo,\n"
            "DCGM. Good lines count, bad ones are named with their numbers. Exit 1 if nothing in it is known.\n"
            "Nothing is kept, and no ledger is needed."
        ),
        ledger=False,
    )
    made.add_argument("text", metavar="FILE_OR_URL", help="- reads standard input")
    made.add_argument("--kind", choices=KINDS, default="auto", help="default: auto, by the names in it")
    made.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
