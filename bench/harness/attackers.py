"""python3 -m harness.attackers KIND ADDRESS:PORT...: one kind of attack on a control port.

Attacks the ports until it is killed; prints "there" when it has begun. The kinds of ANONYMOUS
need no identity. Those of WITH_IDENTITY use PHUB_TOKEN_FILE, PHUB_CA_FILE and libphub, as workers
do; "evictions" also uses the program PHUBCTL.
"""

import contextlib
import gzip
import itertools
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

# A source address that no other process on the host uses, as for peers from another host.
FROM_ADDRESS = "127.0.0.2"
DATA, HEADERS, RESET, SETTINGS, CONTINUATION = 0, 1, 3, 4, 9  # types of frames
END_STREAM, END_HEADERS = 1, 4
PATIENCE_S = 10.0
MESSAGE_BYTES = 4 << 20
KEYS, KEY_JOBS = 60_000, 12
STATE_BYTES = 256 << 20
SILENT_PER_SECOND, SILENT_ADDRESSES = 205, 4
SILENT_MAX = 900  # below the usual limit of descriptors
KEPT_BYTES = 64 << 20


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
            + payload)


def field(name: str, value: str) -> bytes:
    """A header that is neither compressed nor indexed."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


CALL = b"".join(field(*pair) for pair in (
    (":method", "POST"), (":scheme", "https"), (":path", "/phub.v1.Session/Join"),
    (":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers")))


class Connection:
    """HTTP/2 over TLS, frame by frame. What the other side says is dropped."""

    def __init__(self, endpoint: str) -> None:
        address, port = endpoint.rsplit(":", 1)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection((address, int(port)), PATIENCE_S, (FROM_ADDRESS, 0))
        self._socket = context.wrap_socket(plain)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))

    def send(self, data: bytes) -> None:
        """OSError: the other side has closed the connection, or reads nothing."""
        self._socket.settimeout(0.0)
        with contextlib.suppress(ssl.SSLWantReadError):
            while self._socket.recv(1 << 16):
                pass
        self._socket.settimeout(PATIENCE_S)
        self._socket.sendall(data)

    def close(self) -> None:
        self._socket.close()


def connected(endpoint: str) -> Connection | None:
    try:
        return Connection(endpoint)
    except OSError:
        time.sleep(0.01)
        return None


def start(attack: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=attack, args=arguments, daemon=True).start()


def frames(use: Callable[[Connection], None]) -> Callable[[str], None]:
    """The attack that does this on several connections at once, again and again."""
    def one(endpoint: str) -> None:
        while True:
            connection = connected(endpoint)
            if connection is not None:
                with contextlib.suppress(OSError):
                    use(connection)
                connection.close()

    def all_of_them(endpoint: str) -> None:
        for _ in range(CONNECTIONS):
            start(one, endpoint)

    return all_of_them


def unfinished(connection: Connection) -> None:
    """Calls with a large message that does not end."""
    for stream in range(1, 100, 2):
        connection.send(frame(HEADERS, END_HEADERS, stream, CALL))
        for _ in range(MESSAGE_BYTES // 16_000):
            connection.send(frame(DATA, 0, stream, b"x" * 16_000))


def headers(connection: Connection) -> None:
    """A header whose value does not end."""
    connection.send(frame(HEADERS, 0, 1, CALL + b"\0\1x\x7f\x81\xff\xff\xff\x07"))
    while True:
        connection.send(frame(CONTINUATION, 0, 1, b"x" * 16_000))


def resets(connection: Connection) -> None:
    """Calls that are cancelled at once."""
    for stream in itertools.count(1, 2):
        connection.send(frame(HEADERS, END_HEADERS, stream, CALL)
                        + frame(RESET, 0, stream, b"\0\0\0\x08"))


def compressed(connection: Connection) -> None:
    """A message of 200 MiB that needs 200 KiB on the wire."""
    call = CALL + field("grpc-encoding", "gzip")
    for stream in itertools.count(1, 2):
        connection.send(frame(HEADERS, END_HEADERS, stream, call))
        message = b"\1" + len(BOMB).to_bytes(4, "big") + BOMB
        for at in range(0, len(message), 16_000):
            last = END_STREAM if at + 16_000 >= len(message) else 0
            connection.send(frame(DATA, last, stream, message[at:at + 16_000]))


def keys(endpoint: str) -> None:
    """Jobs with many keys, twelve at once."""
    import phub

    def one(number: int) -> None:
        for attempt in itertools.count():
            with contextlib.suppress(phub.Error), phub.connect(endpoint) as session:
                job = session.join(f"keys-{number}-{attempt}", rank=0, world_size=1)
                job.add_keys([phub.KeySpec(f"key{index}", (1,)) for index in range(KEYS)])
                job.leave()

    for number in range(KEY_JOBS):
        start(one, number)


def checkpoints(endpoint: str) -> None:
    """A large state that is saved and loaded."""
    import phub

    def one() -> None:
        with tempfile.TemporaryDirectory() as folder:
            for attempt in itertools.count():
                with phub.connect(endpoint) as session:
                    job = session.join(f"state-{attempt}", rank=0, world_size=1)
                    key = job.add_key("state", (STATE_BYTES,), dtype="uint8")
                    if attempt > 0:
                        job.load_checkpoint(folder)
                    key.push_pull().wait()
                    job.save_checkpoint(folder)
                    job.leave()

    start(one)


def memory(endpoint: str) -> None:
    """Jobs that end while their process keeps the memory that it shared with the daemon."""
    import phub

    def one() -> None:
        kept: dict[int, int] = {}
        for attempt in itertools.count():
            with contextlib.suppress(phub.Error), phub.connect(endpoint) as session:
                job = session.join(f"memory-{attempt}", rank=0, world_size=1)
                job.add_key("large", (KEPT_BYTES,), dtype="uint8").push_pull().wait()
                keep_shared_memory(kept)
                job.leave()

    start(one)


def keep_shared_memory(kept: dict[int, int]) -> None:
    """Duplicates the descriptor of each memfd that is not kept yet. kept: by inode."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inode = os.stat(f"/proc/self/fd/{name}").st_ino
            if inode not in kept and "memfd:" in os.readlink(f"/proc/self/fd/{name}"):
                kept[inode] = os.dup(int(name))


def evictions(endpoint: str) -> None:
    """A tenant that evicts its own jobs: each eviction is an entry of the audit log."""
    import phub

    def one(number: int) -> None:
        for attempt in itertools.count():
            name = f"evicted-{number}-{attempt}"
            with contextlib.suppress(phub.Error), phub.connect(endpoint) as session:
                session.join(name, rank=0, world_size=1)
                subprocess.run([os.environ["PHUBCTL"], "-e", endpoint, "job", "evict", name],
                               capture_output=True, check=False)

    for number in range(2):
        start(one, number)


def silent(endpoint: str) -> None:
    """Connections of four addresses that send nothing."""
    address, port = endpoint.rsplit(":", 1)

    def one() -> None:
        connections: list[socket.socket] = []
        for number in itertools.count():
            source = f"127.0.0.{2 + number % SILENT_ADDRESSES}"
            with contextlib.suppress(OSError):
                connections.append(socket.create_connection((address, int(port)), 1.0, (source, 0)))
            if len(connections) > SILENT_MAX:
                connections.pop(0).close()
            time.sleep(1 / SILENT_PER_SECOND)

    start(one)


CONNECTIONS = 4  # at once, of each attack by frames
ANONYMOUS: dict[str, Callable[[str], None]] = {
    "unfinished": frames(unfinished), "headers": frames(headers), "resets": frames(resets),
    "compressed": frames(compressed), "silent": silent}
WITH_IDENTITY: dict[str, Callable[[str], None]] = {
    "keys": keys, "checkpoints": checkpoints, "memory": memory, "evictions": evictions}
BOMB = gzip.compress(bytes(200 << 20), 6) if "compressed" in sys.argv else b""


def main() -> None:
    kind, endpoints = sys.argv[1], sys.argv[2:]
    for endpoint in endpoints:
        (ANONYMOUS | WITH_IDENTITY)[kind](endpoint)
    print("there", flush=True)
    while os.getppid() != 1:
        time.sleep(1.0)


if __name__ == "__main__":
    main()
