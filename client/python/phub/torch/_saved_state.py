"""The daemon's optimizer state in torch.optim's format, through a checkpoint in a temporary folder.

docs/checkpoints.md describes the files. Only this process reads and changes them.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import tempfile
import time
from typing import Any, Callable, NoReturn

import torch

from .._errors import FailedPrecondition
from .._job import Job
from ._bundles import Bundle, Slot
from ._wire import MASTER, key_dtype, master_of

# The daemon's names of states and torch.optim's.
_NAMES = {
    "momentum": "momentum_buffer",
    "first_moment": "exp_avg",
    "second_moment": "exp_avg_sq",
    "sum_of_squares": "sum",
    "square_average": "square_avg",
    "gradient_average": "grad_avg",
}
# torch.optim counts the steps of these.
_COUNTED = ("adam", "adamw", "adagrad", "rmsprop", "rmsprop_momentum", "rmsprop_centered")
_PATIENCE_S = 300.0
_TYPES = {
    "F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16
}


# A hyper-parameter that groups of an optimizer have in every version of torch.
_MARKS = {
    torch.optim.SGD: "momentum",
    torch.optim.Adam: "betas",
    torch.optim.AdamW: "betas",
    torch.optim.Adagrad: "lr_decay",
    torch.optim.RMSprop: "alpha",
}


def check_saved(
    kind: Any, saved: Any, groups: list[dict[str, Any]], name_of: Callable[[Any], str]
) -> None:
    """Raises ValueError, as torch.optim does, for the state of another optimizer or model. kind:
    the class in torch.optim."""
    if not isinstance(saved, dict) or "param_groups" not in saved or "state" not in saved:
        raise ValueError("the saved state has no state and param_groups: it is not of an optimizer")
    theirs = saved["param_groups"]
    if len(theirs) != len(groups):
        raise ValueError(
            f"the saved state has {len(theirs)} parameter groups, but the optimizer has "
            f"{len(groups)}: the state is of another optimizer or model"
        )
    for index, (group, other) in enumerate(zip(groups, theirs)):
        if _MARKS[kind] not in other:
            found = ", ".join(name for name in other if name not in ("params", "param_names"))
            raise ValueError(
                f"the saved state is not of {kind.__name__}: its parameter group {index} has no "
                f"{_MARKS[kind]}, but {found}"
            )
        if len(group["params"]) != len(other["params"]):
            first = f" (the first is {name_of(group['params'][0])})" if group["params"] else ""
            raise ValueError(
                f"parameter group {index} of the saved state has {len(other['params'])} "
                f"parameters, but that of the optimizer has {len(group['params'])}{first}: the "
                "state is of another model"
            )


class _Files:
    """A checkpoint: its data file in memory, and its manifest."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._manifest_path = folder / "manifest.json"
        self._manifest = json.loads(self._manifest_path.read_text())
        self._path = folder / self._manifest["data_file"]["name"]
        content = self._path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        self._header = json.loads(content[8:start])
        self._data = bytearray(memoryview(content)[start:])
        self.keys = {each["name"]: each for each in json.loads(self._metadata["phub.keys"])}

    @property
    def _metadata(self) -> dict[str, str]:
        found: dict[str, str] = self._header["__metadata__"]
        return found

    def tensor(self, name: str) -> Any:
        """A flat view of a tensor; writing to it changes the data."""
        place = self._header[name]
        begin, end = place["data_offsets"]
        return torch.frombuffer(memoryview(self._data)[begin:end], dtype=_TYPES[place["dtype"]])

    def masters(self, key: str) -> Any:
        """The masters of a key. None: the parameters have their type."""
        name = f"phub:master/{key}"
        return self.tensor(name) if name in self._header else None

    def write(self) -> None:
        """Writes the changed data with new checksums."""
        # The daemon counts a key's updates from an iteration of the job, which is not negative.
        steps = [int(each["optimizer_steps"]) for each in self.keys.values()]
        iteration = max([int(self._manifest["iteration"]), *steps])
        for each in self.keys.values():
            each["iteration"] = iteration
        self._manifest["iteration"] = iteration
        self._metadata["phub.iteration"] = str(iteration)
        self._metadata["phub.keys"] = _text(list(self.keys.values()))
        header = json.dumps(self._header, ensure_ascii=False, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        whole = hashlib.sha256()
        with open(self._path, "wb") as file:
            for part in (len(header).to_bytes(8, "little"), header, self._data):
                whole.update(part)
                file.write(part)
            size = file.tell()
        for each in self._manifest["tensors"]:
            begin, end = self._header[each["name"]]["data_offsets"]
            each["sha256"] = hashlib.sha256(memoryview(self._data)[begin:end]).hexdigest()
        self._manifest["data_file"].update(bytes=size, sha256=whole.hexdigest())
        del self._manifest["sha256"]
        self._manifest["sha256"] = hashlib.sha256(_text(self._manifest).encode()).hexdigest()
        self._manifest_path.write_text(_text(self._manifest))


def _text(value: Any) -> str:
    """As phub writes JSON whose checksum it compares."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _places(bundle: Bundle) -> list[tuple[Slot, slice]]:
    """Where each parameter is in the key."""
    places = []
    offset = 0
    for slot in bundle.slots:
        end = offset + slot.shape.numel()
        places.append((slot, slice(offset, end)))
        offset = end
    return places


def _save(job: Job, folder: str) -> None:
    """Saves a checkpoint. Ranks that call it at the same time take turns."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            job.save_checkpoint(folder, lasts=False)
            return
        except FailedPrecondition as error:
            if "already in progress" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.02)


def fetch(job: Job, bundles: list[Bundle]) -> dict[Any, dict[str, Any]]:
    """The state of every parameter, as torch.optim keeps it. One rank calls it."""
    states: dict[Any, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="phub-state-") as folder:
        _save(job, folder)
        files = _Files(pathlib.Path(folder))
    for bundle in bundles:
        key = files.keys[bundle.key.name]
        steps = key["optimizer_steps"]
        masters = files.masters(bundle.key.name)
        for slot, place in _places(bundle):
            state: dict[str, Any] = {}
            if key["optimizer"] in _COUNTED:
                state["step"] = torch.tensor(float(steps), device="cpu")
            for each in key["optimizer_tensors"] if steps else []:
                name = f"phub:state/{each['name']}/{bundle.key.name}"
                values = files.tensor(name)[place].view(slot.shape).clone()
                state[_NAMES[each["name"]]] = values
            if steps == 0 and key["optimizer"] == "adagrad":  # torch has this before the first step
                first = float(key["hyper_parameters"]["initial_accumulator"])
                dtype = key_dtype(slot.dtype)
                state["sum"] = torch.full(slot.shape, first, dtype=dtype, device="cpu")
            if masters is not None:
                state[MASTER] = masters[place].view(slot.shape).clone()
                _complete(state, key, slot)
            if len(state) > 1 or "momentum_buffer" in state or MASTER in state:
                states[slot.parameter] = state
    return states


def _complete(state: dict[str, Any], key: dict[str, Any], slot: Slot) -> None:
    """Before the first step: torch.optim makes its states only if a parameter has none."""
    if key["optimizer"] in _COUNTED:
        for each in key["optimizer_tensors"]:
            zeros = torch.zeros(slot.shape, dtype=key_dtype(slot.dtype), device="cpu")
            state.setdefault(_NAMES[each["name"]], zeros)


def store(
    job: Job,
    bundles: list[Bundle],
    states: dict[Any, dict[str, Any]],
    fail: Callable[[str], NoReturn],
    load: Callable[[str, bool], int],
) -> None:
    """Gives the daemon these states, and rank 0's parameters. Every rank calls it with the same
    states. `fail` raises. load: loads a copy on all ranks, or raises on all; until then the others
    learn of errors of rank 0."""
    for bundle in bundles:
        _steps(bundle, states, fail)
    with tempfile.TemporaryDirectory(prefix="phub-state-") as folder:
        if job.rank == 0:
            _save(job, folder)
            files = _Files(pathlib.Path(folder))
            for bundle in bundles:
                _fill(files, bundle, states, fail)
            files.write()
        load(folder, False)


def _steps(
    bundle: Bundle, states: dict[Any, dict[str, Any]], fail: Callable[[str], NoReturn]
) -> int:
    """The number of steps of a key's parameters."""
    steps: dict[int, str] = {}
    for slot in bundle.slots:
        state = states.get(slot.parameter, {})
        for name, value in state.items():
            known = name in _NAMES.values() or name == MASTER
            if known and value is not None and value.shape != slot.shape:
                fail(
                    f"the saved {name} of parameter {slot.name} has shape {tuple(value.shape)}, "
                    f"but the parameter has {tuple(slot.shape)}: the state is of another model"
                )
        held = [state[name] for name in _NAMES.values() if state.get(name) is not None]
        count = int(state["step"]) if "step" in state else int(bool(held))
        if count > 0 and not held and bundle.has_state:
            fail(f"the saved state of parameter {slot.name} has steps but no tensors")
        steps.setdefault(count, slot.name)
    if len(steps) > 1:
        (a, first), (b, second) = list(steps.items())[:2]
        fail(
            f"the saved state has {a} steps of parameter {first} and {b} of parameter {second}; "
            "they share a key, so the daemon counts their steps together"
        )
    return next(iter(steps))


def _fill(
    files: _Files,
    bundle: Bundle,
    states: dict[Any, dict[str, Any]],
    fail: Callable[[str], NoReturn],
) -> None:
    key = files.keys[bundle.key.name]
    steps = _steps(bundle, states, fail)
    if bundle.has_state:
        key["optimizer_steps"] = steps
    parameters, masters = files.tensor(bundle.key.name), files.masters(bundle.key.name)
    for slot, place in _places(bundle):
        values = slot.parameter.detach().reshape(-1)
        if masters is not None:
            saved = states.get(slot.parameter, {}).get(MASTER)
            values = master_of(values, saved, parameters.dtype)
            masters[place].copy_(values)
        parameters[place].copy_(values)
        for each in key["optimizer_tensors"]:
            values = files.tensor(f"phub:state/{each['name']}/{bundle.key.name}")[place]
            saved = states.get(slot.parameter, {}).get(_NAMES[each["name"]])
            if saved is None:
                values.zero_()
            else:
                values.copy_(saved.reshape(-1))
