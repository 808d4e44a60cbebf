"""16-bit gradients and parameters between ranks and the daemon (gradient_dtype, parameter_dtype).

The daemon sums 16-bit gradients in float32, and updates masters: parameters in the type that the
model has. With parameter_dtype the ranks receive the masters rounded to 16 bits. Only state_dict()
has the masters themselves.
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


def check_dtypes(
    parameter: Any, name: str, gradient_dtype: Optional[str], parameter_dtype: Optional[str]
) -> None:
    """Raises NotServed if the daemon has no 16-bit form of this parameter."""
    if parameter.dtype == torch.float32:
        return
    for option, value in (("gradient_dtype", gradient_dtype), ("parameter_dtype", parameter_dtype)):
        if value is not None:
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
