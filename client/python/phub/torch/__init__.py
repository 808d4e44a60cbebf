"""torch.distributed on phub: ``torch.distributed.init_process_group("phub")``.

Importing this module registers the backend "phub". Where phub is installed as a package and torch
is 2.5 or newer, torch finds it by itself, and nothing needs to be imported.
"""

from __future__ import annotations

from _phub_torch import register

from ._create import create, create_group
from ._errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, NotServed
from ._group import ProcessGroup
from ._options import Options

__all__ = [
    "CollectiveError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "NotServed",
    "Options",
    "ProcessGroup",
    "create",
    "create_group",
    "register",
]

register()
