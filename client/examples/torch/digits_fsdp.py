#!/usr/bin/env python3
"""Trains on handwritten digits with FSDP2: every rank keeps a part of each layer. torch 2.6+.

    torchrun --nproc-per-node 2 digits_fsdp.py --backend phub
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from digits_ddp import DATA, TEST_SHARE, load, network


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits with FSDP2.")
    parser.add_argument("--backend", default="phub", choices=["phub", "gloo"])
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="digits per rank and iteration")
    arguments = parser.parse_args()

    if arguments.backend == "phub":
        import phub.torch  # not needed with the wheel
    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    model = network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    pixels, digits = load(DATA)
    is_test = torch.arange(len(digits)) % TEST_SHARE == 0
    train_pixels, train_digits = pixels[~is_test], digits[~is_test]
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
    if rank == 0:
        print(f"test accuracy {correct:.3f} with {arguments.backend}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
