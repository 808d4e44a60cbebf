"""Which tensors phub can take, and how their elements are reduced."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import torch

from ._errors import NotServed

# phub's numbers of element types.
F32, F16, BF16, F64, I32, I64, U8 = 1, 2, 3, 4, 5, 6, 7

NUMBERS: dict[Any, int] = {
    torch.float32: F32,
    torch.float16: F16,
    torch.bfloat16: BF16,
    torch.float64: F64,
    torch.int32: I32,
    torch.int64: I64,
    torch.uint8: U8,
}
# Reduced as another type of the same size, which gives the same bits, except with MIN and MAX.
_SAME_SIZE: dict[Any, Any] = {torch.int8: torch.uint8}
# Reduced as a wider type: sums and products modulo a power of two are the same there.
_WIDER: dict[Any, Any] = {torch.int8: torch.int32, torch.int16: torch.int32}
for _table, _name, _other in (
    (_WIDER, "uint16", torch.int32),
    (_WIDER, "uint32", torch.int64),
    (_SAME_SIZE, "uint32", torch.int32),
    (_SAME_SIZE, "uint64", torch.int64),
):
    if hasattr(torch, _name):
        _table[getattr(torch, _name)] = _other
_COMPLEX = (torch.complex64, torch.complex128)

OPERATIONS = {"SUM": "sum", "AVG": "mean", "MIN": "min", "MAX": "max", "PRODUCT": "product"}
_BITWISE = {"BAND": "bitwise_and", "BOR": "bitwise_or", "BXOR": "bitwise_xor"}
# A bool is a byte with 0 or 1.
_OF_BOOLS = {
    "SUM": "max",
    "MAX": "max",
    "BOR": "max",
    "PRODUCT": "min",
    "MIN": "min",
    "BAND": "min",
    "BXOR": "bitwise_xor",
}


def name_of(dtype: Any) -> str:
    return str(dtype).replace("torch.", "")


def item_size(dtype: Any) -> int:
    """Bytes of an element."""
    return int(torch.empty(0, dtype=dtype, device="cpu").element_size())


def raw(address: int, size: int, owner: Any = None) -> Any:
    """`size` bytes at `address` as a tensor, which keeps `owner` alive."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    memory = (ctypes.c_ubyte * size).from_address(address)
    setattr(memory, "_owner", owner)
    return torch.frombuffer(memory, dtype=torch.uint8)


def bytes_of(tensor: Any) -> Any:
    """The elements of a contiguous CPU tensor as bytes."""
    return raw(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How one tensor is reduced."""

    name: str  # for people: "SUM"
    operation: str  # of phub's key
    dtype: Any  # of the elements that are reduced
    same_bits: bool = True  # the tensor's memory seen as `dtype`; otherwise it is converted
    factor: Any = None  # the input is multiplied by it first

    def is_plain(self, dtype: Any) -> bool:
        """True if tensors of this type are reduced as they are."""
        return self.dtype == dtype and self.factor is None


def operation_name(op: Any) -> str:
    """"SUM" for a ReduceOp, a ReduceOp.RedOpType or a name."""
    text = str(getattr(op, "op", op)) if not isinstance(op, str) else op
    names = (*OPERATIONS, *_BITWISE, "PREMUL_SUM")
    text = text.rsplit(".", 1)[-1]
    if text in names:
        return text
    for name in names:
        if op == getattr(torch.distributed.ReduceOp, name, None):
            return name
    raise NotServed(f"phub has no reduction {op}")


def _factor(op: Any) -> Any:
    if hasattr(op, "factor"):
        return op.factor
    return op.__getstate__()[1]


def reduction(op: Any, dtype: Any, what: str) -> Reduction:
    """Raises NotServed, naming `what`, if phub cannot reduce this type with this operation."""
    name = operation_name(op)
    floating = dtype.is_floating_point

    def refuse(why: str) -> NotServed:
        return NotServed(f"{what} with {name} of {name_of(dtype)} is not served: {why}")

    if name in _BITWISE and (floating or dtype in _COMPLEX):
        raise refuse("bitwise operations need integers or bool")
    if name in ("AVG", "PREMUL_SUM") and not (floating or dtype in _COMPLEX):
        raise refuse("it needs floating-point elements")
    if dtype in _COMPLEX:
        if name in ("MIN", "MAX", "PRODUCT"):
            raise refuse("complex numbers can only be summed and averaged")
        dtype = torch.float32 if dtype == torch.complex64 else torch.float64
    if name == "PREMUL_SUM" and dtype in NUMBERS:
        return Reduction(name, "sum", dtype, factor=_factor(op))
    if dtype == torch.bool:
        return Reduction(name, _OF_BOOLS[name], torch.uint8)
    if name in _BITWISE:
        return Reduction(name, _BITWISE[name], dtype if dtype in NUMBERS else torch.uint8)
    operation = OPERATIONS.get(name, "sum")
    if name not in ("MIN", "MAX") and dtype in _SAME_SIZE:
        return Reduction(name, operation, _SAME_SIZE[dtype])
    wide = _WIDER.get(dtype, dtype)
    if wide not in NUMBERS:
        raise refuse("phub reduces float32, float64, float16, bfloat16, bool and integers up to "
                     "64 bits; convert the tensor")
    return Reduction(name, operation, wide, same_bits=wide == dtype)


def check(tensor: Any, what: str) -> None:
    """Raises NotServed or ValueError for a tensor that no collective takes."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what} needs tensors, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).rsplit(".", 1)[-1]
        raise NotServed(f"{what} of a {layout} tensor is not served: pass tensor.to_dense()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise NotServed(f"{what} of a tensor on {tensor.device} is not served: phub takes tensors "
                        "on cpu and cuda")
