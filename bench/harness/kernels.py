"""The daemon's kernels alone: sums of k ranks, sums fused with updates, conversions of halves.

Bytes of memory traffic per second beside loops that only move as many bytes over as many streams,
measured in the same run by as many threads; in cache and out of it. Goals: out of cache 90 % of
that ceiling, in cache 80 % of loads alone, and of what fusing should save, 90 %.
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

SUMMARY = "the daemon's kernels beside what memory and caches allow"
FIELDS = ("case", "system", "median_s", "min_s", "mad_s", "cpu_s", "ceiling_s", "runs")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", action="append", default=[], metavar="TEXT",
                        help="only cases whose names have this text; repeated: all of them")
    parser.add_argument("--list", action="store_true", help="print the cases' names, then stop")
    parser.add_argument("--pages", choices=("small", "huge"), default="small",
                        help="of the arrays (default small)")
    parser.add_argument("--threads", type=positive, help="1 and so many (default: every core)")
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
