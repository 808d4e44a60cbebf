"""The parameters of an optimizer as keys of a job: large ones alone, small ones bundled."""

from __future__ import annotations

from typing import Any, Iterator, Optional

import torch

from .. import _optimizers as server
from .._job import Job
from .._key_spec import KeySpec
from .._rounds import Handle
from ._copy import copy
from ._settings import Settings
from ._types import name_of, raw
from ._wire import dtype_of, key_dtype, wire_name

# A parameter below this size shares a key with the next small ones of its group. A step of 200
# parameters of 1 KiB took 1.1 ms in bundles and 2.5 to 3.1 ms in keys of their own (one rank,
# shared memory). Above 32 KiB the difference was within the noise.
SMALL_BYTES = 32 << 10
# A bundle is closed when it has this size. A chunk of the daemon has 128 KiB.
BUNDLE_BYTES = 128 << 10
_NAME_BYTES = 200
_LISTED = 5  # parameters in a message


class Slot:
    """One parameter, and its place in a key.

    ``gradient`` and ``values`` are tensors in phub's memory with the parameter's shape, and with
    the types of gradient_dtype and parameter_dtype. One thread at a time uses a slot (Updates has
    the lock).
    """

    __slots__ = (
        "name", "parameter", "group", "bundle", "shape", "dtype", "gradient", "values",
        "version", "passes", "seen", "seen_version", "pushed", "turn", "shared", "inside",
    )

    def __init__(self, name: str, parameter: Any, group: int) -> None:
        self.name = name
        self.parameter = parameter
        self.group = group  # index of the parameter group
        self.bundle: Any = None
        self.shape = parameter.shape
        self.dtype = parameter.dtype
        self.gradient: Any = None
        self.values: Any = None
        self.version = parameter._version  # of the values that the daemon has, too
        self.passes = 0  # backward passes since the last step
        self.seen: Any = None  # the gradient tensor after the last of them
        self.seen_version = 0
        self.pushed = False  # `seen` is in phub's memory
        self.turn = 0  # the place of its gradient among those of the last backward passes
        self.shared = False  # the parameter belongs in phub's memory (_shared.py)
        self.inside = False  # it is there

    @property
    def bytes(self) -> int:
        return int(self.parameter.numel() * self.parameter.element_size())

    def store(self) -> None:
        """Gives the parameter its new values. REQUIRES: the round is complete."""
        if self.inside:
            torch.autograd.graph.increment_version(self.parameter)
        elif self.shared:
            self.parameter.data = self.values
            self.inside = True
        else:
            with torch.no_grad():
                self.parameter.copy_(self.values)
        self.version = self.parameter._version

    @property
    def moved(self) -> bool:
        """The program has taken the parameter out of phub's memory."""
        return self.inside and bool(self.parameter.data_ptr() != self.values.data_ptr())

    def leave(self) -> None:
        """Copies the parameter out of phub's memory, where it could not be written."""
        if self.inside:
            self.inside = False
            self.parameter.data = self.parameter.detach().clone()

    def has_pushed(self, gradient: Any) -> bool:
        """Whether phub's memory has the values of the parameter's gradient."""
        if gradient is None or gradient.shape != self.shape or gradient.layout != torch.strided:
            return False
        if gradient is self.seen and gradient._version == self.seen_version:
            return True
        return bool(torch.equal(gradient.detach().to(self.gradient.dtype), self.gradient))

    def forget(self) -> None:
        """A new step begins."""
        self.passes = 0
        self.seen = None
        self.pushed = False


def listed(slots: list[Slot]) -> str:
    """"parameters a, b and 3 more"."""
    names = ", ".join(slot.name for slot in slots[:_LISTED])
    more = f" and {len(slots) - _LISTED} more" if len(slots) > _LISTED else ""
    return f"parameter{'s' if len(slots) > 1 else ''} {names}{more}"


class Bundle:
    """A key of one group, with one or more parameters."""

    def __init__(self, slots: list[Slot], rule: server.Optimizer) -> None:
        self.slots = slots
        self.kind = type(rule)
        # The hyper-parameters of the last push. None: not those that the daemon has.
        self.rule: Optional[server.Optimizer] = rule
        self.key: Any = None
        self.missing = len(slots)  # gradients that are not in phub's memory yet
        self.handle: Optional[Handle] = None  # of the round of this step
        # Of the last step's round, until a module waits for it. Then the parameters are old.
        self.late: Optional[Handle] = None
        for slot in slots:
            slot.bundle = self

    @property
    def has_state(self) -> bool:
        return self.kind is not server.Sgd

    def names(self) -> str:
        return listed(self.slots)

    def spec(self, index: int, settings: Settings) -> KeySpec:
        first = self.slots[0]
        name = first.name
        if len(self.slots) > 1:
            name += f" and {len(self.slots) - 1} more"
        if not name.isprintable() or len(name.encode()) > _NAME_BYTES:
            name = f"parameter {index}"
        return KeySpec(
            name,
            dtype=name_of(key_dtype(first.dtype)),
            optimizer=self.rule,
            operation=settings.op,
            gradient_dtype=wire_name(settings.gradient_dtype, first.dtype),
            parameter_dtype=wire_name(settings.parameter_dtype, first.dtype),
            compression=settings.compression,
            tensors=[slot.shape for slot in self.slots],
        )

    def bind(self, key: Any, settings: Settings) -> None:
        """Points the slots to the key's memory."""
        self.key = key
        gradients = self._parts(key.gradients, settings.gradient_dtype)
        values = self._parts(key.parameters, settings.parameter_dtype)
        for slot, gradient, value in zip(self.slots, gradients, values):
            slot.gradient, slot.values = gradient, value

    def _parts(self, array: Any, dtype: Optional[str]) -> list[Any]:
        """The part of each slot in an array of phub's memory."""
        # frombuffer() of the address: from_numpy() warns about read-only memory.
        memory = raw(array.ctypes.data, array.nbytes, array)
        flat = memory.view(dtype_of(dtype, self.slots[0].dtype))
        parts = flat.split([slot.shape.numel() for slot in self.slots])
        return [part.view(slot.shape) for part, slot in zip(parts, self.slots)]

    def own_values(self) -> Any:
        """The parameters of this rank as an array, of the key's type. phub may use it until the
        round in which it is sent is complete."""
        dtype = key_dtype(self.slots[0].dtype)
        if self.slots[0].gradient.dtype == dtype:
            for slot in self.slots:
                copy(slot.gradient, slot.parameter.detach())
            return self.key.gradients
        parts = [slot.parameter.detach().reshape(-1) for slot in self.slots]
        return torch.cat(parts).to(dtype).numpy()

    def store(self) -> None:
        """Copies the new parameters from phub's memory. REQUIRES: the round is complete."""
        for slot in self.slots:
            slot.store()

    def replaced(self) -> None:
        """The daemon has other parameters and hyper-parameters now, and phub's memory, too."""
        self.rule = None
        self.store()

    def push(self, rule: server.Optimizer) -> None:
        """Starts the round of this step. REQUIRES: all gradients are in phub's memory."""
        if rule != self.rule:
            self.key.set_hyper_parameters(rule)
            self.rule = rule
        self.handle = self.key.push_pull()

    def finish(self) -> None:
        """The step is over."""
        self.missing = len(self.slots)
        self.handle = None
        for slot in self.slots:
            slot.forget()


def bundles_of(
    slots: list[Slot], rules: list[server.Optimizer], alone: bool
) -> Iterator[Bundle]:
    """Large parameters alone, small ones with the next small ones of their group and type.
    alone: no bundles.

    In the order of the parameters that come first in them. It depends only on groups, types and
    sizes, so it is the same on all ranks.
    """
    open_: dict[tuple[int, Any], list[Slot]] = {}
    plans: list[list[Slot]] = []
    for slot in slots:
        if alone or slot.bytes >= SMALL_BYTES:
            plans.append([slot])
            continue
        place = (slot.group, slot.dtype)
        if place not in open_:
            open_[place] = []
            plans.append(open_[place])
        open_[place].append(slot)
        if sum(each.bytes for each in open_[place]) >= BUNDLE_BYTES:
            del open_[place]
    for plan in plans:
        yield Bundle(plan, rules[plan[0].group])


def in_forward_order(bundles: list[Bundle]) -> list[Bundle]:
    """The order in which a forward pass needs them: a backward pass has the opposite one. Keys
    whose gradients no hook has seen keep the order of the parameters."""
    return sorted(bundles, key=lambda bundle: -max(slot.turn for slot in bundle.slots))


def add_keys(job: Job, bundles: list[Bundle], first: int, settings: Settings) -> None:
    """Adds the bundles' keys to the job. Every rank calls it alike."""
    specs = [bundle.spec(first + index, settings) for index, bundle in enumerate(bundles)]
    for bundle, key in zip(bundles, job.add_keys(specs)):
        bundle.bind(key, settings)
