"""The hook's settings: ``KVLEDGER_*`` of the engine's environment, read once into a frozen record.

Invariants: every variable is declared once, with its default and what is allowed, and docs/hook-settings.md is
checked against :data:`DECLARED`; a value that cannot be used is named with its limit and never guessed at; a secret
is never said. In an engine nothing of this raises: :func:`load_or_off` gives settings with the hook switched off.
"""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import logging
import os
import re
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from urllib.parse import urlsplit

from ledger import limits
from ledger.errors import LedgerError, UsageError
from ledger.hook.identity import UNIX, Pseudonyms, Trust
from ledger.hook.keys import KeyFile
from ledger.outbox.drain import Outbox
from ledger.outbox.post import HttpPost
from ledger.outbox.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping

    from ledger.hook.identity import Network

log: Final = logging.getLogger("kvledger.hook")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PREFIX: Final = "KVLEDGER_"
_OF_KUBERNETES: Final = re.compile(r"KVLEDGER_(PORT(_.*)?|SERVICE_(HOST|PORT(_.*)?))")
"""What Kubernetes puts into every pod beside a Service that is called ``kvledger``."""
_SECRETS: Final = frozenset({"KVLEDGER_TOKEN", "KVLEDGER_PSEUDONYM_KEY", "KVLEDGER_HANDOVER_KEY"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable(Generic[T_co]):
    """A declared variable. ``limit`` says what is allowed, as a person would; ``parse`` raises ValueError."""

    name: str
    default: str
    limit: str
    about: str
    parse: Callable[[str], T_co]


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """All that may be set beside an engine, checked."""

    enabled: bool
    off_because: str = ""
    """Why :func:`load_or_off` switched it off."""
    urls: tuple[str, ...] = ()
    token: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout_s: float = limits.SEND_TIMEOUT_S
    spool: Path | None = None
    """None: batches are kept in memory alone."""
    spool_bytes: int = limits.SPOOL_BYTES_MAX
    spool_age_s: int = limits.SPOOL_AGE_S_MAX
    spool_fsync: bool = True
    engine: str = ""
    """Empty: whoever attaches the hook derives one."""
    cluster: str = ""
    namespace: str = ""
    pod: str = ""
    host: str = ""
    trust: Trust = field(default_factory=Trust)
    handover_key: bytes = b""
    profile_every: int = 0
    """0: no step of a GPU is profiled."""

    def read_token(self) -> str:
        """The token at this moment: the file's, so that it can be rotated, or the variable's."""
        if self.token_file is None:
            return self.token
        return self.token_file.read_text().strip()


def _flag(text: str) -> bool:
    found = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in found:
        raise ValueError("it is neither yes nor no")
    return found[text.lower()]


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(text.replace(",", " ").split())
    if len(urls) > limits.SEND_ENDPOINTS_MAX:
        raise ValueError(f"it has {len(urls)} addresses")
    for url in urls:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError("it is no URL") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
            raise ValueError("an address is http://HOST[:PORT][/PATH] or https://…")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("an address has no user, query or fragment; the token is KVLEDGER_TOKEN")
    return urls


def _token(text: str) -> str:
    if not all(0x21 <= ord(c) <= 0x7E for c in text):
        raise ValueError("it has a character that no token has; is it a file's name, or quoted twice?")
    return text


def _path(text: str) -> Path | None:
    if "\0" in text:
        raise ValueError("it names no file")
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError as error:  # ~ of a user that there is not
        raise ValueError("it begins with ~, and nobody of that name has a home") from error


def _spool(text: str) -> Path | None:
    return None if text == "none" else _path(text or "none")


def _scaled(units: Mapping[str, int], low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        found = re.fullmatch(r"([0-9]{1,15})([A-Za-z]?)", text)
        if found is None or found[2] not in units:
            raise ValueError("it is not a whole number with a unit of " + ", ".join(filter(None, units)))
        value = int(found[1]) * units[found[2]]
        if not low <= value <= high:
            raise ValueError("it is too small" if value < low else "it is too large")
        return value

    return parse


def _every(text: str) -> int:
    every = int(text) if re.fullmatch(r"[0-9]{1,7}", text) else -1
    if every and not 100 <= every <= 1_000_000:
        raise ValueError("it is no such number of steps")
    return every


def _name(text: str) -> str:
    if len(text) > limits.TEXT_CHARS_MAX or not text.isprintable():
        raise ValueError("it is too long, or has a control character")
    return text


def _peers(text: str) -> tuple[tuple[Network, ...], bool]:
    words = text.replace(",", " ").split()
    if len(words) > limits.IDENTITY_NETWORKS_MAX:
        raise ValueError(f"it has {len(words)} networks")
    try:
        return tuple(ipaddress.ip_network(word) for word in words if word not in {UNIX, "none"}), UNIX in words
    except ValueError as error:
        raise ValueError(f"{error}") from None


def _pseudonyms(text: str) -> Pseudonyms:
    try:
        return Pseudonyms(text)
    except ValueError:
        raise ValueError("there is no such choice") from None


def _key(text: str) -> bytes:
    if text and len(text) < 16:
        raise ValueError("it is too short")
    return text.encode()


_BYTES: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

ENABLED = Variable(
    name="KVLEDGER_ENABLED",
    default="true",
    limit="true or false",
    about="Whether the hook attaches at all.",
    parse=_flag,
)
URL = Variable(
    name="KVLEDGER_URL",
    default="",
    limit="up to 8 addresses http(s)://HOST[:PORT][/PATH], apart by commas; empty: the spool is only filled",
    about="The service; the first that can be reached gets the batches.",
    parse=_urls,
)
TOKEN = Variable(
    name="KVLEDGER_TOKEN",
    default="",
    limit="a token with the scope ingest, printable ASCII without spaces",
    about="What the service knows the engine by (`kvledger tokens add`).",
    parse=_token,
)
TOKEN_FILE = Variable(
    name="KVLEDGER_TOKEN_FILE",
    default="",
    limit="a file that has the token; not beside KVLEDGER_TOKEN",
    about="Read for each batch, so that a token can be rotated while the engine runs.",
    parse=_path,
)
CA_FILE = Variable(
    name="KVLEDGER_CA_FILE",
    default="",
    limit="a file of PEM certificates; empty: those of the system",
    about="Whom to trust when the service's address is https.",
    parse=_path,
)
TIMEOUT = Variable(
    name="KVLEDGER_TIMEOUT",
    default="15s",
    limit="1s to 300s",
    about="For one exchange with the service, all in all.",
    parse=_scaled(_SECONDS, 1, 300),
)
SPOOL = Variable(
    name="KVLEDGER_SPOOL",
    default="~/.local/state/kvledger/spool",
    limit="a directory on a local disk, made when first needed, shared by engines if you like; none: memory only",
    about="Where batches wait for the service.",
    parse=_spool,
)
SPOOL_BYTES = Variable(
    name="KVLEDGER_SPOOL_BYTES",
    default="1G",
    limit="1M to 1024G, with K, M or G",
    about="What one engine keeps there; beyond, the oldest is dropped, counted.",
    parse=_scaled(_BYTES, limits.SPOOL_BYTES_MIN, 1024**4),
)
SPOOL_AGE = Variable(
    name="KVLEDGER_SPOOL_AGE",
    default="14d",
    limit="1m to 60d, with s, m, h or d",
    about="How long a batch waits; beyond, it is dropped, counted.",
    parse=_scaled(_SECONDS, 60, 60 * 86_400),
)
SPOOL_FSYNC = Variable(
    name="KVLEDGER_SPOOL_FSYNC",
    default="true",
    limit="true or false",
    about="Whether each batch is forced to the disk: then it survives a loss of power, and otherwise any kill.",
    parse=_flag,
)
ENGINE = Variable(
    name="KVLEDGER_ENGINE",
    default="",
    limit="up to 512 printable characters; empty: derived from the host and the model",
    about="The engine's name in the books: stable across restarts and pods, different for engines that run at once.",
    parse=_name,
)
CLUSTER, NAMESPACE, POD, HOST = (
    Variable(name=name, default="", limit="up to 512 printable characters", about=about, parse=_name)
    for name, about in (
        ("KVLEDGER_CLUSTER", "Where the engine runs; prices go by it, too."),
        ("KVLEDGER_NAMESPACE", "Its namespace (downward API: metadata.namespace)."),
        ("KVLEDGER_POD", "Its pod (downward API: metadata.name)."),
        ("KVLEDGER_HOST", "Its host; empty: the system's name."),
    )
)
TRUSTED_PEERS = Variable(
    name="KVLEDGER_TRUSTED_PEERS",
    default="127.0.0.0/8,::1/128",
    limit="up to 256 networks as 10.0.0.0/8, apart by commas; unix for callers over a Unix socket; none",
    about="The addresses whose identity headers are believed: your gateway's.",
    parse=_peers,
)
KEYS = Variable(
    name="KVLEDGER_KEYS",
    default="",
    limit="a file of lines `TENANT sha256:HEX`",
    about="The tenant that an API key belongs to, by the key's SHA-256. Read again when it changes.",
    parse=_path,
)
PSEUDONYMS = Variable(
    name="KVLEDGER_PSEUDONYMS",
    default="none",
    limit="none, sessions or all (tenants, too)",
    about="What is replaced by a keyed pseudonym before it leaves the engine's API server.",
    parse=_pseudonyms,
)
PSEUDONYM_KEY = Variable(
    name="KVLEDGER_PSEUDONYM_KEY",
    default="",
    limit="at least 16 characters; the same for every engine",
    about="The key of the pseudonyms. A new one makes new sessions of the old.",
    parse=_key,
)
HANDOVER_KEY = Variable(
    name="KVLEDGER_HANDOVER_KEY",
    default="",
    limit="at least 16 characters; empty: made at random, and handed to the engine's child processes",
    about="What the middleware signs its hand-over to the engine with.",
    parse=_key,
)
PROFILE_EVERY = Variable(
    name="KVLEDGER_PROFILE_EVERY",
    default="0",
    limit="0: never; or 100 to 1000000",
    about="On a GPU, one step in so many is profiled for the share of communication; that step waits for the GPU.",
    parse=_every,
)
DECLARED: Final[tuple[Variable[object], ...]] = (
    ENABLED, URL, TOKEN, TOKEN_FILE, CA_FILE, TIMEOUT, SPOOL, SPOOL_BYTES, SPOOL_AGE, SPOOL_FSYNC, ENGINE, CLUSTER,
    NAMESPACE, POD, HOST, TRUSTED_PEERS, KEYS, PSEUDONYMS, PSEUDONYM_KEY, HANDOVER_KEY, PROFILE_EVERY,
)  # fmt: skip
VARIABLES: Final = frozenset(variable.name for variable in DECLARED)


def load(environ: Mapping[str, str]) -> HookSettings:
    """Settings of ``environ`` over the defaults. Raises :class:`UsageError` for the first that cannot be used."""
    urls, token, token_file = read(environ, URL), read(environ, TOKEN), read(environ, TOKEN_FILE)
    if token and token_file:
        raise UsageError("KVLEDGER_TOKEN and KVLEDGER_TOKEN_FILE are both set: leave one of them out")
    if urls and not token and not token_file:
        raise UsageError("KVLEDGER_URL is set and no token: set KVLEDGER_TOKEN (kvledger tokens add --scope ingest)")
    pseudonyms, pseudonym_key = read(environ, PSEUDONYMS), read(environ, PSEUDONYM_KEY)
    if pseudonyms is not Pseudonyms.NONE and not pseudonym_key:
        raise UsageError(
            f"KVLEDGER_PSEUDONYMS = {pseudonyms.value} wants KVLEDGER_PSEUDONYM_KEY: {PSEUDONYM_KEY.limit}"
        )
    networks, unix = read(environ, TRUSTED_PEERS)
    keys = read(environ, KEYS)
    return HookSettings(
        enabled=read(environ, ENABLED),
        urls=urls,
        token=token,
        token_file=token_file,
        ca_file=read(environ, CA_FILE),
        timeout_s=float(read(environ, TIMEOUT)),
        spool=read(environ, SPOOL),
        spool_bytes=read(environ, SPOOL_BYTES),
        spool_age_s=read(environ, SPOOL_AGE),
        spool_fsync=read(environ, SPOOL_FSYNC),
        engine=read(environ, ENGINE),
        cluster=read(environ, CLUSTER),
        namespace=read(environ, NAMESPACE),
        pod=read(environ, POD),
        host=read(environ, HOST),
        trust=Trust(
            networks=networks,
            unix=unix,
            tenants_by_key=KeyFile(keys) if keys is not None else {},
            pseudonyms=pseudonyms,
            pseudonym_key=pseudonym_key,
        ),
        handover_key=read(environ, HANDOVER_KEY),
        profile_every=read(environ, PROFILE_EVERY),
    )


def load_or_off(environ: MutableMapping[str, str] | None = None) -> HookSettings:
    """For engines: :func:`load`, or settings that are switched off and say why, which is logged. Never raises.

    Where no hand-over key is set, one is made and left in ``environ`` (default: the process's), so that processes
    which the engine starts from here on have the same. Switched off, no caller is believed anything.
    """
    environ = os.environ if environ is None else environ
    with contextlib.suppress(UsageError):  # which is told below
        if not read(environ, ENABLED):
            # Whoever does not want the hook wants no word of it either.
            return HookSettings(enabled=False, handover_key=secrets.token_bytes(16))
    if not environ.get(HANDOVER_KEY.name, "").strip():
        environ[HANDOVER_KEY.name] = secrets.token_hex(16)
    # Every process of an engine comes here; the first one speaks for those that it starts.
    says = is_first_process()
    for sentence in misspelt(environ):
        log.log(logging.WARNING if says else logging.DEBUG, "%s", sentence)
    try:
        return load(environ)
    except LedgerError as error:
        log.log(logging.ERROR if says else logging.DEBUG, "kvledger is switched off: %s", error)
        return HookSettings(enabled=False, off_because=str(error), handover_key=secrets.token_bytes(16))


def is_first_process() -> bool:
    """Whether this process was not started by another one of the same engine (with Python's ``multiprocessing``)."""
    loaded = sys.modules.get("multiprocessing.process")
    return loaded is None or loaded.parent_process() is None


def misspelt(environ: Mapping[str, str], *, of: str = "the hook", also: Iterable[str] = ()) -> list[str]:
    """A sentence for each variable that looks like one of ours (``also`` names more that ``of`` has) and is none."""
    found, names = [], {*VARIABLES, *also}
    shorts = sorted(known.removeprefix(PREFIX) for known in names)
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in names and not _OF_KUBERNETES.fullmatch(name):
            close = difflib.get_close_matches(name.removeprefix(PREFIX), shorts, n=1, cutoff=0.8)
            found += [f"{name} is no setting of {of}; did you mean {PREFIX}{close[0]}?"] if close else []
    return found


def outbox_of(settings: HookSettings) -> Outbox:
    """The outbox that these settings describe, not started. Raises :class:`UsageError` for a CA file that is none."""
    try:
        posts = [
            HttpPost(
                url,
                token=settings.read_token,
                timeout_s=settings.timeout_s,
                ca_file=str(settings.ca_file) if settings.ca_file else None,
            )
            for url in settings.urls
        ]
    except OSError as error:
        raise UsageError(f"{CA_FILE.name} = {settings.ca_file}: {error}; allowed: {CA_FILE.limit}") from error
    root = settings.spool
    if root is None:
        return Outbox(posts, None)
    return Outbox(
        posts,
        lambda tally: Spool(
            root,
            tally=tally,
            bytes_max=settings.spool_bytes,
            age_s_max=settings.spool_age_s,
            fsync=settings.spool_fsync,
        ),
    )


def read(environ: Mapping[str, str], variable: Variable[T]) -> T:
    """The value of one variable. Raises :class:`UsageError` where it cannot be used."""
    text = environ.get(variable.name, "").strip() or variable.default
    try:
        return variable.parse(text)
    except ValueError as problem:
        shown = "…" if variable.name in _SECRETS else repr(text if len(text) <= 120 else text[:120] + "…")
        raise UsageError(
            f"{variable.name} = {shown}: {problem}. Allowed: {variable.limit}. Default: {variable.default or 'empty'}"
        ) from None
