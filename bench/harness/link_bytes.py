"""Counts the bytes that exchanges of several systems move over links."""

import statistics
from collections.abc import Callable, Sequence

from .block import Block, run_block
from .context import Context
from .failure import UsageError
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
    blocks, and by how much an exchange advanced each counter, the median over its blocks: the
    difference of a block and a short one leaves out joining, initial values and warmup."""
    def counted(system: System, exchanges: int) -> tuple[Block, list[int]]:
        before = read()
        block = run_block(system, workload.with_exchanges(exchanges), context.scratch)
        return block, [now - then for now, then in zip(read(), before)]

    short = {}
    for system in systems:
        context.progress(f"{case}: {system.name}, once")
        _, short[system.name] = counted(system, SHORT_EXCHANGES)
    blocks: dict[str, list[Block]] = {}
    moved: dict[str, list[list[float]]] = {}
    timed = workload.exchanges - SHORT_EXCHANGES
    for number in range(rounds):
        for system in systems:
            context.progress(f"{case}, round {number + 1} of {rounds}: {system.name}")
            block, counts = counted(system, workload.exchanges)
            blocks.setdefault(system.name, []).append(block)
            moved.setdefault(system.name, []).append(
                [(count - less) / timed for count, less in zip(counts, short[system.name])])
    context.progress_done()
    return blocks, {name: [statistics.median(counter) for counter in zip(*of_blocks)]
                    for name, of_blocks in moved.items()}
