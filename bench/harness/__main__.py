"""python3 -m harness NAME ...: one bench, as bench/run starts it."""

import argparse
import importlib
import importlib.util
import signal
import sys

from . import machine, results
from .build import Build
from .context import add_common_options, opened
from .failure import BenchFailure, NotPossibleHere, UsageError

EXIT_SKIPPED = 77  # of a smoke test that cannot be done here, as ctest is told

# Each a module of this package with SUMMARY (one line), add_options(parser) and
# run(context) -> list[Result]; and, if its results make a picture, draw(results, path).
BENCHES = ("exchange", "latency", "kernels", "network", "overlap", "probe", "racks", "scale",
           "tenants", "verbs")


def available() -> list[str]:
    return [name for name in BENCHES if importlib.util.find_spec(f"harness.{name}")]


def parser_of(names: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/run", description="Measures phub beside what one would use instead. "
        "`bench/run NAME --help` tells a bench's own options; bench/README.md how to read results.")
    subparsers = parser.add_subparsers(dest="bench", metavar="NAME", required=True)
    for name in names:
        module = importlib.import_module(f"harness.{name}")
        subparser = subparsers.add_parser(name, help=module.SUMMARY,
                                          description=module.__doc__,
                                          formatter_class=argparse.RawDescriptionHelpFormatter)
        add_common_options(subparser)
        module.add_options(subparser)
    return parser


def run(options: argparse.Namespace) -> None:
    module = importlib.import_module(f"harness.{options.bench}")
    with opened(options) as context:
        described = machine.description(context.build.phubd)
        context.say("# " + ", ".join(f"{name} {value}" for name, value in described.items()))
        if context.smoke:
            context.say("# smoke: no figure below means anything")
        measured = module.run(context)
        if options.json:
            results.write_json(options.json, measured, described)
            context.say(f"results: {options.json}")
            if hasattr(module, "draw"):
                module.draw(context, measured, options.json.with_suffix(".svg"))


def main() -> int:
    # As an exception, so that every `with` ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # bench/run asks before it builds: is this a command line, and may that build be used?
    only_check = sys.argv[1:2] == ["--check"]
    options = parser_of(available()).parse_args(sys.argv[2 if only_check else 1:])
    try:
        if not only_check:
            run(options)
        elif (options.build_dir / "CMakeCache.txt").is_file():
            Build(options.build_dir)
    except UsageError as error:
        print(f"bench/run: {error}", file=sys.stderr)
        return 2
    except NotPossibleHere as error:
        print(f"bench/run: {error}", file=sys.stderr)
        return EXIT_SKIPPED if options.smoke else 1
    except BenchFailure as error:
        print(f"bench/run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench/run: interrupted", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
