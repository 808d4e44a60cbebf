"""A block: runs one system's processes to completion once and reads the files they wrote.

Blocks of several systems alternate (A B C A B C), so that changes in the machine's speed affect all
systems alike. Two systems never run at the same time, since some spin when idle (Open MPI's ranks).
"""

import contextlib
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .failure import BenchFailure
from .processes import run_together
from .systems import System
from .workload import Workload

BLOCK_SECONDS_MAX = 300.0


@dataclass
class Block:
    """Times of the exchanges of one block, and CPU seconds per exchange."""

    times_s: list[float]
    machine_cpu_s: float
    process_cpu_s: float
    notes: dict[str, str] = field(default_factory=dict)
    # Peak resident memory of the daemons, less the memory resident before the block and less the
    # memory that they lend to workers for gradients.
    daemon_bytes: int = 0
    # The content of each rank's file (rank/run_rank.cc).
    files: list[dict[str, Any]] = field(default_factory=list)

    def mean_of(self, group: str, name: str) -> float:
        """The mean over the ranks of one number in an optional group (iteration, traffic)."""
        return statistics.fmean(written[group][name] for written in self.files)


def read_block(folder: Path, ranks: int) -> Block:
    """Reads the files that the rank programs wrote. An exchange ends when the last rank finishes
    it. It begins when the last rank finished the previous one, or, if the ranks did other work in
    between, when the first rank begins."""
    files = []
    for rank in range(ranks):
        path = folder / f"rank-{rank}.json"
        try:
            files.append(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            raise BenchFailure(f"rank {rank} wrote no results: {error}") from error
    if not all(written["verified"] for written in files):
        raise BenchFailure(f"at least one rank did not verify its results; see {folder}")
    ends_ns = [max(stamps) for stamps in zip(*(written["stamps_ns"] for written in files))]
    begins_ns = ends_ns[:-1]
    if files[0].get("begins_ns"):
        begins_ns = [min(stamps) for stamps in zip(*(written["begins_ns"] for written in files))]
    exchanges = len(begins_ns)
    processes_s = sum(written["cpu_s"] + written["daemons_cpu_s"] for written in files)
    return Block([(after - before) * 1e-9 for before, after in zip(begins_ns, ends_ns[1:])],
                 files[0]["machine_cpu_s"] / exchanges, processes_s / exchanges,
                 files[0]["notes"],
                 sum(memory["peak_bytes"] - memory["worker_bytes"]
                     for memory in files[0].get("daemon_memory", [])), files)


def run_block(system: System, workload: Workload, scratch: Path,
              timeout_s: float = BLOCK_SECONDS_MAX,
              around: Callable[[Path], contextlib.AbstractContextManager[object]] | None = None
              ) -> Block:
    """`around`: opened with the block's folder while its processes run."""
    count = len(list(scratch.glob("block-*")))
    folder = scratch / f"block-{count}-{system.name}"
    folder.mkdir()
    idle_bytes = system.prepare()
    commands = system.commands(workload, folder)
    try:
        with around(folder) if around else contextlib.nullcontext():
            run_together(commands, timeout_s)
    except BenchFailure as failure:
        raise BenchFailure(f"{system.name}, {workload.case('block', system.transport)}: "
                           f"{failure}") from failure
    block = read_block(folder, system.rank_count(workload))
    block.daemon_bytes -= idle_bytes
    return block
