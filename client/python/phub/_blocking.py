"""Calls that block in libphub. They release the interpreter's lock, and Ctrl-C ends the wait."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional, TypeVar

T = TypeVar("T")

# Python runs signal handlers on the main thread, between calls: a wait is cut into such slices.
SLICE_NS = 50_000_000


def run_interruptibly(call: Callable[[], T], dispose: Optional[Callable[[T], None]] = None) -> T:
    """Runs `call`, on another thread if this is the main thread.

    If the wait is interrupted, `call` continues, and its result is passed to `dispose`.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()
    lock = threading.Lock()
    abandoned = False

    def body() -> None:
        try:
            result = call()
            with lock:
                unwanted = abandoned
                if not unwanted:
                    results.append(result)
            if unwanted and dispose is not None:
                dispose(result)
        except BaseException as error:  # raised again on the main thread
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=body, name="phub-call", daemon=True).start()
    try:
        done.wait()  # signal handlers run during this wait
    except BaseException:
        with lock:
            abandoned = True
            unwanted = list(results)
        if dispose is not None:
            for result in unwanted:
                dispose(result)
        raise
    if errors:
        raise errors[0]
    return results[0]



class Slices:
    """The rest of a timeout in seconds (None: no limit), in short slices."""

    def __init__(self, timeout: Optional[float]) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout}; it must be 0 or more, or None for no limit")
        self._end = None if timeout is None else time.monotonic() + timeout

    def next_ns(self) -> int:
        """The length of the next slice."""
        if self._end is None:
            return SLICE_NS
        return max(0, min(SLICE_NS, int((self._end - time.monotonic()) * 1e9)))

    def over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def left(self) -> float:
        """Seconds; only with a timeout."""
        return 0.0 if self._end is None else self._end - time.monotonic()
