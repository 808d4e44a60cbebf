"""Rounds in flight: handles, and waiting for many of them."""

from __future__ import annotations

import ctypes
from typing import Any, Iterable, Iterator, Optional

from ._blocking import Slices
from ._errors import DEADLINE_EXCEEDED, OK, check, error_of
from ._library import lib


def _explains(timeout: Optional[float]) -> bool:
    """Shorter timeouts are often those of loops that poll, so they make no call to the daemon."""
    return timeout is not None and timeout >= 1.0


class Handle:
    """A started round. Dropping it does not affect the round."""

    def __init__(self, pointer: int, key: Any) -> None:
        self._pointer: Optional[int] = pointer
        self._key = key

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            lib.phub_handle_free(pointer)

    @property
    def key(self) -> Any:
        """The :class:`phub.Key` of the round."""
        return self._key

    def wait(self, timeout: Optional[float] = None) -> None:
        """Blocks until the round is complete. Releases the interpreter's lock.

        timeout: seconds; after it :class:`phub.DeadlineExceeded` is raised, and the round
        continues. After a second or more the exception says for which ranks the round waits, and
        which ranks wait for each other in a cycle. The daemon is asked, for at most 2 s.
        """
        self._wait(Slices(timeout), _explains(timeout))

    def _wait(self, rest: Slices, explains: bool = False) -> None:
        """explains: asks the daemon what the round waits for if the time is over."""
        while True:
            result = lib.phub_handle_wait(self._pointer, rest.next_ns(), None)
            if result == OK:
                return
            if result != DEADLINE_EXCEEDED or rest.over():
                break
        if explains:
            check(lib.phub_handle_explain, self._pointer)
        else:
            check(lib.phub_handle_wait, self._pointer, 0)

    def done(self) -> bool:
        """True if :meth:`wait` would not block."""
        return bool(lib.phub_handle_test(self._pointer))

    def cancel(self) -> None:
        """Withdraws the push if none of it was sent; otherwise raises FailedPrecondition."""
        check(lib.phub_handle_cancel, self._pointer)


class CompletionQueue:
    """Waits for any of many handles, of any jobs.

    queue.add(handle)
    handle = queue.get()      # complete; handle.wait() raises its error, if any
    """

    def __init__(self) -> None:
        pointer = ctypes.c_void_p()
        check(lib.phub_queue_create, ctypes.byref(pointer))
        self._pointer: Optional[int] = pointer.value
        self._handles: dict[int, Handle] = {}
        self._next = 0

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            lib.phub_queue_free(pointer)

    def __len__(self) -> int:
        """The number of handles that were added and not yet returned."""
        return len(self._handles)

    def add(self, handle: Handle) -> None:
        """Adds a handle, which get() returns once, when its round is complete."""
        self._next += 1
        tag = self._next
        self._handles[tag] = handle
        try:
            check(lib.phub_queue_add, self._pointer, handle._pointer, tag)
        except BaseException:
            del self._handles[tag]
            raise

    def get(self, timeout: Optional[float] = None) -> Handle:
        """The next handle whose round is complete. Raises DeadlineExceeded after `timeout` s."""
        rest = Slices(timeout)
        tag = ctypes.c_uint64()
        outcome = ctypes.c_int()
        while True:
            error = ctypes.c_void_p()
            result = lib.phub_queue_wait(
                self._pointer,
                rest.next_ns(),
                ctypes.byref(tag),
                ctypes.byref(outcome),
                ctypes.byref(error),
            )
            if result == OK:
                if outcome.value != OK:
                    lib.phub_error_free(error)  # handle.wait() returns it again
                return self._handles.pop(tag.value)
            if result != DEADLINE_EXCEEDED or rest.over():
                raise error_of(result, error)
            lib.phub_error_free(error)


def as_completed(handles: Iterable[Handle], timeout: Optional[float] = None) -> Iterator[Handle]:
    """Yields each handle when its round is complete. timeout: seconds for all of them."""
    queue = CompletionQueue()
    for handle in handles:
        queue.add(handle)
    rest = Slices(timeout)
    while len(queue) > 0:
        yield queue.get(None if timeout is None else max(0.0, rest.left()))


def wait_all(handles: Iterable[Handle], timeout: Optional[float] = None) -> None:
    """Waits for every handle. Raises the first error. timeout: seconds for all of them."""
    rest = Slices(timeout)
    for handle in handles:
        handle._wait(rest, _explains(timeout))
