"""What every rank needs, imported once. phub itself must not be: its users cannot fork."""

import numpy  # noqa: F401
import torch  # noqa: F401
import torch.distributed  # noqa: F401
import torch.nn.parallel  # noqa: F401

try:
    import torch._dynamo  # noqa: F401  # imported by every first optimizer; takes seconds
except ImportError:
    pass  # torch 1.13
