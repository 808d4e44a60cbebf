"""Counts the bytes that exchanges of several systems move over links."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .block import Block, run_block
from .context import Context
from .failure import UsageError
from .snapshots import Snapshots
from .systems import System
from .workload import Workload

SHORT_EXCHANGES = 1


def check(exchanges: int) -> None:
    if exchanges <= SHORT_EXCHANGES:
        raise UsageError("--exchanges must be at least 2 (bytes are measured as the difference of "
                         "two runs)")


def alternate(context: Context, case: str, systems: Sequence[System], workload: Workload,
              rounds: int, read: Callable[[], Sequence[int]]
              ) -> tuple[dict[str, list[Block]], dict[str, list[float]]]:
    """Runs blocks of the systems in turn. `read`: the counters of links. Returns each system's
    blocks, and by how much an exchange of its last block advanced each counter: the difference of
    that block and a short one leaves out joining, initial values and warmup."""
    def counted(system: System, exchanges: int) -> tuple[Block, list[int]]:
        before = read()
        block = run_block(system, workload.with_exchanges(exchanges), context.scratch)
        return block, [now - then for now, then in zip(read(), before)]

    short = {}
    for system in systems:
        context.progress(f"{case}: {system.name}, once")
        _, short[system.name] = counted(system, SHORT_EXCHANGES)
    blocks: dict[str, list[Block]] = {}
    moved: dict[str, list[float]] = {}
    timed = workload.exchanges - SHORT_EXCHANGES
    for number in range(rounds):
        for system in systems:
            context.progress(f"{case}, round {number + 1} of {rounds}: {system.name}")
            block, counts = counted(system, workload.exchanges)
            blocks.setdefault(system.name, []).append(block)
            moved[system.name] = [(count - less) / timed
                                  for count, less in zip(counts, short[system.name])]
    context.progress_done()
    return blocks, moved


def counted(context: Context, case: str, systems: Sequence[System], workload: Workload,
            rounds: int, read: Callable[[], Sequence[int]]
            ) -> tuple[dict[str, list[Block]], dict[str, list[float]]]:
    """The same for systems whose ranks pause while counters are read, so that nothing but the
    timed exchanges counts. Returns the median over a system's blocks for each counter."""
    blocks: dict[str, list[Block]] = {}
    moved: dict[str, list[list[int]]] = {}
    paused = replace(workload, snapshots=True)
    for number in range(rounds):
        for system in systems:
            context.progress(f"{case}, round {number + 1} of {rounds}: {system.name}")
            made: list[Snapshots] = []

            def around(folder: Path) -> Snapshots:
                made.append(Snapshots(folder, read))
                return made[0]

            block = run_block(system, paused, context.scratch, around=around)
            blocks.setdefault(system.name, []).append(block)
            moved.setdefault(system.name, []).append(made[0].moved())
    context.progress_done()
    return blocks, {name: [statistics.median(counter) / workload.exchanges
                           for counter in zip(*of_blocks)]
                    for name, of_blocks in moved.items()}
