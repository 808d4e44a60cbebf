#!/usr/bin/env python3
"""Trains a small network on handwritten digits with the optimizer in the daemon, as one rank.

    torchrun --nproc-per-node 2 digits_server.py

Gradients are pushed while the backward pass runs; the daemon averages them and runs Adam. The ranks
hold no optimizer state. Their parameters have the same bits at the end; the program checks this.
"""

import argparse
import pathlib

import torch
import torch.distributed as dist

import phub.torch
from digits_ddp import DATA, TEST_SHARE, load, network


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains on digits with the daemon's optimizer.")
    parser.add_argument("--backend", default="phub", choices=["phub", "gloo"])
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="digits.csv.gz")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="digits per rank and iteration")
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)  # any backend: the optimizer needs only its store
    rank = dist.get_rank()

    pixels, digits = load(arguments.data)
    is_test = torch.arange(len(digits)) % TEST_SHARE == 0
    train_pixels, train_digits = pixels[~is_test], digits[~is_test]

    model = network()
    optimizer = phub.torch.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.003), model.named_parameters()
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.iterations)
    batches = torch.Generator().manual_seed(100 + rank)
    for iteration in range(arguments.iterations):
        chosen = torch.randint(len(train_digits), (arguments.batch,), generator=batches)
        loss = torch.nn.functional.cross_entropy(model(train_pixels[chosen]), train_digits[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
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
