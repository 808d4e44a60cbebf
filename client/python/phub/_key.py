"""Keys: tensors, or bundles of tensors, with the optimizer that updates them."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Optional

from . import _library, _types
from ._blocking import run_interruptibly
from ._errors import FailedPrecondition, check
from ._library import lib
from ._optimizers import Optimizer, to_c
from ._rounds import Handle
from ._types import Array


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a key consists of."""

    name: str
    number: int
    gradient_number: int
    parameter_number: int
    shape: tuple[int, ...]
    tensors: tuple[tuple[int, ...], ...]  # more than one for a bundle
    gradient_shape: tuple[int, ...]  # of the parts that this rank sends
    parameter_shape: tuple[int, ...]  # of the parts that it receives


class Key:
    """A key of a job. Made by :meth:`phub.Job.add_key` and its siblings.

    ``gradients`` and ``parameters`` are arrays in phub's memory. Between a push and the end of its
    round, do not write the gradients, and neither read nor write the parameters.
    """

    def __init__(self, job: Any, pointer: int, layout: Layout) -> None:
        self._pointer: Optional[int] = pointer
        self._job = job  # keeps it joined while the key is used
        self._layout = layout
        owner = _Owner(pointer)
        self._owner = owner
        shape = layout.parameter_shape
        self.gradients: Array = _types.view(
            lib.phub_key_gradients(pointer), layout.gradient_shape, owner, writable=True
        )
        mutable = lib.phub_key_mutable_parameters(pointer)
        self.parameters: Array = _types.view(
            lib.phub_key_parameters(pointer), shape, owner, writable=False
        )
        self._mutable: Optional[Array] = (
            _types.view(mutable, shape, owner, writable=True)
            if mutable.data or 0 in shape
            else None
        )

    def __repr__(self) -> str:
        return f"<phub.Key {self.name} {self.shape} of job {self._job.name}>"

    @property
    def name(self) -> str:
        return self._layout.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout.shape

    @property
    def iteration(self) -> int:
        """Number of rounds that completed on this rank, including broadcasts."""
        return int(lib.phub_key_iteration(self._pointer))

    @property
    def parameters_shared(self) -> bool:
        """Whether workers of this host have one copy of ``parameters``, read-only for them."""
        return self._mutable is None

    @property
    def mutable_parameters(self) -> Array:
        """``parameters``, writable between rounds; only with copy=True or without an optimizer."""
        if self._mutable is None:
            raise FailedPrecondition(
                f"the parameters of key {self.name} may be shared with other workers; add the key "
                "with copy=True to write them",
                **self._place(),
            )
        return self._mutable

    def tensors(self) -> list[tuple[Array, Array]]:
        """Gradients and parameters of each tensor of a bundle, with its shape."""
        if len(self._layout.tensors) == 1:
            return [(self.gradients, self.parameters)]
        views = []
        offset = 0
        gradients, parameters = self.gradients.reshape(-1), self.parameters.reshape(-1)
        for shape in self._layout.tensors:
            end = offset + _types.count_of(shape)
            views.append(
                (gradients[offset:end].reshape(shape), parameters[offset:end].reshape(shape))
            )
            offset = end
        return views

    def initialize(self, values: Optional[Any] = None) -> None:
        """Sets the parameters of every rank to rank 0's values; blocks until they arrive.

        values: an array of the key's type on rank 0; ignored on other ranks.
        """
        elements = None
        if values is not None and self._job.rank == 0:
            elements = self._lend(
                values, "initial values", self._layout.number, self.shape, writable=False
            )
        run_interruptibly(
            lambda: check(lib.phub_job_initialize, self._job._pointer, self._pointer, elements)
        )

    def push_pull(
        self, gradients: Optional[Any] = None, parameters: Optional[Any] = None
    ) -> Handle:
        """Starts a round: sends the gradients, and receives the new parameters.

        Without arguments it uses the key's own arrays, and copies nothing. The caller's arrays must
        be contiguous, and phub uses them until the handle is complete. They may be one array, if
        its type is that of both. If only `gradients` are given, the new parameters arrive in the
        key's own array.
        """
        handle = ctypes.c_void_p()
        if gradients is None and parameters is None:
            check(lib.phub_key_push_pull, self._pointer, ctypes.byref(handle))
            lent: tuple[Any, ...] = ()
        else:
            sent = self.gradients if gradients is None else gradients
            layout = self._layout
            source = self._lend(
                sent, "gradients", layout.gradient_number, layout.gradient_shape, writable=False
            )
            target = None
            if parameters is not None:
                target = self._lend(
                    parameters,
                    "parameters",
                    layout.parameter_number,
                    layout.parameter_shape,
                    writable=True,
                )
            check(
                lib.phub_key_push_pull_with,
                self._pointer,
                source,
                target,
                ctypes.byref(handle),
            )
            lent = (sent, parameters)
        return self._started(handle, lent)

    def push_pull_to_skip(self) -> Handle:
        """With apply="iteration": like push_pull(), but requests that the iteration be skipped."""
        handle = ctypes.c_void_p()
        check(lib.phub_key_push_pull_to_skip, self._pointer, ctypes.byref(handle))
        return self._started(handle, ())

    def broadcast(self, root: int, values: Optional[Any] = None) -> Handle:
        """Starts a round that sends every rank the values of rank `root`.

        values: an array of the key's type, or None on all ranks for the root's parameters.
        """
        elements = None
        if values is not None:
            elements = self._lend(
                values, "values", self._layout.number, self.shape, writable=False
            )
        handle = ctypes.c_void_p()
        check(
            lib.phub_job_broadcast,
            self._job._pointer,
            self._pointer,
            root,
            elements,
            ctypes.byref(handle),
        )
        return self._started(handle, (values,))

    def pull(self) -> Handle:
        """Another handle of the last push."""
        handle = ctypes.c_void_p()
        check(lib.phub_key_pull, self._pointer, ctypes.byref(handle))
        assert handle.value is not None
        return Handle(handle.value, self)

    def set_hyper_parameters(self, optimizer: Optimizer) -> None:
        """Changes the hyper-parameters from the next push on, on every rank alike."""
        check(lib.phub_key_set_hyper_parameters, self._pointer, to_c(optimizer))

    def _started(self, handle: ctypes.c_void_p, lent: tuple[Any, ...]) -> Handle:
        # Only now: a refused push leaves the previous round's memory in use.
        self._job._lent[self.name] = lent
        assert handle.value is not None
        return Handle(handle.value, self)

    def _lend(
        self, array: Any, what: str, number: int, shape: tuple[int, ...], writable: bool
    ) -> _library.Elements:
        return _types.lend(array, what, number, shape, writable, **self._place())

    def _place(self) -> dict[str, Any]:
        rank = self._job.rank
        return {"job": self._job.name, "key": self.name, "rank": rank, "own_rank": rank}


class _Owner:
    """Frees a phub_key when neither its Key nor an array refers to it."""

    def __init__(self, pointer: int) -> None:
        self._pointer: Optional[int] = pointer

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer:
            lib.phub_key_free(pointer)
