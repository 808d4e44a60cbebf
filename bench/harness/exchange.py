"""The exchange of a model's gradients among workers of one host, phub beside its peers.

An exchange of `update` is a training iteration's communication as a whole: gradients in each
worker's own memory in, parameters updated by SGD with momentum, readable by every worker, out.
`allreduce` is the sum of the gradients into each worker's own buffer.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import picture, results
from .comparison import TRANSPORTS, Comparison
from .context import Context, listed, positive
from .daemon import Daemon
from .failure import UsageError
from .results import Result
from .workload import Workload, model

SUMMARY = "a model's gradients among workers of one host, over shared memory and tcp"
WORKS = ("update", "allreduce")
WORKERS_MAX = 64


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
                        help="resnet50, alexnet, a CSV file of sizes, or the bytes of one tensor "
                             "(1MiB); several with commas. Without --model, --workers or --work: "
                             "a selection of cases that takes some minutes")
    parser.add_argument("--workers", type=listed(), metavar="COUNTS", help="default 4")
    parser.add_argument("--work", type=listed(WORKS), metavar="WORKS",
                        help="update (default), allreduce or both")
    parser.add_argument("--transport", type=listed(TRANSPORTS), default=list(TRANSPORTS),
                        metavar="NAMES", help="default shm,tcp")
    parser.add_argument("--systems", type=listed(), metavar="NAMES",
                        help="measure only these (phub,openmpi-shm)")
    parser.add_argument("--type", choices=("f32", "f16", "bf16"), default="f32",
                        help="of gradients and results (default f32)")
    parser.add_argument("--rounds", type=positive, default=3,
                        help="blocks of each system (default 3)")
    parser.add_argument("--exchanges", type=positive, help="timed in a block")
    parser.add_argument("--phubd", default="", metavar="OPTIONS",
                        help="further options of phubd, in one word (\"--cores 2\")")


def groups(context: Context) -> list[Group]:
    options = context.options
    if not (options.model or options.workers or options.work):
        return list(SMOKE_GROUPS if context.smoke else DEFAULT_GROUPS)
    try:
        counts = [int(count) for count in options.workers or ["4"]]
    except ValueError as error:
        raise UsageError(f"--workers: {error}") from error
    if not all(1 <= count <= WORKERS_MAX for count in counts):
        raise UsageError(f"--workers takes 1 to {WORKERS_MAX}")
    return [Group(name, count, work, 0) for name in options.model or ["resnet50"]
            for count in counts for work in options.work or ["update"]]


def workload_of(context: Context, group: Group) -> Workload:
    load = Workload(model(group.model), group.workers, group.work, context.options.type)
    # About a second of a peer's time in a block.
    by_size = max(3, min(1000, (600 << 20) // (load.bytes + (1 << 19))))
    return load.with_exchanges(context.options.exchanges or group.exchanges or by_size)


def show(context: Context, workload: Workload, rows: Sequence[Result]) -> None:
    context.say(f"\n{rows[0].case}: {workload.bytes / (1 << 20):.3g} MiB of each worker, "
                f"{rows[0].runs} exchanges")
    context.say(results.table(rows))
    for line in results.verdicts(rows):
        context.say("  " + line)


def run(context: Context) -> list[Result]:
    measured = []
    rounds = 1 if context.smoke else context.options.rounds
    with Daemon(context.build, context.scratch,
                arguments=context.options.phubd.split()) as daemon:
        context.say(f"# phubd: {daemon.description()}")
        transports = context.options.transport
        comparison = Comparison(context, daemon, transports, context.options.systems)
        for group in groups(context):
            workload = workload_of(context, group)
            raw = comparison.measure(workload, rounds)
            for transport in transports:
                rows = comparison.results(raw, "exchange", transport)
                if rows:
                    show(context, workload, rows)
                measured += rows
    return measured


def draw(context: Context, measured: Sequence[Result], path: Path) -> None:
    picture.draw_ratios(context, measured, path,
                        "Time of an exchange, in multiples of phub's (lower is better)")
