"""Memory of training with PyTorch and Adam, in several forms, each in processes of its own.

  ddp            DistributedDataParallel on gloo
  ddp-views      the same with gradient_as_bucket_view=True
  zero1          DistributedDataParallel on gloo with ZeroRedundancyOptimizer
  fsdp2          FSDP2 (fully_shard) on gloo
  ddp-phub       DistributedDataParallel on phub, over shared memory
  daemon         phub.torch.DistributedOptimizer
  daemon-shared  the same with share_parameters: one copy of the parameters for all ranks

Figures are PSS: a page that several processes map counts for each with its share. "rank" is the
largest of the ranks, above a process that has trained a tiny model; "daemon" is above an idle
daemon; "all" is their sum on this host. The unit D is the size of the parameters. A rank has at
least 1 D of gradients; parameters and Adam's state are 3 D that somebody must have.

Needs an interpreter with torch: --python, or PHUB_TORCH_PYTHON, or /usr/bin/python3.
"""

import argparse
import json

from .context import Context, listed
from .daemon import Daemon
from .failure import BenchFailure
from .interpreter import add_python_option, require_torch, run_ranks
from .results import Result

SUMMARY = "memory of ranks and daemon while PyTorch trains, in several forms"
FORMS = ("ddp", "ddp-views", "zero1", "fsdp2", "ddp-phub", "daemon", "daemon-shared")
BATCHES = {"mlp": 32, "gpt": 4, "gpt350": 1}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=listed(tuple(BATCHES)), default=["mlp"], metavar="MODELS",
                        help="mlp (25 million parameters), gpt (10 million), gpt350 (350 million; "
                        "needs 20 GiB with 2 workers) (default mlp)")
    parser.add_argument("--form", type=listed(FORMS), default=list(FORMS), metavar="FORMS",
                        help="forms to measure, separated by commas (default: all)")
    parser.add_argument("--workers", type=int, default=2, metavar="COUNT",
                        help="number of workers (default 2)")
    parser.add_argument("--steps", type=int, default=4, metavar="N",
                        help="steps of each form (default 4)")
    add_python_option(parser)


def measure(context: Context, daemon: Daemon, form: str, model: str,
            steps: int) -> list[dict[str, float]]:
    """What each rank wrote."""
    options = context.options
    outputs = [context.scratch / f"{model}-{form}-{rank}.json" for rank in range(options.workers)]
    arguments = ["--form", form, "--model", model, "--batch", str(BATCHES[model]),
                 "--steps", str(steps), "--endpoint", daemon.endpoint,
                 "--daemon-pid", str(daemon.pid)]
    run_ranks(context, "torch_memory.py",
              [[*arguments, "--output", str(output)] for output in outputs], f"{model}-{form}", 900)
    try:
        return [json.loads(output.read_text()) for output in outputs]
    except (OSError, ValueError) as error:
        raise BenchFailure(f"a rank of {form} wrote no results: {error}") from error


def run(context: Context) -> list[Result]:
    options = context.options
    require_torch(options.python, "numpy; from torch.distributed.fsdp import fully_shard",
                  "torch with FSDP2 (2.6)")
    results = []
    for model in options.model:
        for form in ("ddp", "daemon-shared") if context.smoke else options.form:
            context.progress(f"{model}, {form}")
            with Daemon(context.build, context.scratch, name=f"phubd-{model}-{form}") as daemon:
                ranks = measure(context, daemon, form, model, 1 if context.smoke else options.steps)
            context.progress_done()
            results.append(row(context, model, form, ranks))
    return results


def row(context: Context, model: str, form: str, ranks: list[dict[str, float]]) -> Result:
    unit = 4 * ranks[0]["parameters"]
    rank_bytes = max(each["rank_bytes"] for each in ranks)
    daemon_bytes = max(each["daemon_bytes"] for each in ranks)
    all_bytes = sum(each["rank_bytes"] for each in ranks) + daemon_bytes
    step_s = max(each["step_s"] for each in ranks)
    texts = [f"{name} {size / (1 << 20):5.0f} MiB ({size / unit:.2f} D)"
             for name, size in (("rank", rank_bytes), ("daemon", daemon_bytes), ("all", all_bytes))]
    context.say(f"{model}, {len(ranks)} workers, {form:13} {', '.join(texts)}; "
                f"a step takes {step_s:.2f} s")
    result = Result(f"memory/{model}/w{len(ranks)}", form, step_s, step_s, 0.0, 0.0, None, 1)
    result.more |= {"rank_bytes": rank_bytes, "daemon_bytes": daemon_bytes, "all_bytes": all_bytes}
    return result
