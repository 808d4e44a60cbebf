"""Sums of sparse tensors: every rank sends its entries to all, and each adds them in rank order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Optional

import torch

from ._errors import NotServed
from ._operation import Call, Operation
from ._transfer import Transfer, move, reduce
from ._types import bytes_of, name_of, reduction

if TYPE_CHECKING:
    from ._submitter import Submitter

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
# Without it torch 2.13 warns.
_UNCHECKED: dict[str, Any] = (
    {"check_invariants": False} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}
)


def is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout == torch.sparse_coo


class _Entries:
    """Of this rank's tensor, and of those of others with its shape."""

    def __init__(self, tensor: Any) -> None:
        whole = tensor.detach().coalesce()
        self._shape = whole.shape
        self._indices, self._values = whole.indices(), whole.values()
        self.count = int(whole._nnz())
        self._dimensions = len(self._indices)
        self._tail = self._values.shape[1:]
        items = 1
        for each in self._tail:
            items *= each
        self._index_bytes = 8 * self._dimensions
        self.bytes_each = self._index_bytes + items * self._values.element_size()

    def packed(self) -> Any:
        """Indices, then values."""
        parts = (self._indices, self._values)
        return torch.cat([bytes_of(each.contiguous()) for each in parts])

    def unpacked(self, packed: Any, count: int) -> Any:
        """The tensor of another rank, in a type that sums are rounded from only once."""
        end = count * self._index_bytes
        indices = packed[:end].clone().view(torch.int64).view(self._dimensions, count)
        values = packed[end:].clone().view(self._values.dtype).view(count, *self._tail)
        wide = values.to(_WIDER.get(values.dtype, values.dtype))
        return torch.sparse_coo_tensor(indices, wide, self._shape, **_UNCHECKED).coalesce()


def all_reduce(
    submitter: "Submitter", name: str, tensor: Any, op: Any, timeout: Optional[float]
) -> Operation:
    how = reduction(op, tensor.dtype, name)
    if tensor.device.type != "cpu" or how.name not in ("SUM", "AVG"):
        raise NotServed(
            f"{name} with {how.name} of a sparse tensor on {tensor.device.type} is not served: "
            "phub sums and averages sparse tensors on cpu; pass tensor.to_dense()"
        )
    rank, size = submitter.rank, submitter.size
    entries = _Entries(tensor)
    shape = "x".join(str(each) for each in tensor.shape)
    what = f"{shape} {name_of(tensor.dtype)}, {tensor.sparse_dim()} sparse dimensions"
    call = Call(name, timeout, f"({how.name}) of a sparse tensor of {what}", result=[tensor])
    received: list[Any] = []
    counts: list[int] = []

    def stages() -> Iterator[tuple[list[Transfer], bool]]:
        table = torch.zeros(size, dtype=torch.int64, device="cpu")
        table[rank] = entries.count
        yield [reduce("sum", table, table)], False
        counts.extend(table.tolist())
        sizes = [count * entries.bytes_each for count in counts]
        transfers = []
        for root in range(size):
            if root == rank:
                received.append(entries.packed())
                transfers.append(move(root, sizes[root], received[root], None))
            else:
                received.append(torch.empty(sizes[root], dtype=torch.uint8, device="cpu"))
                transfers.append(move(root, sizes[root], None, received[root]))
        yield transfers, True

    def finish() -> None:
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            total = entries.unpacked(received[0], counts[0])
            for each, count in zip(received[1:], counts[1:]):
                total = (total + entries.unpacked(each, count)).coalesce()
            if how.name == "AVG":
                total = total / size
            tensor.copy_(total.to(tensor.dtype))
        received.clear()

    call.stages = stages()
    call.finishes.append(finish)
    return submitter.exchange.submit(call)
