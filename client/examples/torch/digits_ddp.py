#!/usr/bin/env python3
"""Trains a small network on handwritten digits with DistributedDataParallel, as one rank.

    torchrun --nproc-per-node 2 digits_ddp.py --backend phub

Only the name of the backend differs between gloo and phub. The ranks' parameters have the same bits
at the end; the program checks this.
"""

import argparse
import gzip
import pathlib

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DATA = pathlib.Path(__file__).parents[1] / "digits" / "data" / "digits.csv.gz"
TEST_SHARE = 5  # every fifth digit is used for the test only


def load(path: pathlib.Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels from 0 to 1, one row per digit, and the digits' values."""
    with gzip.open(path, "rt") as file:
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    return table[:, :64] / 16, table[:, 64].long()


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(),
        torch.nn.Linear(128, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits with DDP.")
    parser.add_argument("--backend", default="phub", choices=["phub", "gloo"])
    parser.add_argument("--init-method", help='for example "phub://host:7700/digits"')
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="digits.csv.gz")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="digits per rank and iteration")
    arguments = parser.parse_args()

    if arguments.backend == "phub":
        try:
            import phub.torch  # not needed with the wheel and torch 2.5 or newer
        except ImportError as error:
            parser.error(f"the package phub is missing ({error}); see docs/pytorch.md")
    dist.init_process_group(arguments.backend, init_method=arguments.init_method)
    rank = dist.get_rank()

    pixels, digits = load(arguments.data)
    is_test = torch.arange(len(digits)) % TEST_SHARE == 0
    train_pixels, train_digits = pixels[~is_test], digits[~is_test]

    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = torch.Generator().manual_seed(100 + rank)
    for iteration in range(arguments.iterations):
        chosen = torch.randint(len(train_digits), (arguments.batch,), generator=batches)
        loss = torch.nn.functional.cross_entropy(model(train_pixels[chosen]), train_digits[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (iteration + 1) % 100 == 0:
            print(f"iteration {iteration + 1}/{arguments.iterations} loss {loss:.3f}", flush=True)

    with torch.no_grad():
        correct = (model(pixels[is_test]).argmax(1) == digits[is_test]).float().mean()
    parameters = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    all_parameters = [torch.empty_like(parameters) for _ in range(dist.get_world_size())]
    dist.all_gather(all_parameters, parameters)
    same = all(torch.equal(each, parameters) for each in all_parameters)
    if rank == 0:
        print(
            f"test accuracy {correct:.3f} with {arguments.backend} and {dist.get_world_size()} "
            f"ranks, identical={'yes' if same else 'no'}",
            flush=True,
        )
    dist.destroy_process_group()
    if not same:
        raise SystemExit("the ranks' parameters differ")


if __name__ == "__main__":
    main()
