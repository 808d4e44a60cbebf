"""The steps of one optimizer: gradients go to the daemon, new parameters come back.

A step of a parameter:
    backward   the hook counts the pass; after the last one it copies the gradient into phub's
               memory, and the key is pushed when all its gradients are there
    step()     pushes what no hook has pushed, waits for the keys in the order in which the next
               forward pass needs them, and copies the new values into the parameters. With
               wait_in_forward, modules wait for their keys in the forward pass instead

Hooks run on the threads of backward passes, everything else on the thread of the caller. `_lock`
guards slots and bundles, `_late_lock` the keys that modules wait for.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import warnings
from typing import Any, Callable, Iterable, Optional

import torch

from .. import _errors
from .._blocking import Slices
from .._job import Job
from .._rounds import Handle
from ._agreement import Agreement
from ._bundles import Bundle, Slot, add_keys, bundles_of, in_forward_order, listed
from ._checks import (
    SCALER,
    absent_gradients,
    changed_after_push,
    changed_groups,
    changed_kind,
    discarded_after_push,
    discarded_passes,
    used_again,
    used_before_arrival,
    written_before_arrival,
    wrong_tensors,
)
from ._copy import copy
from ._errors import NotServed, as_optimizer_error
from ._forward import ForwardWaits
from ._hooks import add_hooks
from ._names import Names
from ._notes import Notes
from ._reports import Reports
from ._rules import check_parameters, rule_of
from ._settings import Settings
from ._shared import SharedParameters
from ._trace import Trace
from ._values import Values

# Other ranks may learn that this one waits after this time, so that they do not take it for late.
_NOTED_S = 5.0


class Updates:
    """What a DistributedOptimizer does. `kind`: its class in torch.optim."""

    def __init__(
        self,
        kind: Any,
        groups: list[dict[str, Any]],
        names: Names,
        job: Job,
        notes: Notes,
        settings: Settings,
        model: Any = None,
        shared: Optional[SharedParameters] = None,
    ) -> None:
        """model: modules of it wait for new parameters. None: step() waits. shared: has parameters
        in phub's memory."""
        self.job = job
        self.kind = kind
        self.groups = groups
        self._settings = settings
        self.timeout = settings.timeout
        self._agreement = Agreement(job) if settings.skip_unused else None
        self._lock = threading.Lock()
        self.names = names
        self._slots: list[Slot] = []
        self._reports = Reports(job, notes, self._slots)
        self._known: list[list[Any]] = []  # the parameters of each group
        self._frozen: list[Any] = []  # they had no requires_grad, so they have no keys
        self._bundles: list[Bundle] = []
        self._hooks: list[Any] = []
        self._paused = False  # no_sync()
        self._synchronized = False
        self._left = False
        self._factor = 1.0
        self._passes = 0  # gradients that hooks have seen
        self._trace = Trace()
        waits = (self._refuse_in_flight, self._wait_for, lambda: self.timeout)
        self.values = Values(job, self._bundles, self._reports, settings, *waits)
        self._late_lock = threading.Lock()
        self._shared = shared
        self._forward: Optional[ForwardWaits] = None
        if model is not None:
            self._forward = ForwardWaits(model, self.wait_for_late, self.wait_for_all)
        for index in range(len(groups)):
            self._check_group(index)  # before any key is added
        self._add_groups(0)
        if settings.restart:
            self._reports.steps = job.iteration

    # ---- Parameters and keys -----------------------------------------------------------------

    def _check_group(self, index: int) -> None:
        """Raises for a group that the daemon cannot update."""
        self._rule(index)
        check_parameters(self.groups[index], index, self.names.of, self._settings)

    def add_group(self) -> None:
        """The caller has added a group. Every rank calls it."""
        index = len(self.groups) - 1
        self.names.add(index, self.groups[index])
        with self._reports.calling(f"add_param_group() for parameter group {index}"):
            if self._settings.restart:
                raise NotServed("add_param_group() is not served with restart=True: do it before")
            self._add_groups(index)

    def _add_groups(self, first: int) -> None:
        """Adds keys for the groups from `first` on, with rank 0's values. Every rank calls it."""
        slots = []
        for index, group in enumerate(self.groups[first:], first):
            self._check_group(index)
            for parameter in group["params"]:
                if parameter.requires_grad:
                    slots.append(Slot(self.names.of(parameter), parameter, index))
                else:
                    self._frozen.append(parameter)
        self._reports.meet(self.timeout)
        if self._shared is not None:
            self._shared.add(slots)
        rules = [self._rule(index) for index in range(len(self.groups))]
        bundles = list(bundles_of(slots, rules, alone=self._settings.skip_unused))
        if bundles:
            with as_optimizer_error(f"{self._reports.place()}, when the parameters are added"):
                if self._agreement is not None:
                    self._agreement.add(self._slots + slots)
                add_keys(self.job, bundles, len(self._bundles), self._settings)
            if self._shared is not None:
                self._shared.bind(bundles)
            self.values.add(bundles)
        self._slots += slots
        self._bundles += bundles
        self._known += [list(group["params"]) for group in self.groups[first:]]
        if self._settings.push == "backward" or self._forward is not None:
            on_gradient = self._on_traced_gradient if self._trace.on else self.on_gradient
            self._hooks += add_hooks(slots, on_gradient)
        if self._forward is not None:
            self._forward.scan()

    def has(self, parameter: Any) -> bool:
        """Whether it updates the parameter, until it fails or leaves."""
        gone = self._left or bool(self._reports.failed)
        return not gone and any(slot.parameter is parameter for slot in self._slots)

    def leave(self) -> None:
        self._left = True
        if not self._reports.failed:
            self.wait_for_all()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._forward is not None:
            self._forward.remove()
        if self._shared is not None:
            self._shared.remove()
        self.job._leave_quietly()  # if the job has failed, the step's error said so

    def store_state(self, states: dict[Any, dict[str, Any]]) -> None:
        """Replaces the daemon's state, and the parameters by rank 0's. Every rank calls it."""
        for index in range(len(self.groups)):
            self._rule(index)
        self.values.store_state(states)

    def bundles_with(self, address: int) -> list[Bundle]:
        """The bundles with the parameter whose memory is at `address`: one or none."""
        return [slot.bundle for slot in self._slots if slot.parameter.data_ptr() == address]

    def _rule(self, index: int) -> Any:
        rule = rule_of(self.kind, self.groups[index], f"parameter group {index}")
        if self._settings.clip_value > 0.0:
            rule = dataclasses.replace(rule, clip_value=self._settings.clip_value)
        return rule

    # ---- Backward ----------------------------------------------------------------------------

    def on_gradient(self, slot: Slot) -> None:
        """A backward pass has added to the parameter's gradient."""
        self._reports.refuse(used_before_arrival(slot))
        self._passes += 1
        slot.turn = self._passes
        if self._paused or self._settings.push == "step":
            return
        self._reports.check_usable()
        gradient = slot.parameter.grad
        with self._lock:
            if slot.pushed:
                self._reports.fail(used_again(slot, self._settings.backward_passes_per_step))
            # A new tensor: the gradient of earlier passes was discarded, for example by
            # model.zero_grad().
            slot.passes = slot.passes + 1 if gradient is slot.seen else 1
            slot.seen = gradient
            if slot.passes >= self._settings.backward_passes_per_step:
                self._take(slot)
                # While the first key is kept back, the daemon can still skip the iteration.
                kept = self._settings.whole and slot.bundle is self._bundles[0]
                if slot.bundle.missing == 0 and not kept:
                    self._push(slot.bundle)

    def _on_traced_gradient(self, slot: Slot) -> None:
        self._trace.gradient(slot.name, self._reports.steps)
        self.on_gradient(slot)
        self._trace.resume()

    def _take(self, slot: Slot) -> None:
        """Copies the gradient into phub's memory."""
        gradient = slot.parameter.grad
        self._reports.refuse(wrong_tensors(slot, gradient))
        # Scaled before it is rounded: a scaled gradient may be too large for float16.
        if self._factor != 1.0:
            torch.mul(gradient.detach(), self._factor, out=slot.gradient)
        else:
            copy(slot.gradient, gradient.detach())
        slot.seen, slot.seen_version = gradient, gradient._version
        self._taken(slot)

    def _taken(self, slot: Slot) -> None:
        slot.pushed = True
        slot.bundle.missing -= 1

    def _push(self, bundle: Bundle) -> None:
        """Starts the round of a key whose gradients are in phub's memory."""
        rule = self._rule(bundle.slots[0].group)
        self._reports.refuse(changed_kind(bundle, rule))
        try:
            bundle.push(rule)
        except _errors.Error as error:
            self._reports.report(bundle, error, self.timeout)

    # ---- Step --------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Pushes the gradients that no hook has pushed, and waits for all new parameters."""
        self._push_rest()
        self._wait_for(self._bundles)
        self._synchronized = True

    def step(self, factor: float = 1.0) -> None:
        """factor: gradients that are pushed now are multiplied by it first."""
        self._factor = factor
        self._trace.step(self._reports.steps)
        self._push_rest()
        deferred = set() if self._forward is None else self._forward.deferred(self._bundles)
        now = [bundle for bundle in self._bundles if bundle not in deferred]
        self._wait_for(in_forward_order(now), lambda bundle: bundle.store())
        for bundle in deferred:
            bundle.late = bundle.handle
        self._next_step()

    def _next_step(self) -> None:
        for bundle in self._bundles:
            bundle.finish()
        self._reports.step_is_complete()
        self._synchronized = False
        self._trace.resume(next_step=True)

    def _push_rest(self) -> None:
        self.wait_for_all()
        self._reports.check_usable()
        with self._lock:
            self._reports.refuse(
                changed_groups(self.groups, self._known, self._frozen, self.names.of)
            )
            self._reports.refuse(changed_after_push(self._slots, self._rule))
            rest = [slot for slot in self._slots if not slot.pushed]
            if self._agreement is not None and not self._synchronized:
                with as_optimizer_error(self._reports.place()):
                    unused = self._agreement.unused(
                        lambda handle: self._wait(handle, None, self.timeout), self._reports.fail
                    )
                rest = [slot for slot in rest if slot not in unused]
            elif not self._synchronized:
                self._check_absent(rest)
            if not self._synchronized:
                for slot in rest:
                    self._take(slot)
            for bundle in self._bundles:
                if bundle.missing == 0 and bundle.handle is None:
                    self._push(bundle)

    def _check_absent(self, slots: list[Slot]) -> None:
        self._reports.refuse(absent_gradients(slots, len(self._slots)))

    def require_for_scaler(self) -> None:
        """A rank that has infinity cannot skip a step alone."""
        if self._settings.push != "step" or not self._settings.skip_nonfinite:
            raise NotServed(SCALER)

    def require_synchronized(self) -> None:
        if not self._synchronized:
            self._reports.fail("skip_synchronize() needs a call of synchronize() before step()")

    def discard(self) -> None:
        """zero_grad() before step()."""
        with self._lock:
            pushed = [slot for slot in self._slots if slot.pushed]
            if pushed:
                self._reports.check_usable()
            if pushed and self._settings.whole and not self._synchronized:
                self._skip()
                return
            if pushed:
                self._reports.fail(discarded_after_push(pushed))
            partial = [slot for slot in self._slots if slot.passes > 0]
            if partial:
                passes = self._settings.backward_passes_per_step
                warnings.warn(discarded_passes(partial, passes), stacklevel=3)
            for slot in partial:
                slot.forget()

    def _skip(self) -> None:
        """Completes the iteration without an effect, on all ranks."""
        warnings.warn(
            "zero_grad() before step() discards the gradients that were pushed: the iteration is "
            "skipped on all ranks",
            stacklevel=4,
        )
        for bundle in self._bundles:
            if bundle.handle is None:
                with as_optimizer_error(f"{self._reports.place()}, {bundle.names()}"):
                    bundle.handle = bundle.key.push_pull_to_skip()
        self._wait_for(self._bundles)
        self._next_step()

    def wait_for_late(self, bundles: Iterable[Bundle]) -> None:
        """Waits for the parameters of these keys, and copies them, if step() has not."""
        for bundle in bundles:
            if bundle.late is None:
                continue
            with self._late_lock:  # two threads may run one module
                if bundle.late is None:
                    continue
                self._reports.check_usable()
                self._reports.refuse(written_before_arrival(bundle))
                self._wait(bundle.late, bundle, self.timeout, self._reports.steps)
                bundle.store()
                bundle.late = None

    def wait_for_all(self) -> None:
        self.wait_for_late(self._bundles)

    def pause(self, paused: bool) -> bool:
        """Whether hooks do nothing. Returns the previous value."""
        before, self._paused = self._paused, paused
        return before

    # ---- Errors ------------------------------------------------------------------------------

    def _refuse_in_flight(self, why: str) -> None:
        self.wait_for_all()
        pushed = [slot for slot in self._slots if slot.pushed]
        if pushed:
            self._reports.fail(f"{why}: {listed(pushed)} was pushed")

    def _wait_for(
        self, bundles: list[Bundle], then: Callable[[Bundle], None] = lambda bundle: None
    ) -> None:
        """Waits for the rounds of all keys that were pushed; calls `then` after each."""
        end = time.monotonic() + self.timeout
        for bundle in bundles:
            if bundle.handle is None:
                continue
            self._wait(bundle.handle, bundle, max(0.0, end - time.monotonic()))
            then(bundle)

    def _wait(
        self, handle: Handle, bundle: Optional[Bundle], seconds: float, step: Optional[int] = None
    ) -> None:
        try:
            if seconds > _NOTED_S:
                try:
                    handle._wait(Slices(_NOTED_S))  # not the end: the daemon is not asked
                    return
                except _errors.DeadlineExceeded:
                    self._reports.note_wait(step)
                    seconds -= _NOTED_S
            handle.wait(seconds)
        except _errors.Error as error:
            self._reports.report(bundle, error, self.timeout, step)
