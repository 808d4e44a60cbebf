"""The context that every bench receives, and the options that all benches share."""

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .build import Build
from .failure import UsageError
from .workload import ROOT


@dataclass
class Context:
    options: argparse.Namespace
    build: Build
    scratch: Path  # logs and files of the run; removed afterwards
    smoke: bool    # tiny sizes: checks that everything runs; the figures are meaningless

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def progress(self, text: str) -> None:
        """Prints a status line if stderr is a terminal. The next line replaces it."""
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def progress_done(self) -> None:
        self.progress("")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def listed(choices: tuple[str, ...] = ()) -> Callable[[str], list[str]]:
    """A type for argparse: words separated by commas, each one of `choices` if there are any."""
    def parse(text: str) -> list[str]:
        words = [word for word in text.split(",") if word]
        for word in words:
            if choices and word not in choices:
                raise argparse.ArgumentTypeError(f"'{word}' is not one of {', '.join(choices)}")
        if not words:
            raise argparse.ArgumentTypeError("the list is empty")
        return words
    return parse


def counts(least: int, most: int) -> Callable[[str], list[int]]:
    """A type for argparse: whole numbers separated by commas."""
    def parse(text: str) -> list[int]:
        words = listed()(text)
        for word in words:
            if not word.isdigit() or not least <= int(word) <= most:
                raise argparse.ArgumentTypeError(
                    f"'{word}' is not a whole number from {least} to {most}")
        return [int(word) for word in words]
    return parse


def add_common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--smoke", action="store_true",
                        help="check that everything runs, with tiny sizes and without installing "
                             "peers; the figures are meaningless")
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help="write the results to FILE, and a picture next to it (suffix .svg)")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "release",
                        metavar="DIR", help="use this build directory (default build/release)")
    parser.add_argument("--no-build", action="store_true",
                        help="install and build nothing; run the existing programs")
    parser.add_argument("--keep", action="store_true",
                        help="keep logs and raw times, and print their path")


@contextlib.contextmanager
def opened(options: argparse.Namespace) -> Iterator[Context]:
    if options.json and not options.json.resolve().parent.is_dir():
        raise UsageError(f"--json {options.json}: the folder does not exist")
    build = Build(options.build_dir.resolve())
    scratch = Path(tempfile.mkdtemp(prefix="phub-bench."))
    try:
        yield Context(options, build, scratch, options.smoke)
    finally:
        if options.keep:
            print(f"logs and raw times: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
