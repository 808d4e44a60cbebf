"""Times small tensors: the median and the 99th percentile over thousands of exchanges.

Workers exchange one tensor at a time and wait for its result. The ceiling is the arithmetic plus
the time that a server and workers take which only wait for each other. Over shm they block or
yield, and the faster of the two counts; over tcp they send the bytes through plain sockets.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from . import picture
from .ceilings import WakeFloor
from .comparison import (WORKERS_MAX, WORKS, Comparison, Measured, add_comparison_options,
                         compare)
from .context import Context, counts, listed
from .results import Result
from .systems import System
from .workload import Workload, model

SUMMARY = "time single small tensors: median and 99th percentile, blocking"
SYSTEMS = ["phub", "phub-usermem", "openmpi-shm", "openmpi-tcp"]
P99 = (("p99", "p99_s"),)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=listed(), default=["4KiB", "64KiB", "1MiB"],
                        metavar="SIZES", help="sizes of the tensor (default 4KiB,64KiB,1MiB)")
    parser.add_argument("--workers", type=counts(1, WORKERS_MAX), default=[2, 4],
                        metavar="COUNTS",
                        help="numbers of workers, separated by commas (default 2,4)")
    parser.add_argument("--work", type=listed(WORKS), default=["allreduce"], metavar="WORKS",
                        help="update, allreduce or both, separated by a comma (default allreduce)")
    add_comparison_options(parser)
    parser.epilog = f"The default of --systems is {','.join(SYSTEMS)}."


class LatencyComparison(Comparison):
    def wakes(self, transport: str) -> list[System]:
        ways = ("eventfd", "yield") if transport == "shm" else ("tcp",)
        return [WakeFloor(self.context.build, way) for way in ways]

    def floors(self, workload: Workload) -> list[System]:
        wakes = [wake for transport in self.transports for wake in self.wakes(transport)]
        return [*wakes, self.kernel]

    def ceiling(self, measured: Measured, transport: str) -> tuple[float | None, str]:
        wake = min(self.wakes(transport), key=measured.median_s)
        assert isinstance(wake, WakeFloor)
        return (measured.median_s(wake) + measured.median_s(self.kernel),
                f"{wake.description}, plus {self.kernel.description}")


def workloads_of(context: Context) -> list[Workload]:
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
    options = context.options
    wanted = options.systems or [
        name for name in SYSTEMS if "shm" in options.transport or name != "openmpi-shm"]
    return compare(context, "latency", LatencyComparison, workloads_of(context), wanted, P99)


def draw(context: Context, measured: Sequence[Result], path: Path) -> None:
    picture.draw_ratios(context, measured, path,
                        "Median time of a single tensor, in multiples of phub's (lower is better)")
