"""Request bodies, bounded while they arrive and while they are unpacked.

Invariants: never more than the limit is held, whatever the headers claim: a body is counted as it comes in, and
unpacking stops at the first byte beyond (a zip bomb costs its limit, not its size); where many bodies come at the same
time, they have a limit together.
"""

from __future__ import annotations

import asyncio
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ledger import limits
from ledger.web.problems import Problem, later

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

GZIP = 16 + zlib.MAX_WBITS
"""zlib's word for: a gzip header, and nothing else."""


class Room:
    """What bodies may take together. For one thread: an event loop's."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    def take(self, size: int) -> bool:
        """Whether there is room for ``size`` more, which is taken then."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        """A body is gone."""
        self._left += size


@asynccontextmanager
async def held(request: Request, room: Room, *, bytes_max: int) -> AsyncIterator[bytes]:
    """:func:`received`, in ``room`` as long as it is needed. Problem 429 where there is none."""
    taken = 0

    def take(size: int) -> None:
        nonlocal taken
        if not room.take(size):
            raise later(
                429, "busy", "the bodies of other batches fill the room that there is; send it again", after_s=1
            )
        taken += size

    try:
        yield await received(request, bytes_max=bytes_max, take=take)
    finally:
        room.give_back(taken)


async def received(request: Request, *, bytes_max: int, take: Callable[[int], None] | None = None) -> bytes:
    """The body as it travels. Problem 413 beyond ``bytes_max``, 408 where it takes too long.

    ``take`` is told of bytes before they are kept, and may raise.
    """
    claimed = request.headers.get("content-length", "")
    if claimed.isdecimal() and int(claimed[:18]) > bytes_max:
        raise too_large(bytes_max)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.BODY_SECONDS_MAX):
            async for part in request.stream():
                size += len(part)
                if size > bytes_max:
                    raise too_large(bytes_max)
                if take is not None:
                    take(len(part))
                parts.append(part)
    except TimeoutError:
        detail = f"{size} bytes came in {limits.BODY_SECONDS_MAX:.0f} s; send it again, or smaller batches"
        raise Problem(408, "too-slow", detail) from None
    return b"".join(parts)


def unpacked(body: bytes, encoding: str, *, bytes_max: int) -> bytes:
    """The body without its Content-Encoding (``gzip``, ``identity`` or none); 413, 415 or 400 where that fails."""
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() != "gzip":
        detail = f"Content-Encoding {encoding[:40]!r}: must be gzip or left out"
        raise Problem(415, "content-encoding", detail, headers={"Accept-Encoding": "gzip, identity"})
    unpacker = zlib.decompressobj(GZIP)
    try:
        content = unpacker.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise Problem(400, "not-gzip", f"the body is not gzip: {error}") from error
    if len(content) > bytes_max:
        raise too_large(bytes_max)
    if not unpacker.eof:
        raise Problem(400, "not-gzip", "the gzip body ends too early; send it whole")
    if unpacker.unused_data:
        raise Problem(400, "not-gzip", "there are bytes behind the end of the gzip body; send one member")
    return content


def too_large(bytes_max: int) -> Problem:
    return Problem(413, "too-large", f"more than {bytes_max} bytes; send shorter periods (docs/wire.md)")
