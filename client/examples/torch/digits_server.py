#!/usr/bin/env python3
"""Trains a small network on handwritten digits with the optimizer in the daemon, as one rank.

    torchrun --nproc-per-node 2 digits_server.py

Gradients are pushed while the backward pass runs; the daemon averages them and runs Adam. The ranks
hold no optimizer state. Their parameters have the same bits at the end; the program checks this.
"""

import torch
import torch.distributed as dist

import phub.torch
from digits import Digits, finish, network, options, train


def main() -> None:
    arguments = options("Trains on handwritten digits with the daemon's optimizer.").parse_args()
    dist.init_process_group(arguments.backend)  # any backend: the optimizer needs only its store

    data = Digits(arguments.data)
    model = network()
    optimizer = phub.torch.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.003), model.named_parameters()
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.iterations)
    train(model, optimizer, data, arguments, schedule)
    finish(model, data, arguments.backend)


if __name__ == "__main__":
    main()
