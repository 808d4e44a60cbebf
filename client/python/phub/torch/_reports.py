"""Errors of a DistributedOptimizer, with the rank, the job, the step, and other ranks' notes."""

from __future__ import annotations

from typing import NoReturn, Optional

from .. import _errors
from .._job import Job
from ._bundles import Bundle
from ._errors import OptimizerError
from ._notes import Notes


class Reports:
    """Raises the errors of one optimizer. Any thread, one at a time."""

    def __init__(self, job: Job, notes: Notes) -> None:
        self._job = job
        self._notes = notes
        self.steps = 0  # complete steps
        self.failed = ""  # the error that ended the job

    def place(self, step: Optional[int] = None) -> str:
        """step: default: the one that is running."""
        number = self.steps + 1 if step is None else step
        return f"rank {self._job.rank} of job {self._job.name}, step {number}"

    def check_usable(self) -> None:
        if self.failed:
            raise OptimizerError(
                f"{self.place()}: the optimizer cannot continue after an earlier error: "
                f"{self.failed}",
                job=self._job.name,
                own_rank=self._job.rank,
            )

    def refuse(self, problem: Optional[str]) -> None:
        if problem is not None:
            self.fail(problem)

    def fail(self, text: str) -> NoReturn:
        """An error of this rank, which the other ranks will want to know."""
        self._notes.write(self.steps, text)
        raise OptimizerError(
            f"{self.place()}: {text}",
            job=self._job.name,
            rank=self._job.rank,
            own_rank=self._job.rank,
        )

    def report(
        self,
        bundle: Optional[Bundle],
        error: _errors.Error,
        timeout: float,
        step: Optional[int] = None,
    ) -> NoReturn:
        """The daemon reports an error, or another rank is late. bundle: None for the agreement.
        timeout: how long this rank waits for the others."""
        self.failed = text = str(error)
        if isinstance(error, _errors.DeadlineExceeded):
            text = (
                f"not all ranks have pushed it within {timeout:g} s, the timeout of "
                "DistributedOptimizer"
            )
        index = self.steps if step is None else step - 1
        notes = "".join(f". {note}" for note in self._notes.read(index))
        what = "parameters without gradients"
        if bundle is not None:
            what = f"{bundle.names()} of parameter group {bundle.slots[0].group}"
        raise OptimizerError(
            f"{self.place(step)}, {what}: {text}{notes}",
            job=self._job.name,
            key=error.key,
            rank=self._job.rank if error.rank is None else error.rank,
            own_rank=self._job.rank,
        ) from error
