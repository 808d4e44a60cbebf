"""Measures a small all-reduce next to large ones, with and without priority classes. Needs root.

Two groups of the same ranks share the links: one starts an all-reduce of --bytes and waits for it,
again and again; the other one always has two all-reduces of --bulk in flight. Systems:
  alone      without the large ones
  tensor     the small ones have the class tensor, the large ones data
  data       both have the same class, so they wait in one queue
Layouts, in network namespaces (tc tbf):
  workers    each worker and their daemon have a link of the same rate. The limit is the time that
             the daemon's link needs for the small all-reduce's payload and its headers: once from
             each worker, and once to each.
  racks      --racks racks with a worker and a daemon each, whose links to the other racks have the
             rate --uplink. Within a rack, links are ten times as fast. The limit is the time that
             an uplink needs: with the plan sharded-star, the payload and its headers pass each
             uplink 2 (racks - 1) / racks times each way.
The bulk column shows the large ones' rate.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import namespaces, results
from .context import Context, counts, listed, positive
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


LAYOUTS = ("workers", "racks")
PLAN = "sharded-star"
LINK_TO_UPLINK = 10


@dataclass(frozen=True)
class Shape:
    """racks: 0: the workers of one daemon; otherwise a worker in each."""
    workers: int
    racks: int
    rate_mbit: int
    bytes: int
    bulk_bytes: int
    operations: int

    @property
    def case(self) -> str:
        layout = f"{self.racks}-racks" if self.racks else f"w{self.workers}"
        return (f"priorities/tcp@{self.rate_mbit}Mbit/{self.bytes >> 10}KiB/"
                f"bulk-{self.bulk_bytes >> 20}MiB/{layout}/f32/allreduce")

    def limit_s(self) -> float:
        passes = 2 * (self.racks - 1) / self.racks if self.racks else float(self.workers)
        return passes * self.bytes * FRAME_BYTES / PAYLOAD_BYTES * 8 / (self.rate_mbit * 1e6)

    def limit_text(self) -> str:
        link = "an uplink" if self.racks else "the daemon's link"
        return (f"limit: {results.seconds_text(self.limit_s())}, the small one's payload and "
                f"headers on {link} of {self.rate_mbit} Mbit/s")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layouts", type=listed(LAYOUTS), default=list(LAYOUTS), metavar="LIST",
                        help="workers, racks or both (default both)")
    parser.add_argument("--workers", type=positive, default=2,
                        help="number of workers of one daemon (default 2)")
    parser.add_argument("--rate", type=positive, default=1000, metavar="MBIT",
                        help="rate of each link of these, each way (default 1000)")
    parser.add_argument("--racks", type=counts(2, 16), default=[2, 4], metavar="LIST",
                        help="numbers of racks (default 2,4)")
    parser.add_argument("--uplink", type=positive, default=200, metavar="MBIT",
                        help="rate of each rack's uplink, each way (default 200)")
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


def shapes_of(context: Context) -> list[Shape]:
    options = context.options
    if context.smoke:
        return [Shape(2, 0, 1000, 64 << 10, 1 << 20, 2), Shape(2, 2, 200, 64 << 10, 1 << 20, 2)]
    shapes = []
    small, bulk = bytes_of(options.bytes), bytes_of(options.bulk)
    if "workers" in options.layouts:
        shapes.append(Shape(options.workers, 0, options.rate, small, bulk, options.operations))
    if "racks" in options.layouts:
        shapes += [Shape(racks, racks, options.uplink, small, bulk, options.operations)
                   for racks in options.racks]
    return shapes


@contextlib.contextmanager
def built(context: Context, shape: Shape) -> Iterator[tuple[Network, list[Daemon]]]:
    """The network and its daemons: one for all workers, or one in each rack."""
    rate = shape.rate_mbit * 1e6 * (LINK_TO_UPLINK if shape.racks else 1)
    servers = [f"{SERVER}{rack}" for rack in range(max(shape.racks, 1))]
    nodes = [Node(f"worker{rank}", rate, rack=rank) for rank in range(shape.workers)]
    nodes += [Node(name, rate, rack=rack) for rack, name in enumerate(servers)]
    with (namespaces.network(nodes, [shape.rate_mbit * 1e6] * shape.racks) as network,
          contextlib.ExitStack() as stack):
        listed = ",".join(f"{network.address(name)}:{PORT}" for name in servers)
        racks = ["--racks", listed] if shape.racks else []
        yield network, [stack.enter_context(Daemon(
            context.build, context.scratch, f"phubd-{shape.racks}-{name}", ["--insecure", *racks],
            network.address(name), network.prefix(name), PORT)) for name in servers]


def block(context: Context, network: Network, daemons: Sequence[Daemon], shape: Shape, system: str,
          number: int) -> tuple[list[float], float]:
    """The durations of the small all-reduces, and the bytes per second of the large ones."""
    name = f"{shape.racks}-{system}-{number}"
    output = context.scratch / name
    environment = {"PYTHONPATH": str(ROOT / "client" / "python"),
                   "PHUB_LIBRARY": str(context.build.folder / "client" / "libphub.so.0")}
    commands = []
    for rank in range(shape.workers):
        arguments = {"endpoint": daemons[rank % len(daemons)].endpoint, "job": name, "rank": rank,
                     "ranks": shape.workers, "priority-class": "data" if system == "data" else
                     "tensor", "bytes": shape.bytes,
                     "bulk-bytes": 0 if system == "alone" else shape.bulk_bytes,
                     "operations": shape.operations, "pause": 0.05, "output": f"{output}-{rank}"}
        words = [f"--{name}={value}" for name, value in arguments.items()]
        words += [f"--plan={PLAN}", "--keys"] if shape.racks else []
        commands.append(Command([*network.prefix(f"worker{rank}"), context.options.python,
                                 str(ROOT / "bench" / "phub" / "priority_rank.py"), *words],
                                context.scratch / f"{name}-{rank}.log", environment))
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
    times: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    rates: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    with built(context, shape) as (network, daemons):
        for number in range(1 if context.smoke else context.options.rounds):
            for system in SYSTEMS:
                context.progress(f"{shape.case}: {system}")
                own, rate = block(context, network, daemons, shape, system, number)
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
    all_rows = []
    for shape in shapes_of(context):
        rows = list(measured(context, shape))
        context.say(shape.case)
        context.say(f"  {shape.limit_text()}")
        context.say(table(rows))
        tensor = next(row for row in rows if row.system == "tensor")
        context.say(f"  tensor next to bulk takes {tensor.median_s / rows[0].median_s:.2f} times "
                    f"as long as alone (goal {GOAL})")
        all_rows += rows
    return all_rows
