"""Errors of a DistributedOptimizer, with the rank, the job, the step, and other ranks' notes."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator, NoReturn, Optional

from .. import _errors
from .._job import Job
from ._bundles import Bundle, Slot
from ._checks import not_finite
from ._errors import NotServed, OptimizerError
from ._meetings import Absent
from ._notes import Notes
from ._ranks import listed_ranks



class Reports:
    """Raises the errors of one optimizer. Any thread, one at a time."""

    def __init__(self, job: Job, notes: Notes, slots: list[Slot]) -> None:
        """slots: one for each parameter; the list grows."""
        self._job = job
        self._notes = notes
        self._slots = slots
        self.steps = 0  # complete steps
        self.failed = ""  # the error that ended the job
        self._call = ""  # that every rank must make, while it runs

    def place(self, step: Optional[int] = None) -> str:
        """step: default: the one that is running."""
        number = self.steps + 1 if step is None else step
        return f"rank {self._job.rank} of job {self._job.name}, step {number}"

    def step_is_complete(self) -> None:
        self.steps += 1
        self._notes.clear()

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

    @contextlib.contextmanager
    def calling(self, call: str) -> Iterator[None]:
        """Every rank must make this call. Other ranks learn that this one is in it, or failed."""
        self.check_usable()
        self._call = call
        self._notes.write(self.steps, f"it is in {call}, which every rank must call")
        self._notes.meetings.begin(call)
        try:
            yield
        except OptimizerError as error:
            self._notes.meetings.refuse(str(error))
            raise
        except _errors.Error as error:
            self._notes.meetings.refuse(str(error))
            if isinstance(error, NotServed):
                self._notes.write(self.steps, f"{call}: {error}")
                raise
            notes = "".join(f". {note}" for note in self._notes.read(self.steps))
            raise OptimizerError(
                f"{self.place()}, in {call}, which every rank must call: {error}{notes}",
                job=self._job.name,
                rank=error.rank,
                own_rank=self._job.rank,
            ) from error
        except Exception as error:
            self._notes.meetings.refuse(f"{call}: {error}")
            self._notes.write(self.steps, f"{call}: {error}")
            raise
        finally:
            self._call = ""
        self._notes.clear()

    def meet(self, timeout: float) -> None:
        """Waits until all ranks are in the call that runs; then this rank may wait for them in it.
        Otherwise raises OptimizerError; if the ranks cannot agree any more, the job ends."""
        if not self._call:  # the optimizer is being wrapped, which has met already
            return
        try:
            self._notes.meetings.meet(timeout, self._job.check)
        except Absent as absent:
            text = f"in {self._call}, which every rank must call: {absent}"
            self._notes.write(self.steps, text)
            if absent.final:
                self.failed = text
                self._job._leave_quietly()
            raise OptimizerError(
                f"{self.place()}, {text}", job=self._job.name, own_rank=self._job.rank
            ) from None

    def load_alone(self, folder: Any, lasts: bool, timeout: float) -> int:
        """Loads a checkpoint. For ranks that cannot meet before (restart=True): if others do not
        load it, too, this rank leaves the job after `timeout` seconds, which ends the wait."""
        outcomes: list[Any] = []

        def load() -> None:
            try:
                outcomes.append(self._job.load_checkpoint(folder, lasts))
            except BaseException as error:  # raised again on the caller's thread
                outcomes.append(error)

        thread = threading.Thread(target=load, name="phub-load", daemon=True)
        thread.start()
        thread.join(timeout)
        if not outcomes:
            self.failed = f"not all ranks have called it within {timeout:g} s, the timeout of the "
            self.failed += "optimizer"
            why = self._job.explain_barrier()
            if why:
                self.failed += f": {why}"
            self._job._leave_quietly()
            raise OptimizerError(
                f"{self.place()}, in {self._call}, which every rank must call: {self.failed}",
                job=self._job.name,
                own_rank=self._job.rank,
            )
        if isinstance(outcomes[0], BaseException):
            raise outcomes[0]
        return int(outcomes[0])

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
        index = self.steps if step is None else step - 1
        if isinstance(error, _errors.DeadlineExceeded):
            text = (
                f"not all ranks have pushed it within {timeout:g} s, the timeout of "
                f"DistributedOptimizer{self._late(index)}"
            )
            if self._call:
                text += f". Every rank must call {self._call}"
        bundle = self._bundle_of(error.key) or bundle
        what = "parameters without gradients"
        if bundle is not None:
            what = f"{bundle.names()} of parameter group {bundle.slots[0].group}"
        if isinstance(error, _errors.InvalidArgument):  # of this rank only
            self._notes.write(index, f"{what}: {text}")
        own = not_finite(self._slots)
        if own is not None:
            text += f". rank {self._job.rank}: {own}"
            self._notes.write(index, own)
        if "(non_finite)" in str(error):
            text += (
                ". Parts of the step may have been applied: continue from a checkpoint. With "
                'skip_nonfinite=True such a step is skipped, with screening="report" it is applied'
            )
        notes = "".join(f". {note}" for note in self._notes.read(index))
        raise OptimizerError(
            f"{self.place(step)}, {what}: {text}{notes}",
            job=self._job.name,
            key=error.key,
            rank=self._job.rank if error.rank is None else error.rank,
            own_rank=self._job.rank,
        ) from error

    def _bundle_of(self, key: Optional[str]) -> Optional[Bundle]:
        """The one that an error of the job is about, which may not be the one that waits."""
        for slot in self._slots:
            if slot.bundle is not None and slot.bundle.key.name == key:
                bundle: Bundle = slot.bundle
                return bundle
        return None

    def note_wait(self, step: Optional[int]) -> None:
        """This rank has waited for a while."""
        self._notes.wait_in(self.steps if step is None else step - 1)

    def _late(self, index: int) -> str:
        """The ranks that have probably not pushed, for a message."""
        self._notes.wait_in(index)
        late = self._notes.elsewhere(index)
        if not late:
            return ""
        number = index + 1
        return (
            f". Rank {self._job.rank} waits in step {number} for {listed_ranks(late)}: a rank that "
            "does not come has probably called backward(), step() or exchange() less often, waits "
            "for another optimizer (all ranks must call them in the same order), or is slow"
        )
