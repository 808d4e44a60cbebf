"""Memory that a rack's daemon fetches into a simulated last-level cache, by plan.

One core loop of a rack's daemon exchanges gradients with the other racks along a plan, under
valgrind's cachegrind (bench/cache/rack_loop.cc). Cachegrind simulates caches; it measures no real
machine. A miss of its last level fills one line of 64 bytes. Lines that are written back are not
counted. System calls and devices are outside of the simulation, so the program copies arriving and
leaving messages once, from and to small buffers that stay in the cache.

The formula counts each byte of sums, landed partial sums, parameters and optimizer state once per
exchange ("AT LEAST" in `phubctl plan memory`). At the default chunk size, one exchange should fill
1.1 times that or less: all work on a chunk then happens while the chunk is in the cache.
As a negative control, chunks of an eighth of the cache wait in staging windows that are twice as
large as the cache. Then fills should be three times the formula or more.

Figures are the difference of two runs with different numbers of rounds, so preparations cancel out.
They are the same in each run of one build.
"""

import argparse
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .context import Context, counts, listed, positive
from .failure import BenchFailure, NotPossibleHere
from .results import Result, aligned

SUMMARY = "memory that a rack's daemon fetches into a simulated cache, by plan (needs valgrind)"
PLANNERS = ("sharded-star", "ring", "halving-doubling", "double-binary-tree")
LINE_BYTES = 64
ROUNDS = (1, 2)
GOAL = 1.1
CONTROL_GOAL = 3.0
SMOKE_CACHE = 1 << 20


@dataclass
class Counted:
    """Bytes of the rounds of one run."""

    fills: int
    uplink: int
    memory: int
    formula_uplink: float
    formula_memory: float
    touched: float

    def minus(self, other: "Counted") -> "Counted":
        return Counted(*(own - more for own, more in zip(vars(self).values(),
                                                         vars(other).values())))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--planner", type=listed(), default=list(PLANNERS), metavar="PLANNERS",
                        help=f"planners, separated by commas (default {','.join(PLANNERS)})")
    parser.add_argument("--topology", default="switch:4", metavar="NAME",
                        help="topology of the racks (default switch:4)")
    parser.add_argument("--workers", type=positive, default=4, metavar="COUNT",
                        help="number of workers in each rack (default 4)")
    parser.add_argument("--optimizer", choices=("none", "momentum"), default="momentum",
                        help="optimizer in the daemon (default momentum)")
    parser.add_argument("--chunk-kib", type=positive, default=128, metavar="KIB",
                        help="chunk of the first measurement in KiB (default 128, as phubd's)")
    parser.add_argument("--staging-kib", type=positive, default=1024, metavar="KIB",
                        help="its staging window of a lane in KiB (default 1024, as phubd's)")
    parser.add_argument("--cache-mib", type=counts(1, 32), default=[32], metavar="SIZES",
                        help="sizes of the simulated last level in MiB, powers of two (default 32)")


@dataclass
class Setting:
    """Sizes in bytes, the goal in words."""

    chunk: int
    staging: int  # of a lane
    goal: str


def settings(options: argparse.Namespace, cache: int) -> tuple[Setting, Setting]:
    return (Setting(options.chunk_kib << 10, options.staging_kib << 10, f"<= {GOAL}"),
            Setting(cache // 8, 2 * cache, f">= {CONTROL_GOAL:g}"))


def run(context: Context) -> list[Result]:
    options = context.options
    caches = [size << 20 for size in options.cache_mib]
    if context.smoke:  # everything is a 32nd of its size
        options.planner, caches = ["ring"], [SMOKE_CACHE]
        options.chunk_kib, options.staging_kib = 4, 32
    simulates = shutil.which("valgrind") is not None
    if not simulates and not context.smoke:
        raise NotPossibleHere("valgrind is not installed")
    measured = []
    context.say("# cachegrind's simulated last-level cache, 16 ways, lines of 64 bytes: fills, no "
                "write-backs" if simulates else "# no fills: valgrind is not installed")
    for cache in caches:
        rows = [["plan", "chunk", "staging", "counted", "formula", "fills", "at least",
                 "fills / at least", "goal"]]
        for planner in options.planner:
            for setting in settings(options, cache):
                context.progress(f"{planner}, chunks of {setting.chunk >> 10} KiB")
                counted = count(context, planner, setting, cache if simulates else 0)
                measured.append(row(context, planner, setting, cache, counted))
                rows.append([planner, f"{setting.chunk >> 10} KiB", f"{setting.staging >> 10} KiB",
                             *(f"{number / counted.uplink:.3f}" for number in
                               (counted.memory, counted.formula_memory, counted.fills,
                                counted.touched)),
                             f"{counted.fills / counted.touched:.3f}", setting.goal])
        context.progress_done()
        context.say(f"\n{options.topology}, {options.workers} workers per rack, "
                    f"{options.optimizer}, cache {cache >> 20} MiB: bytes per uplink byte")
        context.say(aligned(rows))
    return measured


def row(context: Context, planner: str, setting: Setting, cache: int, counted: Counted) -> Result:
    options = context.options
    case = (f"cache/{options.topology}/w{options.workers}/{options.optimizer}/"
            f"{setting.chunk >> 10}KiB/{cache >> 20}MiB")
    result = Result(case, planner, 0.0, 0.0, 0.0, 0.0, None, 1)
    result.more |= {"simulated_fill_bytes": counted.fills, "uplink_bytes": counted.uplink,
                    "memory_bytes": counted.memory, "formula_memory_bytes": counted.formula_memory,
                    "touched_bytes": counted.touched, "goal": setting.goal,
                    "fills_per_touched_byte": counted.fills / counted.touched}
    return result


def count(context: Context, planner: str, setting: Setting, cache: int) -> Counted:
    """Bytes of the rounds that the second run has more than the first. cache 0: no simulation."""
    first, second = (run_once(context, planner, setting, cache, rounds) for rounds in ROUNDS)
    counted = second.minus(first)
    if not 0.98 < counted.uplink / counted.formula_uplink < 1.02:
        raise BenchFailure(f"{planner}: the daemon counted {counted.uplink} bytes on its uplink, "
                           f"but the plan has {counted.formula_uplink:.0f}")
    if not 0.98 < counted.memory / counted.formula_memory < 1.02:
        raise BenchFailure(f"{planner}: the daemon counted {counted.memory} bytes of memory, but "
                           f"the formula gives {counted.formula_memory:.0f}")
    return counted


def run_once(context: Context, planner: str, setting: Setting, cache: int, rounds: int) -> Counted:
    options = context.options
    # More data than the cache holds, so that nothing stays there from one round to the next.
    size = 2 * setting.staging if cache == 0 else 4 * cache
    out = context.scratch / f"cachegrind-{planner}-{setting.chunk}-{rounds}"
    simulator = ["valgrind", "--tool=cachegrind", "--cache-sim=yes",
                 f"--LL={cache},16,{LINE_BYTES}", f"--cachegrind-out-file={out}"]
    command = [*(simulator if cache else []), str(context.build.program("bench-rack-loop")),
               "--topology", options.topology, "--planner", planner,
               "--optimizer", options.optimizer, "--ranks", str(options.workers),
               "--chunk-bytes", str(setting.chunk), "--staging-bytes", str(setting.staging),
               "--bytes", str(size), "--rounds", str(rounds)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise BenchFailure(f"{' '.join(command)} failed: {ran.stderr[-2000:]}")
    counted = json.loads(ran.stdout)
    return Counted(LINE_BYTES * misses(out) if cache else 0, counted["uplink_bytes"],
                   counted["memory_bytes"], counted["formula_uplink_bytes"],
                   counted["formula_memory_bytes"], counted["formula_touched_bytes"])


def misses(path: Path) -> int:
    """Reads and writes of data that missed the last level, of the whole program."""
    text = path.read_text()
    events = re.search(r"^events: (.*)$", text, re.MULTILINE)
    summary = re.search(r"^summary: (.*)$", text, re.MULTILINE)
    if not (events and summary):
        raise BenchFailure(f"{path} has no events or no summary")
    by_event = dict(zip(events[1].split(), summary[1].split()))
    return int(by_event["DLmr"]) + int(by_event["DLmw"])
