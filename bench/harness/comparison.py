"""Compares systems on this host: picks each system's fastest variant and interleaves the blocks.

The ceilings are measured between the blocks.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import results
from .block import Block, run_block
from .ceilings import KernelFloor
from .context import Context, listed, positive
from .daemon import Daemon
from .failure import BenchFailure, UsageError
from .peers import every_peer
from .systems import Phub, System
from .workload import TYPE_BYTES, Workload, size_text

TRANSPORTS = ("shm", "tcp")
WORKS = ("update", "allreduce")
WORKERS_MAX = 64
# If phubd uses more than this share of a core while another system is measured, a note is printed.
DAEMON_IDLE_SHARE_MAX = 0.02


def add_comparison_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transport", type=listed(TRANSPORTS), default=list(TRANSPORTS),
                        metavar="NAMES", help="transports to measure (default shm,tcp)")
    parser.add_argument("--systems", type=listed(), metavar="NAMES",
                        help="measure only these systems, for example phub,openmpi-shm "
                             "(default: all)")
    parser.add_argument("--type", choices=tuple(TYPE_BYTES), default="f32",
                        help="element type of gradients and results (default f32)")
    parser.add_argument("--rounds", type=positive, default=3,
                        help="blocks of each system (default 3)")
    parser.add_argument("--exchanges", type=positive,
                        help="timed exchanges in a block (default: depends on the tensor size)")
    parser.add_argument("--phubd", default="", metavar="OPTIONS",
                        help="additional phubd options, as one quoted word (\"--cores 2\")")


@dataclass
class Measured:
    """One workload's measurements: the systems that ran it, and all blocks by system label.
    The blocks include those of the floors."""

    workload: Workload
    systems: list[System]
    blocks: dict[str, list[Block]] = field(default_factory=dict)

    def median_s(self, system: System) -> float:
        return statistics.median(
            time_s for block in self.blocks[system.label] for time_s in block.times_s)


class Comparison:
    """The base class of a bench's comparison. A derived class defines the ceiling."""

    def __init__(self, context: Context, daemon: Daemon, transports: Sequence[str],
                 wanted: Sequence[str] | None) -> None:
        """`wanted`: names of systems; None for all."""
        self.context = context
        self.daemon = daemon
        self.transports = transports
        self.kernel = KernelFloor(context.build, daemon.core_loops)
        self._chosen: dict[tuple[str, str, int], System] = {}
        self._families = self._available(wanted)

    def _available(self, wanted: Sequence[str] | None) -> list[list[System]]:
        families: list[list[System]] = [
            [Phub(self.context.build, [self.daemon], transport, memory)]
            for transport in self.transports for memory in ("library", "user")]
        families += [family for family in every_peer(self.context.build)
                     if family[0].transport == "tcp" or "shm" in self.transports]
        names = sorted({family[0].name for family in families})
        for name in wanted or []:
            if name not in names:
                raise UsageError(f"--systems: unknown system '{name}' "
                                 f"(choose from {', '.join(names)})")
        families = [family for family in families if not wanted or family[0].name in wanted]
        for family in families:
            if family[0].missing():
                self.context.say(f"# {family[0].name} is left out: {family[0].missing()}")
        return [family for family in families if not family[0].missing()]

    # The ceilings.

    def floors(self, workload: Workload) -> list[System]:
        return [self.kernel]

    def sample(self, workload: Workload) -> None:
        """Called once per round, to measure ceilings that are not systems (iperf3)."""

    def ceiling(self, measured: "Measured", transport: str) -> tuple[float | None, str]:
        """The ceiling of an exchange in seconds, and its description."""
        raise NotImplementedError

    def measure(self, workload: Workload, rounds: int) -> Measured:
        systems = [chosen for family in self._families
                   if (chosen := self._fastest(family, workload)) is not None]
        measured = Measured(workload, systems)
        for number in range(rounds):
            for system in [*systems, *self.floors(workload)]:
                self.context.progress(f"{workload.case('...', '*')}, round {number + 1} of "
                                      f"{rounds}: {system.label}")
                block = self._block(system, workload)
                if block is None:
                    systems.remove(system)
                else:
                    measured.blocks.setdefault(system.label, []).append(block)
            self.sample(workload)
        self.context.progress_done()
        return measured

    def _block(self, system: System, workload: Workload) -> Block | None:
        """A peer may be unable to run the workload on this host: then this prints why and returns
        None."""
        before_s, started = self.daemon.cpu_seconds(), time.monotonic()
        try:
            block = run_block(system, workload, self.context.scratch)
        except BenchFailure as failure:
            if system.is_phub or system.is_floor:
                raise
            self.context.say(f"# {system.name} is left out because it failed: {failure}")
            return None
        taken = (self.daemon.cpu_seconds() - before_s) / (time.monotonic() - started)
        if not system.is_phub and taken > DAEMON_IDLE_SHARE_MAX:
            self.context.say(f"# phubd used {100 * taken:.1f} % of a core while {system.label} "
                             "was measured")
        return block

    def _fastest(self, family: list[System], workload: Workload) -> System | None:
        fit = [variant for variant in family if not variant.unfit(workload)]
        if not fit:
            self.context.say(f"# {family[0].name} is left out: {family[0].unfit(workload)}")
            return None
        key = (family[0].name, workload.model.name, workload.workers)
        if len(fit) == 1:
            return fit[0]
        if key not in self._chosen:
            trial = workload.with_exchanges(max(2, workload.exchanges // 4))
            tried = [(statistics.median(block.times_s), variant) for variant in fit
                     if (block := self._block(variant, trial)) is not None]
            if not tried:
                return None
            self._chosen[key] = min(tried, key=lambda entry: entry[0])[1]
            words = ", ".join(f"{variant.variant} {results.seconds_text(time_s)}"
                              for time_s, variant in tried)
            self.context.say(f"# {family[0].name}: using '{self._chosen[key].variant}', the "
                             f"fastest variant ({words})")
        return self._chosen[key]

    def rows_of(self, measured: Measured, bench: str, transport: str) -> list[results.Result]:
        """The rows of one case: phub over that transport, and the peers. A tcp case has only the
        peers that use tcp; an shm case has all peers."""
        case = measured.workload.case(bench, transport)
        ceiling_s, ceiling = self.ceiling(measured, transport)
        rows = []
        for system in measured.systems:
            if system.transport != transport and (system.is_phub or transport == "tcp"):
                continue
            blocks = measured.blocks[system.label]
            row = results.summarized(case, system.name, blocks, ceiling_s)
            row.more |= {"ceiling": ceiling, "notes": blocks[0].notes}
            if system.is_phub:
                row.more["server_bytes"] = max(block.daemon_bytes for block in blocks)
                row.more["server_formula_bytes"] = server_formula_bytes(
                    measured.workload, self.daemon)
            rows.append(row)
        results.add_ratios(rows)
        return rows

    def shown(self, measured: Measured, bench: str, transport: str,
              columns: Sequence[tuple[str, str]] = ()) -> list[results.Result]:
        """Returns rows_of() and prints them. `columns`: additional columns of results.table()."""
        rows = self.rows_of(measured, bench, transport)
        if rows:
            self.context.say(f"\n{rows[0].case}: {size_text(measured.workload.bytes)} per worker, "
                             f"{rows[0].runs} exchanges")
            self.context.say(results.table(rows, columns))
            for line in results.verdicts(rows):
                self.context.say("  " + line)
        return rows


def server_formula_bytes(workload: Workload, daemon: Daemon) -> int:
    """The memory that the design allows a daemon for a job: parameters, optimizer state,
    accumulators, results of sum-only jobs, and the staging of every rank. It never holds a copy of
    the model per rank."""
    elements = workload.model.element_count
    staging = workload.workers * daemon.staging_bytes_per_lane * daemon.core_loops
    if workload.work == "allreduce":  # accumulators, results
        return elements * (4 + TYPE_BYTES[workload.type]) + staging
    masters = 0 if workload.type == "f32" else 4
    return elements * (TYPE_BYTES[workload.type] + masters + 4 + 4) + staging


def compare(context: Context, bench: str, kind: type[Comparison], workloads: Sequence[Workload],
            wanted: Sequence[str] | None,
            columns: Sequence[tuple[str, str]] = ()) -> list[results.Result]:
    """The body of a bench's run(): measures every workload over every transport with one daemon."""
    transports = context.options.transport
    rounds = 1 if context.smoke else context.options.rounds
    measured = []
    with Daemon(context.build, context.scratch,
                arguments=context.options.phubd.split()) as daemon:
        context.say(f"# phubd: {daemon.description()}")
        comparison = kind(context, daemon, transports, wanted)
        for workload in workloads:
            raw = comparison.measure(workload, rounds)
            for transport in transports:
                measured += comparison.shown(raw, bench, transport, columns)
    return measured
