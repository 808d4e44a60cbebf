"""torch.optim's parameter groups as optimizers of the daemon, and what the daemon cannot do."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .. import _optimizers as server
from ._errors import NotServed
from ._settings import Settings
from ._wire import MASTER, check_dtypes

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# What a group may ask for that changes the formula. `foreach`, `fused` and `capturable` do not.
_FLAGS = {
    "maximize": "negate the loss instead",
    "amsgrad": "the daemon's Adam keeps no maximum of second moments",
    "differentiable": "the update runs in the daemon, where autograd does not see it",
}


def _number(group: dict[str, Any], name: str, where: str) -> float:
    value = group[name]
    if isinstance(value, torch.Tensor):
        raise NotServed(
            f"{name} of {where} is a tensor, which phub does not serve: pass a Python number"
        )
    return float(value)


def _sgd(group: dict[str, Any], where: str) -> server.Optimizer:
    rate, decay = _number(group, "lr", where), _number(group, "weight_decay", where)
    momentum, dampening = _number(group, "momentum", where), _number(group, "dampening", where)
    if group["nesterov"]:
        return server.Nesterov(rate, momentum, decay)
    if momentum == 0.0:
        return server.Sgd(rate, decay)
    return server.Momentum(rate, momentum, dampening, decay)


def _adam(group: dict[str, Any], where: str) -> server.Optimizer:
    for beta in group["betas"]:
        _number({"betas": beta}, "betas", where)
    beta1, beta2 = (float(beta) for beta in group["betas"])
    rate, epsilon = _number(group, "lr", where), _number(group, "eps", where)
    decay = _number(group, "weight_decay", where)
    if group.get("decoupled_weight_decay", False):
        return server.AdamW(rate, beta1, beta2, epsilon, decay)
    return server.Adam(rate, beta1, beta2, epsilon, decay)


def _adamw(group: dict[str, Any], where: str) -> server.Optimizer:
    return _adam({**group, "decoupled_weight_decay": True}, where)


def _adagrad(group: dict[str, Any], where: str) -> server.Optimizer:
    return server.Adagrad(
        _number(group, "lr", where),
        _number(group, "lr_decay", where),
        _number(group, "weight_decay", where),
        _number(group, "initial_accumulator_value", where),
        _number(group, "eps", where),
    )


def _rmsprop(group: dict[str, Any], where: str) -> server.Optimizer:
    common = {
        "learning_rate": _number(group, "lr", where),
        "alpha": _number(group, "alpha", where),
        "epsilon": _number(group, "eps", where),
        "weight_decay": _number(group, "weight_decay", where),
    }
    momentum = _number(group, "momentum", where)
    if group["centered"]:
        if momentum != 0.0:
            raise NotServed(
                f"centered=True with momentum={momentum:g} of {where} is not served: it needs "
                "three states for each element, and the daemon keeps at most two"
            )
        return server.RmsPropCentered(**common)
    if momentum == 0.0:
        return server.RmsProp(**common)
    return server.RmsPropMomentum(momentum=momentum, **common)


_RULES: dict[Any, Callable[[dict[str, Any], str], server.Optimizer]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
}


def check_class(optimizer: Any) -> None:
    """Raises TypeError or NotServed if the daemon has no such optimizer."""
    kind = type(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"DistributedOptimizer wraps a torch.optim optimizer, not {kind.__name__}")
    if kind not in _RULES:
        names = ", ".join(each.__name__ for each in _RULES)
        why = "it needs a closure" if kind.__name__ == "LBFGS" else "the daemon has no such formula"
        raise NotServed(
            f"the optimizer {kind.__module__}.{kind.__qualname__} is not served: {why}. phub "
            f"serves {names} of torch.optim, and no subclasses of them"
        )


def has_stepped(optimizer: Any) -> bool:
    """Whether an optimizer of torch.optim has state of earlier steps. Adagrad has state before."""
    for state in optimizer.state.values():
        if "step" in state and MASTER not in state:
            if float(state["step"]) > 0.0:
                return True
        elif any(value is not None for value in state.values()):
            return True
    return False


def rule_of(kind: Any, group: dict[str, Any], where: str) -> server.Optimizer:
    """The daemon's optimizer for a group. kind: the class in torch.optim. where: for messages."""
    for name, why in _FLAGS.items():
        if group.get(name, False):
            raise NotServed(f"{name}=True of {where} is not served: {why}")
    return _RULES[kind](group, where)


def check_parameter(parameter: Any, name: str) -> None:
    """Raises NotServed for a parameter that the daemon cannot update."""
    if type(parameter.data) is not torch.Tensor:
        kind = type(parameter.data).__name__
        raise NotServed(f"parameter {name} is a {kind}; phub updates whole plain tensors")
    dtype = str(parameter.dtype).replace("torch.", "")
    if parameter.is_complex():
        raise NotServed(f"parameter {name} is complex ({dtype}), which phub does not serve")
    if parameter.layout != torch.strided:
        layout = str(parameter.layout).rsplit(".", 1)[-1]
        raise NotServed(f"parameter {name} is {layout}, which phub does not serve")
    if parameter.dtype not in _DTYPES:
        raise NotServed(
            f"parameter {name} is {dtype}; phub updates float32, float64, float16 and bfloat16"
        )
    if parameter.device.type != "cpu":
        raise NotServed(
            f"parameter {name} is on {parameter.device}, and the daemon's optimizers serve "
            "parameters on the CPU only. Move the model to the CPU, or wrap it in "
            "DistributedDataParallel with an optimizer of torch.optim: the backend phub takes CUDA "
            "tensors"
        )
    if parameter.numel() == 0:
        raise NotServed(f"parameter {name} has no elements; leave it out of the optimizer")


def check_parameters(
    group: dict[str, Any], index: int, name_of: Callable[[Any], str], settings: Settings
) -> None:
    """Raises for parameters of a group that the daemon cannot update."""
    seen: set[int] = set()
    for parameter in group["params"]:
        name = name_of(parameter)
        check_parameter(parameter, name)
        check_dtypes(parameter, name, settings.gradient_dtype, settings.parameter_dtype)
        if settings.compression is not None and parameter.dtype != torch.float32:
            raise NotServed(
                f"parameter {name} is {parameter.dtype}, but compression serves only float32 "
                "parameters: use an optimizer of its own for this parameter"
            )
        if id(parameter) in seen:
            raise ValueError(f"parameter {name} is twice in parameter group {index}")
        seen.add(id(parameter))
