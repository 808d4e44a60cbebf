"""init_method="phub://host:port/job": the ranks find each other through the daemon."""

from __future__ import annotations

import datetime
import os
import socket
from typing import Any, Iterator

import torch.distributed as dist

from ._create import use_url
from ._options import Options, place
from ._work import VERSION


def rendezvous(
    url: str,
    rank: int = -1,
    world_size: int = -1,
    timeout: datetime.timedelta = datetime.timedelta(minutes=30),
    **_: Any,
) -> Iterator[tuple[Any, int, int]]:
    options = Options.of_url(url)
    use_url(options)
    query = dict(part.split("=", 1) for part in url.partition("?")[2].split("&") if "=" in part)
    found = place(
        rank if rank >= 0 else int(query.get("rank", -1)),
        world_size if world_size >= 0 else int(query.get("world_size", -1)),
        how="pass rank and world_size, ",
    )
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        yield from dist.rendezvous("env://", found.rank, found.size, timeout=timeout)
    else:
        yield _store(options, found.rank, found.size, found.run, timeout), found.rank, found.size
    raise RuntimeError("phub:// does not support another rendezvous")


def _store(
    options: Options, rank: int, size: int, run: Any, timeout: datetime.timedelta
) -> Any:
    """A TCPStore in rank 0, whose address the ranks exchange in a job of their own."""
    from ._membership import process

    if run is None and not options.job:
        raise ValueError(
            "phub:// needs a name that only this run has: phub://host:port/NAME, or a launcher "
            "that names the run (torchrun, mpirun, srun, or the environment variable PHUB_RUN)"
        )
    name = ".".join(part for part in (options.job, run, "rendezvous") if part)
    seconds = timeout.total_seconds()
    daemon = options.daemon()
    session = process().session(options)
    with session.join(name, rank, size, screening="off") as job:
        key = job.add_key("address", 256, "uint8")
        store = None
        if rank == 0:
            host = _own_address(daemon)
            store = dist.TCPStore(host, 0, size, True, timeout, **_store_options())
            text = f"{host} {store.port}".encode()
            key.gradients[: len(text)] = list(text)
            key.gradients[len(text) :] = 0
        key.broadcast(0, key.gradients).wait(seconds)
        if store is None:
            host, port = bytes(key.parameters).rstrip(b"\0").decode().split()
            store = dist.TCPStore(host, int(port), size, False, timeout, **_store_options())
        job.barrier()
    return store


def _store_options() -> dict[str, bool]:
    """USE_LIBUV=0 as in torch's own rendezvous: Debian's torch 2.6 is built without libuv."""
    options = {"wait_for_workers": False}
    if VERSION >= (2, 4) and os.environ.get("USE_LIBUV", "1") != "1":
        options["use_libuv"] = False
    return options


def _own_address(daemon: str) -> str:
    """The address of this host on the way to the daemon."""
    host, _, port = daemon.removeprefix("phub://").rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])
