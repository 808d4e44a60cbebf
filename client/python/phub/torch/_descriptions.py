"""What a rank wraps: its optimizer and the parameters. All ranks must wrap the same; ranks compare
digests, and read each other's descriptions only if these differ."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, Optional

from ._names import Names

# Hyper-parameters of the daemon's optimizers, by torch's names.
_VALUES = (
    "lr", "betas", "eps", "alpha", "momentum", "dampening", "nesterov", "centered", "weight_decay",
    "lr_decay", "initial_accumulator_value",
)


@dataclasses.dataclass(frozen=True)
class Description:
    """``call``: DistributedOptimizer or DiLoCo."""

    call: str
    optimizer: str  # its class
    values: list[dict[str, str]]  # hyper-parameters of each group
    parameters: list[list[Any]]  # name, parameter group, shape and type, whether it is trained

    @staticmethod
    def of(call: str, optimizer: Any, names: Names) -> "Description":
        groups = optimizer.param_groups
        values = [{name: repr(each[name]) for name in _VALUES if name in each} for each in groups]
        parameters = [
            [
                names.of(parameter),
                index,
                f"{tuple(parameter.shape)} of {str(parameter.dtype).replace('torch.', '')}",
                bool(parameter.requires_grad),
            ]
            for index, group in enumerate(groups)
            for parameter in group["params"]
        ]
        return Description(call, type(optimizer).__name__, values, parameters)

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def parsed(text: str) -> "Description":
        return Description(**json.loads(text))

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()

    def difference(self, other: "Description", own_rank: int, rank: int) -> Optional[str]:
        """The first one. None: there is no difference."""
        if self.optimizer != other.optimizer:
            return f"rank {own_rank} has {self.optimizer}, and rank {rank} has {other.optimizer}"
        for mine, theirs in zip(self.parameters, other.parameters):
            if mine == theirs:
                continue
            name, group, kind, trained = mine
            if theirs[0] != name:
                return (
                    f"where rank {own_rank} has parameter {name} of parameter group {group}, "
                    f"rank {rank} has parameter {theirs[0]} of parameter group {theirs[1]}"
                )
            for what, own, its in (
                ("parameter group", group, theirs[1]),
                ("shape and type", kind, theirs[2]),
                ("requires_grad", trained, theirs[3]),
            ):
                if own != its:
                    return (
                        f"{what} of parameter {name} is {own} on rank {own_rank}, and {its} on "
                        f"rank {rank}"
                    )
        if len(self.parameters) != len(other.parameters):
            more, which = (self, own_rank)
            if len(other.parameters) > len(self.parameters):
                more, which = (other, rank)
            count = min(len(self.parameters), len(other.parameters))
            return (
                f"rank {own_rank} has {len(self.parameters)} parameters, and rank {rank} has "
                f"{len(other.parameters)}: only rank {which} has {more.parameters[count][0]}"
            )
        for index, (ours, its_values) in enumerate(zip(self.values, other.values)):
            for name, value in ours.items():
                if its_values.get(name) != value:
                    return (
                        f"{name} of parameter group {index} is {value} on rank {own_rank}, and "
                        f"{its_values.get(name)} on rank {rank}"
                    )
        if len(self.values) != len(other.values):
            return (
                f"rank {own_rank} has {len(self.values)} parameter groups, and rank {rank} has "
                f"{len(other.values)}"
            )
        return None
