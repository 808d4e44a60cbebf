"""Compares a lane over RDMA with ib_write_bw at the same message size, one way and without sums.

Both run in turn in a QEMU guest with two soft RoCE devices (tests/verbs/run-in-guest). By default
the guest's clock counts executed instructions. The figures then do not depend on other work of this
machine; they are the processor's work per byte in a lane and in ib_write_bw. A NIC does most of
that work itself, so only ratios are meaningful. With `stream`, only the transport's own control
words come back. With `credits`, a credit message comes back for each chunk, as in a job whose
parameters go elsewhere. Goal: 85 % of ib_write_bw's bandwidth at 32 KiB and above, one way.
"""

import argparse
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence

from . import results
from .context import Context, counts, positive
from .failure import BenchFailure, NotPossibleHere
from .processes import clean_environment
from .results import Result
from .workload import ROOT

SUMMARY = "compare a lane over RDMA with ib_write_bw, in a guest with soft RoCE"
GOAL = 0.85
SIZES = (32 << 10, 64 << 10, 128 << 10)
CHUNK_BYTES_MAX = 4 << 20
GUEST_SECONDS_MAX = 1200
EXIT_SKIPPED = 77  # run-in-guest cannot start a guest on this host
STREAM, CREDITS, PEER = "stream", "credits", "ib_write_bw"

Rates = Mapping[tuple[int, str], Sequence[float]]  # MB/s, by bytes and system


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=counts(64, CHUNK_BYTES_MAX), default=list(SIZES),
                        metavar="BYTES", help="payload sizes of a message, multiples of 64 "
                        "(default 32768,65536,131072)")
    parser.add_argument("--rounds", type=positive, default=5,
                        help="measurements of each system and size (default 5)")
    parser.add_argument("--mebibytes", type=positive, default=16,
                        help="MiB moved by one measurement (default 16)")
    parser.add_argument("--clock", choices=("instructions", "host"), default="instructions",
                        help="the guest's clock; `host` needs an otherwise idle machine "
                        "(default instructions)")


def run(context: Context) -> list[Result]:
    options = context.options
    if any(size % 64 for size in options.sizes):
        raise BenchFailure("--sizes must be multiples of 64 bytes")
    rates = measured(context)
    rows = [["bytes", "one way", "with credits", PEER, "one way / " + PEER]]
    found = []
    for size in sorted({size for size, _ in rates}):
        here = {system: rates[size, system] for system in (STREAM, CREDITS, PEER)
                if (size, system) in rates}
        middle = {system: statistics.median(values) for system, values in here.items()}
        peer = middle.get(PEER)
        rows.append([str(size)] + [f"{middle[system]:.2f}" if system in middle else "-"
                                   for system in (STREAM, CREDITS, PEER)]
                    + [f"{middle[STREAM] / peer:.3f}" if peer else "-"])
        found += [result_of(size, system, values, peer) for system, values in here.items()]
    context.say(f"MB/s by the guest's clock ({options.clock}); each is the median of "
                f"{len(next(iter(rates.values())))} measurements")
    context.say(results.aligned(rows))
    if not context.smoke and any(system == PEER for _, system in rates):
        context.say(f"goal: at least {GOAL} of {PEER}, one way, at 32 KiB and above")
    return found


def measured(context: Context) -> Rates:
    options = context.options
    program = context.build.program("bench-verbs-lane")
    peer = shutil.which(PEER)
    if peer is None and not context.smoke:
        raise BenchFailure(f"{PEER} is not installed: run apt-get install perftest")
    script = ROOT / "bench" / "verbs" / "in-guest"
    rounds, mebibytes, sizes = ((1, 1, list(SIZES[:1])) if context.smoke else
                                (options.rounds, options.mebibytes, options.sizes))
    command = [ROOT / "tests" / "verbs" / "run-in-guest", "--clock", options.clock,
               "--timeout", GUEST_SECONDS_MAX, "--bin", program]
    if options.clock == "instructions":
        command += ["--smp", 1]
    if peer is not None:
        command += ["--bin", peer]
    command += ["--bin", script, "--", "sh", script, rounds, mebibytes, *sizes]
    context.progress("in the guest")
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False, env=clean_environment())
    context.progress_done()
    if done.returncode == EXIT_SKIPPED:
        raise NotPossibleHere(done.stdout.strip())
    if done.returncode != 0:
        raise BenchFailure(f"{script.name} in the guest ended with status {done.returncode}:\n"
                           f"{done.stdout}{done.stderr}".rstrip())
    rates: dict[tuple[int, str], list[float]] = {}
    for line in done.stdout.splitlines():
        size, system, rate = line.split()
        rates.setdefault((int(size), system), []).append(float(rate))
    if not rates:
        raise BenchFailure(f"{script.name} in the guest printed no measurements: {done.stderr}")
    return rates


def result_of(size: int, system: str, rates: Sequence[float], peer: float | None) -> Result:
    """A result with the time of one message. The ceiling is ib_write_bw's time."""
    times_s = [size / (rate * 1e6) for rate in rates]
    return Result(f"verbs/rxe/{size}", system if system == PEER else f"phub-{system}",
                  statistics.median(times_s), min(times_s),
                  results.median_absolute_deviation(times_s), 0.0,
                  size / (peer * 1e6) if peer else None, len(times_s),
                  {"mb_per_s": statistics.median(rates), "ceiling": f"{PEER} in the same guest"})
