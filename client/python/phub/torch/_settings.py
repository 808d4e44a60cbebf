"""The options of a DistributedOptimizer."""

from __future__ import annotations

import dataclasses
from typing import Optional

from .._compression import Compression, Int8, RandomK, TopK

_CHOICES = {
    "op": ("mean", "sum"),
    "push": ("backward", "step"),
    "apply": ("chunk", "iteration"),
    "sum": ("float", "fixed"),
    "screening": ("off", "report", "reject"),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """DistributedOptimizer() explains each."""

    backward_passes_per_step: int
    op: str
    push: str
    apply: str
    clip_norm: float
    clip_value: float
    skip_nonfinite: bool
    skip_unused: bool
    timeout: float  # seconds
    sync_every: int = 1  # DiLoCo() explains it
    gradient_dtype: Optional[str] = None  # see _wire.py
    parameter_dtype: Optional[str] = None
    sum: str = "float"
    compression: Optional[Compression] = None
    restart: bool = False
    screening: str = "reject"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
        if not isinstance(self.compression, (type(None), Int8, TopK, RandomK)):
            raise ValueError(
                f"compression is {self.compression!r}; it must be None, phub.Int8(), "
                "phub.TopK(share) or phub.RandomK(share)"
            )
        if self.compression is not None and self.gradient_dtype is not None:
            raise ValueError(
                f"gradient_dtype={self.gradient_dtype} cannot be combined with compression="
                f"{self.compression}: choose one of them"
            )
        if self.compression is not None and self.sum == "fixed":
            raise ValueError(f"compression={self.compression} does not work with sum='fixed'")
        if self.backward_passes_per_step < 1:
            raise ValueError(
                f"backward_passes_per_step is {self.backward_passes_per_step}; it must be at "
                "least 1"
            )
        if self.sync_every < 1:
            raise ValueError(f"sync_every is {self.sync_every}; it must be at least 1")
        if self.whole and self.skip_unused:
            raise ValueError(
                "skip_unused cannot be combined with clip_norm, skip_nonfinite or "
                'apply="iteration": an iteration has the gradients of all parameters'
            )

        if self.restart and (self.whole or self.skip_unused):
            raise ValueError(
                "restart=True cannot be combined with clip_norm, skip_nonfinite, "
                'apply="iteration" or skip_unused: a process that takes over a rank could not '
                "repeat the decisions about the current step"
            )

    @property
    def screened(self) -> str:
        """What the daemon does with sums that are not finite. Skipping a step is no error."""
        return "report" if self.skip_nonfinite and self.screening == "reject" else self.screening

    @property
    def whole(self) -> bool:
        """The daemon applies a step to all parameters or to none."""
        return self.apply == "iteration" or self.clip_norm > 0.0 or self.skip_nonfinite
