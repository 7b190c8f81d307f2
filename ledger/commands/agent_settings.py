"""What an agent is set by beside the hook's own variables: ``KVLEDGER_AGENT`` and ``KVLEDGER_WATCH``.

docs/agent.md is checked against :data:`DECLARED`. The rest (where to, which token, the spool, names of host and
cluster) is the hook's: :mod:`ledger.hook.settings`.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import ledger
from ledger import limits
from ledger.core.records import Origin
from ledger.core.samples import Agent
from ledger.hook.settings import HookSettings, Variable, load, read

if TYPE_CHECKING:
    from collections.abc import Mapping

COMM_CHARS_MAX: Final = 15
"""Of a process's name, as Linux keeps it."""


def _name(text: str) -> str:
    if len(text) > limits.TEXT_CHARS_MAX or not text.isprintable():
        raise ValueError("it is too long, or has a control character")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.replace(",", " ").split())
    for name in names:
        if len(name) > COMM_CHARS_MAX or not name.isprintable():
            raise ValueError(f"{name[:20]!r} is no name that the kernel could know")
    return names


AGENT: Final = Variable(
    name="KVLEDGER_AGENT",
    default="",
    limit="up to 512 printable characters; empty: agent: and the host's name",
    about="The agent's name in the ledger: stable across restarts, different for agents that run at once.",
    parse=_name,
)
WATCH: Final = Variable(
    name="KVLEDGER_WATCH",
    default="",
    limit="names of at most 15 characters, as in /proc/PID/comm, apart by commas",
    about="Processes whose health is kept besides those on GPUs: an engine on CPUs, say.",
    parse=_names,
)
DECLARED: Final[tuple[Variable[object], ...]] = (AGENT, WATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """All that may be set, checked."""

    hook: HookSettings
    source: Agent
    watch: tuple[str, ...]


def load_agent(environ: Mapping[str, str] | None = None) -> AgentSettings:
    """Settings of the environment. Raises :class:`~ledger.errors.UsageError` for the first that cannot be used."""
    environ = os.environ if environ is None else environ
    hook = load(environ)
    host = hook.host or socket.gethostname()
    return AgentSettings(
        hook=hook,
        source=Agent(
            source_id=read(environ, AGENT) or f"agent:{host}",
            origin=Origin.LIVE,
            cluster=hook.cluster,
            namespace=hook.namespace,
            pod=hook.pod,
            host=host,
            software=f"kvledger {ledger.__version__}",
        ),
        watch=read(environ, WATCH),
    )
