"""torch.distributed on phub: ``torch.distributed.init_process_group("phub")``.

Importing this module registers the backend "phub". Where phub is installed as a package and torch
is 2.5 or newer, torch finds it by itself, and nothing needs to be imported.

:func:`DistributedOptimizer` runs an optimizer of torch.optim in the daemon. :func:`DiLoCo` does so
for ranks that exchange their parameters only every H steps. :func:`compression_hook` compresses the
gradients of DistributedDataParallel.
"""

from __future__ import annotations

from _phub_torch import register

from ._compression_hook import CompressionState, compression_hook
from ._create import create, create_group
from ._errors import (
    CollectiveError,
    CollectiveMismatch,
    CollectiveTimeout,
    NotServed,
    OptimizerError,
)
from ._group import ProcessGroup
from ._optimizer import DistributedOptimizer
from ._options import Options
from ._outer import DiLoCo
from ._replicate import broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "CollectiveError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "CompressionState",
    "DiLoCo",
    "DistributedOptimizer",
    "NotServed",
    "OptimizerError",
    "Options",
    "ProcessGroup",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compression_hook",
    "create",
    "create_group",
    "register",
]

register()
