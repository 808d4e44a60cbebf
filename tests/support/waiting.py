"""Waiting in tests, and ports of this host."""

from __future__ import annotations

import random
import socket
import time
from typing import Callable

PATIENCE_S = 90  # much longer than anything takes on a busy machine


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """AssertionError: `what` did not happen in time."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.05)


def wait_until_passes(check: Callable[[], None]) -> None:
    """Repeats `check` until it raises no AssertionError. In the end its last one is raised."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody uses now. They are below Linux's ephemeral range, so that no
    connection of another test gets one of them before it is used, or between two uses."""
    sockets: list[socket.socket] = []
    while len(sockets) < count:
        each = socket.socket()
        try:
            each.bind(("127.0.0.1", random.randrange(10_000, 32_000)))
            sockets.append(each)
        except OSError:
            each.close()
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
