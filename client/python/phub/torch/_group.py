"""The process group: torch.distributed's names for collectives."""

from __future__ import annotations

import datetime
import weakref
from typing import Any, Optional, Sequence

import torch
import torch.distributed as dist

from ._arguments import (
    Together,
    called_in_backward,
    collective,
    list_of,
    operation_of,
    seconds_of,
)
from ._buffers import Buffer, joined, readable
from ._copy import copy
from ._errors import NotServed
from ._membership import Membership
from ._receivers import receivers
from ._work import PYTHON_WORK, work_of


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of torch.distributed whose collectives run through a phub daemon."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_tensor_alloc = False

    def __init__(self, membership: Membership) -> None:
        super().__init__(membership.rank, membership.size)
        self._membership = membership
        self._collected: Optional[list[Any]] = None
        self._group_name = ""
        self._group_desc = ""
        weakref.finalize(self, membership.leave_unreferenced)

    # ---- What the group is -----------------------------------------------------------------

    def getBackendName(self) -> str:
        return "phub"

    def name(self) -> str:
        return "phub"

    def _get_backend_name(self) -> str:
        return "phub"

    def rank(self) -> int:
        return self._membership.rank

    def size(self) -> int:
        return self._membership.size

    def getRank(self) -> int:
        return self._membership.rank

    def getSize(self) -> int:
        return self._membership.size

    # The base class keeps names in its backends, but this group has no backends.
    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _set_group_desc(self, text: str) -> None:
        self._group_desc = text

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._group_desc

    @property
    def job_name(self) -> str:
        """The name of the group's job on the daemon."""
        return self._membership.job_name

    def flight_record(self) -> list[dict[str, Any]]:
        """The group's last collectives on this rank, oldest first."""
        with self._membership.exchange.lock:
            return self._membership.exchange.recorder.values()

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device("cpu")]

    def _get_backend(self, device: Any) -> "ProcessGroup":
        return self

    def _set_sequence_number_for_group(self) -> None:
        """Operations are counted from 1 in any case."""

    def _get_sequence_number_for_group(self) -> int:
        return self._membership.exchange.sequence

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._membership.exchange.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        self._membership.leave()

    def abort(self) -> None:
        """Collectives in flight fail at once."""
        self._membership.leave(0.0)

    # ---- Reductions --------------------------------------------------------------------------

    @collective
    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        return self._reduce_all("all_reduce", tensors, opts, timeout)

    @collective
    def allreduce_coalesced(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        return self._reduce_all("all_reduce_coalesced", tensors, opts, timeout)

    def _reduce_all(self, name: str, tensors: Any, opts: Any, timeout: Any) -> Any:
        return self._work(
            self._collectives().all_reduce(
                name,
                list_of(tensors),
                operation_of(opts, "SUM"),
                seconds_of(timeout or opts),
                PYTHON_WORK and name == "all_reduce" and called_in_backward(),
            )
        )

    @collective
    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None
    ) -> Any:
        root = opts if isinstance(opts, int) else opts.rootRank
        given = None if isinstance(opts, int) else opts
        reduced = op if op is not None else operation_of(given, "SUM")
        (tensor,) = list_of(tensors)
        return self._work(
            self._collectives().reduce("reduce", tensor, root, reduced, seconds_of(timeout or opts))
        )

    @collective
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Any:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        return self._scatter_reduced("reduce_scatter", outputs, inputs, opts, timeout)

    @collective
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self._scatter_reduced("reduce_scatter_single", [output], [input], opts, None)

    _reduce_scatter_base = reduce_scatter_single

    @collective
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._scatter_reduced(
            "reduce_scatter_single_coalesced", outputs, inputs, opts, None
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_reduced(
        self, name: str, outputs: Any, inputs: Any, opts: Any, timeout: Any
    ) -> Any:
        return self._work(
            self._collectives().reduce_scatter(
                name, outputs, inputs, operation_of(opts, "SUM"), seconds_of(timeout or opts)
            )
        )

    # ---- Movement ----------------------------------------------------------------------------

    @collective
    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        root = opts if isinstance(opts, int) else opts.rootRank if opts is not None else 0
        return self._work(
            self._collectives().broadcast(
                "broadcast", list_of(tensors), root, seconds_of(timeout or opts)
            )
        )

    @collective
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        return self._work(
            self._collectives().all_gather(
                "all_gather", outputs, inputs, seconds_of(timeout or opts)
            )
        )

    @collective
    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self._gather_singles("all_gather_single", [output], [input], opts)

    _allgather_base = all_gather_single

    @collective
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._gather_singles("all_gather_single_coalesced", outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_singles(
        self, name: str, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any
    ) -> Any:
        size = self.size()
        lists = []
        buffers = []
        for output, given in zip(outputs, inputs):
            if output.numel() != given.numel() * size:
                raise ValueError(
                    f"{name}: the input has {given.numel()} elements and the output "
                    f"{output.numel()}; it needs {size} times as many"
                )
            buffer = Buffer(output, name, read=False)
            buffers.append(buffer)
            lists.append(list(buffer.flat().view(size, given.numel())))
        return self._work(
            self._collectives().all_gather(
                name, lists, inputs, seconds_of(opts), result=list(outputs), targets=buffers
            )
        )

    @collective
    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """output_lists[r][i]: rank r's inputs[i]."""
        lists = [[ranks[i] for ranks in output_lists] for i in range(len(inputs))]
        result = [each for ranks in output_lists for each in ranks]
        return self._work(
            self._collectives().all_gather(
                "all_gather_coalesced", lists, inputs, seconds_of(opts), result=result
            )
        )

    @collective
    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Any:
        root = opts if isinstance(opts, int) else opts.rootRank
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        return self._work(
            self._collectives().all_gather(
                "gather", outputs, inputs, seconds_of(timeout or opts), root=root
            )
        )

    @collective
    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Any:
        root = opts if isinstance(opts, int) else opts.rootRank
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        (output,) = outputs
        return self._work(
            self._collectives().scatter(
                "scatter", output, inputs[0] if inputs else None, root, seconds_of(timeout or opts)
            )
        )

    @collective
    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
        timeout: Any = None,
    ) -> Any:
        return self._work(
            self._collectives().all_to_all(
                "all_to_all_single",
                output,
                input,
                self._counts(output, output_split_sizes, "output"),
                self._counts(input, input_split_sizes, "input"),
                seconds_of(timeout or opts),
                equal=not output_split_sizes and not input_split_sizes,
            )
        )

    alltoall_base = all_to_all_single

    def _counts(self, tensor: Any, splits: Any, what: str) -> list[int]:
        """Elements for each rank, from sizes in the first dimension."""
        rows = tensor.size(0) if tensor.dim() > 0 else 1
        size = self.size()
        if not splits:
            if rows % size != 0:
                raise ValueError(
                    f"all_to_all_single: the {what} has {rows} rows, which {size} ranks cannot "
                    "share equally"
                )
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows:
            raise ValueError(
                f"all_to_all_single: {what} split sizes {list(splits)} do not match {rows} rows "
                f"and {size} ranks"
            )
        row = tensor.numel() // rows if rows > 0 else 0
        return [each * row for each in splits]

    @collective
    def alltoall(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Any:
        size = self.size()
        if len(outputs) != size or len(inputs) != size:
            raise ValueError(
                f"all_to_all: {len(inputs)} inputs and {len(outputs)} outputs were given, but the "
                f"group has {size} ranks"
            )
        counts = [each.numel() for each in outputs]
        targets = [Buffer(each, "all_to_all", read=False) for each in outputs]
        sources = readable([Buffer(each, "all_to_all") for each in inputs])
        received = receivers.take(targets[0].dtype, sum(counts))

        def spread() -> None:
            for target, part in zip(targets, received.split(counts)):
                copy(target.flat(), part)

        return self._work(
            self._collectives().all_to_all(
                "all_to_all",
                received,
                joined(sources),
                counts,
                [each.numel() for each in sources],
                seconds_of(timeout or opts),
                spread=spread,
                targets=targets,
                result=list(outputs),
            )
        )

    # ---- Two ranks, and none -----------------------------------------------------------------

    @collective
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        (tensor,) = list_of(tensors)
        return self._work(self._membership.messages.send(tensor, dst, tag))

    @collective
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        (tensor,) = list_of(tensors)
        return self._work(self._membership.messages.receive(tensor, src, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        raise NotServed(
            "recv without a source rank is not served by phub: name the source rank, or use a gloo "
            "group for it"
        )

    recvAnysource = recv_anysource

    @collective
    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        return self._work(self._collectives().barrier(seconds_of(timeout or opts)))

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self._collectives().barrier(seconds_of(timeout)).wait()

    # ---- Coalescing --------------------------------------------------------------------------

    def _start_coalescing(self, device: Any = None) -> None:
        self._collected = []

    def _end_coalescing(self, device: Any = None) -> Any:
        collected, self._collected = self._collected or [], None
        if not collected:
            return self.barrier()
        return Together(collected)

    def _collectives(self) -> Any:
        return self._membership.collectives

    def _work(self, operation: Any) -> Any:
        work = work_of(operation)
        if self._collected is not None:
            self._collected.append(work)
        return work
