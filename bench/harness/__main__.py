"""python3 -m harness NAME ...: runs one bench. bench/run calls this."""

import argparse
import importlib
import importlib.util
import signal
import sys

from . import machine, results
from .build import Build
from .context import add_common_options, opened
from .failure import BenchFailure, NotPossibleHere, UsageError

EXIT_SKIPPED = 77  # this host cannot run the smoke test; ctest reports it as skipped

# Each is a module of this package with SUMMARY (one line), add_options(parser) and
# run(context) -> list[Result]. A bench whose results make a picture also has
# draw(context, results, path).
BENCHES = ("aggregation", "attacks", "cache", "convergence", "exchange", "latency", "kernels",
           "memory", "network", "overlap", "priorities", "probe", "racks", "scale", "tenants",
           "torch", "verbs")


def available() -> list[str]:
    return [name for name in BENCHES if importlib.util.find_spec(f"harness.{name}")]


def parser_of(names: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/run", description="Compare phub with its alternatives. `bench/run NAME "
        "--help` lists the options of one bench; bench/README.md explains the results.")
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
            context.say("# smoke test: the figures below are meaningless")
        measured = module.run(context)
        if options.json:
            results.write_json(options.json, measured, described)
            context.say(f"results: {options.json}")
            if hasattr(module, "draw"):
                module.draw(context, measured, options.json.with_suffix(".svg"))


def main() -> int:
    # SIGTERM raises an exception, so that every `with` block stops what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # bench/run passes --check before it builds, to validate the command line and the build.
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
