"""Settings: a TOML file and ``KVLEDGER_*``, read once into a frozen record.

Invariants: a setting is text wherever it comes from, and is read by one parser; the environment wins over
the file and an argument over both; a name that nobody declared is an error, since a setting that is
misspelt is a setting that silently is not there. docs/settings.md is checked against :data:`DECLARED`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import urlsplit

from ledger import limits
from ledger.core.allocation import Basis, Terms
from ledger.core.money import parse_currency
from ledger.core.periods import parse_zone
from ledger.errors import Refusal, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ENV_PREFIX = "KVLEDGER_"

ENV_OF_OTHERS = re.compile(
    r"KVLEDGER_(CONFIG|TRACES|PORT(_.*)?|SERVICE_(HOST|PORT(_.*)?)|ENABLED|URL|TOKEN(_FILE)?|CA_FILE|TIMEOUT"
    r"|SPOOL(_BYTES|_AGE|_FSYNC)?|ENGINE|CLUSTER|NAMESPACE|POD|HOST|TRUSTED_PEERS|KEYS|PSEUDONYMS|PSEUDONYM_KEY"
    r"|HANDOVER_KEY|PROFILE_EVERY|AGENT|WATCH)"
)
"""Names with our prefix that are no settings: where the file and the traces lie, what an engine beside us sends by,
and what Kubernetes puts into every pod beside a Service that is called ``kvledger``."""

DEFAULT_FILE = "kvledger.toml"
"""Read from the current directory where no other file is named, if it is there."""

CONFIG_BYTES_MAX = 1_000_000
"""A file of settings is a few hundred bytes; a larger one is some other file, named by mistake."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that a person may set, checked. Weights are thousandths per slot-second, the share is in millionths."""

    state_dir: Path
    database: str
    currency: str
    billing_timezone: str
    basis: Basis
    active_weight_milli: int
    cached_weight_milli: int
    kv_share_ppm: int
    fact_retention_days: int
    listen: tuple[str, int]
    metrics_open: bool
    metrics_tenants: int
    settle_grace_s: int

    def terms(self) -> Terms:
        """What the months that begin from now on are allocated by."""
        return Terms(
            active_weight_milli=self.active_weight_milli,
            cached_weight_milli=self.cached_weight_milli,
            kv_share_ppm=self.kv_share_ppm,
            basis=self.basis,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Generic[T_co]):
    """One declared setting. ``limit`` says what is allowed, as a person would; ``parse`` raises ValueError."""

    name: str
    default: str
    limit: str
    about: str
    parse: Callable[[str], T_co]

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The text of a setting and the place it was read from."""

    text: str
    where: str


def scaled(text: str, *, digits: int, low: int, high: int) -> int:
    """Decimal text as an integer of ``10**-digits``, exactly; ValueError names what is wrong with it."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError("it is not a number") from None
    if not value.is_finite():
        raise ValueError("it is not a finite number")
    if value.adjusted() > 18 or value.adjusted() < -18:  # before any power of ten is worked out
        raise ValueError("it is out of all proportion" if value else "write it as 0")
    units = value.scaleb(digits)
    if units != units.to_integral_value():
        raise ValueError(f"it has more than {digits} decimals" if digits else "it is not a whole number")
    if not low <= units <= high:
        raise ValueError("it is too small" if units < low else "it is too large")
    return int(units)


def _whole(low: int, high: int) -> Callable[[str], int]:
    return lambda text: scaled(text, digits=0, low=low, high=high)


def _weight(text: str) -> int:
    return scaled(text, digits=3, low=0, high=1_000_000_000)


def _ratio_ppm(text: str) -> int:
    return scaled(text, digits=6, low=0, high=1_000_000)


def _basis(text: str) -> Basis:
    try:
        return Basis(text)
    except ValueError:
        raise ValueError("there is no such basis") from None


def _currency(text: str) -> str:
    return _taken(parse_currency(text))


def _zone(text: str) -> str:
    if text != "UTC":  # valid even where the system carries no time zone database
        _taken(parse_zone(text))
    return text


def _taken(parsed: T | Refusal) -> T:
    if isinstance(parsed, Refusal):
        raise ValueError(parsed.detail)  # noqa: TRY004 (a refusal is an answer about a value, not a wrong type)
    return parsed


def _state_dir(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("it names no directory")
    return Path(text).expanduser()


def _database(text: str) -> str:
    try:
        scheme = urlsplit(text).scheme
    except ValueError:
        raise ValueError("it is no URL") from None
    if text and scheme not in {"sqlite", "postgresql", "postgresql+psycopg"}:
        if not scheme and "\0" not in text:
            raise ValueError(f"it is no URL; write sqlite:///{text}")
        raise ValueError(f"nothing here speaks {scheme or 'that'}")
    if scheme == "sqlite" and (not text.startswith("sqlite:///") or len(text) <= len("sqlite:///")):
        raise ValueError("it names no file")
    return text


def _listen(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not host or not port.isdecimal() or len(port) > 5 or int(port) > 65_535 or any(c.isspace() for c in host):
        raise ValueError("it is no ADDRESS:PORT")
    return host, int(port)


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("it is neither yes nor no")
    return text == "yes"


STATE_DIR = Setting(
    name="state_dir",
    default="~/.local/state/kvledger",
    limit="a directory that can be written, made when first needed",
    about="Where the embedded database lies, unless `database` says otherwise.",
    parse=_state_dir,
)
DATABASE = Setting(
    name="database",
    default="",
    limit="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME; empty: kvledger.db in `state_dir`",
    about="The ledger. SQLite needs no server; PostgreSQL wants the extra `postgres` installed.",
    parse=_database,
)
CURRENCY = Setting(
    name="currency",
    default="USD",
    limit="an ISO 4217 code: three capital letters",
    about="What the bill is in. A ledger has one currency; another one is refused once there are prices.",
    parse=_currency,
)
BILLING_TIMEZONE = Setting(
    name="billing_timezone",
    default="UTC",
    limit="a name of the IANA database, as UTC or Europe/Berlin",
    about="Where months and days begin. Set before the first month is closed.",
    parse=_zone,
)
BASIS = Setting(
    name="basis",
    default="capacity",
    limit="capacity or full",
    about="`capacity`: what nobody took is idle. `full`: the whole bill is divided among the users.",
    parse=_basis,
)
ACTIVE_WEIGHT = Setting(
    name="active_weight",
    default="2.5",
    limit="a decimal above 0, at most 1000000, three decimals",
    about="What a slot-second of a held block weighs. Fixed for a month.",
    parse=_weight,
)
CACHED_WEIGHT = Setting(
    name="cached_weight",
    default="0.3",
    limit="a decimal from 0 to `active_weight`, three decimals",
    about="What a slot-second of a cached block weighs. Fixed for a month.",
    parse=_weight,
)
KV_SHARE = Setting(
    name="kv_share",
    default="1",
    limit="a decimal from 0 to 1, six decimals",
    about="The part of the bill that is divided by blocks; the rest is divided by compute time. Fixed for a month.",
    parse=_ratio_ppm,
)
FACT_RETENTION_DAYS = Setting(
    name="fact_retention_days",
    default=str(limits.RETENTION_DAYS),
    limit="a whole number from 32 to 3660",
    about="How long facts are kept (a month must still be there when it is closed). The journal is kept for ever.",
    parse=_whole(32, 3660),
)
LISTEN = Setting(
    name="listen",
    default="127.0.0.1:8790",
    limit="ADDRESS:PORT, an IPv6 address in brackets; port 0: any that is free",
    about="Where the service listens. Beyond the loopback put TLS in front of it: tokens travel in headers.",
    parse=_listen,
)
METRICS_OPEN = Setting(
    name="metrics_open",
    default="yes",
    limit="yes or no",
    about="Whether `/metrics` answers without a token. With no, Prometheus sends one that may read.",
    parse=_yes_or_no,
)
METRICS_TENANTS = Setting(
    name="metrics_tenants",
    default=str(limits.TENANT_SERIES_MAX),
    limit=f"a whole number from 0 to {limits.TENANT_SERIES_MAX}",
    about="Tenants with series of their own in `/metrics`, the dearest first; the rest is `other`. 0: none.",
    parse=_whole(0, limits.TENANT_SERIES_MAX),
)
SETTLE_GRACE_S = Setting(
    name="settle_grace_s",
    default="120",
    limit="a whole number of seconds from 0 to 3600",
    about="How long after an hour has ended it is settled. Later facts are booked as a revision.",
    parse=_whole(0, 3600),
)
DECLARED: tuple[Setting[object], ...] = (
    STATE_DIR,
    DATABASE,
    CURRENCY,
    BILLING_TIMEZONE,
    BASIS,
    ACTIVE_WEIGHT,
    CACHED_WEIGHT,
    KV_SHARE,
    FACT_RETENTION_DAYS,
    LISTEN,
    METRICS_OPEN,
    METRICS_TENANTS,
    SETTLE_GRACE_S,
)


def load(
    *, environ: Mapping[str, str], file: Path | None = None, arguments: Mapping[str, Given] | None = None
) -> Settings:
    """Settings from ``arguments`` over ``environ`` over the file over the defaults.

    The file is ``file``, else ``KVLEDGER_CONFIG``, else :data:`DEFAULT_FILE` in the current directory if there is
    one. Raises :class:`UsageError` for the first thing that cannot be used.
    """
    given = {**texts(environ=environ, file=file), **(arguments or {})}
    state_dir = _read(given, STATE_DIR)
    active, cached = _read(given, ACTIVE_WEIGHT), _read(given, CACHED_WEIGHT)
    if active == 0:
        raise UsageError(_complaint(given, ACTIVE_WEIGHT, "it is zero, and the bill is divided by it"))
    if cached > active:
        raise UsageError(_complaint(given, CACHED_WEIGHT, f"it is above active_weight, {active / 1000:g}"))
    return Settings(
        state_dir=state_dir,
        database=_read(given, DATABASE) or f"sqlite:///{state_dir / 'kvledger.db'}",
        currency=_read(given, CURRENCY),
        billing_timezone=_read(given, BILLING_TIMEZONE),
        basis=_read(given, BASIS),
        active_weight_milli=active,
        cached_weight_milli=cached,
        kv_share_ppm=_read(given, KV_SHARE),
        fact_retention_days=_read(given, FACT_RETENTION_DAYS),
        listen=_read(given, LISTEN),
        metrics_open=_read(given, METRICS_OPEN),
        metrics_tenants=_read(given, METRICS_TENANTS),
        settle_grace_s=_read(given, SETTLE_GRACE_S),
    )


def texts(*, environ: Mapping[str, str], file: Path | None = None) -> dict[str, Given]:
    """What is set, as text, by name: the environment over the file."""
    return {**dict(_from_file(_find(file, environ))), **dict(_from_environ(environ))}


def masked(url: str) -> str:
    """The URL without its password, for messages."""
    return re.sub(r"(//[^:/@]*):[^@]*@", r"\1:***@", url)


def _read(given: Mapping[str, Given], setting: Setting[T]) -> T:
    text = given[setting.name].text if setting.name in given else setting.default
    try:
        return setting.parse(text)
    except ValueError as problem:
        raise UsageError(_complaint(given, setting, str(problem))) from None


def _complaint(given: Mapping[str, Given], setting: Setting[object], problem: str) -> str:
    at = given.get(setting.name) or Given(text=setting.default, where="default")
    text = masked(at.text) if len(at.text) <= 120 else at.text[:120] + "…"
    default = setting.default or "empty"
    return f"{at.where}: {setting.name} = {text!r}: {problem}. Allowed: {setting.limit}. Default: {default}"


def _find(file: Path | None, environ: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file
    if named := environ.get("KVLEDGER_CONFIG"):
        return Path(named)
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _from_file(file: Path | None) -> Iterator[tuple[str, Given]]:
    if file is None:
        return
    way_out = "name another with --config or KVLEDGER_CONFIG"
    try:
        with file.open("rb") as stream:
            raw = stream.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{file}: settings cannot be read: {error.strerror}; {way_out}") from error
    if len(raw) > CONFIG_BYTES_MAX:
        raise UsageError(f"{file}: more than {CONFIG_BYTES_MAX} bytes, so no file of settings; {way_out}")
    try:
        # Decimal, so that 0.3 is three tenths and not the nearest binary fraction.
        table = tomllib.loads(raw.decode(), parse_float=Decimal)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file}: this is not TOML: {error}; an example is in docs/settings.md") from error
    for name, value in table.items():
        _known(name, f"{file}", [setting.name for setting in DECLARED])
        if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
            raise UsageError(
                f"{file}: {name} = {value!r}: a setting is text or a number; write {name} = "
                f'"…" at the top of the file, outside any [table]'
            )
        yield name, Given(text=str(value), where=str(file))


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, Given]]:
    names = {setting.env: setting.name for setting in DECLARED}
    for variable in sorted(environ):
        if variable.startswith(ENV_PREFIX) and not ENV_OF_OTHERS.fullmatch(variable):
            _known(variable, "environment", list(names))
            yield names[variable], Given(text=environ[variable], where=variable)


def _known(name: str, where: str, names: list[str]) -> None:
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
        raise UsageError(f"{where}: there is no setting {name}; {hint} (docs/settings.md)")
