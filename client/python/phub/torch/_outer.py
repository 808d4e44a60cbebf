"""phub.torch.DiLoCo: ranks train on their own and exchange how far they moved every H steps."""

from __future__ import annotations

import warnings
from typing import Any, Iterable, Optional

import torch

from .._compression import Compression
from ._bundles import Slot
from ._checks import changed_parameter
from ._errors import NotServed
from ._optimizer import _Distributed, wrap
from ._options import Options
from ._settings import Settings
from ._updates import Updates
from ._wire import chosen


class OuterUpdates(Updates):
    """Pushes the differences between the daemon's parameters and those of this rank."""

    def _take(self, slot: Slot) -> None:
        self._reports.refuse(changed_parameter(slot))
        torch.sub(slot.values, slot.parameter.detach(), out=slot.gradient)
        self._taken(slot)

    def warn_if_nothing_moved(self) -> None:
        """An inner optimizer that has other parameters than this one would train in vain."""
        if all(slot.parameter._version == slot.version for slot in self._slots):
            warnings.warn(
                "no parameter of the outer optimizer was written since the last exchange: the "
                "inner optimizer skipped its steps, or the model has other parameters now, for "
                "example after .to() or load_state_dict(assign=True)",
                stacklevel=4,
            )

    def _check_absent(self, slots: list[Slot]) -> None:
        """A parameter without a gradient did not move, which is no error."""


class _Outer(_Distributed):
    """The methods of an outer optimizer. Its thread is the caller's."""

    _phub: OuterUpdates
    _sync_every: int
    _inner_steps: int = 0  # since the last exchange

    def step(self, closure: Any = None) -> bool:  # type: ignore[override]
        """Counts a step of the inner optimizer; every sync_every-th call exchanges. Every rank
        calls it equally often. Returns whether the parameters were exchanged."""
        if closure is not None:
            raise NotServed("step(closure) of an outer optimizer is not served")
        self._inner_steps += 1
        if self._inner_steps < self._sync_every:
            return False
        self.exchange()
        return True

    def exchange(self) -> None:
        """Exchanges now, for example after the last step of a training. Every rank calls it."""
        if self._inner_steps > 0:
            self._phub.warn_if_nothing_moved()
        self._phub.step()
        self._inner_steps = 0


def DiLoCo(
    optimizer: Any,
    named_parameters: Optional[Iterable[tuple[str, Any]]] = None,
    *,
    sync_every: int,
    process_group: Any = None,
    options: Optional[Options] = None,
    op: str = "mean",
    clip_value: float = 0.0,
    clip_norm: float = 0.0,
    skip_nonfinite: bool = False,
    screening: str = "reject",
    apply: str = "chunk",
    timeout: float = 1800.0,
    gradient_dtype: Any = None,
    parameter_dtype: Any = None,
    sum: str = "float",
    compression: Optional[Compression] = None,
) -> Any:
    """Turns an optimizer of torch.optim into an outer optimizer, and returns it.

    For ranks that are far apart. Each rank trains with an inner optimizer of its own, and calls
    step() of the outer one after each step of the inner one:

        inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
        outer = phub.torch.DiLoCo(
            torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True),
            model.named_parameters(), sync_every=100)
        for x, y in batches:
            inner.zero_grad()
            loss(model(x), y).backward()
            inner.step()
            outer.step()   # exchanges in every 100th call

    In an exchange each rank pushes how far its parameters moved since the last one: the old values
    minus the new ones. The daemon takes the mean of all ranks as the gradient of the outer
    optimizer, and all ranks continue with its result. The state of the outer optimizer is in the
    daemon; that of the inner one stays in the rank. SGD with lr=1 and no momentum averages the
    parameters (local SGD). Buffers, such as those of BatchNorm, are not exchanged.

    sync_every: steps between two exchanges.
    skip_nonfinite: if a rank has NaN or infinity, all ranks return to the parameters of the last
    exchange.
    gradient_dtype, compression: how the differences that are pushed travel.
    DistributedOptimizer() describes the other arguments. All except process_group and options are
    the same on all ranks. state_dict() has the state of the last exchange: save right after one.
    """
    settings = Settings(
        backward_passes_per_step=1,
        op=op,
        push="step",
        clip_value=clip_value,
        clip_norm=clip_norm,
        skip_nonfinite=skip_nonfinite,
        screening=screening,
        apply=apply,
        skip_unused=False,
        timeout=timeout,
        sync_every=sync_every,
        gradient_dtype=chosen("gradient_dtype", gradient_dtype),
        parameter_dtype=chosen("parameter_dtype", parameter_dtype),
        sum=sum,
        compression=compression,
    )
    outer = wrap(
        optimizer, named_parameters, process_group, options, settings, _Outer, OuterUpdates
    )
    outer._sync_every = sync_every
    return outer
