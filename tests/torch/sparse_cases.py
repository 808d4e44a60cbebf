"""Sums of sparse tensors."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from collective_cases import refused, same
from training_cases import close, identical_on_all_ranks


def _sparse(rank: int, dtype: torch.dtype, tail: tuple[int, ...] = ()) -> torch.Tensor:
    """Some entries occur on several ranks, and some twice on one."""
    rows = torch.tensor([[0, rank, 5, rank], [1, 2, 0, 2]])
    values = torch.arange(1, 5).reshape(4, *(1 for _ in tail)).expand(4, *tail) + rank
    return torch.sparse_coo_tensor(rows, values.to(dtype), (6, 3, *tail))


def case_sums(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        for tail in (), (7,), (100, 200):
            tensor = _sparse(rank, dtype, tail)
            dist.all_reduce(tensor)
            expected = sum(_sparse(each, dtype, tail).to_dense() for each in range(size))
            assert tensor.is_sparse
            same(tensor.to_dense(), expected)


def case_average_without_waiting(rank: int, size: int) -> None:
    tensors = [_sparse(rank, torch.float32).coalesce() for _ in range(3)]
    works = [dist.all_reduce(each, dist.ReduceOp.AVG, async_op=True) for each in tensors]
    for work, tensor in zip(works, tensors):
        work.wait()
        total = sum(_sparse(each, torch.float32).to_dense() for each in range(size))
        same(tensor.to_dense(), total / size)


def case_half_precision_is_rounded_once(rank: int, size: int) -> None:
    value = 256.0 if rank == 0 else 1.0  # 256 + 1 is not a bfloat16
    tensor = torch.sparse_coo_tensor([[0, 0]], [value / 2, value / 2], (1,), dtype=torch.bfloat16)
    dist.all_reduce(tensor)
    exact = torch.tensor([256.0 + size - 1], dtype=torch.float32)
    same(tensor.to_dense(), exact.to(torch.bfloat16))


def case_ranks_without_entries(rank: int, size: int) -> None:
    for others in False, True:
        tensor = torch.zeros(4, 2).to_sparse()
        if rank == 0 and others:
            tensor = torch.ones(4, 2).to_sparse()
        dist.all_reduce(tensor)
        same(tensor.to_dense(), torch.full((4, 2), float(others)))


def case_what_is_refused(rank: int, size: int) -> None:
    tensor = torch.eye(3).to_sparse()
    refused(lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX), "sparse", "MAX", "to_dense")
    refused(lambda: dist.broadcast(tensor, 0), "sparse", "to_dense")
    dist.all_reduce(tensor)
    same(tensor.to_dense(), torch.eye(3) * size)


def case_data_parallel_with_a_sparse_embedding(rank: int, size: int) -> None:
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Embedding(20, 4, sparse=True), torch.nn.Linear(4, 2))
    reference = copy.deepcopy(model)
    parallel = DistributedDataParallel(model)
    words = torch.arange(size * 3).view(size, 3) % 7
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (parallel, reference)]
    for step in range(3):
        for each in optimizers:
            each.zero_grad()
        parallel(words[rank : rank + 1] + step).square().sum().backward()
        (reference(words + step).square().sum() / size).backward()
        assert model[0].weight.grad.is_sparse
        for each in optimizers:
            each.step()
    close(list(model.parameters()), list(reference.parameters()))
    identical_on_all_ranks(model)
