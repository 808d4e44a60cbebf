"""How many bytes of a worker's memory are touched for each byte of gradients: counted.

Ranks run with a library preloaded that stands in front of the C library's memcpy, memmove and
functions of sockets (overlap/count_traffic.cc); it is not timed. Of the worker's memory are counted

  copies    by the system's library in this process: a read and a write for each byte
  sockets   by the kernel, of what goes into a socket or comes out: a read and a write for each byte
  sums      arithmetic of the exchange in this process: two reads and a write
  link      what is read out of it, and written into it, from outside: by a network card, or in
            its place by the other end. Over tcp all bytes through sockets, once; over shared memory
            what the daemon reads of gradients, and writes of parameters (those that all workers of
            a job share once for all), by the daemon's own counters
  update    the optimizer's, where each worker has its own: two writes and three reads

An ideal endpoint has 2, on the link: gradients out, parameters in. A ring that endpoints run has 7.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .block import Block, run_block
from .build import Build
from .context import Context
from .daemon import Daemon
from .failure import BenchFailure
from .processes import Command
from .results import aligned
from .systems import System
from .workload import Workload

EXCHANGES = (2, 6)  # of two blocks, whose difference tells of exchanges and nothing else
PARTS = ("copies", "sockets", "sums", "link", "update")


class Counted(System):
    """A system whose ranks count."""

    def __init__(self, system: System, build: Build) -> None:
        self.name = system.name
        self.transport = system.transport
        self._system = system
        self._library = build.count_traffic

    def rank_count(self, workload: Workload) -> int:
        return self._system.rank_count(workload)

    def commands(self, workload: Workload, folder: Path) -> list[Command]:
        commands = self._system.commands(workload, folder)
        for command in commands:
            command.environment = command.environment | {"LD_PRELOAD": str(self._library)}
        return commands


@dataclass
class Traffic:
    """Bytes of one worker's memory per byte of its gradients, by PARTS."""

    system: System
    parts: dict[str, float]

    @property
    def label(self) -> str:
        return f"{self.system.name}/{self.system.transport}"

    @property
    def exchange(self) -> float:
        return sum(bytes_ for part, bytes_ in self.parts.items() if part != "update")


def count(context: Context, daemon: Daemon, system: System, workload: Workload) -> Traffic:
    blocks: list[Block] = []
    counted: list[Counter[str]] = []
    for exchanges in EXCHANGES:
        before = daemon.counters(context.build.phubctl)
        blocks.append(run_block(Counted(system, context.build),
                                workload.with_exchanges(exchanges), context.scratch))
        after = daemon.counters(context.build.phubctl)
        counted.append(Counter({name: after[name] - before[name] for name in after}))
    gradient_bytes = workload.bytes * EXCHANGES[1]

    def of_worker(name: str) -> float:
        if any("traffic" not in written for written in blocks[1].files):
            raise BenchFailure(f"{system.name}: the preloaded library counted nothing")
        return statistics.fmean(written["traffic"][name] for written in blocks[1].files) / \
            gradient_bytes

    parts = {
        "copies": 2 * (of_worker("copied_bytes") + of_worker("peer_copied_bytes")),
        "sockets": 2 * (of_worker("socket_sent_bytes") + of_worker("socket_received_bytes")),
        "sums": of_worker("arithmetic_bytes"),
        "link": of_worker("socket_sent_bytes") + of_worker("socket_sent_in_place") +
                of_worker("socket_received_bytes"),
        "update": of_worker("update_bytes"),
    }
    if system.is_phub and system.transport == "shm":
        parts["link"] += shared_memory_link(counted, workload)
    if parts["link"] < 0.99:
        raise BenchFailure(f"{system.name} over {system.transport}: gradients of {gradient_bytes} "
                           f"bytes were exchanged, but only {parts['link']:.2f} of that was seen "
                           "to leave the workers: its bytes go ways that are not counted")
    return Traffic(system, parts)


def shared_memory_link(counted: Sequence[Counter[str]], workload: Workload) -> float:
    """What the daemon reads and writes of one worker's memory, per byte of its gradients."""
    of = {name.removeprefix("phub_").removesuffix("_total"):
          counted[1][name] - counted[0][name] for name in counted[1]}
    own = of["replies_in_pass"] / of["replies"]  # written into each worker's own memory
    shared = (1 - own) / workload.workers
    return (of["gradient_bytes"] + of["reply_bytes"] * (own + shared)) / (
        workload.workers * workload.bytes * (EXCHANGES[1] - EXCHANGES[0]))


def table(traffics: Sequence[Traffic]) -> str:
    rows = [["system", *PARTS[:-1], "exchange", "of a ring's 7", "ideal is 2", "update"]]
    for traffic in traffics:
        rows.append([traffic.label, *(f"{traffic.parts[part]:.2f}" for part in PARTS[:-1]),
                     f"{traffic.exchange:.2f}", f"{traffic.exchange / 7:.2f}x",
                     f"{traffic.exchange / 2:.2f}x", f"{traffic.parts['update']:.2f}"])
    return aligned(rows)
