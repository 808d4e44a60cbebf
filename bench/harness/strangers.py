"""python3 -m harness.strangers CONNECTIONS EACH_S ADDRESS:PORT...: unauthenticated peers.

Holds CONNECTIONS connections in total, divided among the ports. Replaces the EACH_S oldest
connections with new ones every second. Every other connection sends one byte per second, so that
some are half-open and some are slow. Connections that the daemon closed stay in the count until
they are the oldest. Runs until it is killed.
"""

import collections
import contextlib
import itertools
import socket
import sys
import time

TURN_S = 0.05
# A source address that no other process on the host uses, as for peers from another host.
FROM_ADDRESS = "127.0.0.2"


def opened(endpoint: str) -> socket.socket:
    address, port = endpoint.rsplit(":", 1)
    stranger = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    stranger.bind((FROM_ADDRESS, 0))
    stranger.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        stranger.connect((address, int(port)))
    return stranger


def main() -> None:
    count, each_s, endpoints = int(sys.argv[1]), int(sys.argv[2]), itertools.cycle(sys.argv[3:])
    held: collections.deque[socket.socket] = collections.deque()
    said_at = time.monotonic()
    while True:
        for _ in range(max(1, int(each_s * TURN_S))):
            if len(held) >= count:
                held.popleft().close()
            with contextlib.suppress(OSError):
                held.append(opened(next(endpoints)))
        if time.monotonic() - said_at >= 1.0:
            said_at = time.monotonic()
            for slow in itertools.islice(held, 0, None, 2):
                with contextlib.suppress(OSError):
                    slow.send(b"\x16")
        if len(held) >= count:
            print("there", flush=True)
        time.sleep(TURN_S)


if __name__ == "__main__":
    main()
