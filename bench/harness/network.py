"""Measures the exchange over a network of shaped links, with phub and with Gloo. Needs root.

Each worker and each server has a network namespace behind a token bucket (tc tbf). A bridge joins
the namespaces. A worker's link has `--rate` each way; a server's link has the sum of the rates of
its workers. The limit is the time that such links need for the payload and its headers when pushes
and pulls overlap: every worker sends its gradients and receives the parameters once. A ring must
move 2 (N - 1) / N times as much. So must phub if its servers run on the workers' hosts: a worker
then uses shared memory, and no link, for the server on its own host.

A full token bucket lets half a megabyte pass at once. Therefore the buckets are drained before each
exchange of a single tensor. Draining takes CPU time, so no CPU time is reported for these cases.
"""

import argparse
import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import iperf_links, namespaces, picture, results
from .block import Block, run_block
from .context import Context, listed, positive
from .daemon import Daemon
from .failure import NotPossibleHere, UsageError
from .iperf_links import Moved
from .namespaces import FRAME_BYTES, PAYLOAD_BYTES, Network, Node
from .peers import Gloo
from .processes import Command, started_and_ready
from .results import Result
from .systems import Phub, Place, System
from .workload import Workload, model

SUMMARY = "measure the exchange over links of a given rate, in network namespaces (needs root)"
SYSTEMS = ("phub", "gloo-ring", "gloo-hd")
PORT = 7700
DRAIN_PORT = 7709
ECHO_START_SECONDS_MAX = 10
WITHIN_LIMIT = 1.10  # the sweep reports the highest rate at which a system stays below this ratio


@dataclass(frozen=True)
class Shape:
    """A network and its workload. servers: 0 for one server on each worker's host."""

    rate_mbit: int
    workers: int = 4
    servers: int = 1
    model: str = "resnet50"
    type: str = "f32"
    exchanges: int = 4
    peers: bool = True

    @property
    def transport(self) -> str:
        where = {0: ",colocated", 1: ""}.get(self.servers, f",{self.servers}-servers")
        return f"tcp@{self.rate_mbit}Mbit{where}"

    def workload(self) -> Workload:
        return Workload(model(self.model), self.workers, type=self.type, exchanges=self.exchanges)

    @property
    def drained(self) -> bool:
        return len(model(self.model).sizes) == 1

    def link_bytes(self, is_phub: bool) -> float:
        """Payload through a worker's link each way: the whole model, or a ring's share of it for
        rings and colocated servers."""
        ring = 2 * (self.workers - 1) / self.workers
        return self.workload().bytes * (1 if is_phub and self.servers > 0 else ring)

    def own_limit_s(self, is_phub: bool) -> float:
        frames = self.link_bytes(is_phub) * FRAME_BYTES / PAYLOAD_BYTES
        return frames * 8 / (self.rate_mbit * 1e6)

    def limit_s(self) -> float:
        return self.own_limit_s(is_phub=True)

    def limit(self) -> str:
        return f"payload and headers at {self.rate_mbit} Mbit/s, pushes and pulls overlapping"


DEFAULT_SHAPES = (
    Shape(1000),
    Shape(1000, type="bf16", peers=False),
    Shape(1000, model="1MiB", exchanges=60),
    Shape(1000, workers=8, exchanges=3),
    Shape(1000, servers=2, peers=False),
    Shape(1000, servers=0),
)
SWEEP_MBIT = (1000, 1500, 2000, 2500, 3000, 3500, 4000, 6000)
SMOKE_SHAPES = (Shape(1000, workers=2, model="256KiB", exchanges=3),
                Shape(1000, workers=2, servers=2, model="256KiB", exchanges=3, peers=False))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=listed(), metavar="MBIT",
                        help="rates of a worker's link in Mbit/s, separated by commas. Without "
                             "--rate, --model and --workers, a selection of cases and a sweep of "
                             "rates run")
    parser.add_argument("--model", default="resnet50", metavar="NAME",
                        help="resnet50, alexnet, a CSV file of sizes, or the size of a single "
                             "tensor (default resnet50)")
    parser.add_argument("--workers", type=positive, default=4, help="number of workers (default 4)")
    parser.add_argument("--servers", type=int, default=1, metavar="COUNT",
                        help="number of servers, which share the chunks and the rate; 0 for one on "
                             "each worker's host, behind the worker's link (default 1)")
    parser.add_argument("--type", choices=("f32", "f16", "bf16"), default="f32",
                        help="element type on the wire; the server keeps f32 (default f32)")
    parser.add_argument("--systems", type=listed(SYSTEMS), metavar="NAMES",
                        default=["phub", "gloo-ring"], help="measure these systems of "
                        f"{','.join(SYSTEMS)} (default phub,gloo-ring)")
    parser.add_argument("--rounds", type=positive, default=2,
                        help="blocks of each system (default 2)")
    parser.add_argument("--exchanges", type=positive,
                        help="timed exchanges in a block (default: depends on the case)")
    parser.add_argument("--no-sweep", action="store_true", help="skip the sweep of rates")
    parser.add_argument("--phubd", default="", metavar="OPTIONS",
                        help="additional phubd options, as one quoted word (\"--cores 2\")")
    parser.add_argument("--rank", default="", metavar="OPTIONS",
                        help="additional options of phub's workers, as one quoted word "
                             "(\"--chunk-bytes 131072\")")


def shapes(context: Context) -> list[Shape]:
    options = context.options
    if context.smoke:
        return list(SMOKE_SHAPES)
    if not options.rate and options.model == "resnet50" and options.workers == 4:
        chosen = list(DEFAULT_SHAPES)
    else:
        try:
            rates = [int(rate) for rate in options.rate or ["1000"]]
        except ValueError as error:
            raise UsageError(f"--rate: {error}") from error
        if min(rates) < 1 or options.servers < 0:
            raise UsageError("--rate must be at least 1 Mbit/s, and --servers at least 0")
        chosen = [Shape(rate, options.workers, options.servers, options.model, options.type,
                        peers=options.type == "f32") for rate in rates]
    if options.exchanges:
        chosen = [replace(shape, exchanges=options.exchanges) for shape in chosen]
    return chosen


@contextlib.contextmanager
def built(shape: Shape) -> Iterator[tuple[Network, list[str], list[str]]]:
    """The network, the names of the workers' nodes, and the names of the servers' nodes."""
    rate = shape.rate_mbit * 1e6
    workers = [f"worker{rank}" for rank in range(shape.workers)]
    servers = [f"server{number}" for number in range(shape.servers)]
    nodes = [Node(name, rate) for name in workers]
    width = shape.workers / max(1, shape.servers)
    nodes += [Node(name, rate * width, width) for name in servers]
    with namespaces.network(nodes) as network:
        yield network, workers, servers or workers


@contextlib.contextmanager
def daemons_on(context: Context, network: Network, nodes: Sequence[str]) -> Iterator[list[Daemon]]:
    """A phubd on each of the nodes. Together they form one rack."""
    rack = ",".join(f"{network.address(node)}:{PORT}" for node in nodes)
    arguments = ["--insecure", *(["--daemons", rack] if len(nodes) > 1 else []),
                 *context.options.phubd.split()]
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(
            Daemon(context.build, context.scratch, f"phubd-{node}", arguments,
                   network.address(node), network.prefix(node), PORT)) for node in nodes]


@contextlib.contextmanager
def drain_echo(context: Context, network: Network, node: str) -> Iterator[str]:
    """Runs bench-drain-echo on the node. Yields its ADDRESS:PORT."""
    address = f"{network.address(node)}:{DRAIN_PORT}"
    program = context.build.program("bench-drain-echo")
    command = Command([*network.prefix(node), str(program), address],
                      context.scratch / "drain-echo.log")
    with started_and_ready(command, "echoes", ECHO_START_SECONDS_MAX):
        yield address


def systems_of(context: Context, shape: Shape, daemons: Sequence[Daemon],
               place: Place) -> list[System]:
    wanted = context.options.systems
    chosen: list[System] = []
    if "phub" in wanted:
        # A worker reaches the server on its own host as a user's worker does (shared memory), and
        # the other servers over tcp.
        transport = "auto" if shape.servers == 0 else "tcp"
        chosen.append(Phub(context.build, daemons, transport, "library",
                           context.options.rank.split(), place))
    for name, algorithm in (("gloo-ring", "ring"), ("gloo-hd", "halving-doubling")):
        if name not in wanted or not shape.peers:
            continue
        peer = Gloo(context.build, algorithm, place)
        if peer.missing():
            context.say(f"# {name} is left out: {peer.missing()}")
        else:
            chosen.append(peer)
    return chosen


def measure(context: Context, shape: Shape) -> list[Result]:
    workload = shape.workload()
    case = workload.case("network", shape.transport)
    rounds = 1 if context.smoke else context.options.rounds
    with built(shape) as (network, workers, servers):
        place = Place.on(network, workers)
        with contextlib.ExitStack() as stack:
            daemons = stack.enter_context(daemons_on(context, network, servers))
            if shape.drained:
                echo = stack.enter_context(drain_echo(context, network, servers[0]))
                workload = replace(workload, drain=echo)
            systems = systems_of(context, shape, daemons, place)
            blocks: dict[str, list[Block]] = {system.label: [] for system in systems}
            for number in range(rounds):
                for system in systems:
                    context.progress(f"{case}, round {number + 1} of {rounds}: {system.label}")
                    blocks[system.label].append(run_block(system, workload, context.scratch))
            moved = iperf_of(context, shape, network)
            context.progress_done()
    rows = [results.summarized(case, system.name, blocks[system.label], shape.limit_s())
            for system in systems]
    for row in rows:
        is_phub = row.system.startswith("phub")
        row.more["ceiling"] = shape.limit()
        row.more["own_limit_s"] = shape.own_limit_s(is_phub)
        row.more["drained"] = shape.drained
        if not shape.drained:
            row.more["cpu_s_per_gb"] = row.cpu_s / (moved_bytes(shape, is_phub) * 1e-9)
        if moved is not None:
            row.more["iperf3_s"] = moved_bytes(shape, is_phub) / moved.bytes_per_s
            row.more["iperf3_cpu_s_per_gb"] = moved.cpu_s_per_gb
    results.add_ratios(rows)
    return rows


def iperf_of(context: Context, shape: Shape, network: Network) -> Moved | None:
    """iperf3's throughput over the same links. None for shapes without a comparable run."""
    if context.smoke or shape.drained or shape.servers != 1 or shutil.which("iperf3") is None:
        return None
    context.progress("iperf3 over all links")
    workers = [f"worker{rank}" for rank in range(shape.workers)]
    return iperf_links.measured(network, workers, "server0", context.scratch)


def moved_bytes(shape: Shape, is_phub: bool) -> float:
    """Bytes moved over the whole network, each counted once. A server receives and sends the whole
    model for every worker. Bytes between two hosts pass the links of both, but count once."""
    ways = 2 if is_phub and shape.servers > 0 else 1
    return ways * shape.workers * shape.link_bytes(is_phub)


def show(context: Context, rows: Sequence[Result]) -> None:
    context.say(f"\n{rows[0].case}: limit {results.seconds_text(rows[0].ceiling_s or 0)} "
                f"({rows[0].more['ceiling']}), {rows[0].runs} exchanges")
    context.say(results.table(rows))
    for row in rows:
        own_limit_s = float(str(row.more["own_limit_s"]))
        cpu = "" if is_drained(row) else f", {row.more['cpu_s_per_gb']:.2f} CPU s per GB moved"
        context.say(f"  {row.system}: {row.median_s / own_limit_s:.3f}x its links' limit "
                    f"({results.seconds_text(own_limit_s)}){cpu}")
    if "iperf3_s" in rows[0].more:
        needs_s = float(str(rows[0].more["iperf3_s"]))
        context.say(f"  iperf3 moves as many bytes over all links at once in "
                    f"{results.seconds_text(needs_s)} "
                    f"({rows[0].system}: {rows[0].median_s / needs_s:.3f}x that), "
                    f"{rows[0].more['iperf3_cpu_s_per_gb']:.2f} CPU s per GB")


def is_drained(row: Result) -> bool:
    return bool(row.more["drained"])


def sweep(context: Context) -> list[Result]:
    """Finds the highest rate at which the links, and not the CPUs, limit each system."""
    measured = []
    kept: dict[str, int] = {}
    for rate in SWEEP_MBIT:
        rows = measure(context, Shape(rate))
        show(context, rows)
        measured += rows
        for row in rows:
            if row.median_s <= WITHIN_LIMIT * float(str(row.more["own_limit_s"])):
                kept[row.system] = rate
    for system in dict.fromkeys(row.system for row in measured):
        context.say(f"  {system}: within 10 % of its links' limit up to "
                    f"{kept.get(system, 0)} Mbit/s")
    return measured


def run(context: Context) -> list[Result]:
    if why := namespaces.missing():
        raise NotPossibleHere(why)
    measured = []
    for shape in shapes(context):
        rows = measure(context, shape)
        if not rows:
            continue
        show(context, rows)
        measured += rows
    options = context.options
    if not (context.smoke or options.rate or options.no_sweep) and options.model == "resnet50":
        measured += sweep(context)
    return measured


def draw(context: Context, measured: Sequence[Result], path: Path) -> None:
    picture.draw_ratios(context, measured, path,
                        "Time over shaped links, in multiples of phub's (lower is better)")
