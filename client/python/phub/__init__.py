"""phub: synchronous data-parallel training through a phub daemon.

    import numpy as np
    import phub

    with phub.connect("phub://rack7:7700") as session:
        with session.join("digits", rank=rank, world_size=4) as job:
            weight = job.add_key("fc1.weight", (64, 128),
                                 optimizer=phub.Momentum(learning_rate=0.1, momentum=0.9))
            weight.initialize(initial)               # the values of rank 0 win
            for step in range(steps):
                weight.gradients[:] = backward(batch, weight.parameters)
                handle = weight.push_pull()          # returns at once
                handle.wait()                        # weight.parameters is up to date

``gradients`` and ``parameters`` are numpy arrays in phub's own memory, which a daemon on the same
host shares, so nothing is copied. A key without an optimizer does an all-reduce.

Errors are exceptions of class :class:`phub.Error`; they have the fields ``job``, ``key`` and
``rank``. Waiting releases the interpreter's lock, and Ctrl-C ends it within 100 ms.

A child process that was forked after ``connect`` cannot use phub, but may exit at any time. When
the interpreter exits, all jobs are left, so other ranks do not see a rank that died.
"""

from ._compression import Compression, Int8, RandomK, TopK
from ._errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from ._group import Group
from ._job import IterationOutcome, Job
from ._key import Key
from ._key_spec import KeySpec
from ._library import version
from ._logs import LogLevel, log_to, set_log_level
from ._optimizers import (
    Adagrad,
    Adam,
    AdamW,
    Momentum,
    Nesterov,
    Optimizer,
    RmsProp,
    RmsPropCentered,
    RmsPropMomentum,
    Sgd,
)
from ._pool import Pool, PoolHandle
from ._record import DumpRecord
from ._rounds import CompletionQueue, Handle, as_completed, wait_all
from ._session import Session, connect
from ._types import bfloat16

__version__ = version()

__all__ = [
    "Aborted",
    "Adagrad",
    "Adam",
    "AdamW",
    "AlreadyExists",
    "Cancelled",
    "CompletionQueue",
    "Compression",
    "DeadlineExceeded",
    "DumpRecord",
    "Error",
    "FailedPrecondition",
    "Group",
    "Handle",
    "Int8",
    "InternalError",
    "InvalidArgument",
    "IterationOutcome",
    "Job",
    "Key",
    "KeySpec",
    "LogLevel",
    "Momentum",
    "Nesterov",
    "NotFound",
    "Optimizer",
    "PermissionDenied",
    "Pool",
    "PoolHandle",
    "RandomK",
    "ResourceExhausted",
    "RmsProp",
    "RmsPropCentered",
    "RmsPropMomentum",
    "Session",
    "Sgd",
    "TopK",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "as_completed",
    "bfloat16",
    "connect",
    "log_to",
    "set_log_level",
    "version",
    "wait_all",
]
