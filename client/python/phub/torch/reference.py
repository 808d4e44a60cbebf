"""What the daemon computes, in torch: one plain operation for each operation of a formula.

    states = {}
    reference.step(states, parameter, gradient, phub.Adam(learning_rate=0.01), count=1)

With the same combined gradient, a DistributedOptimizer gives the same bits. torch.optim rounds
elsewhere (addcmul, lerp and alpha= round once for two operations), so its last bits differ.

transmitted() is what arrives of a compressed gradient.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .. import _optimizers as server
from ._encodings import kept_of, seed_of, transmitted

__all__ = ["combined", "kept_of", "seed_of", "step", "transmitted"]

States = dict[str, Any]


def combined(gradients: list[Any], op: str = "mean") -> Any:
    """The gradient that the daemon uses: the ranks' gradients, added in the order of ranks."""
    total = gradients[0].clone()
    for gradient in gradients[1:]:
        total = torch.add(total, gradient)
    return torch.div(total, _scalar(total, float(len(gradients)))) if op == "mean" else total


def step(
    states: States, parameter: Any, gradient: Any, rule: server.Optimizer, count: int
) -> None:
    """Updates `parameter` (float32 or float64, any shape) and `states` in place.

    count: the number of this step, from 1. States of earlier steps are ignored in step 1.
    """
    if rule.clip_value > 0.0:
        gradient = torch.clamp(gradient, -rule.clip_value, rule.clip_value)
    decay = 0.0 if isinstance(rule, server.AdamW) else rule.weight_decay
    if decay != 0.0:
        gradient = torch.add(gradient, _times(parameter, decay))
    if isinstance(rule, server.Sgd):
        change = _times(gradient, rule.learning_rate)
    elif isinstance(rule, (server.Momentum, server.Nesterov)):
        change = _momentum(states, gradient, rule, count)
    elif isinstance(rule, server.Adagrad):
        change = _adagrad(states, gradient, rule, count)
    elif isinstance(rule, (server.RmsProp, server.RmsPropMomentum, server.RmsPropCentered)):
        change = _rmsprop(states, gradient, rule, count)
    else:
        change = _adam(states, gradient, rule, count)
        if isinstance(rule, server.AdamW):
            parameter.copy_(_times(parameter, 1.0 - rule.learning_rate * rule.weight_decay))
    parameter.copy_(torch.sub(parameter, change))


def _scalar(like: Any, value: float) -> Any:
    """`value`, rounded to the type of `like`. Then no operation mixes types."""
    return torch.tensor(value, dtype=torch.float64).to(like.dtype)


def _times(tensor: Any, value: float) -> Any:
    return torch.mul(_scalar(tensor, value), tensor)


def _root(tensor: Any) -> Any:
    """The square root, rounded once, as IEEE 754 demands. torch.sqrt() with MKL is not."""
    return torch.from_numpy(np.asarray(np.sqrt(tensor.numpy())))


def _momentum(states: States, gradient: Any, rule: Any, count: int) -> Any:
    nesterov = isinstance(rule, server.Nesterov)
    dampening = 0.0 if nesterov else rule.dampening
    if count == 1:
        buffer = gradient.clone()
    else:
        kept = _times(states["momentum"], rule.momentum)
        buffer = torch.add(kept, _times(gradient, 1.0 - dampening))
    states["momentum"] = buffer
    if nesterov:
        buffer = torch.add(gradient, _times(buffer, rule.momentum))
    return _times(buffer, rule.learning_rate)


def _adam(states: States, gradient: Any, rule: Any, count: int) -> Any:
    if count == 1:
        states["first_moment"] = torch.zeros_like(gradient)
        states["second_moment"] = torch.zeros_like(gradient)
    first = torch.add(
        _times(states["first_moment"], rule.beta1), _times(gradient, 1.0 - rule.beta1)
    )
    square = torch.mul(_times(gradient, 1.0 - rule.beta2), gradient)
    second = torch.add(_times(states["second_moment"], rule.beta2), square)
    states["first_moment"], states["second_moment"] = first, second
    size = rule.learning_rate / (1.0 - _power(rule.beta1, count))
    correction = math.sqrt(1.0 - _power(rule.beta2, count))
    root = torch.div(_root(second), _scalar(second, correction))
    return torch.div(_times(first, size), torch.add(root, _scalar(root, rule.epsilon)))


def _adagrad(states: States, gradient: Any, rule: Any, count: int) -> Any:
    if count == 1:
        states["sum_of_squares"] = torch.full_like(gradient, rule.initial_accumulator)
    total = torch.add(states["sum_of_squares"], torch.mul(gradient, gradient))
    states["sum_of_squares"] = total
    size = rule.learning_rate / (1.0 + (count - 1) * rule.learning_rate_decay)
    root = torch.add(_root(total), _scalar(total, rule.epsilon))
    return torch.div(_times(gradient, size), root)


def _rmsprop(states: States, gradient: Any, rule: Any, count: int) -> Any:
    other = {server.RmsPropMomentum: "momentum", server.RmsPropCentered: "gradient_average"}
    if count == 1:
        for name in ("square_average", *filter(None, [other.get(type(rule))])):
            states[name] = torch.zeros_like(gradient)
    square = torch.mul(_times(gradient, 1.0 - rule.alpha), gradient)
    average = torch.add(_times(states["square_average"], rule.alpha), square)
    states["square_average"] = average
    if isinstance(rule, server.RmsPropCentered):
        mean = torch.add(
            _times(states["gradient_average"], rule.alpha), _times(gradient, 1.0 - rule.alpha)
        )
        states["gradient_average"] = mean
        average = torch.sub(average, torch.mul(mean, mean))
    root = torch.add(_root(average), _scalar(average, rule.epsilon))
    if not isinstance(rule, server.RmsPropMomentum):
        return torch.div(_times(gradient, rule.learning_rate), root)
    momentum = torch.add(_times(states["momentum"], rule.momentum), torch.div(gradient, root))
    states["momentum"] = momentum
    return _times(momentum, rule.learning_rate)


def _power(base: float, exponent: int) -> float:
    """base ** exponent with the daemon's bits (common/optimizer/power.cc): squares and products of
    pairs of doubles, since the C library's pow differs between machines."""
    result, square = (1.0, 0.0), (base, 0.0)
    while exponent:
        if exponent & 1:
            result = _product(result, square)
        square = _product(square, square)
        exponent >>= 1
    return result[0]


def _product(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    product = a[0] * b[0]
    (x, x_low), (y, y_low) = _halves(a[0]), _halves(b[0])
    lost = ((x * y - product) + x * y_low + x_low * y) + x_low * y_low
    low = lost + (a[0] * b[1] + a[1] * b[0])
    high = product + low
    return high, low - (high - product)


def _halves(a: float) -> tuple[float, float]:
    scaled = 134217729.0 * a  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high
