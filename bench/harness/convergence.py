"""Trains small models with gradients that are sent in different ways, from the same seeds.

one-process is torch.optim with the examples of all ranks, without exchange. ddp-gloo and ddp-phub
are DistributedDataParallel.

Each way trains from --seeds seeds (parameters at the beginning, order of the examples). Results are
the means over the seeds, with the least and the greatest value.

float32, bfloat16, int8, topk and randomk (10 % and 1 % of the elements, with error feedback) are
phub.torch.DistributedOptimizer; powersgd is torch's hook of DistributedDataParallel (rank 2) over
phub's all_reduce. digits: handwritten digits, 17,226 parameters, Adam. gpt: a GPT of characters
over the help that Python's pydoc has, 2 layers of width 96, AdamW. Prints losses, the bytes of
gradients that the daemon counted, and draws the curves into a picture with --json (smoothed, with a
band from the least to the greatest seed).

Needs an interpreter with torch: --python, or PHUB_TORCH_PYTHON, or /usr/bin/python3.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .context import Context, listed
from .curves import draw_curves
from .daemon import Daemon
from .failure import BenchFailure
from .interpreter import add_python_option, require_torch, run_ranks
from .results import Result

SUMMARY = "train with compressed gradients, compared with uncompressed ones"
METHODS = ("one-process", "ddp-gloo", "ddp-phub", "float32", "bfloat16", "int8", "topk-10",
           "topk-1", "randomk-10", "randomk-1", "powersgd")
STEPS = {"digits": 300, "gpt": 400}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", type=listed(tuple(STEPS)), default=list(STEPS), metavar="TASKS",
                        help="digits, gpt (default: both)")
    parser.add_argument("--method", type=listed(METHODS), default=list(METHODS), metavar="METHODS",
                        help=f"{', '.join(METHODS)} (default: all)")
    parser.add_argument("--workers", type=int, default=2, metavar="N",
                        help="number of workers (default 2)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N",
                        help="number of seeds (default 3)")
    parser.add_argument("--steps", type=int, default=0, metavar="N",
                        help="steps of a training (default: 300 for digits, 400 for gpt)")
    add_python_option(parser)


def train(context: Context, daemon: Daemon, task: str) -> list[dict[str, Any]]:
    options = context.options
    output = context.scratch / "convergence.json"
    output.unlink(missing_ok=True)
    steps = 12 if context.smoke else options.steps or STEPS[task]
    arguments = ["--task", task, "--steps", str(steps), "--methods", ",".join(options.method),
                 "--seeds", str(1 if context.smoke else options.seeds),
                 "--phubctl", str(context.build.folder / "client" / "cli" / "phubctl"),
                 "--output", str(output)]
    run_ranks(context, "convergence.py", [arguments] * options.workers, "rank",
              1800 * options.seeds,
              {"PHUB_ENDPOINT": daemon.endpoint})
    if not output.is_file():
        raise BenchFailure("rank 0 wrote no results")
    found: list[dict[str, Any]] = json.loads(output.read_text())
    return found


def run(context: Context) -> list[Result]:
    options = context.options
    require_torch(options.python)
    measured = []
    for task in ["digits"] if context.smoke else options.task:
        context.progress(task)
        with Daemon(context.build, context.scratch) as daemon:
            found = train(context, daemon, task)
        context.progress_done()
        measured += report(context, task, found)
    return measured


def report(context: Context, task: str, found: list[dict[str, Any]]) -> list[Result]:
    whole = found[0]["parameters"] * 4 * len(found[0]["losses"]) * context.options.workers
    case = (f"{task}, {found[0]['parameters']} parameters, {context.options.workers} workers, "
            f"{len(found[0]['losses'])} steps")
    context.say(case)
    results = []
    for method in dict.fromkeys(each["method"] for each in found):
        runs = [each for each in found if each["method"] == method]
        last = [statistics.fmean(run["losses"][-50:]) for run in runs]
        tested = [run["test_loss"] for run in runs]
        more: dict[str, Any] = {
                "loss": last, "test_loss": tested, "seeds": [run["seed"] for run in runs],
                "bytes": [run["bytes"] for run in runs],
                "share": statistics.fmean(run["bytes"] for run in runs) / whole or None,
                "losses": [run["losses"] for run in runs]}
        accuracy = ""
        if "accuracy" in runs[0]:
            more["accuracy"] = [run["accuracy"] for run in runs]
            accuracy = f", accuracy {_spread(more['accuracy'], 3)}"
        share = (f"{100 * more['share']:6.2f} % of the bytes" if more["share"]
                 else "bytes not counted ")
        context.say(f"  {method:11} {share}, loss of the last 50 steps {_spread(last, 4)}, on the "
                    f"test {_spread(tested, 4)}{accuracy}{_apart(method, runs, found)}")
        step_s = statistics.median(run["step_s"] for run in runs)
        results.append(Result(case, method, step_s, min(run["step_s"] for run in runs), 0.0, 0.0,
                              None, len(runs), more))
    return results


def _apart(method: str, runs: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> str:
    """The largest difference from gloo's loss with the same seed."""
    others = {run["seed"]: run for run in found if run["method"] == "ddp-gloo"}
    if not others or method == "ddp-gloo":
        return ""
    apart = max(abs(statistics.fmean(run["losses"][-50:]) -
                    statistics.fmean(others[run["seed"]]["losses"][-50:])) for run in runs)
    return f"; up to {apart:.2g} from ddp-gloo's loss with the same seed"


def _spread(values: Sequence[float], digits: int) -> str:
    """The mean, and the range over the seeds."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def draw(context: Context, measured: Sequence[Result], path: Path) -> None:
    draw_curves(context, measured, path)
