"""How long small tensors take: the median and the 99th percentile over thousands of exchanges.

One tensor at a time, workers that block until it is there. The ceiling is a server and workers that
do nothing but wake one another, or, over tcp, send the bytes through plain sockets.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from . import picture
from .ceilings import WakeFloor
from .comparison import WORKERS_MAX, WORKS, Comparison, Measured, add_comparison_options
from .context import Context, counts, listed
from .daemon import Daemon
from .results import Result
from .systems import System
from .workload import Workload, model

SUMMARY = "single small tensors: median and 99th percentile, blocking"
SYSTEMS = ["phub", "phub-usermem", "openmpi-shm", "openmpi-tcp"]
P99 = (("p99", "p99_s"),)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=listed(), default=["4KiB", "64KiB", "1MiB"],
                        metavar="SIZES", help="bytes of the tensor (default 4KiB,64KiB,1MiB)")
    parser.add_argument("--workers", type=counts(1, WORKERS_MAX), default=[2, 4],
                        metavar="COUNTS", help="default 2,4")
    parser.add_argument("--work", type=listed(WORKS), default=["allreduce"], metavar="WORKS",
                        help="update, allreduce (default) or both")
    add_comparison_options(parser)
    parser.epilog = f"--systems is {','.join(SYSTEMS)} unless given."


class LatencyComparison(Comparison):
    def floors(self) -> list[System]:
        return [WakeFloor(self.context.build, transport) for transport in self.transports]

    def ceiling(self, measured: Measured, transport: str) -> tuple[float | None, str]:
        floor = WakeFloor(self.context.build, transport)
        return measured.median_s(floor), floor.description


def workloads(context: Context) -> list[Workload]:
    options = context.options
    chosen = []
    for name in ["4KiB"] if context.smoke else options.model:
        for workers in [2] if context.smoke else options.workers:
            for work in options.work:
                load = Workload(model(name), workers, work, options.type, warmup=20)
                by_size = 50 if context.smoke else max(200, min(2000, (200 << 20) // load.bytes))
                chosen.append(load.with_exchanges(options.exchanges or by_size))
    return chosen


def run(context: Context) -> list[Result]:
    measured = []
    rounds = 1 if context.smoke else context.options.rounds
    with Daemon(context.build, context.scratch,
                arguments=context.options.phubd.split()) as daemon:
        context.say(f"# phubd: {daemon.description()}")
        transports = context.options.transport
        wanted = context.options.systems or [
            name for name in SYSTEMS if "shm" in transports or name != "openmpi-shm"]
        comparison = LatencyComparison(context, daemon, transports, wanted)
        for workload in workloads(context):
            raw = comparison.measure(workload, rounds)
            for transport in transports:
                measured += comparison.shown(raw, "latency", transport, P99)
    return measured


def draw(context: Context, measured: Sequence[Result], path: Path) -> None:
    picture.draw_ratios(context, measured, path,
                        "Median time of a single tensor, in multiples of phub's (lower is better)")
