"""Waiting for new parameters in the forward pass, module by module, instead of in step().

A module waits for its parameters in a hook that runs before its forward pass. Some modules use the
parameters of modules inside them without calling these (MultiheadAttention does), so the hooks also
note which modules are called. A parameter belongs to the innermost module around it that the last
forward passes have called.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Iterable, Iterator

import torch

from ._bundles import Bundle

Chain = tuple[Any, ...]  # modules around a parameter, the outermost first


class ForwardWaits:
    """Knows which module needs which keys. Hooks run on the threads of forward passes, everything
    else on that of the optimizer.

    wait: waits for these keys. wait_for_all: before the model's state is read or replaced.
    """

    def __init__(
        self,
        model: Any,
        wait: Callable[[Iterable[Bundle]], None],
        wait_for_all: Callable[[], None],
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(
                f"wait_in_forward must be the model, a torch.nn.Module, not {type(model).__name__}"
            )
        self._model = model
        self._wait = weakref.WeakMethod(wait)
        self._wait_for_all = weakref.WeakMethod(wait_for_all)
        self._chains: dict[Any, list[Chain]] = {}
        self._hooked: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._handles: list[Any] = []
        self._lock = threading.Lock()  # guards _called
        self._called: set[Any] = set()
        self._known: set[Any] = set()  # the set that _needs was made for
        self._needs: dict[Any, list[Bundle]] = {}  # the keys that a module waits for
        self._owned: set[Bundle] = set()  # the keys that modules wait for

    def scan(self) -> None:
        """Finds the model's modules and parameters, and adds hooks to new modules."""
        self._chains = {}
        self._known = set()
        for chain in _chains(self._model, ()):
            module = chain[-1]
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._chains.setdefault(parameter, []).append(chain)
            if module not in self._hooked:
                self._hooked.add(module)
                self._handles.append(module.register_forward_pre_hook(self._before_forward))
                for name in ("state_dict", "load_state_dict"):
                    add = getattr(module, f"register_{name}_pre_hook", None)  # torch 2.0 and 2.5
                    if add is not None:
                        self._handles.append(add(self._before_state))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def deferred(self, bundles: list[Bundle]) -> set[Bundle]:
        """The keys that modules will wait for: step() need not. Called once in each step."""
        with self._lock:
            called, self._called = self._called, set()
        if called and called != self._known:
            self._known = called
            self._assign(bundles)
        return self._owned

    def _assign(self, bundles: list[Bundle]) -> None:
        self._needs = {}
        self._owned = set()
        for bundle in bundles:
            owners: dict[Any, None] = {}
            complete = True
            for slot in bundle.slots:
                for chain in self._chains.get(slot.parameter, [()]):
                    found = [module for module in chain if module in self._known]
                    complete = complete and bool(found)
                    owners.update(dict.fromkeys(found[-1:]))
            if complete:
                self._owned.add(bundle)
                for module in owners:
                    self._needs.setdefault(module, []).append(bundle)

    def _before_forward(self, module: Any, _: Any) -> None:
        with self._lock:
            self._called.add(module)
        wait = self._wait()
        if wait is not None:
            wait(self._needs.get(module, ()))

    def _before_state(self, *_: Any) -> None:
        wait = self._wait_for_all()
        if wait is not None:
            wait()


def _chains(module: Any, outer: Chain) -> Iterator[Chain]:
    """Every module, with those around it. A module that is used in two places comes twice."""
    chain = (*outer, module)
    yield chain
    for inner in module._modules.values():
        if inner is not None and inner not in chain:
            yield from _chains(inner, chain)
