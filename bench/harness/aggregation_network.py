"""The network, the daemons and the systems of the bench `aggregation`.

Each worker and the server have a namespace behind a link of the same rate (tc tbf). Each of the two
aggregators, in user space and in the kernel, has one behind a link of N + 1 times that rate: as a
switch would, it has as much capacity as the links of N workers and the server together.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from . import namespaces
from .context import Context
from .daemon import Daemon
from .lossy_box import Box
from .namespaces import FRAME_BYTES, PAYLOAD_BYTES, Network, Node
from .peers import Gloo
from .processes import Command, started_and_ready
from .systems import Phub, Place, System
from .workload import Workload, model

SERVER, AGGREGATOR = "server", "aggregator"
SUMS, XDP, TCP, RING = "phub-sums", "phub-sums-xdp", "phub-tcp", "gloo-ring"
SYSTEMS = (SUMS, XDP, TCP, RING)
AGGREGATOR_PORT = 7702
PORTS = {SUMS: 7700, XDP: 7701, TCP: 7703}
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
    systems: tuple[str, ...]
    # Percentage of packets lost on each link but the aggregators', in each direction. None: the
    # links do not lead through the box.
    loss: float | None = None

    @property
    def is_boxed(self) -> bool:
        return self.loss is not None

    def workload(self) -> Workload:
        return Workload(model(self.model), self.workers, exchanges=self.exchanges, warmup=3)

    def case(self) -> str:
        network = f"{self.rate_mbit:.0f}Mbit"
        if self.loss is not None:
            network += f"-{self.loss:g}%lost"
        return self.workload().case("aggregation", network)

    @property
    def link_bits_per_s(self) -> float:
        return self.rate_mbit * 1e6

    @property
    def model_s(self) -> float:
        """The time that a link needs for the model, without headers: D/rate."""
        return self.workload().bytes * 8 / self.link_bits_per_s

    def limit_s(self, system: str) -> float:
        """The time that the busiest link needs."""
        datagrams = BLOCK_FRAME_BYTES / BLOCK_PAYLOAD_BYTES
        segments = FRAME_BYTES / PAYLOAD_BYTES
        passes = {SUMS: datagrams, XDP: datagrams, TCP: self.workers * segments,
                  RING: 2 * (self.workers - 1) / self.workers * segments}[system]
        return passes * self.model_s

    @property
    def resent_goal(self) -> float:
        """The share of contributions that may be sent again: three times n p_up + p_down, as one
        lost contribution makes all n workers wait."""
        return 3 * (self.workers + 1) * (self.loss or 0) / 100


def worker(rank: int) -> str:
    return f"worker{rank}"


def aggregator_of(system: str) -> str:
    return f"{AGGREGATOR}-xdp" if system == XDP else AGGREGATOR


@dataclass
class Running:
    """What serves the systems of a shape."""

    shape: Shape
    network: Network
    box: Box | None
    daemons: dict[str, Daemon] = field(default_factory=dict)
    aggregator_pids: dict[str, int] = field(default_factory=dict)

    def systems(self, context: Context) -> list[System]:
        place = Place.on(self.network, [worker(rank) for rank in range(self.shape.workers)])
        chosen: list[System] = []
        for name, daemon in self.daemons.items():
            system = Phub(context.build, [daemon], "tcp", "library", ["--sum", "fixed"], place)
            system.name = name
            if name in self.aggregator_pids:
                system.other_pids = [self.aggregator_pids[name]]
            chosen.append(system)
        if RING in self.shape.systems:
            ring = Gloo(context.build, "ring", place)
            if ring.missing():
                context.say(f"# gloo is left out: {ring.missing()}")
            else:
                chosen.append(ring)
        return chosen


@contextlib.contextmanager
def built(context: Context, shape: Shape) -> Iterator[tuple[Network, Box | None]]:
    """The network, with a running box if the shape has one."""
    nodes = [Node(worker(rank), shape.link_bits_per_s) for rank in range(shape.workers)]
    nodes.append(Node(SERVER, shape.link_bits_per_s))
    boxed = [node.name for node in nodes] if shape.is_boxed else []
    width = shape.workers + 1
    for system in shape.systems:
        if system in (SUMS, XDP):
            nodes.append(Node(aggregator_of(system), shape.link_bits_per_s * width, width))
    with namespaces.network(nodes, boxed=boxed) as network, contextlib.ExitStack() as stack:
        box = None
        if shape.loss is not None:
            log = context.scratch / f"box-{next(_numbers)}.log"
            box = stack.enter_context(Box(context.build, network, boxed, shape.loss,
                                          AGGREGATOR_PORT, log))
        yield network, box


@contextlib.contextmanager
def running(context: Context, shape: Shape) -> Iterator[Running]:
    """The network, a daemon for each system of phub, and its aggregator."""
    with built(context, shape) as (network, box), contextlib.ExitStack() as stack:
        made = Running(shape, network, box)
        for system in shape.systems:
            if system in PORTS:
                start(context, made, system, stack)
        yield made


_numbers = itertools.count()


def start(context: Context, made: Running, system: str, stack: contextlib.ExitStack) -> None:
    network, number = made.network, next(_numbers)
    address = network.address(SERVER)
    arguments: Sequence[str] = []
    if system != TCP:
        node = aggregator_of(system)
        control = context.scratch / f"aggregator-{number}.sock"
        command = [*network.prefix(node), str(context.build.aggregator), "--listen",
                   f"{network.address(node)}:{AGGREGATOR_PORT}", "--control", str(control)]
        if system == XDP:
            command += ["--xdp", namespaces.INTERFACE]
            network.receive_redirected(node)
        process = stack.enter_context(started_and_ready(
            Command(command, context.scratch / f"aggregator-{number}.log"), "event=serving",
            AGGREGATOR_START_SECONDS_MAX))
        made.aggregator_pids[system] = process.pid
        arguments = ["--sum-aggregator", str(control), "--sum-listen", address]
    made.daemons[system] = stack.enter_context(Daemon(
        context.build, context.scratch, f"{system}-{number}",
        ["--insecure", "--cores", "1", *arguments], address, network.prefix(SERVER),
        PORTS[system]))
