"""Reads counters while the ranks of a block pause: before and after its timed exchanges."""

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .failure import BenchFailure

# What is still under way when the ranks have their results, such as acknowledgements.
QUIET_SECONDS = 0.3
POLL_SECONDS = 0.1


class Snapshots:
    """Answers the ranks (rank/snapshots.h) within a `with` block, in a thread of its own."""

    def __init__(self, folder: Path, read: Callable[[], Sequence[int]]) -> None:
        self._folder = folder
        self._read = read
        self._pipes: list[int] = []
        self._taken: list[Sequence[int]] = []
        self._failure: Exception | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._answer)

    def __enter__(self) -> "Snapshots":
        for name in ("snapshot-ask", "snapshot-done"):
            path = self._folder / name
            os.mkfifo(path)
            self._pipes.append(os.open(path, os.O_RDWR))  # opening never waits for the ranks
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for pipe in self._pipes:
            os.close(pipe)

    def _answer(self) -> None:
        ask, done = self._pipes
        while not self._ends.is_set():
            if not select.select([ask], [], [], POLL_SECONDS)[0]:
                continue
            os.read(ask, 100)
            time.sleep(QUIET_SECONDS)
            try:
                self._taken.append(self._read())
            except Exception as error:  # pylint: disable=broad-except
                self._failure = error
            os.write(done, b"\n")

    def moved(self) -> list[int]:
        """By how much each counter has advanced during the timed exchanges."""
        if self._failure:
            raise self._failure
        if len(self._taken) != 2:
            raise BenchFailure(f"the ranks asked for {len(self._taken)} snapshots instead of 2")
        before, after = self._taken
        return [now - then for now, then in zip(after, before)]
