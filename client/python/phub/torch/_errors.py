"""Exceptions of collectives. They name the job, the group's rank and the operation."""

from __future__ import annotations

import contextlib
from typing import Iterator, Optional

from .. import _errors


class CollectiveError(_errors.Error, RuntimeError):
    """A collective failed: a rank died or left, or the daemon cannot be reached.

    It is a RuntimeError, as torch.distributed's own errors are. ``rank`` is the rank that the error
    is about, ``operation`` the collective of this rank.
    """

    def __init__(
        self,
        message: str,
        *,
        job: Optional[str] = None,
        rank: Optional[int] = None,
        own_rank: Optional[int] = None,
        operation: Optional[str] = None,
    ) -> None:
        super().__init__(message, job=job, rank=rank, own_rank=own_rank)
        self.operation = operation


class CollectiveMismatch(CollectiveError):
    """Ranks called different collectives, or with different shapes, types or order."""


class CollectiveTimeout(CollectiveError, TimeoutError):
    """Other ranks did not call the collective within the timeout."""


class NotServed(CollectiveError, NotImplementedError):
    """phub, or a backend in Python, cannot do this. docs/pytorch.md has the list."""


class OptimizerError(_errors.Error, RuntimeError):
    """A step of a DistributedOptimizer is wrong on this rank, or failed on any rank.

    The text names the parameter. ``rank`` is the rank that the error is about.
    """


@contextlib.contextmanager
def as_optimizer_error(place: str) -> Iterator[None]:
    """Errors of phub become OptimizerErrors with `place` before the text."""
    try:
        yield
    except OptimizerError:
        raise
    except _errors.Error as error:
        raise OptimizerError(
            f"{place}: {error}",
            job=error.job,
            key=error.key,
            rank=error.rank,
            own_rank=error.own_rank,
        ) from error
