"""What travels, version 1: canonical JSON, chained by digests. The schema is docs/wire.md.

Two kinds of documents: the batch of an engine, and the samples of an agent; one envelope, one way to be delivered.

Invariants: encoding is a function of the batch and of the digest before it alone; decoding what was encoded
gives the same batch; bytes that were changed anywhere are refused; and nothing that arrives, however
malformed, raises: :func:`decode` answers with a :class:`~ledger.errors.Refusal`.

Canonical means: UTF-8, no spaces, keys sorted, integers only, a field that has its default left out. So
``digest`` is the SHA-256 of the document without itself, and the chain of ``prev`` fixes the order of a boot.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ledger import limits
from ledger.core.samples import SampleBatch
from ledger.errors import Refusal
from ledger.refusals import Reason
from ledger.wire import samples
from ledger.wire.checks import Bad, object_of
from ledger.wire.reading import batch_of
from ledger.wire.writing import dimensions_of, head_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ledger.core.records import Batch

VERSION: Final = 1
"""The major version. Fields may be added within it; a reader ignores those that it does not know."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A batch that came over the wire whole.

    ``digest`` is the sender's, verified; ``prev`` that of the batch before (empty for the first);
    ``kept_digest`` that of ``batch`` as it is known here, different only where unknown fields came along.
    """

    batch: Batch
    digest: bytes
    prev: bytes
    kept_digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedSamples:
    """Samples that came over the wire whole; as :class:`Decoded`."""

    batch: SampleBatch
    digest: bytes
    prev: bytes
    kept_digest: bytes


def encode(batch: Batch | SampleBatch, prev: bytes = b"") -> bytes:
    """The bytes that travel; ``prev`` is the digest of the batch before, empty for the first of a boot."""
    return b"".join(encode_slices(batch, prev))


def encode_slices(batch: Batch | SampleBatch, prev: bytes = b"", *, rows: int = 16) -> Iterator[bytes]:
    """:func:`encode` in pieces of at most ``rows`` rows, for a thread that must not keep the GIL for long.

    A piece may be empty: then only some preparation was done.
    """
    sha = hashlib.sha256()
    for piece in _document(batch, rows):
        sha.update(piece)
        yield piece
    tail = f'"kvledger":{VERSION},"prev":"{prev.hex()}"}}'
    sha.update(tail.encode())
    yield f'"digest":"{sha.hexdigest()}",{tail}'.encode()


def digest(batch: Batch | SampleBatch, prev: bytes = b"") -> bytes:
    """The SHA-256 (32 bytes) that :func:`encode` writes into the batch, and its successor repeats."""
    sha = hashlib.sha256()
    for piece in _document(batch, limits.ROWS_MAX):
        sha.update(piece)
    sha.update(f'"kvledger":{VERSION},"prev":"{prev.hex()}"}}'.encode())
    return sha.digest()


def digest_of(raw: bytes) -> bytes:
    """The digest that an encoded batch of ours carries; the sender's next ``prev``."""
    return bytes.fromhex(raw[raw.rindex(b'"digest":"') + 10 :][:64].decode())


def chain_of(batch: Batch | SampleBatch) -> tuple[str, str, str]:
    """What batches are chained by: the kind of the sender, its name and its boot."""
    if isinstance(batch, SampleBatch):
        return "agent", batch.source.source_id, batch.boot.boot_id
    return "engine", batch.source.engine, batch.boot.boot_id


def decode(raw: bytes) -> Decoded | DecodedSamples | Refusal:
    """The batch or the samples in ``raw``, every field validated, or why there is none. Never raises."""
    try:
        return _decode(raw)
    except Bad as bad:
        return Refusal(reason=bad.reason, detail=bad.detail[: limits.QUARANTINE_DETAIL_CHARS_MAX])


def peek(raw: bytes) -> tuple[str, str, int | None]:
    """Engine (or agent), boot and seq that refused bytes claim to be of, as far as they can be read: for people."""
    try:
        document = _parse(raw)
        batch = document["agent"] if _is_samples(document) else document["batch"]
        source = batch["source"]
        engine = source["source_id"] if _is_samples(document) else source["engine"]
        boot, seq = batch["boot"]["boot_id"], batch["seq"]
    except (Bad, KeyError, TypeError):
        return "", "", None
    return (
        _shown(engine),
        _shown(boot),
        seq if type(seq) is int and 0 <= seq <= limits.SEQ_MAX else None,
    )


def _shown(value: object) -> str:
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in value[: limits.TEXT_CHARS_MAX])


def _is_samples(document: dict[str, Any]) -> bool:
    return "agent" in document and "batch" not in document


def _document(batch: Batch | SampleBatch, rows: int) -> Iterator[bytes]:
    """``{"batch":{…},`` or ``{"agent":{…},`` in pieces: what the digest covers, up to the version."""
    if isinstance(batch, SampleBatch):
        yield from _body(
            "agent", ((k, v, samples.rows_of(batch, k) if v is None else None) for k, v in samples.head_of(batch)), rows
        )
        return
    index = yield from dimensions_of(batch, rows)
    head = head_of(batch, dims=bool(index))
    yield from _body("batch", ((k, v, rows_of(batch, k, index) if v is None else None) for k, v in head), rows)


def _body(name: str, parts: Iterator[tuple[str, Any, Iterator[Any] | None]], rows: int) -> Generator[bytes, None, None]:
    """The keys of a document in order: each with a value, or with rows, or with neither, and then left out."""
    yield f'{{"{name}":{{'.encode()
    separator = ""
    for key, value, items in parts:
        if value is not None:
            yield f'{separator}"{key}":{_JSON.encode(value)}'.encode()
            separator = ","
            continue
        if items is None:
            continue
        yield f'{separator}"{key}":['.encode()
        separator = ","
        first = True
        while piece := list(islice(items, rows)):
            yield (("" if first else ",") + _JSON.encode(piece)[1:-1]).encode()
            first = False
        yield b"]"
    yield b"},"


def _decode(raw: bytes) -> Decoded | DecodedSamples:
    document = _parse(raw)
    version = document.get("kvledger")
    if type(version) is not int or version < 1:
        raise Bad(Reason.WRONG_TYPE, f"kvledger = {_brief(version)}: must be the major version, {VERSION}")
    if version != VERSION:
        raise Bad(Reason.UNKNOWN_VERSION, f"major version {version}; this service knows {VERSION}: upgrade it")
    sent, prev = _digest_in(document, "digest", empty=False), _digest_in(document, "prev", empty=True)
    batch = (
        samples.samples_of(object_of(document, "agent"))
        if _is_samples(document)
        else batch_of(object_of(document, "batch"))
    )
    kept = sent
    if encode(batch, prev) != raw:
        sent = _verified(raw, document, sent)
        kept = digest(batch, prev)
    if isinstance(batch, SampleBatch):
        return DecodedSamples(batch=batch, digest=sent, prev=prev, kept_digest=kept)
    return Decoded(batch=batch, digest=sent, prev=prev, kept_digest=kept)


def _verified(raw: bytes, document: dict[str, Any], sent: bytes) -> bytes:
    """``sent``, if it is the digest of a canonical document that says more than we know."""
    try:
        whole = _JSON.encode(document).encode()
        del document["digest"]
        made = hashlib.sha256(_JSON.encode(document).encode()).digest()
    except (UnicodeEncodeError, RecursionError) as error:
        raise Bad(Reason.BAD_TEXT, f"a field unknown here cannot be written again: {error}") from error
    if whole != raw:
        _find_duplicate_key(raw)
        raise Bad(Reason.NOT_CANONICAL, "not written as docs/wire.md says: keys sorted, no spaces, UTF-8 unescaped")
    if made != sent:
        raise Bad(Reason.DIGEST_MISMATCH, f"carries digest {sent.hex()}, its content has {made.hex()}")
    return sent


def _parse(raw: bytes) -> dict[str, Any]:
    if len(raw) > limits.BATCH_BYTES_MAX:
        raise Bad(Reason.TOO_LARGE, f"{len(raw)} bytes; at most {limits.BATCH_BYTES_MAX}: send shorter periods")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise Bad(Reason.NOT_UTF8, f"byte {error.start} is not UTF-8") from error
    try:
        document = json.loads(text, parse_float=_no_float, parse_constant=_no_constant)
    except RecursionError as error:
        raise Bad(Reason.NOT_JSON, f"nested deeper than {limits.NESTING_MAX} levels") from error
    except ValueError as error:
        raise Bad(Reason.NOT_JSON, f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Bad(Reason.WRONG_TYPE, "the document is not an object")
    return document


def _no_float(literal: str) -> int:
    raise Bad(Reason.NOT_AN_INTEGER, f"{_brief(literal)} is not an integer; every quantity is one")


def _no_constant(literal: str) -> int:
    raise Bad(Reason.NOT_A_NUMBER, f"{literal} is not a number")


def _find_duplicate_key(raw: bytes) -> None:
    def pairs(items: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in items:
            if key in seen:
                raise Bad(Reason.DUPLICATE_KEY, f"{_brief(key)} stands twice in one object")
            seen.add(key)

    json.loads(raw, object_pairs_hook=pairs)


def _digest_in(document: dict[str, Any], key: str, *, empty: bool) -> bytes:
    value = document.get(key)
    if isinstance(value, str) and (len(value) == 64 or (empty and not value)):
        try:
            found = bytes.fromhex(value)
        except ValueError:
            found = b"?"
        if found.hex() == value:
            return found
    raise Bad(Reason.WRONG_TYPE, f"{key} = {_brief(value)}: must be 64 lower-case hexadecimal digits")


def _brief(value: object) -> str:
    shown = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of more than 40 digits"
    return shown if len(shown) <= 60 else shown[:57] + "…"
