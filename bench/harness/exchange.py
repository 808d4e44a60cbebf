"""Exchanges a model's gradients among workers on one host, with phub and with its peers.

An exchange of `update` is all communication of a training iteration. It starts with gradients in
each worker's own memory. It ends with parameters, updated by SGD with momentum, that every worker
can read. `allreduce` sums the gradients into each worker's own buffer.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from . import picture
from .ceilings import KernelFloor, Loopback
from .comparison import (WORKERS_MAX, WORKS, Comparison, Measured, add_comparison_options,
                         compare)
from .context import Context, counts, listed
from .results import Result
from .systems import System
from .workload import Workload, model

SUMMARY = "exchange a model's gradients among workers on one host, over shared memory and tcp"


@dataclass(frozen=True)
class Group:
    """Cases whose blocks alternate: one workload over every transport."""

    model: str
    workers: int
    work: str
    exchanges: int


DEFAULT_GROUPS = (
    Group("resnet50", 4, "update", 6),
    Group("resnet50", 4, "allreduce", 6),
    Group("resnet50", 2, "update", 6),
    Group("resnet50", 8, "update", 4),
    Group("alexnet", 4, "update", 3),
    Group("1MiB", 4, "update", 300),
    Group("4KiB", 4, "update", 1000),
)
SMOKE_GROUPS = (Group("4KiB", 2, "update", 20), Group("256KiB", 2, "allreduce", 5))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=listed(), metavar="NAMES",
                        help="models, separated by commas: resnet50, alexnet, a CSV file of sizes, "
                             "or the size of a single tensor (1MiB). Without --model, --workers "
                             "and --work, a selection of cases runs for some minutes")
    parser.add_argument("--workers", type=counts(1, WORKERS_MAX), metavar="COUNTS",
                        help="numbers of workers, separated by commas (default 4)")
    parser.add_argument("--work", type=listed(WORKS), metavar="WORKS",
                        help="update, allreduce or both, separated by a comma (default update)")
    add_comparison_options(parser)


def groups(context: Context) -> list[Group]:
    options = context.options
    if not (options.model or options.workers or options.work):
        return list(SMOKE_GROUPS if context.smoke else DEFAULT_GROUPS)
    return [Group(name, count, work, 0) for name in options.model or ["resnet50"]
            for count in options.workers or [4] for work in options.work or ["update"]]


class ExchangeComparison(Comparison):
    """Over shared memory the ceiling is the arithmetic. Over tcp it is the time in which iperf3
    moves as many bytes over as many streams, plus the arithmetic."""

    loopback: Loopback | None = None

    @cached_property
    def keeping(self) -> KernelFloor:
        """A daemon keeps a copy of the sums even if it writes them into the workers' buffers."""
        return KernelFloor(self.context.build, self.daemon.core_loops, keeps_sums=True)

    def floors(self, workload: Workload) -> list[System]:
        keeps = workload.work == "allreduce" and "shm" in self.transports
        return [self.kernel, self.keeping] if keeps else [self.kernel]

    def rows_of(self, measured: Measured, bench: str, transport: str) -> list[Result]:
        rows = super().rows_of(measured, bench, transport)
        keeps = transport == "shm" and self.keeping.label in measured.blocks
        for row in rows:
            if keeps and row.system == "phub":
                row.more |= {"kept_copy_ceiling_s": measured.median_s(self.keeping),
                             "kept_copy_ceiling": self.keeping.description}
        return rows

    def sample(self, workload: Workload) -> None:
        if "tcp" not in self.transports or Loopback.missing():
            return
        if self.loopback is None:
            self.loopback = Loopback(self.context.scratch)
        self.loopback.sample(workload.workers)

    def ceiling(self, measured: Measured, transport: str) -> tuple[float | None, str]:
        kernel_s = measured.median_s(self.kernel)
        if transport == "shm":
            return kernel_s, self.kernel.description
        if self.loopback is None:
            return None, ""
        workload = measured.workload
        moved = 2 * workload.workers * workload.bytes
        bytes_per_s = self.loopback.bytes_per_s(workload.workers)
        return moved / bytes_per_s + kernel_s, (
            f"iperf3 with {workload.workers} streams at {bytes_per_s * 8e-9:.1f} Gbit/s, plus "
            f"{self.kernel.description}")


def workload_of(context: Context, group: Group) -> Workload:
    load = Workload(model(group.model), group.workers, group.work, context.options.type)
    # A block takes a peer about a second.
    by_size = max(3, min(1000, (600 << 20) // (load.bytes + (1 << 19))))
    return load.with_exchanges(context.options.exchanges or group.exchanges or by_size)


def run(context: Context) -> list[Result]:
    if "tcp" in context.options.transport and Loopback.missing():
        context.say(f"# no ceiling over tcp: {Loopback.missing()}")
    workloads = [workload_of(context, group) for group in groups(context)]
    return compare(context, "exchange", ExchangeComparison, workloads, context.options.systems)


def draw(context: Context, measured: Sequence[Result], path: Path) -> None:
    picture.draw_ratios(context, measured, path,
                        "Time of an exchange, in multiples of phub's (lower is better)")
