"""What the examples share: handwritten digits, a small network and a usual training loop."""

import argparse
import gzip
import pathlib
from typing import Any, Optional

import numpy as np
import torch
import torch.distributed as dist

DATA = pathlib.Path(__file__).parents[1] / "digits" / "data" / "digits.csv.gz"
TEST_SHARE = 5  # every fifth digit is used for the test only


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", default="phub", choices=["phub", "gloo"])
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="digits.csv.gz")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="digits per rank and iteration")
    return parser


class Digits:
    """Pixels from 0 to 1, one row per digit, and the digits' values."""

    def __init__(self, path: pathlib.Path) -> None:
        with gzip.open(path, "rt") as file:
            table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
        pixels, digits = table[:, :64] / 16, table[:, 64].long()
        is_test = torch.arange(len(digits)) % TEST_SHARE == 0
        self.pixels, self.digits = pixels[~is_test], digits[~is_test]
        self.test_pixels, self.test_digits = pixels[is_test], digits[is_test]


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(),
        torch.nn.Linear(128, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def train(
    model: torch.nn.Module,
    optimizer: Any,
    data: Digits,
    arguments: argparse.Namespace,
    schedule: Optional[Any] = None,
) -> None:
    """Each rank draws its own batches. Rank 0 prints the loss."""
    rank = dist.get_rank()
    batches = torch.Generator().manual_seed(100 + rank)
    for iteration in range(arguments.iterations):
        chosen = torch.randint(len(data.digits), (arguments.batch,), generator=batches)
        loss = torch.nn.functional.cross_entropy(model(data.pixels[chosen]), data.digits[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if rank == 0 and (iteration + 1) % 100 == 0:
            print(f"iteration {iteration + 1}/{arguments.iterations} loss {loss:.3f}", flush=True)


def accuracy(model: torch.nn.Module, data: Digits) -> float:
    with torch.no_grad():
        return float((model(data.test_pixels).argmax(1) == data.test_digits).float().mean())


def finish(model: torch.nn.Module, data: Digits, backend: str) -> None:
    """Rank 0 prints the accuracy. Exits with an error if the ranks have different parameters."""
    parameters = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    all_parameters = [torch.empty_like(parameters) for _ in range(dist.get_world_size())]
    dist.all_gather(all_parameters, parameters)
    same = all(torch.equal(each, parameters) for each in all_parameters)
    correct = accuracy(model, data)
    if dist.get_rank() == 0:
        print(
            f"test accuracy {correct:.3f} with {backend} and {dist.get_world_size()} "
            f"ranks, identical={'yes' if same else 'no'}",
            flush=True,
        )
    dist.destroy_process_group()
    if not same:
        raise SystemExit("the ranks' parameters differ")
