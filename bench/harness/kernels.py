"""The daemon's kernels alone: sums of k ranks, sums fused with updates, conversions of halves.

Compares memory traffic per second with loops that only move as many bytes over as many streams, in
as many threads and in the same run, in cache and out of cache. Goals: 90 % of that ceiling out of
cache, 80 % of loads alone in cache, and 90 % of the predicted savings of fusing.
"""

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import picture
from .context import Context, positive
from .failure import BenchFailure
from .results import Result

SUMMARY = "compare the daemon's kernels with the limits of memory and caches"
FIELDS = ("case", "system", "median_s", "min_s", "mad_s", "cpu_s", "ceiling_s", "runs")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", action="append", default=[], metavar="TEXT",
                        help="run only cases whose names contain TEXT; if given several times, "
                             "names must contain all texts")
    parser.add_argument("--list", action="store_true", help="print the cases' names and exit")
    parser.add_argument("--pages", choices=("small", "huge"), default="small",
                        help="page size of the arrays (default small)")
    parser.add_argument("--threads", type=positive,
                        help="run each case with 1 thread and with this many (default: all cores)")
    parser.add_argument("--rounds", type=positive, help="timings of each case (default 15)")


def run(context: Context) -> list[Result]:
    options = context.options
    path = context.scratch / "kernels.json"
    command = [str(context.build.program("bench-kernels")), "--json", str(path),
               "--pages", options.pages]
    for text in options.filter:
        command += ["--filter", text]
    for name in ("threads", "rounds"):
        if (value := getattr(options, name)) is not None:
            command += [f"--{name}", str(value)]
    command += [flag for flag, given in (("--smoke", context.smoke), ("--list", options.list))
                if given]
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise BenchFailure(f"bench-kernels ended with status {status}")
    rows = json.loads(path.read_text()) if path.is_file() else []
    return [Result(*(row[name] for name in FIELDS),
                   {name: value for name, value in row.items() if name not in FIELDS})
            for row in rows]


def draw(context: Context, measured: Sequence[Result], path: Path) -> None:
    picture.draw_percents(context, measured, path, "Kernels: percent of their ceiling")
