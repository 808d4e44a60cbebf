"""Counts the bytes of a worker's memory that are touched per byte of gradients.

The ranks run with a preloaded library that wraps the C library's memcpy, memmove and socket
functions (overlap/count_traffic.cc). These runs are not timed. They count accesses to the worker's
memory:

  copies    by the system's library in this process: a read and a write per byte
  sockets   by the kernel, into and out of sockets: a read and a write per byte
  sums      by arithmetic of the exchange in this process: two reads and a write
  link      by a network card, or by the other end in its place. Over tcp, all bytes through
            sockets, counted once. Over shared memory, the gradients that the daemon reads and the
            parameters that it writes, by the daemon's own counters. Parameters that all workers of
            a job share are counted once for the job.
  update    by the optimizer, in systems where each worker runs it: two writes and three reads

An ideal endpoint touches 2 bytes, on the link: gradients out, parameters in. A ring that endpoints
run touches 7.
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

EXCHANGES = (2, 6)  # of two blocks; their difference leaves out everything but exchanges
PARTS = ("copies", "sockets", "sums", "link", "update")


class Counted(System):
    """A system whose ranks count their memory traffic."""

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
            raise BenchFailure(f"{system.name}: a rank wrote no traffic counts; the preloaded "
                               "library was probably not loaded")
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
        raise BenchFailure(f"{system.name} over {system.transport}: the workers exchanged "
                           f"{gradient_bytes} bytes of gradients, but only {parts['link']:.2f}x "
                           "that was counted on the link; some bytes take a path that is not "
                           "counted")
    return Traffic(system, parts)


def shared_memory_link(counted: Sequence[Counter[str]], workload: Workload) -> float:
    """Bytes of one worker's memory that the daemon reads and writes, per byte of gradients."""
    of = {name.removeprefix("phub_").removesuffix("_total"):
          counted[1][name] - counted[0][name] for name in counted[1]}
    own = of["replies_in_pass"] / of["replies"]  # the share written into each worker's own memory
    shared = (1 - own) / workload.workers
    return (of["gradient_bytes"] + of["reply_bytes"] * (own + shared)) / (
        workload.workers * workload.bytes * (EXCHANGES[1] - EXCHANGES[0]))


def table(traffics: Sequence[Traffic]) -> str:
    rows = [["system", *PARTS[:-1], "exchange", "to a ring (7)", "to ideal (2)", "update"]]
    for traffic in traffics:
        rows.append([traffic.label, *(f"{traffic.parts[part]:.2f}" for part in PARTS[:-1]),
                     f"{traffic.exchange:.2f}", f"{traffic.exchange / 7:.2f}x",
                     f"{traffic.exchange / 2:.2f}x", f"{traffic.parts['update']:.2f}"])
    return aligned(rows)
