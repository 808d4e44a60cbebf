"""Reductions of every type with every operation are served as docs/pytorch.md says. Each case runs
on every rank, in one group; `fingerprints` needs none."""

from __future__ import annotations

import functools
import pathlib
from typing import Any, Iterator

import numpy as np
import torch
import torch.distributed as dist

from collective_cases import VERSION, refused

_HEADER = ["type", "SUM", "PRODUCT", "MIN, MAX", "AVG, PREMUL_SUM", "BAND, BOR, BXOR"]
_COUNT = 999
_NUMPY = {
    "SUM": np.add,
    "PREMUL_SUM": np.add,
    "AVG": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def _table() -> Iterator[tuple[str, str, str]]:
    """Type, operation and how it is reduced."""
    path = pathlib.Path(__file__).parents[2] / "docs" / "pytorch.md"
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in path.read_text().splitlines()
        if line.startswith("  |")
    ]
    begin = rows.index(_HEADER)
    for row in rows[begin + 2 :]:
        if len(row) != len(_HEADER):
            break
        for dtype in row[0].split(", "):
            for operations, how in zip(_HEADER[1:], row[1:]):
                for operation in operations.split(", "):
                    yield dtype, operation, how


def _input(dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Any bits of integers; small numbers of floats, which are added exactly."""
    random = torch.Generator().manual_seed(rank)
    if dtype.is_floating_point or dtype.is_complex:
        numbers = torch.randint(-4, 5, (_COUNT,), generator=random)
        return torch.complex(numbers.double(), numbers.flip(0).double()).to(dtype) if (
            dtype.is_complex
        ) else numbers.to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, (_COUNT,), generator=random).to(dtype)
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (_COUNT * size,), generator=random).to(torch.uint8).view(dtype)


def _expected(dtype: torch.dtype, operation: str, size: int) -> np.ndarray[Any, Any]:
    inputs = [_input(dtype, rank) for rank in range(size)]
    if dtype in (torch.float16, torch.bfloat16):
        inputs = [each.float() for each in inputs]
    arrays = [each.numpy() for each in inputs]
    if operation == "PREMUL_SUM":
        arrays = [each * np.float32(0.5) for each in arrays]
    with np.errstate(over="ignore"):
        result = functools.reduce(_NUMPY[operation], arrays)
    return result / size if operation == "AVG" else result


def case_reductions_of_every_type(rank: int, size: int) -> None:
    from phub.torch._types import reduction

    seen = 0
    for name, operation, how in _table():
        dtype = getattr(torch, name, None)
        if dtype is None or (operation == "PREMUL_SUM" and VERSION < (2, 13)):
            continue
        seen += 1
        op = dist.ReduceOp.PREMUL_SUM(0.5) if operation == "PREMUL_SUM" else (
            getattr(dist.ReduceOp, operation)
        )
        if how == "refused":
            tensor = torch.zeros(_COUNT, dtype=dtype)
            words = [operation] if dtype.is_complex else [operation, name]  # torch refuses some
            refused(lambda: dist.all_reduce(tensor, op), *words)
            continue
        tensor = _input(dtype, rank)
        dist.all_reduce(tensor, op)
        actual = tensor.float() if dtype in (torch.float16, torch.bfloat16) else tensor
        np.testing.assert_array_equal(
            actual.numpy(), _expected(dtype, operation, size), err_msg=f"{operation} of {name}"
        )
        used = reduction(op, dtype, "").dtype
        assert used == (dtype if how == "own" else getattr(torch, how)), (name, operation, used)
    assert seen > 100, seen


def fingerprints() -> list[str]:
    """What is wrong with the fingerprints that detect that ranks called something else."""
    from phub.torch._transfer import FINGERPRINT, Fingerprint

    functions = {**{name.lower(): _NUMPY[name] for name in ("SUM", "PRODUCT", "MIN", "MAX")},
                 "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
                 "bitwise_xor": np.bitwise_xor}
    problems = []
    for operation, function in functions.items():
        for ranks in (1, 2, 3, 4, 7):
            # Everybody agrees; one differs; two differ, in the same way; half of them do.
            for others in ((), (0,), (ranks - 1,), (0, 1), tuple(range(ranks // 2))):
                differing = [rank for rank in others if rank < ranks]
                agree = len(set(differing)) in (0, ranks)
                all_prints = [Fingerprint("a" if rank in differing else "b")
                              for rank in range(ranks)]
                sent = [each.pattern(operation, rank).numpy()
                        for rank, each in enumerate(all_prints)]
                received = torch.from_numpy(functools.reduce(function, sent))
                assert len(received) == FINGERPRINT
                found = [each.matches(received, operation, ranks) for each in all_prints]
                if found != [agree] * ranks:
                    problems.append(f"{operation} of {ranks}, differing {differing}: {found}")
    return problems
