"""Measures sums in the network: phub with phub-aggregator, phub over tcp, Gloo's ring. Needs root.

Each worker and the daemon have a network namespace behind a link of the same rate (tc tbf), and the
aggregator one behind a link of N + 1 times that rate: as a switch would, it has as much capacity as
the links of N workers and the daemon together. Systems:
  phub-sums  a job with sum=fixed. Workers send integers to the aggregator, which sends the sums to
             the daemon; new parameters go back through it. The daemon's link carries the model once
             in each direction.
  phub-tcp   the same job without an aggregator. The daemon's link carries the model N times.
  gloo-ring  Gloo's ring, without a daemon
Each system's limit is the time that its busiest link needs for the payload and its headers. Bytes
on the daemon's link are the difference of a short and a long run by the kernel's counters.

Everything runs on this machine's cores, aggregator included. So the rate must be low enough that
the links are the limit. The CPU time of each system is shown, too.
"""

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import link_bytes, namespaces, picture, results
from .context import Context, counts, positive
from .daemon import Daemon
from .failure import NotPossibleHere
from .namespaces import FRAME_BYTES, PAYLOAD_BYTES, Network, Node
from .peers import Gloo
from .processes import Command, started_and_ready
from .results import Result
from .systems import Phub, Place, System
from .workload import Workload, model

SUMMARY = "measure sums in the network over shaped links in namespaces (needs root)"
SERVER, AGGREGATOR = "server", "aggregator"
SUMS_PORT, TCP_PORT, AGGREGATOR_PORT = 7700, 7701, 7702
AGGREGATOR_START_SECONDS_MAX = 10
# A block of 350 integers, and its frame: 14 bytes of Ethernet, 20 of IP, 8 of UDP, 32 of ours.
BLOCK_PAYLOAD_BYTES = 1400
BLOCK_FRAME_BYTES = BLOCK_PAYLOAD_BYTES + 14 + 20 + 8 + 32


@dataclass(frozen=True)
class Shape:
    workers: int
    rate_mbit: float
    model: str
    exchanges: int

    def workload(self) -> Workload:
        return Workload(model(self.model), self.workers, exchanges=self.exchanges, warmup=2)

    @property
    def link_bits_per_s(self) -> float:
        return self.rate_mbit * 1e6

    def limit_s(self, system: str) -> float:
        """The time that the busiest link needs."""
        datagrams = BLOCK_FRAME_BYTES / BLOCK_PAYLOAD_BYTES
        segments = FRAME_BYTES / PAYLOAD_BYTES
        passes = {"phub-sums": datagrams,
                  "phub-tcp": self.workers * segments,
                  "gloo-ring": 2 * (self.workers - 1) / self.workers * segments}[system]
        return passes * self.workload().bytes * 8 / self.link_bits_per_s


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=counts(2, 64), default=[2, 4, 8],
                        help="numbers of workers (default 2,4,8)")
    parser.add_argument("--rate", type=positive, default=100, metavar="MBIT",
                        help="rate of each worker's link and of the daemon's in Mbit/s "
                             "(default 100)")
    parser.add_argument("--model", default="16MiB", metavar="NAME",
                        help="resnet50, alexnet, a CSV file of sizes, or the size of a single "
                             "tensor (default 16MiB)")
    parser.add_argument("--rounds", type=positive, default=2,
                        help="blocks of each system (default 2)")
    parser.add_argument("--exchanges", type=positive, default=4,
                        help="timed exchanges in a block (default 4)")


def shapes(context: Context) -> list[Shape]:
    options = context.options
    if context.smoke:
        return [Shape(2, 1000, "4MiB", 5)]
    return [Shape(workers, options.rate, options.model, options.exchanges)
            for workers in options.workers]


def worker(rank: int) -> str:
    return f"worker{rank}"


@contextlib.contextmanager
def built(shape: Shape) -> Iterator[Network]:
    nodes = [Node(worker(rank), shape.link_bits_per_s) for rank in range(shape.workers)]
    nodes.append(Node(SERVER, shape.link_bits_per_s))
    width = shape.workers + 1
    nodes.append(Node(AGGREGATOR, shape.link_bits_per_s * width, width))
    with namespaces.network(nodes) as network:
        yield network


@contextlib.contextmanager
def daemons(context: Context, shape: Shape, network: Network) -> Iterator[tuple[Daemon, Daemon]]:
    """An aggregator, a daemon that uses it, and one that does not."""
    control = context.scratch / f"aggregator-{shape.workers}.sock"
    address = network.address(SERVER)
    command = Command([*network.prefix(AGGREGATOR), str(context.build.aggregator),
                       "--listen", f"{network.address(AGGREGATOR)}:{AGGREGATOR_PORT}",
                       "--control", str(control)],
                      context.scratch / f"aggregator-{shape.workers}.log")

    def daemon(name: str, port: int, arguments: Sequence[str]) -> Daemon:
        return Daemon(context.build, context.scratch, f"phubd-{name}-{shape.workers}",
                      ["--insecure", "--cores", "1", *arguments], address, network.prefix(SERVER),
                      port)
    with (started_and_ready(command, "event=serving", AGGREGATOR_START_SECONDS_MAX),
          daemon("sums", SUMS_PORT, ["--sum-aggregator", str(control),
                                     "--sum-listen", address]) as sums,
          daemon("tcp", TCP_PORT, []) as tcp):
        yield sums, tcp


def systems_of(context: Context, shape: Shape, network: Network,
               running: tuple[Daemon, Daemon]) -> list[System]:
    place = Place.on(network, [worker(rank) for rank in range(shape.workers)])
    chosen: list[System] = []
    for name, daemon in zip(("phub-sums", "phub-tcp"), running):
        system = Phub(context.build, [daemon], "tcp", "library", ["--sum", "fixed"], place)
        system.name = name
        chosen.append(system)
    ring = Gloo(context.build, "ring", place)
    if ring.missing():
        context.say(f"# gloo is left out: {ring.missing()}")
        return chosen
    return [*chosen, ring]


def measure(context: Context, shape: Shape) -> list[Result]:
    workload = shape.workload()
    case = workload.case("aggregation", f"{shape.rate_mbit:.0f}Mbit")
    rounds = 1 if context.smoke else context.options.rounds
    with built(shape) as network, daemons(context, shape, network) as running:
        def read() -> list[int]:
            counters = running[0].counters(context.build.phubctl)
            return [*network.node_bytes(SERVER), counters["phub_rounds_total"],
                    counters["phub_rounds_streamed_total"]]

        systems = systems_of(context, shape, network, running)
        blocks, moved = link_bytes.alternate(context, case, systems, workload, rounds, read)
    rows = [results.summarized(case, system.name, blocks[system.name], shape.limit_s(system.name))
            for system in systems]
    for row in rows:
        row.more["ceiling"] = "payload and headers on the busiest link"
        received, sent, chunk_rounds, summed = moved[row.system]
        row.more |= {"daemon_received": received, "daemon_sent": sent}
        if row.system == "phub-sums":
            row.more["summed_share"] = summed / chunk_rounds
    results.add_ratios(rows)
    return rows


def show(context: Context, shape: Shape, rows: Sequence[Result]) -> None:
    context.say(f"\n{rows[0].case}: {shape.workers} workers' links and the daemon's "
                f"{shape.rate_mbit:.0f} Mbit/s")
    context.say(results.table(rows))
    payload = shape.workload().bytes
    for row in rows:
        line = (f"  {row.system}: {row.median_s / (row.ceiling_s or 1):.3f}x its limit "
                f"({results.seconds_text(row.ceiling_s or 0)})")
        if row.system.startswith("phub"):
            received, sent = (float(str(row.more[name])) / payload
                              for name in ("daemon_received", "daemon_sent"))
            line += (f"; the daemon's link carries {received:.3f}x the model in and {sent:.3f}x "
                     "out, headers included")
        if "summed_share" in row.more:
            line += (f"; the aggregator sums {100 * float(str(row.more['summed_share'])):.0f} % of "
                     "the chunks")
        context.say(line)


def run(context: Context) -> list[Result]:
    link_bytes.check(context.options.exchanges)
    if why := namespaces.missing():
        raise NotPossibleHere(why)
    measured = []
    for shape in shapes(context):
        rows = measure(context, shape)
        show(context, shape, rows)
        measured += rows
    return measured


def draw(context: Context, measured: Sequence[Result], path: Path) -> None:
    picture.draw_ratios(context, measured, path,
                        "Time of an exchange, in multiples of phub-sums' (lower is better)")
