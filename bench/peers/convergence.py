"""Trains one model as one rank, once for each seed and each way of sending gradients. A seed gives
the parameters at the beginning and the order of the examples.

Rank 0 writes a JSON file: for each method and seed the loss of every step (the mean of the ranks),
the loss and accuracy on examples that were not trained on, the bytes of gradients that the daemon
received from all ranks, and the time. All methods have the same seeds and examples. "one-process"
trains with the examples of all ranks and exchanges nothing. "ddp-gloo" and "ddp-phub" are
DistributedDataParallel; "powersgd" is that on phub with torch's hook. All others are
phub.torch.DistributedOptimizer. The daemon does not count gloo's bytes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data import topics
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2] / "client" / "examples" / "torch"))
import digits  # noqa: E402  pylint: disable=wrong-import-position

import phub  # noqa: E402
import phub.torch  # noqa: E402

METHODS: dict[str, dict[str, Any]] = {
    "one-process": {},
    "ddp-gloo": {},
    "ddp-phub": {},
    "float32": {},
    "bfloat16": {"gradient_dtype": torch.bfloat16},
    "int8": {"compression": phub.Int8()},
    "topk-1": {"compression": phub.TopK(0.01)},
    "topk-10": {"compression": phub.TopK(0.1)},
    "randomk-1": {"compression": phub.RandomK(0.01)},
    "randomk-10": {"compression": phub.RandomK(0.1)},
    "powersgd": {},
}
DDP = ("ddp-gloo", "ddp-phub", "powersgd")
WIDTH, LAYERS, HEADS, CONTEXT = 96, 2, 4, 64


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH))
        self.register_buffer("mask", torch.triu(torch.ones(CONTEXT, CONTEXT), 1).bool(), False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        x = x + self.attention(y, y, y, attn_mask=self.mask, need_weights=False)[0]
        return x + self.mlp(self.second(x))


class Gpt(nn.Module):
    """A GPT of characters."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.letters(x) + self.places(torch.arange(CONTEXT))
        return self.head(self.norm(self.blocks(x)))


class Text:
    """Characters of the help that Python's pydoc has; the last tenth is for the test."""

    def __init__(self, steps: int) -> None:
        text = "".join(topics.topics[name] for name in sorted(topics.topics))
        letters = sorted(set(text))
        numbers = torch.tensor([letters.index(letter) for letter in text])
        cut = len(text) * 9 // 10
        self.train, self.test, self.count = numbers[:cut], numbers[cut:], len(letters)
        self.steps = steps

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Gpt(self.count)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss(self, model: nn.Module, generator: torch.Generator, rows: int = 8,
             test: bool = False) -> torch.Tensor:
        text = self.test if test else self.train
        starts = torch.randint(len(text) - CONTEXT - 1, (rows,), generator=generator)
        rows_of = torch.stack([text[start: start + CONTEXT + 1] for start in starts])
        found = model(rows_of[:, :-1])
        return nn.functional.cross_entropy(found.reshape(-1, self.count),
                                           rows_of[:, 1:].reshape(-1))

    def tested(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            generator = torch.Generator().manual_seed(3)
            return {"test_loss": float(self.loss(model, generator, 256, test=True))}


class Digits:
    """Handwritten digits, as in the examples."""

    def __init__(self, steps: int) -> None:
        self.data, self.steps = digits.Digits(digits.DATA), steps

    def model(self, seed: int) -> nn.Module:
        model = digits.network()
        torch.manual_seed(seed)
        for module in model:
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss(self, model: nn.Module, generator: torch.Generator) -> torch.Tensor:
        chosen = torch.randint(len(self.data.digits), (32,), generator=generator)
        return nn.functional.cross_entropy(model(self.data.pixels[chosen]),
                                           self.data.digits[chosen])

    def tested(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(self.data.test_pixels),
                                               self.data.test_digits)
        return {"test_loss": float(loss), "accuracy": digits.accuracy(model, self.data)}


def gradient_bytes(phubctl: str, job: str) -> int:
    """What the daemon has received from all ranks of a job, once the number settles."""
    before = -1
    while True:
        answer = subprocess.run([phubctl, "-e", os.environ["PHUB_ENDPOINT"], "stats", "-o", "json"],
                                capture_output=True, text=True, check=True)
        now = sum(int(each["value"]) for each in json.loads(answer.stdout)["counters"]
                  if each["name"] == "phub_job_gradient_bytes_total" and each["job"] == job)
        if now == before:
            return now
        before = now
        time.sleep(0.05)


def prepared(task: Any, method: str, seed: int) -> tuple[nn.Module, Callable[..., Any], Any]:
    """The model, what a forward pass calls, and the optimizer."""
    model = task.model(seed)
    optimizer = task.optimizer(model)
    if method == "one-process":
        return model, model, optimizer
    if method in DDP:
        group = dist.new_group(backend="gloo") if method == "ddp-gloo" else None
        wrapped = DistributedDataParallel(model, process_group=group)
        if method == "powersgd":
            wrapped.register_comm_hook(
                powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2,
                                            start_powerSGD_iter=10),
                powerSGD_hook.powerSGD_hook)
        return model, wrapped, optimizer
    optimizer = phub.torch.DistributedOptimizer(optimizer, model.named_parameters(),
                                                **METHODS[method])
    return model, model, optimizer


def job_of(method: str, forward: Any, optimizer: Any) -> str:
    """The daemon's name of the job whose bytes count, empty without one."""
    if method in ("one-process", "ddp-gloo"):
        return ""
    return str(forward.process_group.job_name if method in DDP else optimizer._phub.job.name)


def train(task: Any, method: str, seed: int, phubctl: str) -> dict[str, Any]:
    model, forward, optimizer = prepared(task, method, seed)
    rank = dist.get_rank()
    ranks = range(dist.get_world_size()) if method == "one-process" else [rank]
    generators = [torch.Generator().manual_seed(100 * seed + each) for each in ranks]
    losses = torch.zeros(task.steps)
    dist.barrier()
    name = job_of(method, forward, optimizer)
    before = gradient_bytes(phubctl, name) if rank == 0 and name else 0
    dist.barrier()
    begin = time.monotonic()
    for step in range(task.steps):
        optimizer.zero_grad()
        loss = torch.stack([task.loss(forward, each) for each in generators]).mean()
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()
    seconds = time.monotonic() - begin
    dist.barrier()
    sent = gradient_bytes(phubctl, name) - before if rank == 0 and name else 0
    dist.barrier()
    found = task.tested(model)
    dist.all_reduce(losses)
    if hasattr(optimizer, "leave"):
        optimizer.leave()
    return {"method": method, "seed": seed,
            "losses": (losses / dist.get_world_size()).tolist(), "bytes": sent,
            "parameters": sum(each.numel() for each in model.parameters()),
            "step_s": seconds / task.steps, **found}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=("digits", "gpt"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--methods", required=True)
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--phubctl", required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("phub")
    task = (Digits if options.task == "digits" else Text)(options.steps)
    found = [train(task, method, seed, options.phubctl)
             for seed in range(1, options.seeds + 1) for method in options.methods.split(",")]
    if dist.get_rank() == 0:
        options.output.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
