"""Trains one model as one rank, with DistributedDataParallel on several backends in turns.

All backends are process groups of the same processes, and take turns block by block in a random
order, so that the host's other load falls on all of them alike. "alone" is a step without exchange,
"daemon" one with phub.torch.DistributedOptimizer instead of DistributedDataParallel. "gloo-fused"
is gloo with fused=True of torch.optim. "copies" is DistributedDataParallel whose hook exchanges
nothing: what its own copies into buckets and out of them cost, which no backend can avoid. With
--device cuda, all ranks use the first GPU.
All systems start with the same parameters, and each rank has the same examples in all systems.
Writes a JSON file: seconds and CPU seconds per step of every block, and the loss (mean of the
ranks) of each system's first and last step.
"""

import argparse
import copy
import datetime
import json
import os
import random
import resource
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Residual(nn.Module):
    """A block of ResNet: two convolutions of 3x3, or a bottleneck."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        shapes = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        if bottleneck:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        layers: list[nn.Module] = []
        for source, target, size, step in shapes:
            layers += [nn.Conv2d(source, target, size, step, size // 2, bias=False),
                       nn.BatchNorm2d(target), nn.ReLU()]
        self.main = nn.Sequential(*layers[:-1])
        self.short: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                       nn.BatchNorm2d(outputs))
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.short(x))


def resnet(depths: tuple[int, ...], bottleneck: bool) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            block = Residual(inputs, 64 << stage, stride, bottleneck)
            layers.append(block)
            inputs = block.outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 100))


class Gpt(nn.Module):
    """A causal transformer of about 10 million parameters."""

    def __init__(self, words: int = 4096, width: int = 320, depth: int = 6,
                 length: int = 64) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True,
                                           norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(width, words, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.word(x) + self.place, mask=self.mask)).flatten(0, 1)


def workload(name: str, batch: int, rank: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The model, and the rank's inputs and targets."""
    torch.manual_seed(1)
    examples = torch.Generator().manual_seed(1000 + rank)
    if name == "mlp":  # 25 million parameters
        model = nn.Sequential(nn.Linear(784, 3072), nn.ReLU(), nn.Linear(3072, 3840), nn.ReLU(),
                              nn.Linear(3840, 2816), nn.ReLU(), nn.Linear(2816, 10))
        return (model, torch.randn(batch, 784, generator=examples),
                torch.randint(10, (batch,), generator=examples))
    if name == "gpt":
        x = torch.randint(4096, (batch, 64), generator=examples)
        return Gpt(), x, x.roll(-1, 1).flatten()
    model = resnet((2, 2, 2, 2), False) if name == "resnet18" else resnet((3, 4, 6, 3), True)
    return (model, torch.randn(batch, 3, 32, 32, generator=examples),
            torch.randint(100, (batch,), generator=examples))


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
    "adam-fused": lambda parameters: torch.optim.Adam(parameters, lr=1e-4, fused=True),
}


FUSED = {"adam": "adam-fused"}  # what "gloo-fused" uses


def backend(system: str) -> str:
    return "gloo" if system == "gloo-fused" else system


def exchange_nothing(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def cpu_seconds(daemon: int) -> float:
    """Of this rank, and of the daemon, whose time is counted once."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    own = usage.ru_utime + usage.ru_stime
    if dist.get_rank() == 0:
        fields = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()
        own += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own


class Training:
    """One model for each system, with its optimizer."""

    def __init__(self, options: argparse.Namespace) -> None:
        import phub.torch

        self.options = options
        model, x, y = workload(options.model, options.batch, dist.get_rank())
        model, self.x, self.y = (each.to(options.device) for each in (model, x, y))
        given = phub.torch.Options(endpoint=options.endpoint, transport=options.transport)
        self.trained: dict[str, nn.Module] = {}
        for system in options.systems.split(","):
            if system == "daemon" and not hasattr(nn.Parameter,
                                                  "register_post_accumulate_grad_hook"):
                continue  # torch before 2.1
            own = copy.deepcopy(model)
            if system == "copies":
                own = DistributedDataParallel(own)
                own.register_comm_hook(None, exchange_nothing)
            elif system not in ("alone", "daemon"):
                group = dist.new_group(backend=backend(system),
                                       pg_options=given if system == "phub" else None)
                own = DistributedDataParallel(own, process_group=group)
            self.trained[system] = own
        self.optimizers = {
            name: OPTIMIZERS[FUSED[options.optimizer] if name == "gloo-fused"
                             else options.optimizer](each.parameters())
            for name, each in self.trained.items()}
        if "daemon" in self.trained:
            phub.torch.DistributedOptimizer(self.optimizers["daemon"], options=given)
        self.count = 6 + options.blocks * options.steps  # of each system's steps
        self.first: dict[str, torch.Tensor] = {}
        self.last: dict[str, torch.Tensor] = {}

    def steps(self, name: str, count: int) -> None:
        for _ in range(count):
            self.optimizers[name].zero_grad()
            loss = nn.functional.cross_entropy(self.trained[name](self.x), self.y)
            loss.backward()
            self.optimizers[name].step()
            self.last[name] = loss.detach()
            self.first.setdefault(name, self.last[name])
        if self.options.device == "cuda":
            torch.cuda.synchronize()

    def warm_up(self) -> None:
        """Buckets are rebuilt after the first step; phub adds keys, and then moves buckets."""
        for name in self.trained:
            self.steps(name, 6)
            self.optimizers[name].zero_grad()

    def blocks(self) -> list[dict[str, object]]:
        options = self.options
        order = random.Random(7)
        blocks: list[dict[str, object]] = []
        for _ in range(options.blocks):
            names = list(self.trained)
            order.shuffle(names)  # the same on every rank
            for name in names:
                dist.barrier()
                begun, cpu = time.monotonic(), cpu_seconds(options.daemon_pid)
                self.steps(name, options.steps)
                elapsed = time.monotonic() - begun
                used = torch.tensor([elapsed, cpu_seconds(options.daemon_pid) - cpu])
                slowest = used.clone()
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                dist.all_reduce(used)
                blocks.append({"system": name, "step_s": slowest[0].item() / options.steps,
                               "cpu_s": used[1].item() / options.steps})
                self.optimizers[name].zero_grad()  # with eight ranks, memory is short
        return blocks

    def compare(self) -> None:
        """Parameters of all systems that exchange must agree.

        Adam divides by the size of a gradient, so where gradients are only rounding errors (before
        BatchNorm) its steps are random: gloo with fused=True was 0.15 of all steps' learning rates
        from gloo (ResNet-50 with one example per rank, the mean of all parameters).
        """
        names = [name for name in self.trained if name not in ("alone", "copies")]
        reference = [each.detach() for each in self.trained[names[0]].parameters()]
        count = sum(each.numel() for each in reference)
        rate = self.optimizers[names[0]].param_groups[0]["lr"]
        for name in names[1:]:
            pairs = list(zip(self.trained[name].parameters(), reference))
            if self.options.optimizer == "sgd":
                for ours, theirs in pairs:
                    torch.testing.assert_close(ours.detach(), theirs, rtol=1e-2, atol=1e-3)
                continue
            apart = sum(float((ours.detach() - theirs).abs().sum()) for ours, theirs in pairs)
            most = 0.4 * rate * self.count
            assert apart / count <= most, f"{name}: {apart / count} apart, at most {most}"

    def losses(self) -> dict[str, list[float]]:
        """Collective. The means of the ranks, in the first step and in the last."""
        found = {}
        for name, model in self.trained.items():
            pair = torch.stack([self.first[name], self.last[name]]).cpu()
            dist.all_reduce(pair)
            found[name] = (pair / dist.get_world_size()).tolist()
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--systems", required=True)
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--daemon-pid", type=int, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--transport", required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
    training = Training(options)
    training.warm_up()
    blocks = training.blocks()
    training.compare()
    losses = training.losses()
    if dist.get_rank() == 0:
        options.output.write_text(json.dumps({"blocks": blocks, "losses": losses}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
