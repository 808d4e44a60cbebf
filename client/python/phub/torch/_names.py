"""The names of an optimizer's parameters, for errors."""

from __future__ import annotations

from typing import Any, Iterable, Optional


class Names:
    """Of the parameters of one optimizer. The optimizer's thread."""

    def __init__(self, optimizer: Any, named_parameters: Optional[Iterable[Any]]) -> None:
        """Raises ValueError if the named parameters are not those of the optimizer."""
        self._names: dict[Any, str] = {}
        groups = optimizer.param_groups
        if named_parameters is not None:
            self._take(named_parameters)
            self._require_all(groups)
        for index, group in enumerate(groups):
            self.add(index, group)

    def of(self, parameter: Any) -> str:
        return self._names.get(parameter) or "without a name"

    def add(self, index: int, group: dict[str, Any]) -> None:
        """Names parameters that have no name by their places in a parameter group."""
        given = group.get("param_names")  # torch 2.6 and newer, if the caller named them
        for place, parameter in enumerate(group["params"]):
            name = given[place] if given else f"group {index} parameter {place}"
            self._names.setdefault(parameter, name)

    def _take(self, named_parameters: Iterable[Any]) -> None:
        taken: set[str] = set()
        for each in named_parameters:
            if not isinstance(each, tuple) or len(each) != 2:
                raise ValueError(
                    "named_parameters must be pairs of name and parameter, such as "
                    f"model.named_parameters(); found {type(each).__name__}"
                )
            name, parameter = each
            if name in taken:
                raise ValueError(f"named_parameters has the name {name!r} twice")
            taken.add(name)
            self._names.setdefault(parameter, name)

    def _require_all(self, groups: list[dict[str, Any]]) -> None:
        for index, group in enumerate(groups):
            for place, parameter in enumerate(group["params"]):
                if parameter not in self._names:
                    raise ValueError(
                        f"named_parameters has no name for parameter {place} of parameter group "
                        f"{index}, with shape {tuple(parameter.shape)}"
                    )
