"""What a key to add is, and its form in the C ABI."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Optional, Sequence

from . import _library, _types
from ._blocking import run_interruptibly
from ._compression import Compression, feedback_number
from ._errors import InvalidArgument, check
from ._key import Key, Layout
from ._library import lib
from ._optimizers import Optimizer, to_c


@dataclasses.dataclass(frozen=True)
class Movement:
    """Which parts of a key a rank sends and receives. A key has an equal part for each rank."""

    number: int  # PHUB_ALL_REDUCE, ...
    sends: str = "all"  # "all" parts, its "own", or all at the "root" and none elsewhere
    receives: str = "all"
    has_parts: bool = True

    @property
    def has_root(self) -> bool:
        return "root" in (self.sends, self.receives)


MOVEMENTS = {
    "all_reduce": Movement(0, has_parts=False),
    "gather": Movement(1, sends="own"),
    "reduce_scatter": Movement(2, receives="own"),
    "all_to_all": Movement(3),
    "scatter": Movement(4, sends="root", receives="own"),
    "gather_to_one": Movement(5, sends="own", receives="root"),
}
OPERATIONS = {
    "sum": 1,
    "mean": 2,
    "min": 3,
    "max": 4,
    "product": 5,
    "bitwise_and": 6,
    "bitwise_or": 7,
    "bitwise_xor": 8,
}


def part_count(side: str, is_root: bool, ranks: int) -> int:
    """The parts that a rank sends or receives; `side` is Movement.sends or Movement.receives."""
    if side == "own":
        return 1
    return ranks if side == "all" or is_root else 0


@dataclasses.dataclass(frozen=True)
class KeySpec:
    """A key to add; see :meth:`Job.add_key`. tensors: the shapes of a bundle's tensors."""

    name: str
    shape: _types.Shape = ()
    dtype: Any = "float32"
    optimizer: Optional[Optimizer] = None
    operation: Optional[str] = None
    gradient_dtype: Any = None
    parameter_dtype: Any = None
    priority: Optional[int] = None
    copy: bool = False
    tensors: Optional[Sequence[_types.Shape]] = None
    movement: Optional[str] = None
    root: int = 0
    collective: bool = False
    compression: Optional[Compression] = None
    priority_class: Optional[str] = None


PRIORITY_CLASSES = {None: 0, "data": 1, "pipeline": 2, "tensor": 3}


def priority_number(priority_class: Optional[str], place: str) -> int:
    """Of a class for the C library. place: what states it, for the error."""
    if priority_class not in PRIORITY_CLASSES:
        raise InvalidArgument(
            f"{place}: priority_class is {priority_class!r}; it must be 'tensor', 'pipeline' or "
            "'data'"
        )
    return PRIORITY_CLASSES[priority_class]


def layout_of(
    spec: KeySpec, ranks: Sequence[int], rank: int, group: Optional[str] = None
) -> Layout:
    """Raises InvalidArgument for a key that cannot be.

    ranks: those that have the key, ascending. group: their group's name; None: a key of the job.
    """
    if group is not None:
        spec = dataclasses.replace(spec, name=f"{spec.name} of group {group}")
    number = _types.number_of(spec.dtype)
    if spec.operation is not None and spec.operation not in OPERATIONS:
        raise InvalidArgument(
            f"operation of key {spec.name} is {spec.operation!r}; it must be one of "
            f"{', '.join(OPERATIONS)}",
            key=spec.name,
        )
    movement = MOVEMENTS.get(spec.movement or "all_reduce")
    if movement is None:
        raise InvalidArgument(
            f"movement of key {spec.name} is {spec.movement!r}; it must be one of "
            f"{', '.join(MOVEMENTS)}",
            key=spec.name,
        )
    if spec.root not in ranks and (movement.has_root or group is None):
        whose = f"the job has {len(ranks)} ranks" if group is None else f"its ranks are {ranks}"
        raise InvalidArgument(
            f"root of key {spec.name} is {spec.root}, but {whose}", key=spec.name
        )
    if spec.tensors is None:
        shape = _types.shape_of(spec.shape)
        tensors: tuple[tuple[int, ...], ...] = (shape,)
    else:
        tensors = tuple(_types.shape_of(each) for each in spec.tensors)
        shape = (sum(_types.count_of(each) for each in tensors),)
    if any(extent < 0 for each in tensors for extent in each):
        raise InvalidArgument(f"key {spec.name} has a negative extent: {tensors}", key=spec.name)

    def other(dtype: Any) -> int:
        return number if dtype is None else _types.number_of(dtype)

    def parts(side: str) -> tuple[int, ...]:
        count = part_count(side, rank == spec.root, len(ranks))
        return (shape[0] // len(ranks) * count, *shape[1:])

    if movement.has_parts:
        _check_parts(spec, shape, len(ranks))
    return Layout(
        spec.name,
        number,
        other(spec.gradient_dtype),
        other(spec.parameter_dtype),
        shape,
        tensors,
        parts(movement.sends) if movement.has_parts else shape,
        parts(movement.receives) if movement.has_parts else shape,
    )


def _check_parts(spec: KeySpec, shape: tuple[int, ...], ranks: int) -> None:
    if shape and shape[0] % ranks == 0:
        return
    raise InvalidArgument(
        f"key {spec.name} has movement {spec.movement}, so the first extent of its shape {shape} "
        f"must be a multiple of the number of ranks, {ranks}",
        key=spec.name,
    )


def fill(values: _library.KeySpec, spec: KeySpec, layout: Layout) -> tuple[Any, ...]:
    """Fills phub_key_spec. Returns objects that it refers to."""
    lib.phub_key_spec_init(ctypes.byref(values), ctypes.sizeof(values))
    values.name = spec.name.encode()
    values.type = layout.number
    values.operation = OPERATIONS[spec.operation] if spec.operation is not None else 0
    values.gradient_type = layout.gradient_number
    values.parameter_type = layout.parameter_number
    values.copy = int(spec.copy)
    values.movement = MOVEMENTS[spec.movement or "all_reduce"].number
    values.root = spec.root
    values.collective = int(spec.collective)
    if spec.compression is not None:
        values.compression = spec.compression.number
        values.kept = spec.compression.kept
        values.error_feedback = feedback_number(spec.compression)
    values.priority_class = priority_number(spec.priority_class, f"key {spec.name}")
    if spec.priority is not None:
        values.has_priority = 1
        values.priority = spec.priority
    counts = None
    if spec.tensors is None:
        values.element_count = _types.count_of(layout.shape)
    else:
        counts = (ctypes.c_uint64 * len(layout.tensors))(
            *(_types.count_of(each) for each in layout.tensors)
        )
        values.tensors = counts
        values.tensor_count = len(counts)
    optimizer = to_c(spec.optimizer)
    if optimizer is not None:
        values.optimizer = ctypes.pointer(optimizer)
    return (counts, optimizer)


def add_keys(
    function: Any, owner: Any, job: Any, specs: Sequence[KeySpec], layouts: Sequence[Layout]
) -> list[Key]:
    """Adds keys to `owner`, which is the job or one of its groups."""
    values = (_library.KeySpec * len(specs))()
    kept = [fill(values[i], spec, layouts[i]) for i, spec in enumerate(specs)]
    pointers = (ctypes.c_void_p * len(specs))()
    run_interruptibly(lambda: check(function, owner._pointer, values, len(specs), pointers))
    del kept
    return [Key(job, pointer, layout) for pointer, layout in zip(pointers, layouts)]
