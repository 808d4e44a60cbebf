"""A job that computes while it exchanges: how much of the exchange is hidden behind computation.

An iteration is a backward pass over the layers, last to first, and the next forward pass. A layer's
exchange starts when its gradients are computed. The forward pass waits for the parameters, layer by
layer. There are two kinds of computation. `memory` runs loops over more memory than the caches
hold, in every worker process. `device` waits as if for an accelerator and leaves the cores free.
The computation alone takes about as long as the exchange alone (--ratio changes that).

The ceiling of an iteration is the longer of computation and exchange, or the CPU time of both
divided by the number of cores if that is longer. A job without overlap takes the sum of both.

Systems: phub; phub-pushorder, which sends layers in the order of the backward pass instead of first
layers first; and phub-serial, which exchanges everything between backward and forward. Gloo's ring
has the buckets of PyTorch's DistributedDataParallel.

At the end, the bench counts the bytes of a worker's memory touched per byte of gradients.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from . import machine, results, traffic
from .block import Block, run_block
from .context import Context, listed, positive
from .daemon import Daemon
from .peers import Gloo
from .results import Result, seconds_text
from .systems import Phub, System
from .training import COMPUTES, TrainingWorkload
from .workload import model

SUMMARY = "measure a job that computes while it exchanges, and the memory that an exchange touches"
TRANSPORTS = ("shm", "tcp")
BACKWARD = ("--order", "backward")
BLOCK_SECONDS = 0.7  # the approximate length of a block


@dataclass
class Side:
    """A system and its blocks: computation alone, exchange alone, and each variant of both."""

    system: System
    variants: dict[str, tuple[System, str]]  # by result name: the system and its schedule
    workload: TrainingWorkload
    blocks: dict[str, list[Block]] = field(default_factory=dict)

    def run(self, context: Context, name: str, system: System, schedule: str) -> None:
        context.progress(f"{self.workload.case('...', self.system.transport)}: {name}")
        block = run_block(system, self.workload.scheduled(schedule), context.scratch)
        self.blocks.setdefault(name, []).append(block)

    def median_s(self, name: str) -> float:
        return statistics.median(time_s for block in self.blocks[name] for time_s in block.times_s)

    def cpu_s(self, name: str) -> float:
        return statistics.median(block.machine_cpu_s for block in self.blocks[name])

    def mean_of(self, name: str, what: str) -> float:
        return statistics.median(block.mean_of("iteration", what) for block in self.blocks[name])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="resnet50", metavar="NAME",
                        help="resnet50, alexnet, a CSV file of sizes, or the size of a single "
                             "tensor (default resnet50)")
    parser.add_argument("--workers", type=positive, default=4, metavar="COUNT",
                        help="number of workers (default 4)")
    parser.add_argument("--transport", type=listed(TRANSPORTS), default=list(TRANSPORTS),
                        metavar="NAMES", help="transports to measure (default shm,tcp)")
    parser.add_argument("--compute", type=listed(COMPUTES), default=list(COMPUTES),
                        metavar="KINDS", help="kinds of computation (default memory,device)")
    parser.add_argument("--ratio", type=float, default=1.0,
                        help="time of computation alone over time of exchange alone (default 1)")
    parser.add_argument("--rounds", type=positive, default=3,
                        help="blocks of each system (default 3)")
    parser.add_argument("--exchanges", type=positive,
                        help="timed iterations in a block (default: about 0.7 s of them)")
    parser.add_argument("--no-count", action="store_true",
                        help="skip the count of touched memory")


def sides(context: Context, daemon: Daemon, workload: TrainingWorkload,
          transport: str) -> list[Side]:
    def phub(*options: str) -> System:
        return Phub(context.build, [daemon], transport, "library", [*BACKWARD, *options])

    found = [Side(phub(), {"phub": (phub(), "overlap"),
                           "phub-pushorder": (phub("--priority", "backward"), "overlap"),
                           "phub-serial": (phub(), "serial")}, workload)]
    if transport == "tcp":
        gloo = Gloo(context.build, "ring")
        if gloo.missing():
            context.say(f"# {gloo.name} is left out: {gloo.missing()}")
        else:
            found.append(Side(gloo, {"gloo-ring": (gloo, "overlap")}, workload))
    return found


def calibrate(context: Context, side: Side, phub_workload: TrainingWorkload | None) -> None:
    """Gives every side of a case the same computation: --ratio times phub's exchange."""
    options = context.options
    if phub_workload is not None:
        side.workload = phub_workload
        return
    trial = side.workload.with_exchanges(3)
    times_s = {}
    for schedule in ("exchange", "compute"):
        block = run_block(side.system, replace(trial, device_us=1000).scheduled(schedule),
                          context.scratch)
        times_s[schedule] = statistics.median(block.times_s)
    factor = options.ratio
    if side.workload.compute == "memory":
        factor *= times_s["exchange"] / times_s["compute"]
    workload = side.workload.computing(factor, times_s["exchange"])
    expected_s = 2 * times_s["exchange"] * max(1.0, options.ratio)
    exchanges = options.exchanges or max(3, round(BLOCK_SECONDS / expected_s))
    side.workload = workload.with_exchanges(3 if context.smoke else exchanges)


def measure(context: Context, found: Sequence[Side]) -> None:
    phub_workload = None
    for side in found:
        calibrate(context, side, phub_workload)
        phub_workload = side.workload
    rounds = 1 if context.smoke else context.options.rounds
    for _ in range(rounds):
        for side in found:
            side.run(context, "compute", side.system, "compute")
            side.run(context, "exchange", side.system, "exchange")
            for name, (system, schedule) in side.variants.items():
                side.run(context, name, system, schedule)
    context.progress_done()


def results_of(side: Side) -> list[Result]:
    case = side.workload.case("overlap", side.system.transport)
    alone_s = {name: side.median_s(name) for name in ("compute", "exchange")}
    longer_s = max(alone_s.values())
    cores = machine.core_count()
    cpu_s = (side.cpu_s("compute") + side.cpu_s("exchange")) / cores
    rows = []
    for name in side.variants:
        row = results.summarized(case, name, side.blocks[name], max(longer_s, cpu_s))
        row.more |= {
            "notes": side.blocks[name][0].notes,
            "ceiling": "the longer of computation and exchange alone" if longer_s >= cpu_s else
                       f"the CPU time of computation and exchange alone, divided by {cores} cores",
            "compute_alone_s": alone_s["compute"], "exchange_alone_s": alone_s["exchange"],
            "max_s": longer_s, "sum_s": sum(alone_s.values()), "cpu_limit_s": cpu_s,
            "hidden": (sum(alone_s.values()) - row.median_s) / min(alone_s.values()),
            "first_wait_s": side.mean_of(name, "first_wait_s"),
            "wait_s": side.mean_of(name, "wait_s"),
        }
        if side.workload.compute == "memory":
            for kind in ("compute_s", "compute_cpu_s"):
                row.more[kind.removesuffix("_s") + "_slowdown"] = (
                    side.mean_of(name, kind) / side.mean_of("compute", kind))
        rows.append(row)
    return rows


def show(context: Context, found: Sequence[Side], rows: Sequence[Result]) -> None:
    workload = found[0].workload
    amount = (f"{workload.passes} passes over each layer" if workload.compute == "memory" else
              f"{workload.device_us / 1000:.1f} ms on a device")
    context.say(f"\n{rows[0].case}: {amount}")
    cells = [["system", "iteration", "min", "CPU", "ceiling/time", "compute alone",
              "exchange alone", "time/longer", "time/sum", "hidden", "first layer wait",
              "compute slowdown", "its CPU"]]
    for row in rows:
        more = {name: float(str(value)) for name, value in row.more.items() if name.endswith("_s")}
        slowed = [f"{float(str(row.more[name])):.2f}x" if name in row.more else "-"
                  for name in ("compute_slowdown", "compute_cpu_slowdown")]
        assert row.ceiling_s is not None
        cells.append([row.system, seconds_text(row.median_s), seconds_text(row.min_s),
                      seconds_text(row.cpu_s), f"{100 * row.ceiling_s / row.median_s:.0f} %",
                      seconds_text(more["compute_alone_s"]), seconds_text(more["exchange_alone_s"]),
                      f"{row.median_s / more['max_s']:.2f}x",
                      f"{row.median_s / more['sum_s']:.2f}x",
                      f"{100 * float(str(row.more['hidden'])):.0f} %",
                      seconds_text(more["first_wait_s"]), *slowed])
    context.say(results.aligned(cells))
    context.say(f"  ceiling for phub: {rows[0].more['ceiling']}")


def count_traffic(context: Context, daemon: Daemon, measured: list[Result]) -> None:
    options = context.options
    workload = TrainingWorkload(model(options.model), options.workers, schedule="exchange")
    systems: list[System] = [Phub(context.build, [daemon], transport, memory, BACKWARD)
                             for transport in options.transport for memory in ("library", "user")]
    gloo = Gloo(context.build, "ring")
    if not gloo.missing():
        systems.append(gloo)
    counted = []
    for system in systems:
        context.progress(f"counting memory: {system.label}")
        counted.append(traffic.count(context, daemon, system, workload))
    context.progress_done()
    context.say("\nbytes read or written in a worker's memory per byte of its gradients")
    context.say(traffic.table(counted))
    for row in measured:
        for found in counted:
            if found.system.name == row.system and f"/{found.system.transport}/" in row.case:
                row.more["memory_bytes_per_gradient_byte"] = found.parts | {
                    "exchange": found.exchange}


def run(context: Context) -> list[Result]:
    options = context.options
    if context.smoke:
        options.model, options.workers = "256KiB", 2
    measured: list[Result] = []
    with Daemon(context.build, context.scratch) as daemon:
        context.say(f"# phubd: {daemon.description()}")
        for compute in options.compute:
            for transport in options.transport:
                workload = TrainingWorkload(model(options.model), options.workers, compute=compute)
                found = sides(context, daemon, workload, transport)
                measure(context, found)
                rows = [row for side in found for row in results_of(side)]
                results.add_ratios(rows)
                show(context, found, rows)
                measured += rows
        if not options.no_count:
            count_traffic(context, daemon, measured)
    return measured
