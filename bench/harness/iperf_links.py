"""Measures how much iperf3 moves over the links of a network of namespaces, and its CPU time.

All workers and the server send to each other at full speed at the same time. This host's cores
process both ends of every link, so the result is often lower than the links' rate."""

import contextlib
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .failure import BenchFailure
from .namespaces import Network
from .processes import Command, started, tail

SECONDS = 2
FIRST_PORT = 7720
START_SECONDS = 0.3
TICKS_PER_S = 100  # of /proc/stat


@dataclass(frozen=True)
class Moved:
    bytes_per_s: float  # of all links, both ways
    cpu_s_per_gb: float


def machine_cpu_s() -> float:
    """All CPU time except idle and iowait."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_S


def measured(network: Network, workers: Sequence[str], server: str, scratch: Path) -> Moved:
    ports = [str(FIRST_PORT + number) for number in range(len(workers))]
    servers = [Command([*network.prefix(server), "iperf3", "--server", "--one-off", "--port", port],
                       scratch / f"iperf3-server-{port}.log") for port in ports]
    clients = [Command([*network.prefix(worker), "iperf3", "--client", network.address(server),
                        "--port", port, "--bidir", "--time", str(SECONDS), "--json"],
                       scratch / f"iperf3-client-{port}.log")
               for worker, port in zip(workers, ports)]
    for client in clients:
        client.log.unlink(missing_ok=True)  # an earlier case's log
    with contextlib.ExitStack() as stack:
        stack.enter_context(started(servers))
        time.sleep(START_SECONDS)
        before_s = machine_cpu_s()
        for process in stack.enter_context(started(clients)):
            try:
                process.wait(timeout=30 + SECONDS)
            except subprocess.TimeoutExpired as late:
                raise BenchFailure(
                    f"iperf3 over the links still ran after {30 + SECONDS} s") from late
        taken_s = machine_cpu_s() - before_s
    moved = sum(bytes_per_s(client.log) for client in clients)
    return Moved(moved, taken_s / (moved * SECONDS * 1e-9))


def bytes_per_s(log: Path) -> float:
    try:
        end = json.loads(log.read_text())["end"]
        return float(end["sum_received"]["bits_per_second"] +
                     end["sum_received_bidir_reverse"]["bits_per_second"]) / 8
    except (ValueError, KeyError) as error:
        raise BenchFailure(f"iperf3 over the links failed:\n{tail(log)}") from error
