"""The socket that the service listens on."""

from __future__ import annotations

import socket

from ledger import limits
from ledger.errors import LedgerError


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0: any that is free. LedgerError where it cannot be had."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol is said, or asyncio takes it for no TCP socket and leaves Nagle's algorithm on: an answer then
        # waits 40 ms for the sender's delayed acknowledgement.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(limits.CONNECTIONS_MAX)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise LedgerError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; see what else does, or choose with --listen"
        ) from error
    return listener
