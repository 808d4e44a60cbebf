"""16-bit gradients and parameters between ranks and the daemon (gradient_dtype, parameter_dtype).

The daemon sums 16-bit gradients in float32, and updates float32 masters of 16-bit parameters. The
ranks receive them rounded to 16 bits. Only state_dict() has the masters themselves. A model in
float16 or bfloat16 is served in this way, too.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from ._errors import NotServed
from ._types import name_of

MASTER = "master"  # the state in state_dict()
_SERVED = ("float16", "bfloat16")


def chosen(option: str, given: Any) -> Optional[str]:
    """The name of the type that the caller has chosen. None: the parameter's own type."""
    if given is None:
        return None
    name = name_of(given)
    if name not in _SERVED:
        raise ValueError(
            f"{option} is {given}; it must be torch.float16, torch.bfloat16 or None, which means "
            "the type of each parameter"
        )
    return name


def dtype_of(name: Optional[str], own: Any) -> Any:
    """own: the parameter's type."""
    return own if name is None else getattr(torch, name)


def key_dtype(own: Any) -> Any:
    """The type in which the daemon updates a parameter of the type `own`."""
    return own if own == torch.float64 else torch.float32


def wire_name(chosen_name: Optional[str], own: Any) -> Optional[str]:
    """The type that travels, for a key; None: the key's own."""
    if chosen_name is not None or own == key_dtype(own):
        return chosen_name
    return name_of(own)


def check_dtypes(
    parameter: Any, name: str, gradient_dtype: Optional[str], parameter_dtype: Optional[str]
) -> None:
    """Raises NotServed if the daemon has no such 16-bit form of this parameter."""
    if parameter.dtype == torch.float32:
        return
    for option, value in (("gradient_dtype", gradient_dtype), ("parameter_dtype", parameter_dtype)):
        if value is not None and value != name_of(parameter.dtype):
            raise NotServed(
                f"parameter {name} is {name_of(parameter.dtype)}, but {option}={value} serves only "
                "float32 parameters: use an optimizer of its own for this parameter"
            )


def master_of(values: Any, saved: Any, dtype: Any) -> Any:
    """The master of a parameter with these values, from a saved state.

    The saved master counts where it rounds to the parameter's value. Elsewhere the parameter was
    changed without it, for example by torch.optim.
    """
    if saved is None:
        return values
    saved = saved.reshape(-1)
    return torch.where(saved.to(dtype).to(values.dtype) == values, saved, values)


def uncast(loaded: Any, saved: Any) -> Any:
    """A state of torch.optim as it was saved. load_state_dict() rounds the state of 16-bit
    parameters to their type; masters and moments of the daemon are float32."""
    if isinstance(saved, torch.Tensor) and saved.dtype != loaded.dtype:
        return saved.detach().clone()
    return loaded
