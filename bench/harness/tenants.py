"""Several jobs on one daemon: their shares, their total throughput, and the effect of neighbours.

  alone      one job by itself
  jobs8      the same job eight times at once; a job's share is its part of the exchanges done while
             all jobs ran
  neighbours the job next to badly behaved neighbours: one floods the daemon with tiny chunks, one
             pushes ten times as much, one joins and leaves continuously
  capped     the same, but the neighbours' tenant has a quota: together they may push a quarter of
             what the job pushes alone, which is a fair share for each of four jobs
  strangers  the job while thousands of unauthenticated connections are held and opened at both
             ports

The neighbours and strangers run at nice 19, so that they compete for the daemon and not for the
workers' CPU. If processes share cores, the times depend on the machine's scheduler as well;
tests/sim/fairness_test.cc checks fairness exactly, in virtual time.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import results
from .block import Block, read_block, run_block
from .ceilings import KernelFloor
from .context import Context, positive
from .daemon import Daemon
from .failure import BenchFailure
from .processes import Command, run_together, started, started_and_ready
from .results import Result
from .systems import Phub
from .workload import ROOT, Workload, model, size_text

SUMMARY = "measure several jobs on one daemon: shares, throughput, and a victim of bad neighbours"
SECONDS_MAX = 300.0
NICE = ["nice", "-n", "19"]
NEIGHBOURS = "neighbours"  # the name of a tenant
FAIR_SHARE = 4  # the victim and three neighbours share the daemon equally
# Jobs start one after the other, so they must run much longer than their processes need to start.
TOGETHER_SECONDS = 5.0
OVERLAP_MIN = 0.5  # share of the shortest job's time in which all of them ran
STRANGERS = 2000
STRANGERS_EACH_S = 200
STRANGERS_COME_SECONDS_MAX = 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="4MiB", metavar="SIZE",
                        help="size of each job's tensor, or a model (default 4MiB)")
    parser.add_argument("--jobs", type=positive, default=8, metavar="COUNT",
                        help="number of jobs that run at once (default 8)")
    parser.add_argument("--workers", type=positive, default=2, metavar="COUNT",
                        help="workers of each job (default 2)")
    parser.add_argument("--transport", choices=("shm", "tcp"), default="shm",
                        help="transport of all jobs (default shm)")
    parser.add_argument("--exchanges", type=positive, metavar="COUNT",
                        help="timed exchanges of each job (default: as many as let all jobs run at "
                             f"once for about {TOGETHER_SECONDS:.0f} s)")
    parser.add_argument("--rounds", type=positive, default=4, metavar="COUNT",
                        help="blocks of each kind; kinds alternate (default 4)")
    parser.add_argument("--phubd", default="", metavar="OPTIONS",
                        help="additional phubd options, as one quoted word (\"--cores 2\")")


@dataclass
class Together:
    """Jobs that ran at once: their blocks, and each job's rate while all of them ran."""

    blocks: list[Block]
    exchanges_per_s: list[float]
    overlap: float  # share of the shortest job's time in which all of them ran

    @property
    def total_per_s(self) -> float:
        return sum(self.exchanges_per_s)

    def shares(self) -> list[float]:
        return [rate / self.total_per_s for rate in self.exchanges_per_s]


def ends_of(block: Block) -> list[int]:
    """When the last rank finished each exchange. The first entry is the start."""
    return [max(stamps) for stamps in zip(*(written["stamps_ns"] for written in block.files))]


def overlap_of(blocks: Sequence[Block]) -> float:
    ends = [ends_of(block) for block in blocks]
    begin, end = max(each[0] for each in ends), min(each[-1] for each in ends)
    return max(0, end - begin) / min(each[-1] - each[0] for each in ends)


def rates(blocks: Sequence[Block]) -> list[float]:
    """Exchanges per second of each job over the time in which all jobs ran. An exchange that is
    partly outside this time counts with the part inside."""
    ends = [ends_of(block) for block in blocks]
    begin, end = max(each[0] for each in ends), min(each[-1] for each in ends)
    rates_per_s = []
    for each in ends:
        done = sum(max(0, min(after, end) - max(before, begin)) / (after - before)
                   for before, after in zip(each, each[1:]))
        rates_per_s.append(done / (end - begin) * 1e9)
    return rates_per_s


class Tenants:
    def __init__(self, context: Context, daemon: Daemon) -> None:
        options = context.options
        self.context = context
        self.daemon = daemon
        self.transport = str(options.transport)
        self.jobs = 2 if context.smoke else int(options.jobs)
        size = "64KiB" if context.smoke else options.model
        self.workload = Workload(model(size), options.workers, warmup=5).with_exchanges(
            3000 if context.smoke else options.exchanges or 50)
        self.chooses_length = options.exchanges is None
        self.kernel = KernelFloor(context.build, daemon.core_loops)
        self.is_capped = False

    @property
    def pushed_bytes(self) -> int:
        """Bytes that all workers of a job together push for one exchange."""
        return self.workload.workers * self.workload.bytes

    def phub(self, options: Sequence[str] = ()) -> Phub:
        return Phub(self.context.build, [self.daemon], self.transport, "library", options)

    def folder(self, name: str) -> Path:
        number = len(list(self.context.scratch.glob("tenants-*")))
        folder = self.context.scratch / f"tenants-{number}-{name}"
        folder.mkdir()
        return folder

    def choose_length(self) -> None:
        """From the time of a few exchanges alone: together, the jobs share the daemon."""
        if not self.chooses_length or self.context.smoke:
            return
        one_s = statistics.median(self.alone().times_s)
        self.lengthen(max(50, round(TOGETHER_SECONDS / (self.jobs * one_s))))

    def lengthen(self, exchanges: int) -> None:
        self.workload = self.workload.with_exchanges(exchanges)
        self.context.say(f"# {exchanges} exchanges of each job")

    def alone(self) -> Block:
        return run_block(self.phub(), self.workload, self.context.scratch)

    def together(self) -> Together:
        """Repeats with more exchanges if the jobs hardly ran at the same time."""
        while True:
            blocks = self.run_together()
            overlap = overlap_of(blocks)
            if overlap >= OVERLAP_MIN or (overlap > 0 and not self.chooses_length):
                return Together(blocks, rates(blocks), overlap)
            if not self.chooses_length:
                raise BenchFailure("the jobs did not run at the same time; leave out --exchanges, "
                                   "or pass more")
            self.lengthen(2 * self.workload.exchanges)

    def run_together(self) -> list[Block]:
        commands: list[Command] = []
        folders = [self.folder(f"job{number}") for number in range(self.jobs)]
        for folder in folders:
            commands += self.phub().commands(self.workload, folder)
        run_together(commands, SECONDS_MAX)
        return [read_block(folder, self.workload.workers) for folder in folders]

    def cap_neighbours(self, pushed_bytes_per_s: float) -> None:
        verb = "set-quota" if self.is_capped else "create"
        self.daemon.ask(self.context.build.phubctl,
                        ["tenant", verb, NEIGHBOURS, "--bandwidth", f"{pushed_bytes_per_s:.0f}"])
        self.is_capped = True

    def with_neighbours(self, tenant: str = "") -> Block:
        """Runs the job while the neighbours, jobs of `tenant`, run until they are stopped."""
        endless = 10_000_000
        tiny = replace(self.workload, model=model("64KiB"), exchanges=endless)
        elements = 10 * self.workload.model.element_count
        large = replace(self.workload, model=model(str(4 * elements)), exchanges=endless)
        whose = ["--tenant", tenant] if tenant else []
        flood, neighbour = self.phub([*whose, "--chunk-bytes", "256"]), self.phub(whose)
        commands = [*flood.commands(tiny, self.folder("tiny")),
                    *neighbour.commands(large, self.folder("large"))]
        short = replace(self.workload, model=model("4KiB"), workers=1, exchanges=1)
        for command in neighbour.commands(short, self.folder("churn")):
            loop = ["sh", "-c", 'while "$@" >/dev/null 2>&1; do sleep 0.05; done', "sh"]
            commands.append(replace(command, arguments=[*loop, *command.arguments]))
        with started([replace(command, arguments=[*NICE, *command.arguments])
                      for command in commands]):
            return run_block(self.phub(), self.workload, self.context.scratch)

    def among_strangers(self) -> Block:
        """Runs the job once all connections of strangers are open."""
        held = 50 if self.context.smoke else STRANGERS
        command = Command([*NICE, sys.executable, "-B", "-m", "harness.strangers", str(held),
                           str(STRANGERS_EACH_S), self.daemon.endpoint,
                           self.daemon.data_endpoint], self.context.scratch / "strangers.log",
                          {"PYTHONPATH": str(ROOT / "bench")})
        with started_and_ready(command, "there", STRANGERS_COME_SECONDS_MAX):
            return run_block(self.phub(), self.workload, self.context.scratch)

    def floor_s(self, jobs: int) -> float:
        """The kernel's time for the bytes of `jobs` jobs: the bytes of one job may fit a cache
        that the bytes of all jobs do not fit."""
        elements = jobs * self.workload.model.element_count
        workload = replace(self.workload, model=model(str(4 * elements))).with_exchanges(
            max(20, self.workload.exchanges // jobs))
        return statistics.median(run_block(self.kernel, workload, self.context.scratch).times_s)

    def case(self, kind: str) -> str:
        return f"{self.workload.case('tenants', self.transport)}/{kind}"

    def row(self, kind: str, system: str, blocks: Sequence[Block], floor_s: float,
            jobs: int) -> Result:
        """`floor_s`: the kernel's time for the bytes of `jobs` jobs."""
        row = results.summarized(self.case(kind), system, blocks, floor_s)
        row.more["ceiling"] = (f"{self.kernel.description}, for the bytes of {jobs} "
                               f"job{'s' if jobs > 1 else ''}")
        return row


@dataclass
class Runs:
    """All blocks, by kind. The kinds alternate."""

    alone: list[Block] = field(default_factory=list)
    together: list[Together] = field(default_factory=list)
    neighbours: list[Block] = field(default_factory=list)
    capped: list[Block] = field(default_factory=list)
    strangers: list[Block] = field(default_factory=list)
    floors_s: list[float] = field(default_factory=list)  # for one job's bytes
    all_floors_s: list[float] = field(default_factory=list)

    def alone_per_s(self) -> float:
        return statistics.median(rates([block])[0] for block in self.alone)


def run(context: Context) -> list[Result]:
    rounds = 1 if context.smoke else context.options.rounds
    with Daemon(context.build, context.scratch,
                arguments=context.options.phubd.split()) as daemon:
        context.say(f"# phubd: {daemon.description()}")
        bench = Tenants(context, daemon)
        runs = Runs()
        bench.choose_length()
        for number in range(rounds):
            context.progress(f"round {number + 1} of {rounds}")
            runs.alone.append(bench.alone())
            runs.together.append(bench.together())
            runs.neighbours.append(bench.with_neighbours())
            bench.cap_neighbours(runs.alone_per_s() * bench.pushed_bytes / FAIR_SHARE)
            runs.capped.append(bench.with_neighbours(NEIGHBOURS))
            runs.strangers.append(bench.among_strangers())
            runs.floors_s.append(bench.floor_s(1))
            runs.all_floors_s.append(bench.floor_s(bench.jobs))
        context.progress_done()
    return shown(bench, runs)


def shown(bench: Tenants, runs: Runs) -> list[Result]:
    jobs, floor_s = bench.jobs, statistics.median(runs.floors_s)
    all_floor_s = statistics.median(runs.all_floors_s)
    one = bench.row("alone", "phub", runs.alone, floor_s, 1)
    one.more["exchanges_per_s"] = runs.alone_per_s()
    rows = [one]
    for number in range(jobs):
        row = bench.row(f"jobs{jobs}", f"phub-job{number}",
                        [each.blocks[number] for each in runs.together], all_floor_s, jobs)
        row.more["share"] = statistics.median(each.shares()[number] for each in runs.together)
        row.more["exchanges_per_s"] = statistics.median(
            each.exchanges_per_s[number] for each in runs.together)
        rows.append(row)
    of_one = statistics.median(each.total_per_s for each in runs.together) / runs.alone_per_s()
    # The kernel's limit for all jobs together, in multiples of one job's throughput.
    kernel_of_one = jobs * one.median_s / all_floor_s
    one.more |= {"together_of_alone": of_one, "kernel_of_alone": kernel_of_one}
    fair_s = FAIR_SHARE * float(str(one.more["p99_s"]))
    victims = []
    for kind, blocks in (("neighbours", runs.neighbours), ("capped", runs.capped)):
        victim = bench.row(kind, f"phub-{kind}", blocks, floor_s, 1)
        victim.more["p99_of_fair_share"] = float(str(victim.more["p99_s"])) / fair_s
        victims.append(victim)
    among = bench.row("strangers", "phub-strangers", runs.strangers, floor_s, 1)
    among.more["of_alone"] = among.median_s / one.median_s
    rows += [*victims, among]
    say = bench.context.say
    say(f"\n{bench.case('...')}: {size_text(bench.workload.bytes)} per worker")
    say(results.table(rows, (("p99", "p99_s"),)))
    shares = [float(str(row.more["share"])) for row in rows if "share" in row.more]
    overlap = min(each.overlap for each in runs.together)
    say(f"  all jobs ran at once for {100 * overlap:.0f} % of their time")
    say(f"  {jobs} jobs together: {of_one:.3f}x one job's throughput (kernel alone: "
        f"{kernel_of_one:.3f}x); each job's share: {min(shares) * jobs:.3f}x to "
        f"{max(shares) * jobs:.3f}x of 1/{jobs}")
    for neighbours, victim in zip(("", ", neighbours capped"), victims):
        say(f"  victim{neighbours}: p99 {results.seconds_text(float(str(victim.more['p99_s'])))}, "
            f"{victim.more['p99_of_fair_share']:.2f}x its fair-share time "
            f"({FAIR_SHARE}x its p99 alone)")
    say(f"  among strangers: {among.more['of_alone']:.3f}x the time alone")
    return rows
