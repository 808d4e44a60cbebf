#!/usr/bin/env python3
"""Trains a small network on handwritten digits with DiLoCo, for ranks that are far apart.

    torchrun --nproc-per-node 2 digits_diloco.py --sync-every 10

Each rank trains with AdamW on its own. Every 10 steps the daemon takes the mean of how far the
ranks have moved, applies Nesterov momentum to it, and all ranks continue with the result.
"""

import torch
import torch.distributed as dist

import phub.torch
from digits import Digits, finish, network, options, train


class InnerAndOuter:
    """The steps of both optimizers."""

    def __init__(self, inner: torch.optim.Optimizer, outer: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.outer = outer

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def step(self) -> None:
        self.inner.step()
        self.outer.step()  # exchanges in every tenth call


def main() -> None:
    parser = options("Trains on handwritten digits with DiLoCo.")
    parser.add_argument("--sync-every", type=int, default=10, help="steps between exchanges")
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)  # any backend: the optimizer needs only its store

    data = Digits(arguments.data)
    model = network()
    inner = torch.optim.AdamW(model.parameters(), lr=0.003)
    outer = phub.torch.DiLoCo(
        torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.6, nesterov=True),
        model.named_parameters(),
        sync_every=arguments.sync_every,
    )
    train(model, InnerAndOuter(inner, outer), data, arguments)
    outer.exchange()  # the steps after the last exchange
    finish(model, data, arguments.backend)


if __name__ == "__main__":
    main()
