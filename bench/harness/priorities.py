"""Measures a small all-reduce next to large ones, with and without priority classes. Needs root.

Each worker and the daemon have a network namespace behind a link of the same rate (tc tbf). Two
groups of the same ranks share the links: one starts an all-reduce of --bytes and waits for it,
again and again; the other one always has two all-reduces of --bulk in flight. Systems:
  alone      without the large ones
  tensor     the small ones have the class tensor, the large ones data
  data       both have the same class, so they wait in one queue
The limit is the time that the daemon's link needs for the small all-reduce's payload and its
headers: once from each worker, and once to each. The bulk column shows the large ones' rate.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import namespaces, results
from .context import Context, positive
from .daemon import Daemon
from .failure import NotPossibleHere
from .namespaces import FRAME_BYTES, PAYLOAD_BYTES, Network, Node
from .processes import Command, run_together
from .results import Result
from .workload import ROOT, model

SUMMARY = "measure small all-reduces next to large ones, with priority classes (needs root)"
SYSTEMS = ("alone", "tensor", "data")
SERVER = "server"
PORT = 7700
SECONDS_MAX = 300
GOAL = 1.15


@dataclass(frozen=True)
class Shape:
    workers: int
    rate_mbit: int
    bytes: int
    bulk_bytes: int
    operations: int

    @property
    def case(self) -> str:
        return (f"priorities/tcp@{self.rate_mbit}Mbit/{self.bytes >> 10}KiB/"
                f"bulk-{self.bulk_bytes >> 20}MiB/w{self.workers}/f32/allreduce")

    def limit_s(self) -> float:
        frames = self.workers * self.bytes * FRAME_BYTES / PAYLOAD_BYTES
        return frames * 8 / (self.rate_mbit * 1e6)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=positive, default=2, help="number of workers (default 2)")
    parser.add_argument("--rate", type=positive, default=1000, metavar="MBIT",
                        help="rate of each link, each way (default 1000)")
    parser.add_argument("--bytes", default="4MiB", metavar="SIZE",
                        help="a small all-reduce (default 4MiB)")
    parser.add_argument("--bulk", default="16MiB", metavar="SIZE",
                        help="a large all-reduce (default 16MiB)")
    parser.add_argument("--operations", type=positive, default=20,
                        help="small all-reduces in a block (default 20)")
    parser.add_argument("--rounds", type=positive, default=3,
                        help="blocks of each system (default 3)")
    parser.add_argument("--python", default="/usr/bin/python3",
                        help="interpreter with numpy (default /usr/bin/python3)")


def bytes_of(size: str) -> int:
    return 4 * model(size).element_count


def shape_of(context: Context) -> Shape:
    options = context.options
    if context.smoke:
        return Shape(2, 1000, 64 << 10, 1 << 20, 2)
    return Shape(options.workers, options.rate, bytes_of(options.bytes), bytes_of(options.bulk),
                 options.operations)


def block(context: Context, network: Network, daemon: Daemon, shape: Shape, system: str,
          number: int) -> tuple[list[float], float]:
    """The durations of the small all-reduces, and the bytes per second of the large ones."""
    output = context.scratch / f"{system}-{number}"
    environment = {"PYTHONPATH": str(ROOT / "client" / "python"),
                   "PHUB_LIBRARY": str(context.build.folder / "client" / "libphub.so.0")}
    commands = []
    for rank in range(shape.workers):
        arguments = {"endpoint": daemon.endpoint, "job": f"{system}-{number}", "rank": rank,
                     "ranks": shape.workers, "priority-class": "data" if system == "data" else
                     "tensor", "bytes": shape.bytes,
                     "bulk-bytes": 0 if system == "alone" else shape.bulk_bytes,
                     "operations": shape.operations, "pause": 0.05, "output": f"{output}-{rank}"}
        words = [f"--{name}={value}" for name, value in arguments.items()]
        commands.append(Command([*network.prefix(f"worker{rank}"), context.options.python,
                                 str(ROOT / "bench" / "phub" / "priority_rank.py"), *words],
                                context.scratch / f"{system}-{number}-{rank}.log", environment))
    begin = time.monotonic()
    run_together(commands, SECONDS_MAX)
    seconds = time.monotonic() - begin
    ranks = []
    for rank in range(shape.workers):
        with open(f"{output}-{rank}", encoding="utf-8") as file:
            ranks.append(json.load(file))
    times = [max(each) for each in zip(*(rank["times"] for rank in ranks))]
    return times, ranks[0]["bulk"] * shape.bulk_bytes / seconds


def measured(context: Context, shape: Shape) -> Iterator[Result]:
    nodes = [Node(f"worker{rank}", shape.rate_mbit * 1e6) for rank in range(shape.workers)]
    nodes.append(Node(SERVER, shape.rate_mbit * 1e6))
    times: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    rates: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    with namespaces.network(nodes) as network, Daemon(
            context.build, context.scratch, "phubd", ["--insecure"], network.address(SERVER),
            network.prefix(SERVER), PORT) as daemon:
        for number in range(1 if context.smoke else context.options.rounds):
            for system in SYSTEMS:
                context.progress(f"{shape.case}: {system}")
                own, rate = block(context, network, daemon, shape, system, number)
                times[system] += own
                rates[system].append(rate)
    context.progress_done()
    for system in SYSTEMS:
        own = times[system]
        yield Result(shape.case, system, statistics.median(own), min(own),
                     results.median_absolute_deviation(own), 0.0, shape.limit_s(), len(own),
                     {"p90_s": results.percentile(own, 90),
                      "bulk_bytes_per_s": statistics.median(rates[system])})


def table(rows: Sequence[Result]) -> str:
    lines = [["system", "median", "p90", "min", "to alone", "limit/median", "bulk"]]
    for row in rows:
        rate = float(str(row.more["bulk_bytes_per_s"]))
        lines.append([row.system, results.seconds_text(row.median_s),
                      results.seconds_text(float(str(row.more["p90_s"]))),
                      results.seconds_text(row.min_s), f"{row.median_s / rows[0].median_s:.2f}x",
                      f"{100 * (row.ceiling_s or 0) / row.median_s:.0f} %",
                      f"{rate / 1e6:.0f} MB/s" if rate > 0 else "-"])
    return results.aligned(lines)


def run(context: Context) -> list[Result]:
    if why := namespaces.missing():
        raise NotPossibleHere(why)
    shape = shape_of(context)
    rows = list(measured(context, shape))
    context.say(shape.case)
    context.say(f"  limit: {results.seconds_text(shape.limit_s())}, the small one's payload and "
                f"headers on the daemon's link of {shape.rate_mbit} Mbit/s")
    context.say(table(rows))
    tensor = next(row for row in rows if row.system == "tensor")
    context.say(f"  tensor next to bulk takes {tensor.median_s / rows[0].median_s:.2f} times as "
                f"long as alone (goal {GOAL})")
    return rows
