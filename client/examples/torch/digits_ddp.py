#!/usr/bin/env python3
"""Trains a small network on handwritten digits with DistributedDataParallel, as one rank.

    torchrun --nproc-per-node 2 digits_ddp.py --backend phub

Only the name of the backend differs between gloo and phub. The ranks' parameters have the same bits
at the end; the program checks this.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from digits import Digits, finish, network, options, train


def main() -> None:
    parser = options("Trains on handwritten digits with DDP.")
    parser.add_argument("--init-method", help='for example "phub://host:7700/digits"')
    arguments = parser.parse_args()

    if arguments.backend == "phub":
        try:
            import phub.torch  # not needed with the wheel and torch 2.5 or newer
        except ImportError as error:
            parser.error(f"the package phub is missing ({error}); see docs/pytorch.md")
    dist.init_process_group(arguments.backend, init_method=arguments.init_method)

    data = Digits(arguments.data)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, data, arguments)
    finish(model, data, arguments.backend)


if __name__ == "__main__":
    main()
