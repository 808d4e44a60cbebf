"""Optimizers, defined as in torch.optim. They run in the daemon; ``g`` is the combined gradient."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import ClassVar, Optional, Union, get_args

from . import _library


@dataclasses.dataclass(frozen=True)
class Sgd:
    """p -= learning_rate * (g + weight_decay * p)"""

    learning_rate: float
    weight_decay: float = 0.0
    clip_value: float = 0.0
    _kind: ClassVar[int] = 1


@dataclasses.dataclass(frozen=True)
class Momentum:
    """d = g + weight_decay * p; b = momentum * b + (1 - dampening) * d; p -= learning_rate * b"""

    learning_rate: float
    momentum: float
    dampening: float = 0.0
    weight_decay: float = 0.0
    clip_value: float = 0.0
    _kind: ClassVar[int] = 2


@dataclasses.dataclass(frozen=True)
class Nesterov:
    """b as in Momentum without dampening; p -= learning_rate * (g + momentum * b)"""

    learning_rate: float
    momentum: float
    weight_decay: float = 0.0
    clip_value: float = 0.0
    _kind: ClassVar[int] = 3


@dataclasses.dataclass(frozen=True)
class Adam:
    """Kingma and Ba 2015; weight_decay is added to g."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_value: float = 0.0
    _kind: ClassVar[int] = 4


@dataclasses.dataclass(frozen=True)
class AdamW:
    """Loshchilov and Hutter 2019; weight_decay shrinks p."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 1e-2
    clip_value: float = 0.0
    _kind: ClassVar[int] = 5


@dataclasses.dataclass(frozen=True)
class Adagrad:
    """Duchi, Hazan and Singer 2011."""

    learning_rate: float = 1e-2
    learning_rate_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator: float = 0.0
    epsilon: float = 1e-10
    clip_value: float = 0.0
    _kind: ClassVar[int] = 6


@dataclasses.dataclass(frozen=True)
class RmsProp:
    """Hinton 2012; alpha is the decay of the average of squares."""

    learning_rate: float = 1e-2
    alpha: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_value: float = 0.0
    _kind: ClassVar[int] = 7


@dataclasses.dataclass(frozen=True)
class RmsPropMomentum:
    """RMSprop of torch.optim with momentum."""

    learning_rate: float = 1e-2
    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_value: float = 0.0
    _kind: ClassVar[int] = 8


@dataclasses.dataclass(frozen=True)
class RmsPropCentered:
    """Graves 2013, without momentum: divides by an estimate of the gradient's standard deviation.

    As in torch.optim, rounding can make the estimated variance of a constant gradient negative, and
    the result NaN."""

    learning_rate: float = 1e-2
    alpha: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_value: float = 0.0
    _kind: ClassVar[int] = 9


Optimizer = Union[
    Sgd, Momentum, Nesterov, Adam, AdamW, Adagrad, RmsProp, RmsPropMomentum, RmsPropCentered
]


def to_c(optimizer: Optional[Optimizer]) -> Optional[_library.Optimizer]:
    """phub_optimizer; None: no optimizer."""
    if optimizer is None:
        return None
    if not isinstance(optimizer, get_args(Optimizer)):
        raise TypeError(f"{optimizer!r} is not an optimizer of phub, such as phub.Sgd(0.1)")
    values = _library.Optimizer(struct_size=ctypes.sizeof(_library.Optimizer), kind=optimizer._kind)
    for field in dataclasses.fields(optimizer):
        setattr(values, field.name, float(getattr(optimizer, field.name)))
    return values
