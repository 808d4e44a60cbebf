"""Computation between an optimizer's calls of phub, for the timeline (PHUB_TIMELINE)."""

from __future__ import annotations

import time
from typing import Optional

from .._library import lib


class Trace:
    """The spans in which the program runs its forward and backward passes. Any thread, one at a
    time. They are recorded on the track of the thread that ends them."""

    def __init__(self) -> None:
        self.on = bool(lib.phub_timeline_on())
        self._since: Optional[int] = None  # None: phub runs, or nothing has run yet
        self._first = True  # no gradient of this step has been seen

    def gradient(self, name: str, iteration: int) -> None:
        """A backward pass has computed the gradient of a parameter."""
        what = "forward, backward to" if self._first else "backward to"
        self._first = False
        self._end(f"{what} {name}", iteration)

    def step(self, iteration: int) -> None:
        self._end("computation before step()", iteration)

    def resume(self, next_step: bool = False) -> None:
        """The program runs again."""
        if self.on:
            self._first = self._first or next_step
            self._since = time.monotonic_ns()

    def _end(self, name: str, iteration: int) -> None:
        if self._since is not None:
            lib.phub_timeline_add(name.encode(), iteration, self._since, time.monotonic_ns())
            self._since = None
