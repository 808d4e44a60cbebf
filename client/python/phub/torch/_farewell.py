"""How members of a group in the default group's job leave it: they remove it together.

The daemon ends the job if a member removes a group that another one still uses, or to which another
one has added more keys. After an error, or if a rank leaves early, this may be so. So the members
first state in the store that they have left, and with how many batches of keys. A group that cannot
be removed stays until its job is left.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, Callable, Sequence

from ._exchange import Exchange
from ._published import keys_of
from ._subgroup import Subgroup

_LOOK_MIN_S = 0.002
_LOOK_MAX_S = 0.25
_JOIN_S = 2.0


class Farewells:
    """The groups of one job that this process has left, but that are not removed yet."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def begin(
        self, exchange: Exchange, whole: bool, store: Any, prefix: str, then: Callable[[], None]
    ) -> None:
        """whole: all collectives of the group have completed here. Calls `then` when the group has
        been removed."""
        assert isinstance(exchange.job, Subgroup)
        group: Subgroup = exchange.job
        ranks = exchange.ranks

        def run() -> None:
            try:
                if self._agree(group, ranks, whole, store, prefix):
                    group.group.remove()
                    then()
            except Exception:  # the store or the job is gone
                pass
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="phub-group-end", daemon=True)
        with self._lock:
            if not self._stopping.is_set():
                self._threads.add(thread)
                thread.start()

    def stop(self) -> None:
        """The job is about to be left: nothing else is removed from it."""
        with self._lock:
            self._stopping.set()

    def join(self) -> None:
        """REQUIRES: the job was left. The threads refer to the store, whose server ends with its
        last reference."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(_JOIN_S)

    def _agree(
        self, group: Subgroup, ranks: Sequence[int], whole: bool, store: Any, prefix: str
    ) -> bool:
        """Waits until all members have left. True: they can remove the group."""
        count = len(ranks)
        gone, read = f"{prefix}/gone", f"{prefix}/read"
        same = f"{gone}/{group.batches}"
        if whole:
            store.add(same, 1)
        store.add(gone, 1)
        pause = _LOOK_MIN_S
        while store.add(gone, 0) < count:
            if self._stopping.wait(pause):
                return False
            pause = min(2 * pause, _LOOK_MAX_S)
        agreed = bool(store.add(same, 0) == count)
        if store.add(read, 1) == count:
            # A process may make any number of groups, so the last member removes their keys.
            published = [keys_of(store, f"{prefix}/at/{rank}") for rank in ranks]
            for key in (gone, same, read, *itertools.chain(*published)):
                store.delete_key(key)
        return agreed
