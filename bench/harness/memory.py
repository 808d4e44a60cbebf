"""Memory of training with PyTorch and Adam, in several forms, each in processes of its own.

  alone          no exchange: each rank trains a model of its own
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
from dataclasses import dataclass

from .context import Context, listed
from .daemon import Daemon
from .failure import BenchFailure
from .interpreter import add_python_option, require_torch, run_ranks
from .results import Result

SUMMARY = "memory of ranks and daemon while PyTorch trains, in several forms"
FORMS = ("alone", "ddp", "ddp-views", "zero1", "fsdp2", "ddp-phub", "daemon", "daemon-shared")
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


@dataclass(frozen=True)
class Peaks:
    """The peak memory of one form. unit_bytes: the size of the parameters in float32."""

    rank_bytes: int  # the largest of the ranks
    daemon_bytes: int
    all_bytes: int
    unit_bytes: int
    step_s: float
    workers: int

    @staticmethod
    def of(ranks: list[dict[str, float]]) -> "Peaks":
        """From what each rank wrote."""
        daemon_bytes = int(max(each["daemon_bytes"] for each in ranks))
        return Peaks(int(max(each["rank_bytes"] for each in ranks)), daemon_bytes,
                     int(sum(each["rank_bytes"] for each in ranks)) + daemon_bytes,
                     4 * int(ranks[0]["parameters"]), max(each["step_s"] for each in ranks),
                     len(ranks))

    def text(self, size: int) -> str:
        return f"{size / (1 << 20):5.0f} MiB ({size / self.unit_bytes:.2f} D)"

    def more(self) -> dict[str, object]:
        """For Result.more."""
        return {"rank_bytes": self.rank_bytes, "daemon_bytes": self.daemon_bytes,
                "all_bytes": self.all_bytes}


def measured(context: Context, form: str, model: str, workers: int, batch: int, steps: int,
             optimizer: str = "adam", transport: str = "shm") -> Peaks:
    """Trains in processes of its own, with a daemon of its own."""
    name = f"{model}-{form}-{optimizer}-w{workers}-{transport}"
    outputs = [context.scratch / f"{name}-{rank}.json" for rank in range(workers)]
    with Daemon(context.build, context.scratch, name=f"phubd-{name}") as daemon:
        arguments = ["--form", form, "--model", model, "--batch", str(batch),
                     "--steps", str(steps), "--endpoint", daemon.endpoint,
                     "--daemon-pid", str(daemon.pid), "--optimizer", optimizer,
                     "--transport", transport]
        run_ranks(context, "torch_memory.py",
                  [[*arguments, "--output", str(output)] for output in outputs], name, 900)
    try:
        return Peaks.of([json.loads(output.read_text()) for output in outputs])
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
            peaks = measured(context, form, model, options.workers, BATCHES[model],
                             1 if context.smoke else options.steps)
            context.progress_done()
            results.append(row(context, model, form, peaks))
    return results


def row(context: Context, model: str, form: str, peaks: Peaks) -> Result:
    texts = [f"{name} {peaks.text(size)}"
             for name, size in (("rank", peaks.rank_bytes), ("daemon", peaks.daemon_bytes),
                                ("all", peaks.all_bytes))]
    context.say(f"{model}, {peaks.workers} workers, {form:13} {', '.join(texts)}; "
                f"a step takes {peaks.step_s:.2f} s")
    result = Result(f"memory/{model}/w{peaks.workers}", form, peaks.step_s, peaks.step_s, 0.0, 0.0,
                    None, 1)
    result.more |= peaks.more()
    return result
