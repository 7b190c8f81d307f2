"""Where a batch belongs among those of its sender that are stored: a place in the chain, or why there is none.

Pure: what is stored around it is asked by :mod:`ledger.ingest`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.errors import Refusal
from ledger.refusals import Reason

if TYPE_CHECKING:
    from ledger.core.records import Boot
    from ledger.store.receipt import Near, Neighbour
    from ledger.wire import Decoded, DecodedSamples


def place_of(decoded: Decoded | DecodedSamples, known: tuple[int, Boot] | None, near: Near) -> int | Refusal | None:
    """How many seqs are missing before the batch, if it fits; None where it is stored already.

    ``known``: its boot as it was seen before; ``near``: what is stored of that boot around its seq.
    """
    batch = decoded.batch
    if known is None:
        return _out_of_line(decoded, None, None) or batch.seq - 1
    if known[1] != batch.boot:
        detail = f"boot {batch.boot.boot_id!r} has other times than before; a new life of its sender needs a new id"
        return Refusal(reason=Reason.OTHER_BOOT, detail=detail)
    at, later = near
    if at is not None and at.seq == batch.seq:
        if at.digest == decoded.digest:
            return None
        detail = f"seq {batch.seq} of boot {batch.boot.boot_id!r} is stored with digest {at.digest.hex()}"
        return Refusal(reason=Reason.KEY_REUSED, detail=f"{detail}, this one has {decoded.digest.hex()}")
    refusal = _out_of_line(decoded, at, later)
    if refusal is not None:
        return refusal
    # A late batch fills a gap that was counted when the one after it arrived.
    return 0 if later is not None else batch.seq - 1 - (at.seq if at is not None else 0)


def _out_of_line(decoded: Decoded | DecodedSamples, at: Neighbour | None, later: Neighbour | None) -> Refusal | None:
    """Whether the batch does not fit between its neighbours, in the chain of digests or in time."""
    batch = decoded.batch
    broken = None
    if (batch.seq == 1) != (not decoded.prev):
        broken = "only the first batch of a boot has none before it"
    elif at is not None and at.seq == batch.seq - 1 and at.digest != decoded.prev:
        broken = f"names {decoded.prev.hex()} as the batch before, which is stored as {at.digest.hex()}"
    elif later is not None and later.seq == batch.seq + 1 and later.prev != decoded.digest:
        broken = f"has digest {decoded.digest.hex()}, and the batch after it names {later.prev.hex()}"
    if broken is not None:
        return Refusal(reason=Reason.BROKEN_CHAIN, detail=f"seq {batch.seq}: {broken}")
    if at is not None and batch.start_us < at.end_us:
        detail = f"seq {batch.seq} starts at {batch.start_us}, before seq {at.seq} ends at {at.end_us}"
        return Refusal(reason=Reason.TIME_REVERSED, detail=detail)
    if later is not None and batch.end_us > later.start_us:
        detail = f"seq {batch.seq} ends at {batch.end_us}, after seq {later.seq} starts at {later.start_us}"
        return Refusal(reason=Reason.TIME_REVERSED, detail=detail)
    return None
