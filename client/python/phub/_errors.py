"""Exceptions, and how calls of libphub raise them."""

from __future__ import annotations

import ctypes
from typing import Any

from ._library import lib


class Error(Exception):
    """An error of phub. The text says what happened, to which job, key, rank and host.

    ``rank`` is the rank that the error is about: the one that died or disagreed, if the job's
    verdict names one, otherwise this process's rank. ``own_rank`` is this process's rank.
    """

    def __init__(
        self,
        message: str,
        *,
        job: str | None = None,
        key: str | None = None,
        rank: int | None = None,
        own_rank: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.job = job
        self.key = key
        self.rank = rank
        self.own_rank = own_rank


class Cancelled(Error):
    """The push was withdrawn, or this rank left the job."""


class InvalidArgument(Error, ValueError):
    """The arguments are wrong in any state."""


class DeadlineExceeded(Error, TimeoutError):
    """Not done in time; it may still complete later."""


class NotFound(Error):
    """The named thing does not exist."""


class AlreadyExists(Error):
    """A live worker holds this rank, or a key has this name."""


class PermissionDenied(Error):
    """The identity may not do this."""


class ResourceExhausted(Error):
    """A quota, or memory of the daemon or of this process, is used up."""


class FailedPrecondition(Error):
    """Not possible in the present state."""


class Aborted(Error):
    """The job ended; the error names the rank that died or disagreed."""


class Unimplemented(Error):
    """The daemon or this library does not support it."""


class InternalError(Error):
    """A bug in phub, or a peer that violates the protocol."""


class Unavailable(Error):
    """The daemon died or cannot be reached."""


class Unauthenticated(Error):
    """The daemon does not accept the credentials."""


OK = 0
DEADLINE_EXCEEDED = 4
_CLASSES: dict[int, type[Error]] = {
    1: Cancelled,
    3: InvalidArgument,
    4: DeadlineExceeded,
    5: NotFound,
    6: AlreadyExists,
    7: PermissionDenied,
    8: ResourceExhausted,
    9: FailedPrecondition,
    10: Aborted,
    11: InvalidArgument,
    12: Unimplemented,
    13: InternalError,
    14: Unavailable,
    16: Unauthenticated,
}


def error_of(result: int, error: ctypes.c_void_p) -> Error:
    """The exception for a result that is not OK. Frees `error`."""
    try:
        rank = lib.phub_error_rank(error)
        own_rank = lib.phub_error_own_rank(error)
        return _CLASSES.get(result, Error)(
            lib.phub_error_message(error).decode(errors="replace"),
            job=lib.phub_error_job(error).decode(errors="replace") or None,
            key=lib.phub_error_key(error).decode(errors="replace") or None,
            rank=rank if rank >= 0 else None,
            own_rank=own_rank if own_rank >= 0 else None,
        )
    finally:
        lib.phub_error_free(error)


def check(function: Any, *arguments: Any) -> None:
    """Calls a function whose last parameter is the error, and raises it."""
    error = ctypes.c_void_p()
    result = function(*arguments, ctypes.byref(error))
    if result != OK:
        raise error_of(result, error)
