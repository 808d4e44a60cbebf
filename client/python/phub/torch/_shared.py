"""Parameters of a model that lie in phub's memory, which processes of one host share."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Iterable

import torch

from .._errors import check
from .._library import lib
from ._bundles import Bundle, Slot
from ._errors import NotServed

_log = logging.getLogger("phub")


class SharedParameters:
    """Moves parameters of a model into phub's memory and out of it. The optimizer's thread.

    Out of it: load_state_dict() writes parameters, and this memory can only be read.
    """

    def __init__(self, model: Any) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(
                f"share_parameters must be the model, a torch.nn.Module, not {type(model).__name__}"
            )
        if not hasattr(torch.autograd.graph, "increment_version"):
            raise NotServed(
                "share_parameters needs torch.autograd.graph.increment_version(), which torch "
                f"{torch.__version__} does not have"
            )
        self._model = model
        self._hooked: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._handles: list[Any] = []
        self._slots: dict[Any, Slot] = {}  # by parameter

    def add(self, slots: Iterable[Slot]) -> None:
        """These parameters move with their next values. Raises ValueError for one that is not the
        model's."""
        own = set(self._model.parameters())
        for slot in slots:
            if slot.parameter not in own:
                raise ValueError(
                    f"share_parameters is a model that does not have parameter {slot.name}"
                )
            slot.shared = True
            self._slots[slot.parameter] = slot
        for module in self._model.modules():
            if module not in self._hooked:
                self._hooked.add(module)
                self._handles.append(
                    module._register_load_state_dict_pre_hook(_leaver(self, module))
                )

    def bind(self, bundles: list[Bundle]) -> None:
        """The slots have phub's memory now."""
        for bundle in bundles:
            for slot in bundle.slots:
                _name(slot.values, f"parameter {slot.name}")
        private = [bundle.key for bundle in bundles if not bundle.key.parameters_shared]
        if private:
            _log.warning(
                "share_parameters: parameters of %d keys, for example %s, are in this process's "
                "own memory: workers have one copy only over shared memory, with one daemon",
                len(private),
                private[0].name,
            )

    def leave(self, module: Any) -> None:
        """The module's own parameters get private memory."""
        for parameter in module._parameters.values():
            slot = self._slots.get(parameter)
            if slot is not None:
                slot.leave()

    def remove(self) -> None:
        """All parameters get private memory, and the hooks go."""
        for slot in self._slots.values():
            slot.leave()
            _name(slot.values, "")  # the memory may be unmapped, and another one mapped there
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _leaver(shared: SharedParameters, module: Any) -> Any:
    """Called before a module's parameters are loaded."""
    owner, loaded = weakref.ref(shared), weakref.ref(module)

    def hook(*_: Any) -> None:
        alive, target = owner(), loaded()
        if alive is not None and target is not None:
            alive.leave(target)

    return hook


def _name(tensor: Any, name: str) -> None:
    """A write to the tensor's memory, if it can only be read, ends the process with this name."""
    size = tensor.numel() * tensor.element_size()
    check(lib.phub_name_read_only, tensor.data_ptr(), size, name.encode())
