"""Measures the exchange across racks: phub with a plan, one server for all, Gloo. Needs root.

Each rack is a bridge with its workers and a phubd behind links (tc tbf). Its uplink to the other
racks has the rate of all its workers' links together, divided by the ratio: 1:1, 2:1, 4:1, 8:1.
Systems:
  phub                a daemon in each rack sums its own workers' gradients and exchanges the sums
                      along the plan that `phubctl plan make` finds best for these uplinks
  phub-aggregator     the same with an aggregator where the uplinks meet (--aggregator)
  phub-flat           all workers push to one server, in rack 0
  gloo-ring           ranks in rack order: the ring passes each uplink once
  gloo-ring-shuffled  ranks assigned to the racks in turn, as without knowledge of the racks: each
                      hop passes an uplink
Each system's limit is the time that its busiest link needs for the payload and its headers. The
bytes per exchange on the uplinks are the difference of a short and a long run by the kernel's
counters, which include headers and acknowledgements. With a plan, a rack's uplink carries one sum
for all N workers of the rack: 1/N of the bytes of one server for all.
"""

import argparse
import contextlib
import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import link_bytes, namespaces, picture, results
from .context import Context, counts, positive
from .daemon import Daemon
from .failure import BenchFailure, NotPossibleHere, UsageError
from .namespaces import FRAME_BYTES, PAYLOAD_BYTES, Network, Node
from .peers import Gloo
from .processes import clean_environment
from .results import Result
from .systems import Phub, Place, System
from .workload import Workload, model

SUMMARY = "measure the exchange across racks with shaped uplinks in namespaces (needs root)"
PORT = 7700
FLAT_PORT = 7701
AGGREGATED_PORT = 7702  # the aggregator and the racks' daemons that use it
AGGREGATOR = "aggregator"
RATIOS = (1, 2, 4, 8)
LINK_LATENCY = "50us"
# The number of pieces into which the simulator cuts the data; phub's chunks are smaller.
SIMULATED_PIECES = 16


@dataclass(frozen=True)
class Shape:
    ratio: int
    racks: int
    workers_per_rack: int
    rate_mbit: float
    model: str
    exchanges: int
    aggregator: bool = False

    @property
    def workers(self) -> int:
        return self.racks * self.workers_per_rack

    def workload(self) -> Workload:
        return Workload(model(self.model), self.workers, exchanges=self.exchanges, warmup=1)

    @property
    def link_bits_per_s(self) -> float:
        return self.rate_mbit * 1e6

    @property
    def uplink_bits_per_s(self) -> float:
        return self.link_bits_per_s * self.workers_per_rack / self.ratio

    def limit_s(self, system: str) -> float:
        """The time that the busiest link (a worker's link or an uplink) needs."""
        ring = 2 * (self.workers - 1) / self.workers
        link, uplink = {
            # Each chunk's sum passes an uplink once up and once down, wherever its home is.
            "phub": (1.0, 2 * (self.racks - 1) / self.racks),
            # Each rack's sum passes its uplink once, whether the rack is home or not.
            "phub-aggregator": (1.0, 1.0),
            "phub-flat": (1.0, float(self.workers - self.workers_per_rack)),
            "gloo-ring": (ring, ring),
            "gloo-ring-shuffled": (ring, ring * self.workers_per_rack),
        }[system]
        return max(link * self.pass_s(self.link_bits_per_s),
                   uplink * self.pass_s(self.uplink_bits_per_s))

    def pass_s(self, bits_per_s: float) -> float:
        """The time to send one worker's gradients once, with their headers."""
        return self.workload().bytes * 8 * FRAME_BYTES / PAYLOAD_BYTES / bits_per_s


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--racks", type=positive, default=2, help="number of racks (default 2)")
    parser.add_argument("--workers", type=positive, default=4,
                        help="workers in each rack (default 4)")
    parser.add_argument("--rate", type=positive, default=200, metavar="MBIT",
                        help="rate of a worker's link in Mbit/s (default 200, which two cores can "
                             "carry for all links)")
    parser.add_argument("--ratios", type=counts(1, 64), default=list(RATIOS),
                        help="rates of a rack's worker links together, divided by the rate of its "
                             "uplink (default 1,2,4,8)")
    parser.add_argument("--model", default="16MiB", metavar="NAME",
                        help="resnet50, alexnet, a CSV file of sizes, or the size of a single "
                             "tensor (default 16MiB)")
    parser.add_argument("--aggregator", action="store_true",
                        help="also measure with an aggregator between the racks, which helps with "
                             "3 or more racks")
    parser.add_argument("--rounds", type=positive, default=2,
                        help="blocks of each system (default 2)")
    parser.add_argument("--exchanges", type=positive, default=4,
                        help="timed exchanges in a block (default 4)")


def shapes(context: Context) -> list[Shape]:
    options = context.options
    if context.smoke:
        return [Shape(2, 3, 2, 1000, "256KiB", 3, aggregator=True)]
    return [Shape(ratio, options.racks, options.workers, options.rate, options.model,
                  options.exchanges, options.aggregator) for ratio in options.ratios]


def worker(rank: int) -> str:
    return f"worker{rank}"


@contextlib.contextmanager
def built(shape: Shape) -> Iterator[Network]:
    """Builds nodes for the workers, a daemon in each rack, and one server for all in rack 0."""
    nodes = [Node(worker(rank), shape.link_bits_per_s, rack=rank // shape.workers_per_rack)
             for rank in range(shape.workers)]
    of_rack = shape.workers_per_rack * shape.link_bits_per_s
    nodes += [Node(f"server{rack}", of_rack + shape.uplink_bits_per_s, shape.workers_per_rack, rack)
              for rack in range(shape.racks)]
    nodes.append(Node("flat", of_rack * shape.racks, shape.workers))
    if shape.aggregator:
        nodes.append(Node(AGGREGATOR, shape.uplink_bits_per_s * shape.racks, shape.workers, None))
    with namespaces.network(nodes, [shape.uplink_bits_per_s] * shape.racks) as network:
        yield network


def write_topology(shape: Shape, path: Path, aggregates: bool) -> None:
    """Writes the daemons' topology. The rate of an uplink is that of its payload."""
    members = [f"rack{rack}" for rack in range(shape.racks)]
    names = ", ".join(f'"{name}"' for name in members)
    payload_bits_per_s = shape.uplink_bits_per_s * PAYLOAD_BYTES / FRAME_BYTES
    kind = "aggregators" if aggregates else "switches"
    text = (f'name = "uplinks"\nunit = "{payload_bits_per_s / 1e6:.0f}Mbit/s"\n'
            f'latency = "{LINK_LATENCY}"\nmembers = [{names}]\n{kind} = ["core"]\n')
    text += "".join(f'[[link]]\nfrom = "{name}"\nto = "core"\n' for name in members)
    path.write_text(text)


class Plan:
    """The best plan that phubctl finds for the topology, and its simulated time."""

    def __init__(self, context: Context, shape: Shape, aggregates: bool = False) -> None:
        name = f"{shape.ratio}-aggregator" if aggregates else f"{shape.ratio}"
        self.topology = context.scratch / f"racks-{name}.toml"
        self.path = context.scratch / f"plan-{name}.json"
        write_topology(shape, self.topology, aggregates)
        self._phubctl = context.build.phubctl
        given = ["--topology", str(self.topology), "--size", str(shape.workload().bytes)]
        self._ask("make", *given, "-o", str(self.path))
        answer = self._ask("simulate", str(self.path), *given,
                           "--pieces", str(SIMULATED_PIECES), "-o", "json")
        self.simulated_s = float(json.loads(answer)["seconds"])
        self.planner = str(json.loads(self.path.read_text())["planner"])

    def _ask(self, *arguments: str) -> str:
        answer = subprocess.run([self._phubctl, "plan", *arguments], capture_output=True, text=True,
                                check=False, env=clean_environment())
        if answer.returncode != 0:
            raise BenchFailure(f"phubctl plan {arguments[0]} failed: {answer.stderr}")
        return answer.stdout


@dataclass(frozen=True)
class Daemons:
    of_racks: Sequence[Daemon]
    flat: Daemon
    aggregated: Sequence[Daemon]  # racks' daemons; empty without --aggregator


@contextlib.contextmanager
def daemons(context: Context, shape: Shape, network: Network, plan: Plan,
            aggregated: Plan | None) -> Iterator[Daemons]:
    """Starts a daemon in each rack, one for all, and the set with an aggregator."""
    servers = [f"server{rack}" for rack in range(shape.racks)]

    def daemon(name: str, port: int, arguments: Sequence[str]) -> Daemon:
        return Daemon(context.build, context.scratch, f"phubd-{shape.ratio}-{name}-{port}",
                      ["--insecure", *arguments], network.address(name), network.prefix(name), port)

    def listed(port: int) -> list[str]:
        return ["--racks", ",".join(f"{network.address(name)}:{port}" for name in servers)]
    with contextlib.ExitStack() as stack:
        arguments = [*listed(PORT), "--topology", str(plan.topology)]
        of_racks = [stack.enter_context(daemon(name, PORT, arguments)) for name in servers]
        flat = stack.enter_context(daemon("flat", FLAT_PORT, []))
        with_aggregator: list[Daemon] = []
        if aggregated is not None:
            arguments = [*listed(AGGREGATED_PORT), "--topology", str(aggregated.topology),
                         "--aggregators", f"{network.address(AGGREGATOR)}:{AGGREGATED_PORT}"]
            with_aggregator = [stack.enter_context(daemon(name, AGGREGATED_PORT, arguments))
                               for name in servers]
            stack.enter_context(
                daemon(AGGREGATOR, AGGREGATED_PORT, [*arguments, "--role", "aggregator"]))
        yield Daemons(of_racks, flat, with_aggregator)


def systems_of(context: Context, shape: Shape, network: Network, running: Daemons, plan: Plan,
               aggregated: Plan | None) -> list[System]:
    def place(ranks: Iterable[int]) -> Place:
        return Place.on(network, [worker(rank) for rank in ranks])
    ordered = place(range(shape.workers))
    dealt = place(rank % shape.racks * shape.workers_per_rack + rank // shape.racks
                  for rank in range(shape.workers))
    rack_of = [rank // shape.workers_per_rack for rank in range(shape.workers)]
    hierarchical = Phub(context.build, running.of_racks, "tcp", "library",
                        ["--plan", str(plan.path)], ordered, rack_of)
    one_server = Phub(context.build, [running.flat], "tcp", "library", (), ordered)
    one_server.name = "phub-flat"
    chosen: list[System] = [hierarchical, one_server]
    if aggregated is not None:
        chosen.append(Phub(context.build, running.aggregated, "tcp", "library",
                           ["--plan", str(aggregated.path)], ordered, rack_of))
        chosen[-1].name = "phub-aggregator"
    ring, shuffled = Gloo(context.build, "ring", ordered), Gloo(context.build, "ring", dealt)
    shuffled.name = "gloo-ring-shuffled"
    if ring.missing():
        context.say(f"# gloo is left out: {ring.missing()}")
        return chosen
    return [*chosen, ring, shuffled]


def measure(context: Context, shape: Shape) -> tuple[list[Result], dict[str, Plan]]:
    workload = shape.workload()
    case = workload.case("racks", f"tcp,{shape.racks}-racks,{shape.ratio}:1")
    rounds = 1 if context.smoke else context.options.rounds
    plan = Plan(context, shape)
    aggregated = Plan(context, shape, aggregates=True) if shape.aggregator else None
    with (built(shape) as network,
          daemons(context, shape, network, plan, aggregated) as running):
        systems = systems_of(context, shape, network, running, plan, aggregated)
        blocks, moved = link_bytes.alternate(
            context, case, systems, workload, rounds,
            lambda: [sum(network.uplink_bytes(rack) for rack in range(shape.racks))])
    rows = [results.summarized(case, system.name, blocks[system.name], shape.limit_s(system.name))
            for system in systems]
    for row in rows:
        row.more["ceiling"] = "payload and headers on the busiest link"
        row.more["uplink_bytes"], = moved[row.system]
    plans = {"phub": plan} | ({"phub-aggregator": aggregated} if aggregated is not None else {})
    for row in rows:
        if row.system in plans:
            row.more |= {"planner": plans[row.system].planner,
                         "simulated_s": plans[row.system].simulated_s}
    results.add_ratios(rows)
    return rows, plans


def show(context: Context, shape: Shape, rows: Sequence[Result],
         plans: dict[str, Plan]) -> None:
    context.say(f"\n{rows[0].case}: workers' links {shape.rate_mbit:.0f} Mbit/s, uplinks "
                f"{shape.uplink_bits_per_s / 1e6:.0f} Mbit/s")
    context.say(results.table(rows))
    payload = shape.workload().bytes
    for row in rows:
        moved = float(str(row.more["uplink_bytes"]))
        context.say(f"  {row.system}: {row.median_s / (row.ceiling_s or 1):.3f}x its limit "
                    f"({results.seconds_text(row.ceiling_s or 0)}); {moved / 1e6:.1f} MB on all "
                    f"uplinks together, {moved / payload:.2f}x a worker's gradients")
    phub, flat = rows[0], rows[1]
    of_flat = float(str(flat.more["uplink_bytes"])) / float(str(phub.more["uplink_bytes"]))
    phub.more["uplink_bytes_of_flat"] = 1 / of_flat
    context.say(f"  one server for all moves {of_flat:.2f}x as many bytes over the uplinks "
                f"({shape.workers_per_rack} workers in a rack)")
    for row in rows:
        if row.system not in plans:
            continue
        plan = plans[row.system]
        # Pushes and pulls within the rack overlap the exchange between racks.
        simulated_s = max(plan.simulated_s, shape.pass_s(shape.link_bits_per_s))
        context.say(f"  {row.system}, plan {plan.planner}: simulated "
                    f"{results.seconds_text(simulated_s)}; measured "
                    f"{row.median_s / simulated_s:.3f}x that")


def run(context: Context) -> list[Result]:
    options = context.options
    if options.racks < 2:
        raise UsageError("--racks must be at least 2")
    link_bytes.check(options.exchanges)
    if why := namespaces.missing():
        raise NotPossibleHere(why)
    measured = []
    for shape in shapes(context):
        rows, plans = measure(context, shape)
        show(context, shape, rows, plans)
        measured += rows
    return measured


def draw(context: Context, measured: Sequence[Result], path: Path) -> None:
    picture.draw_ratios(context, measured, path,
                        "Time across racks, in multiples of phub's (lower is better)")
