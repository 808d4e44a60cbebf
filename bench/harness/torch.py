"""Trains models with PyTorch: DistributedDataParallel with gloo and phub, optimizer in the daemon.

All backends are process groups of the same processes and take turns, block by block, in a random
order. "alone" is the same step without any exchange, the limit. The share of communication is the
part of a step that "alone" does not need. The ratio of communication is phub's over gloo's, with
the 95 % interval of a bootstrap over blocks. "copies" is DistributedDataParallel with a hook that
exchanges nothing: its own copies into buckets and out of them are part of the communication of
every backend. The ratio is also shown without them, and of CPU time (ranks and daemon). "daemon" is
phub.torch.DistributedOptimizer, which runs the optimizer in the daemon; it is compared with a whole
step of gloo. With --optimizer adam, "gloo-fused" is gloo with fused=True of torch.optim.Adam, and
"daemon" is compared with it, too. All systems train the same examples for the same number of steps
from the same parameters; each row has the loss of the last step.

Then each system trains alone in new processes, with a new daemon, for its peak memory, as
"bench/run memory" measures it: PSS of the largest worker above that of a process with torch loaded,
and PSS of the daemon above that of an idle one. The limit is a worker without any exchange. D is
the size of the parameters. Not with --device cuda.

In the processes that take turns, a worker has a model and the optimizer's state for each system.
With Adam, mlp took 1.9 GiB in each worker with --systems alone,gloo,gloo-fused,daemon, so 8 workers
need 15 GiB, and more with all systems. resnet50 has as many parameters.

Needs an interpreter with torch: --python, or PHUB_TORCH_PYTHON, or /usr/bin/python3.
"""

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .block import Block
from .context import Context, counts, listed
from .daemon import Daemon
from .failure import BenchFailure
from .interpreter import add_python_option, require_torch, run_ranks
from .memory import Peaks, measured
from .results import Result, seconds_text, summarized

SUMMARY = "train with PyTorch: with gloo, with phub, and with the optimizer in the daemon"
BATCHES = {"mlp": 32, "gpt": 4, "resnet18": 8, "resnet50": 4}
SYSTEMS = ("gloo", "gloo-fused", "phub", "daemon")
LIMITS = ("alone", "copies")  # what every backend needs
FORMS = {"alone": "alone", "gloo": "ddp", "gloo-fused": "ddp", "phub": "ddp-phub",
         "daemon": "daemon"}  # of memory.py
MEMORY_STEPS = 4  # phub's buckets move in the third
OPTIMIZERS = ("sgd", "adam", "adam-fused")
WORKERS_WITH_COPIES_MAX = 4
RESAMPLES = 2000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=listed(tuple(BATCHES)), default=list(BATCHES),
                        metavar="MODELS",
                        help="mlp (25 million parameters), gpt (10 million), resnet18, resnet50")
    parser.add_argument("--workers", type=counts(2, 8), default=[2, 4], metavar="COUNTS",
                        help="numbers of workers, separated by commas (default 2,4)")
    parser.add_argument("--transport", type=listed(("shm", "tcp")), default=["shm"],
                        metavar="LIST", help="phub's transports: shm, tcp (default shm)")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd",
                        help="optimizer of torch.optim (default sgd)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="where the model is (default cpu). With cuda, all workers use the "
                        "first GPU; gloo and phub copy its tensors through the host")
    parser.add_argument("--systems", type=listed(LIMITS + SYSTEMS), metavar="LIST",
                        help=f"{', '.join(LIMITS + SYSTEMS)} (default: all; with 8 workers without "
                        "copies). Each needs memory in each worker. alone and gloo are always "
                        "measured")
    parser.add_argument("--batch", type=int, default=0, metavar="N",
                        help="examples per worker and step (default: 32 for mlp, 8 for resnet18, "
                        "4 for gpt and resnet50; with 8 workers at most 2 for resnets)")
    parser.add_argument("--blocks", type=int, default=8, metavar="N",
                        help="blocks of each backend (default 8)")
    parser.add_argument("--steps", type=int, default=4, metavar="N",
                        help="steps of a block (default 4)")
    parser.add_argument("--no-memory", action="store_true",
                        help="do not measure memory, for which each system trains once more")
    add_python_option(parser)


def systems_of(options: argparse.Namespace, workers: int) -> list[str]:
    """In the order in which they are reported. The daemon's optimizers take no CUDA tensors."""
    chosen = options.systems or [name for name in LIMITS + SYSTEMS
                                 if workers <= WORKERS_WITH_COPIES_MAX or name != "copies"]
    left_out = {name for name, out in (("daemon", options.device != "cpu"),
                                       ("gloo-fused", options.optimizer != "adam")) if out}
    return [name for name in LIMITS + SYSTEMS
            if name in ("alone", "gloo") or name in chosen and name not in left_out]


def batch_of(options: argparse.Namespace, model: str, workers: int) -> int:
    batch = options.batch or BATCHES[model]
    small = not options.batch and workers == 8 and model.startswith("resnet")
    return min(2, batch) if small else batch


@dataclass
class Trained:
    """What the ranks found, for each system."""

    blocks: dict[str, list[Block]]
    losses: dict[str, tuple[float, float]]  # of the first step and the last
    memory: dict[str, Peaks] = field(default_factory=dict)


def train(context: Context, daemon: Daemon, name: str, workers: int, transport: str,
          batch: int) -> Trained:
    options = context.options
    output = context.scratch / "torch.json"
    output.unlink(missing_ok=True)
    blocks, steps = (2, 1) if context.smoke else (options.blocks, options.steps)
    arguments = ["--model", name, "--batch", str(batch),
                 "--systems", ",".join(systems_of(options, workers)),
                 "--optimizer", options.optimizer,
                 "--blocks", str(blocks), "--steps", str(steps), "--transport", transport,
                 "--daemon-pid", str(daemon.pid), "--endpoint", daemon.endpoint,
                 "--device", options.device, "--output", str(output)]
    run_ranks(context, "torch_training.py", [arguments] * workers, "rank", 3600)
    if not output.is_file():
        raise BenchFailure("rank 0 wrote no results")
    written = json.loads(output.read_text())
    found = Trained({}, {name: tuple(each) for name, each in written["losses"].items()})
    for block in written["blocks"]:
        found.blocks.setdefault(block["system"], []).append(
            Block([block["step_s"]], block["cpu_s"], block["cpu_s"]))
    return found


def memory_of(context: Context, name: str, workers: int, transport: str, batch: int,
              systems: Sequence[str]) -> dict[str, Peaks]:
    """The peak memory of these systems. For a smoke test, of the last one only."""
    options = context.options
    if options.no_memory or options.device != "cpu":
        return {}
    chosen = [system for system in systems if system in FORMS]
    found = {}
    for system in chosen[-1:] if context.smoke else chosen:
        context.progress(f"memory of {name}, {workers} workers, {transport}, {system}")
        optimizer = "adam-fused" if system == "gloo-fused" else options.optimizer
        found[system] = measured(context, FORMS[system], name, workers, batch,
                                 1 if context.smoke else MEMORY_STEPS, optimizer, transport)
    return found


Ratio = tuple[float, float, float]


def wall_of(block: Block) -> float:
    return block.times_s[0]


def cpu_of(block: Block) -> float:
    return block.process_cpu_s


def bootstrapped(
        blocks: dict[str, list[Block]],
        ratio_of: Callable[[dict[str, float]], float],
        figure_of: Callable[[Block], float] = wall_of) -> Ratio | None:
    """A ratio of the systems' medians, and its 95 % interval. None if it is not a number."""
    times = {name: [figure_of(block) for block in each] for name, each in blocks.items()}

    def ratio(chosen: Sequence[int]) -> float:
        return ratio_of({name: statistics.median(each[i] for i in chosen)
                         for name, each in times.items()})

    count = len(times["alone"])
    generator = random.Random(1)
    samples = [ratio([generator.randrange(count) for _ in range(count)])
               for _ in range(RESAMPLES)]
    if any(math.isnan(sample) for sample in (ratio(range(count)), *samples)):
        return None
    samples.sort()
    return (ratio(range(count)), samples[int(0.025 * RESAMPLES)],
            samples[int(0.975 * RESAMPLES) - 1])


def ratio_of_communication(middle: dict[str, float]) -> float:
    """phub's over gloo's. NaN: gloo's is lost in the noise."""
    other = middle["gloo"] - middle["alone"]
    return (middle["phub"] - middle["alone"]) / other if other > 0 else float("nan")


def ratio_of_exchange(middle: dict[str, float]) -> float:
    """The same without DistributedDataParallel's own copies."""
    other = middle["gloo"] - middle["copies"]
    return (middle["phub"] - middle["copies"]) / other if other > 0 else float("nan")


def ratio_of_steps(other: str) -> Callable[[dict[str, float]], float]:
    """The optimizer in the daemon, over a step with another system."""
    return lambda middle: middle["daemon"] / middle[other]


# More ratios: text, name in the results, how it is computed, from which figure of a block.
RATIOS = (
    ("the same without DistributedDataParallel's copies", "exchange_of_gloo", ratio_of_exchange,
     wall_of),
    ("CPU time of communication", "communication_cpu_of_gloo", ratio_of_communication,
     cpu_of),
    ("CPU time without DistributedDataParallel's copies", "exchange_cpu_of_gloo",
     ratio_of_exchange, cpu_of),
)


def run(context: Context) -> list[Result]:
    options = context.options
    require_torch(options.python)
    measured = []
    for name in ["mlp"] if context.smoke else options.model:
        for workers in [2] if context.smoke else options.workers:
            for transport in options.transport:
                batch = 2 if context.smoke else batch_of(options, name, workers)
                case = (f"{name}, {workers} workers, {transport}, batch {batch}, "
                        f"{options.optimizer}"
                        f"{', on a GPU' if options.device == 'cuda' else ''}")
                context.progress(case)
                with Daemon(context.build, context.scratch) as daemon:
                    trained = train(context, daemon, name, workers, transport, batch)
                trained.memory = memory_of(context, name, workers, transport, batch,
                                           list(trained.losses))
                context.progress_done()
                measured += report(context, case, trained)
    return measured


def report(context: Context, case: str, trained: Trained) -> list[Result]:
    blocks = trained.blocks
    alone_s = statistics.median(block.times_s[0] for block in blocks["alone"])
    limit = trained.memory.get("alone")
    memory = "" if limit is None else f", memory of a worker {limit.text(limit.rank_bytes).strip()}"
    context.say(f"{case}: a step without exchange {seconds_text(alone_s)}{memory}")
    if "copies" in blocks:
        copies_s = statistics.median(block.times_s[0] for block in blocks["copies"])
        context.say(f"  copies {seconds_text(copies_s):>8} a step, with DistributedDataParallel's "
                    "own copies")
    by_name = {name: row(context, case, name, trained, alone_s)
               for name in SYSTEMS if name in blocks}  # torch before 2.1 has no "daemon"
    if "phub" in blocks:
        report_communication(context, blocks, by_name["phub"])
    if "daemon" in blocks:
        for other, figure_of, what, key in (("gloo", wall_of, "time", "step"),
                                            ("gloo", cpu_of, "CPU time", "step_cpu"),
                                            ("gloo-fused", wall_of, "time", "step"),
                                            ("gloo-fused", cpu_of, "CPU time", "step_cpu"),
                                            ("phub", wall_of, "time", "step"),
                                            ("phub", cpu_of, "CPU time", "step_cpu")):
            steps = bootstrapped(blocks, ratio_of_steps(other), figure_of) if other in blocks \
                else None
            if steps is not None:
                context.say(f"  the {what} of a step with the optimizer in the daemon is "
                            f"{_text(steps)} of {other}'s")
                by_name["daemon"].more[f"{key}_of_{other}"] = list(steps)
    return list(by_name.values())


def row(context: Context, case: str, name: str, trained: Trained, alone_s: float) -> Result:
    result = summarized(case, name, trained.blocks[name], alone_s)
    share = ""
    if name != "daemon":  # its steps lack the update that "alone" has
        result.more["communication_share"] = 1 - alone_s / result.median_s
        share = f"{100 * (1 - alone_s / result.median_s):3.0f} % communication, "
    first, last = trained.losses[name]
    result.more |= {"first_loss": first, "last_loss": last}
    memory = ""
    if name in trained.memory:
        peaks = trained.memory[name]
        result.more |= peaks.more()
        memory = f"memory of a worker {peaks.text(peaks.rank_bytes)}, "
        if name in ("phub", "daemon"):
            memory += f"of phubd {peaks.text(peaks.daemon_bytes)}, "
    context.say(f"  {name:10} {seconds_text(result.median_s):>8} a step, {share}"
                f"CPU {seconds_text(result.cpu_s)}, {memory}loss {first:.5f} in the first step, "
                f"{last:.5f} in the last")
    return result


def report_communication(context: Context, blocks: dict[str, list[Block]], phub: Result) -> None:
    communication = bootstrapped(blocks, ratio_of_communication)
    if communication is None:
        context.say("  gloo's communication is lost in noise; use more --blocks or an idle host")
    else:
        context.say(f"  phub's communication takes {_text(communication)} of gloo's")
        phub.more["communication_of_gloo"] = list(communication)
    for text, key, ratio_of, figure_of in RATIOS:
        ratio = bootstrapped(blocks, ratio_of, figure_of) if "copies" in blocks else None
        if ratio is not None:
            context.say(f"  {text}: {_text(ratio)} of gloo's")
            phub.more[key] = list(ratio)


def _text(ratio: Ratio) -> str:
    return f"{ratio[0]:.2f} (95 %: {ratio[1]:.2f} to {ratio[2]:.2f})"
