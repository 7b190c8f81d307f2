"""What the commands take that look at engines from outside. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.commands.arguments import Commands

KINDS = ("auto", "vllm", "sglang", "triton_trtllm", "llamacpp", "dynamo", "dcgm")
"""What may stand behind ``--kind``; a test compares them with those that there are."""


def add(commands: Commands) -> None:
    """Put the commands under the top one."""
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
