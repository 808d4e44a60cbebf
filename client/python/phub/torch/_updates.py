"""The steps of one optimizer: gradients go to the daemon, new parameters come back.

A step of a parameter:
    backward   the hook counts the pass; after the last one it copies the gradient into phub's
               memory, and the key is pushed when all its gradients are there
    step()     pushes what no hook has pushed, waits for the keys in the order of the parameters,
               and copies the new values into the parameters

Hooks run on the threads of backward passes, everything else on the thread of the caller. `_lock`
guards slots and bundles.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from typing import Any, Iterable, NoReturn, Optional

import torch

from .. import _errors
from .._job import Job
from ._bundles import Bundle, Slot, bundles_of, join_and_add
from ._checks import (
    absent_gradients,
    changed_after_push,
    changed_groups,
    listed,
    wrong_tensors,
)
from ._errors import OptimizerError
from ._notes import Notes
from ._rules import check_parameter, rule_of
from ._saved_state import fetch, store


class Updates:
    """What a DistributedOptimizer does. `kind`: its class in torch.optim."""

    def __init__(
        self,
        kind: Any,
        groups: list[dict[str, Any]],
        names: dict[Any, str],
        job: Job,
        notes: Notes,
        *,
        passes: int,
        operation: str,
        in_backward: bool,
        timeout: float,
    ) -> None:
        self.job = job
        self._kind = kind
        self.groups = groups
        self._notes = notes
        self._passes = passes
        self._operation = operation
        self._in_backward = in_backward
        self.timeout = timeout
        self._lock = threading.Lock()
        self._names = names
        self._slots: list[Slot] = []
        self._known: list[list[Any]] = []  # the parameters of each group
        self._frozen: list[Any] = []  # they had no requires_grad, so they have no keys
        self._bundles: list[Bundle] = []
        self._hooks: list[Any] = []
        self._paused = False  # no_sync()
        self._steps = 0
        self._synchronized = False
        for index in range(len(groups)):
            self._check_group(index)
        self.add_groups(0)

    # ---- Parameters and keys -----------------------------------------------------------------

    def name_of(self, parameter: Any) -> str:
        return self._names.get(parameter) or "without a name"

    def _check_group(self, index: int) -> None:
        """Raises for a group that the daemon cannot update, before any key is added."""
        group = self.groups[index]
        rule_of(self._kind, group, f"parameter group {index}")
        seen: set[int] = set()
        for parameter in group["params"]:
            check_parameter(parameter, self.name_of(parameter))
            if id(parameter) in seen:
                raise ValueError(
                    f"parameter {self.name_of(parameter)} is twice in parameter group {index}"
                )
            seen.add(id(parameter))

    def add_groups(self, first: int) -> None:
        """Adds keys for the groups from `first` on, with rank 0's values. Every rank calls it."""
        slots = []
        for index, group in enumerate(self.groups[first:], first):
            self._check_group(index)
            for parameter in group["params"]:
                if parameter.requires_grad:
                    slots.append(Slot(self.name_of(parameter), parameter, index))
                else:
                    self._frozen.append(parameter)
        rules = [self._rule(index) for index in range(len(self.groups))]
        bundles = list(bundles_of(slots, rules))
        if bundles:
            join_and_add(self.job, bundles, len(self._bundles), self._operation)
            self.replicate(bundles, 0)
        self._slots += slots
        self._bundles += bundles
        self._known += [list(group["params"]) for group in self.groups[first:]]
        if self._in_backward:
            hook = _hook_of(self)
            for slot in slots:
                self._hooks.append(slot.parameter.register_post_accumulate_grad_hook(hook(slot)))

    def replicate(self, bundles: Iterable[Bundle], root: int) -> None:
        """Sends every rank, and the daemon, the parameters of rank `root`."""
        chosen = list(bundles)
        self._refuse_in_flight("parameters cannot be replaced between backward() and step()")
        for bundle in chosen:
            for slot in bundle.slots:
                slot.gradient.copy_(slot.parameter.detach())
            bundle.handle = bundle.key.broadcast(root, bundle.key.gradients)
        end = time.monotonic() + self.timeout
        for bundle in chosen:
            self._wait(bundle, end)
            for slot in bundle.slots:
                slot.store()
            bundle.finish()

    def leave(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.job._leave_quietly()  # if the job has failed, the step's error said so

    def fetch_state(self) -> dict[Any, dict[str, Any]]:
        """The daemon's state, as torch.optim keeps it. One rank may call it alone."""
        self._refuse_in_flight("the state cannot be read between backward() and step()")
        return fetch(self.job, self._bundles)

    def store_state(self, states: dict[Any, dict[str, Any]]) -> None:
        """Replaces the daemon's state, and the parameters by rank 0's. Every rank calls it."""
        self._refuse_in_flight("the state cannot be replaced between backward() and step()")
        for index in range(len(self.groups)):
            self._rule(index)
        store(self.job, self._bundles, states, self._fail)
        for bundle in self._bundles:
            bundle.replaced()

    def save(self, folder: Any) -> int:
        self._refuse_in_flight("a checkpoint cannot be saved between backward() and step()")
        return self.job.save_checkpoint(folder)

    def load(self, folder: Any) -> int:
        self._refuse_in_flight("a checkpoint cannot be loaded between backward() and step()")
        iteration = self.job.load_checkpoint(folder)
        for bundle in self._bundles:
            bundle.replaced()
        return iteration

    def bundles_with(self, address: int) -> list[Bundle]:
        """The bundles with the parameter whose memory is at `address`: one or none."""
        return [
            slot.bundle for slot in self._slots if slot.parameter.data_ptr() == address
        ]

    def _rule(self, index: int) -> Any:
        return rule_of(self._kind, self.groups[index], f"parameter group {index}")

    # ---- Backward ----------------------------------------------------------------------------

    def on_gradient(self, slot: Slot) -> None:
        """A backward pass has added to the parameter's gradient."""
        if self._paused:
            return
        gradient = slot.parameter.grad
        with self._lock:
            if slot.pushed:
                self._fail(
                    f"parameter {slot.name} was used in more backward passes before step() than "
                    f"backward_passes_per_step={self._passes}, and its gradient was already "
                    "pushed. Call step() after each of them, pass a larger "
                    "backward_passes_per_step, or run passes that need no step under "
                    "optimizer.no_sync()"
                )
            # A new tensor: the gradient of earlier passes was discarded, for example by
            # model.zero_grad().
            slot.passes = slot.passes + 1 if gradient is slot.seen else 1
            slot.seen = gradient
            if slot.passes >= self._passes:
                self._take(slot)

    def _take(self, slot: Slot) -> None:
        """Copies the gradient into phub's memory, and pushes the key if it was the last one."""
        gradient = slot.parameter.grad
        self._refuse(wrong_tensors(slot, gradient))
        slot.gradient.copy_(gradient)
        slot.seen, slot.seen_version = gradient, gradient._version
        slot.pushed = True
        bundle = slot.bundle
        bundle.missing -= 1
        if bundle.missing == 0:
            rule = self._rule(slot.group)
            if type(rule) is not bundle.kind:
                self._fail(
                    f"parameter group {slot.group} was wrapped as {bundle.kind.__name__} and "
                    f"has become {type(rule).__name__}, because momentum or nesterov changed: "
                    "the daemon cannot change the kind of an optimizer"
                )
            try:
                bundle.push(rule)
            except _errors.Error as error:
                self._report(bundle, error)

    # ---- Step --------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Pushes the gradients that no hook has pushed, and waits for all new parameters."""
        self._push_rest()
        end = time.monotonic() + self.timeout
        for bundle in self._bundles:
            self._wait(bundle, end)
        self._synchronized = True

    def step(self) -> None:
        self._push_rest()
        end = time.monotonic() + self.timeout
        for bundle in self._bundles:
            self._wait(bundle, end)
            for slot in bundle.slots:
                slot.store()
            bundle.finish()
        self._steps += 1
        self._synchronized = False

    def _push_rest(self) -> None:
        with self._lock:
            self._refuse(changed_groups(self.groups, self._known, self._frozen, self.name_of))
            self._refuse(changed_after_push(self._slots, self._rule))
            rest = [slot for slot in self._slots if not slot.pushed]
            self._refuse(absent_gradients(rest))
            for slot in rest:
                self._take(slot)

    def require_synchronized(self) -> None:
        if not self._synchronized:
            self._fail("skip_synchronize() needs a call of synchronize() before step()")

    def discard(self) -> None:
        """zero_grad() before step()."""
        with self._lock:
            pushed = [slot for slot in self._slots if slot.pushed]
            if pushed:
                self._fail(
                    f"zero_grad() was called before step(), but the gradient of "
                    f"{listed(pushed)} was pushed during the backward pass, and the daemon "
                    "applies it. Run backward passes that need no step under optimizer.no_sync(), "
                    'or pass push="step"'
                )
            partial = [slot for slot in self._slots if slot.passes > 0]
            if partial:
                warnings.warn(
                    f"zero_grad() before step() discards the gradients of {partial[0].passes} of "
                    f"{self._passes} backward passes, of {listed(partial)}",
                    stacklevel=3,
                )
            for slot in partial:
                slot.forget()

    def pause(self, paused: bool) -> bool:
        """Whether hooks do nothing. Returns the previous value."""
        before, self._paused = self._paused, paused
        return before

    # ---- Errors ------------------------------------------------------------------------------

    def _refuse_in_flight(self, why: str) -> None:
        pushed = [slot for slot in self._slots if slot.pushed]
        if pushed:
            self._fail(f"{why}: {listed(pushed)} was pushed")

    def _wait(self, bundle: Bundle, end: float) -> None:
        assert bundle.handle is not None
        try:
            bundle.handle.wait(max(0.0, end - time.monotonic()))
        except _errors.Error as error:
            self._report(bundle, error)

    def _place(self) -> str:
        return f"rank {self.job.rank} of job {self.job.name}, step {self._steps + 1}"

    def _refuse(self, problem: Optional[str]) -> None:
        if problem is not None:
            self._fail(problem)

    def _fail(self, text: str) -> NoReturn:
        """An error of this rank, which the other ranks will want to know."""
        self._notes.write(self._steps, text)
        raise OptimizerError(
            f"{self._place()}: {text}",
            job=self.job.name,
            rank=self.job.rank,
            own_rank=self.job.rank,
        )

    def _report(self, bundle: Bundle, error: _errors.Error) -> NoReturn:
        """The daemon reports an error, or another rank is late."""
        text = str(error)
        if isinstance(error, _errors.DeadlineExceeded):
            text = (
                f"not all ranks have pushed it within {self.timeout:g} s, the timeout of "
                "DistributedOptimizer"
            )
        notes = "".join(f". {note}" for note in self._notes.read(self._steps))
        group = bundle.slots[0].group
        raise OptimizerError(
            f"{self._place()}, {bundle.names()} of parameter group {group}: {text}{notes}",
            job=self.job.name,
            key=error.key,
            rank=self.job.rank if error.rank is None else error.rank,
            own_rank=self.job.rank,
        ) from error


def _hook_of(updates: Updates) -> Any:
    """Hooks that do not keep the optimizer alive."""
    reference = weakref.ref(updates)

    def hook(slot: Slot) -> Any:
        def call(parameter: Any) -> None:
            alive: Optional[Updates] = reference()
            if alive is not None:
                alive.on_gradient(slot)

        return call

    return hook
