"""What `kvledger doctor --engine` looks at where the engine is vLLM. Standard library only; vLLM is not loaded.

Invariant: it speaks of the Python environment that it runs in, and says so, since the hook has to lie in the engine's.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import TYPE_CHECKING, Final

from ledger.commands.checks import Check, Verdict, ago, judged
from ledger.hook.vllm import SUPPORTED, is_supported
from ledger.outbox.spool import is_owned

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ledger.hook.identity import Trust

GROUP: Final = "vllm.general_plugins"
PLUGIN: Final = "kvledger"

QUIET_US_MAX: Final = 60_000_000
"""An attached engine writes a batch every 15 seconds, whether it has work or not."""


def vllm(environ: Mapping[str, str]) -> Check:
    """Whether a vLLM of this environment would load the hook, and the hook attach to it."""
    version = _version()
    if version is None:
        return Check(
            what="vllm", verdict=Verdict.WARN, found=f"there is none in the Python environment {sys.prefix}",
            todo="if the engine is vLLM, install kvledger into its environment and run this with that one's Python:"
            " python -m ledger doctor --engine",
        )  # fmt: skip
    if not is_supported(version):
        tested = ", ".join(f"{series}.*" for series in SUPPORTED)
        return Check(
            what="vllm", verdict=Verdict.BAD, found=f"{version} is none that the hook was tested with ({tested})",
            todo="install a tested one, or a newer kvledger; until then the hook does not attach itself",
        )  # fmt: skip
    allowed = environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in (name.strip() for name in allowed.split(",")):
        todo = f"add {PLUGIN} to it, or leave it out"
        return Check(what="vllm", verdict=Verdict.BAD, found=f"VLLM_PLUGINS = {allowed!r} keeps us out", todo=todo)
    return judged(
        "vllm", any(entry.name == PLUGIN for entry in metadata.entry_points(group=GROUP)),
        f"{version} in {sys.prefix} loads the hook", f"{version} in {sys.prefix} knows of no plugin {PLUGIN}",
        "install the package kvledger with pip: a copy of its files has no entry point that vLLM could find",
    )  # fmt: skip


def identity(trust: Trust) -> Check:
    """Whether anybody can say who pays."""
    peers = [str(network) for network in trust.networks] + ["Unix sockets"] * trust.unix
    keys = len(trust.tenants_by_key)
    found = f"headers count from {', '.join(peers) or 'nowhere'}; {keys} API keys name their tenant"
    return judged(
        "identity", bool(peers or keys), found, f"{found}: every request is unattributed",
        "set KVLEDGER_TRUSTED_PEERS to your gateway's addresses, or KVLEDGER_KEYS to a map of API keys",
        otherwise=Verdict.WARN,
    )  # fmt: skip


def attached(spool: Path, now_us: int) -> Check:
    """Whether a running engine writes into the spool, which shows that a hook is attached."""
    ages_us = []
    try:
        for owner in (path for path in spool.glob("*/") if (path / "lock").exists()):
            if is_owned(owner):
                last_ns = max((path.stat().st_mtime_ns for path in owner.iterdir()), default=0)
                ages_us.append(max(0, now_us - last_ns // 1000))
    except OSError as error:
        todo = "run this as the user that the engine runs as"
        return Check(what="attached", verdict=Verdict.WARN, found=f"it cannot be seen: {error}", todo=todo)
    if not ages_us:
        todo = "start it with these variables; where its hook could not attach, a line of its log says why"
        found = "no running engine writes to this spool"
        return Check(what="attached", verdict=Verdict.WARN, found=found, todo=todo)
    newest_us = min(ages_us)
    return judged(
        "attached", newest_us <= QUIET_US_MAX,
        f"{len(ages_us)} running here, the last batch {ago(newest_us)} ago",
        f"{len(ages_us)} running here, and none has written for {ago(newest_us)}",
        "look into the engine's log for a line of kvledger's: a hook that has let go says why",
        otherwise=Verdict.WARN,
    )  # fmt: skip


def _version() -> str | None:
    """The version of the distribution that brings the package ``vllm``, whatever it is called."""
    for name in metadata.packages_distributions().get("vllm", ()):
        return metadata.version(name)
    return None
