"""Listening socket of the service, and its event loop, which runs until a signal."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from pinn.common.workers import on_signals
from pinn.errors import PinnError


def listen(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens on an address.

    Raises:
        PinnError: If the address does not exist, or the port is in use.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        listening = socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        remedy = "give another --port, or set --host to an address of this machine"
        raise PinnError(
            f"the service cannot listen at --host {host} --port {port} ({why}): {remedy}"
        ) from error
    # Accepted connections inherit TCP_NODELAY. Without it, Nagle's algorithm delays the second
    # packet of an answer by 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def is_local(listening: socket.socket) -> bool:
    """Return whether only clients on this machine can reach a listening socket."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def url(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    address, port = listening.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def run(app: FastAPI, listening: socket.socket) -> None:
    """Serve an application until SIGINT or SIGTERM."""
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Uvicorn server that stops on a signal without raising the signal again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with on_signals(self.handle_exit):  # type: ignore[arg-type]
            yield
