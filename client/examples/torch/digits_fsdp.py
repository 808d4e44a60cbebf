#!/usr/bin/env python3
"""Trains on handwritten digits with FSDP2: every rank keeps a part of each layer. torch 2.6+.

    torchrun --nproc-per-node 2 digits_fsdp.py --backend phub
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from digits import Digits, accuracy, network, options, train


def main() -> None:
    arguments = options("Trains on handwritten digits with FSDP2.").parse_args()
    if arguments.backend == "phub":
        import phub.torch  # not needed with the wheel
    dist.init_process_group(arguments.backend)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    data = Digits(arguments.data)
    model = network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, data, arguments)

    correct = accuracy(model, data)  # every rank takes part
    if dist.get_rank() == 0:
        print(f"test accuracy {correct:.3f} with {arguments.backend}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
