"""python3 -m harness.drain_echo ADDRESS PORT: sends datagrams back, for bench/rank/link_drain.h.

Runs until it is killed.
"""

import socket
import sys

BUFFER_BYTES = 64 << 20
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33


def main() -> None:
    address, port = sys.argv[1:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
        echo.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        echo.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
        echo.bind((address, int(port)))
        print("echoes", flush=True)
        datagram = bytearray(65536)
        while True:
            length, sender = echo.recvfrom_into(datagram)
            echo.sendto(memoryview(datagram)[:length], sender)


if __name__ == "__main__":
    main()
