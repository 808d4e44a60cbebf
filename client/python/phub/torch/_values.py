"""What the daemon has of an optimizer, as a whole: parameters, state, checkpoints."""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Iterable

from .._job import Job
from ._bundles import Bundle
from ._errors import as_optimizer_error
from ._reports import Reports
from ._saved_state import fetch, store
from ._settings import Settings

WaitFor = Callable[[list[Bundle], Callable[[Bundle], None]], None]


class Values:
    """Between steps, on the thread of the caller. bundles: may grow.

    idle: called with the reason before anything is read or written; raises if a step has begun.
    wait_for: waits for the rounds of bundles, and calls a function after each.
    timeout: how long a call waits for the other ranks, in seconds.
    """

    def __init__(
        self,
        job: Job,
        bundles: list[Bundle],
        reports: Reports,
        settings: Settings,
        idle: Callable[[str], None],
        wait_for: WaitFor,
        timeout: Callable[[], float],
    ) -> None:
        self._job = job
        self._bundles = bundles
        self._reports = reports
        self._restart = settings.restart
        self._idle = idle
        self._wait_for = wait_for
        self._timeout = timeout

    def add(self, bundles: list[Bundle]) -> None:
        """Gives every rank, and the daemon, rank 0's parameters of new keys. If this process
        replaces one that died, it gets the daemon's."""
        self._idle("parameters cannot be added between backward() and step()")
        if not self._restart:
            self._broadcast(bundles, 0)
            return
        for bundle in bundles:
            with as_optimizer_error(f"{self._reports.place()}, {bundle.names()}"):
                bundle.key.initialize(bundle.own_values())
            bundle.replaced()

    def replicate(self, bundles: Iterable[Bundle], root: int) -> None:
        """Sends every rank, and the daemon, the parameters of rank `root`."""
        with self._reports.calling(f"broadcast_parameters(root_rank={root})"):
            self._idle("parameters cannot be replaced between backward() and step()")
            if self._restart:
                self._reports.fail(
                    "broadcast_parameters() is not served with restart=True: parameters became "
                    "rank 0's when the optimizer was wrapped. Change them before that"
                )
            self._reports.meet(self._timeout())
            self._broadcast(list(bundles), root)

    def _broadcast(self, bundles: list[Bundle], root: int) -> None:
        for bundle in bundles:
            with as_optimizer_error(f"{self._reports.place()}, {bundle.names()}"):
                bundle.handle = bundle.key.broadcast(root, bundle.own_values())
        self._wait_for(bundles, lambda bundle: bundle.store())
        for bundle in bundles:
            bundle.finish()

    def fetch_state(self) -> dict[Any, dict[str, Any]]:
        """The daemon's state, as torch.optim keeps it. One rank may call it alone."""
        self._idle("the state cannot be read between backward() and step()")
        return fetch(self._job, self._bundles)

    def loading_state(self) -> ContextManager[None]:
        return self._reports.calling("load_state_dict()")

    def store_state(self, states: dict[Any, dict[str, Any]]) -> None:
        """Replaces the daemon's state, and the parameters by rank 0's. Every rank calls it."""
        self._idle("the state cannot be replaced between backward() and step()")
        if not self._has_later("load_state_dict()"):
            store(self._job, self._bundles, states, self._reports.fail, self._load)
            self._replaced()

    def save(self, folder: Any) -> int:
        self._idle("a checkpoint cannot be saved between backward() and step()")
        return self._job.save_checkpoint(folder)

    def load(self, folder: Any) -> int:
        with self._reports.calling("load_checkpoint()"):
            self._idle("a checkpoint cannot be loaded between backward() and step()")
            if self._has_later("load_checkpoint()"):
                return self._job.iteration
            iteration = self._load(folder, True)
        self._replaced()
        return iteration

    def _load(self, folder: Any, lasts: bool) -> int:
        """Every rank calls it."""
        self._reports.meet(self._timeout())
        if not self._restart:
            return self._job.load_checkpoint(folder, lasts)
        return self._reports.load_alone(folder, lasts, self._timeout())

    def _has_later(self, call: str) -> bool:
        """With restart=True: whether this process got values that are newer than those that the
        process before loaded by the same call. Raises if a new process could not repeat the call.
        """
        if self._restart and not self._job.resumed and self._job.iteration > 0:
            self._reports.fail(
                f"with restart=True, {call} is possible only before the first step: a process that "
                "takes over a rank could not repeat it"
            )
        return self._job.resumed

    def _replaced(self) -> None:
        for bundle in self._bundles:
            bundle.replaced()
