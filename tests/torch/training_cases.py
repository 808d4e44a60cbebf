"""Training with stock torch on the backend "phub", compared with one process. Each case runs on
every rank, in one group."""

from __future__ import annotations

import copy
import unittest
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wire_bytes import moved

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
STEPS = 6
BATCH = 8  # examples of one rank


def network(buffers: bool = False) -> torch.nn.Module:
    torch.manual_seed(5)
    middle = torch.nn.BatchNorm1d(300) if buffers else torch.nn.Identity()
    return torch.nn.Sequential(
        torch.nn.Linear(16, 300), middle, torch.nn.ReLU(), torch.nn.Linear(300, 400),
        torch.nn.Tanh(), torch.nn.Linear(400, 10),
    )


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The examples of all ranks."""
    generator = torch.Generator(device="cpu").manual_seed(100 + step)
    place = torch.empty(0).device
    return (
        torch.randn(size * BATCH, 16, generator=generator, device="cpu").to(place),
        torch.randint(0, 10, (size * BATCH,), generator=generator, device="cpu").to(place),
    )


def train(
    model: torch.nn.Module,
    optimizer: Any,
    rank: int,
    size: int,
    forward: Callable[..., Any] = lambda model, x: model(x),
) -> None:
    """rank -1: one process with the examples of all ranks."""
    for step in range(STEPS):
        x, y = batch(step, size)
        if rank >= 0:
            x, y = x[rank * BATCH : (rank + 1) * BATCH], y[rank * BATCH : (rank + 1) * BATCH]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(forward(model, x), y).backward()
        optimizer.step()


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def serial(size: int, make: Callable[..., Any] = sgd) -> list[torch.Tensor]:
    model = network()
    train(model, make(model), -1, size)
    return [parameter.detach() for parameter in model.parameters()]


def close(parameters: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for actual, wanted in zip(parameters, expected):
        torch.testing.assert_close(actual.detach(), wanted, rtol=1e-4, atol=tolerance)


def identical_on_all_ranks(model: torch.nn.Module) -> None:
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, flat)
    for part in parts:
        assert torch.equal(part, flat)


def data_parallel(rank: int, size: int, **options: Any) -> DistributedDataParallel:
    model = DistributedDataParallel(network(), **options)
    train(model, sgd(model), rank, size)
    identical_on_all_ranks(model)
    close(model.parameters(), serial(size))
    return model


def case_data_parallel(rank: int, size: int) -> None:
    data_parallel(rank, size)


def case_data_parallel_with_options(rank: int, size: int) -> None:
    data_parallel(rank, size, bucket_cap_mb=0.2, gradient_as_bucket_view=True)
    data_parallel(rank, size, find_unused_parameters=True)
    data_parallel(rank, size, static_graph=True)


def case_data_parallel_with_large_buckets(rank: int, size: int) -> None:
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(1000, 1100), bucket_cap_mb=1)
    reference = copy.deepcopy(model.module)
    x = torch.arange(size * 1000.0).view(size, 1000) % 7
    for _ in range(3):
        model.zero_grad()
        model(x[rank : rank + 1]).sum().backward()
        reference.zero_grad()
        (reference(x).sum() / size).backward()
        close([model.module.weight.grad], [reference.weight.grad])


def _gradients(
    rank: int, group: Any, linears: int, move: bool
) -> list[torch.Tensor]:
    """Those of every step. move: buckets move to memory that the daemon maps."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(300, 300) for _ in range(linears)]
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers),
        process_group=group,
        bucket_cap_mb=0.3,
        gradient_as_bucket_view=True,  # so the gradients show where the buckets are
    )
    found = []
    for step in range(7):
        model.zero_grad(set_to_none=False)
        generator = torch.Generator().manual_seed(10 * step + rank)
        model(torch.randn(4, 300, generator=generator)).square().sum().backward()
        found += [parameter.grad.clone() for parameter in model.parameters()]
    parameters = list(model.parameters())
    places = {each.grad.untyped_storage().data_ptr() for each in parameters}
    moved = [place for place in places if "phub-worker" in _mapping(place)]
    # A bucket moves when it finds a key of its size without a round in flight.
    expected = range(1, linears + 1) if move else [0]
    assert len(moved) in expected, (places, moved)
    if move:
        # Results of a step are in use until the next step's, so more than four buckets of one size
        # need more than the four keys that there are first.
        rings = group._membership.exchange._pool._rings
        counts = [len(ring) for kind, ring in rings.items() if kind.whole]
        assert (max(counts) > 4) == (linears > 4), counts
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, counts)
        assert everyone == [counts] * len(everyone), everyone
    dist.destroy_process_group(group)
    assert not any("phub-worker" in _mapping(place) for place in places)
    for parameter, last in zip(parameters, found[-len(parameters) :]):
        assert torch.equal(parameter.grad, last)
    return found


def _mapping(address: int) -> str:
    """The line of /proc/self/maps that has the address."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            begin, end = (int(each, 16) for each in line.split(" ")[0].split("-"))
            if begin <= address < end:
                return line
    return ""


def case_buckets_live_in_shared_memory(rank: int, size: int) -> None:
    import phub.torch

    if VERSION < (2, 0):
        raise unittest.SkipTest("torch moves no storages")
    if torch.empty(0).is_cuda:
        raise unittest.SkipTest("gradients are on the GPU")
    for linears in (1, 6):
        results = []
        for bucket_bytes in (0, 1 << 24):
            options = phub.torch.Options(transport="shm", bucket_bytes=bucket_bytes)
            group = dist.new_group(backend="phub", pg_options=options)
            results.append(_gradients(rank, group, linears, bucket_bytes > 0))
        for apart, shared in zip(*results):
            assert torch.equal(apart, shared)


def case_data_parallel_with_unused_parameters(rank: int, size: int) -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ways = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x: torch.Tensor, way: int) -> torch.Tensor:
            return self.ways[way](x)

    torch.manual_seed(2)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    model(torch.ones(2, 4), rank % 2).sum().backward()
    assert model.module.ways[2].weight.grad is None or not model.module.ways[2].weight.grad.any()
    expected = torch.full((4, 4), 2.0 / size)
    for way in range(2):
        users = sum(1 for each in range(size) if each % 2 == way)
        close([model.module.ways[way].weight.grad], [expected * users])


def case_data_parallel_with_batch_normalization(rank: int, size: int) -> None:
    model = DistributedDataParallel(network(True))
    train(model, sgd(model), rank, size)
    model(batch(0, size)[0])  # sends rank 0's buffers
    identical_on_all_ranks(model)
    synchronized = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network(True))
    assert any(isinstance(each, torch.nn.SyncBatchNorm) for each in synchronized.modules())


def case_data_parallel_compiled(rank: int, size: int) -> None:
    """The compiler stays out of phub's own Python code, which sends buffers and gradients."""
    if VERSION < (2, 13):
        raise unittest.SkipTest("the compiler of this version was not tried")
    results = []
    for compiled in (False, True):
        model: Any = DistributedDataParallel(network(buffers=True))
        if compiled:
            model = torch.compile(model, backend="eager")
        train(model, sgd(model), rank, size)
        results.append([parameter.detach() for parameter in model.parameters()])
    for plain, other in zip(*results):
        assert torch.equal(plain, other)


def case_data_parallel_without_exchange(rank: int, size: int) -> None:
    model = DistributedDataParallel(network())
    x, y = batch(0, size)
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    with model.no_sync():
        torch.nn.functional.cross_entropy(model(x[own]), y[own]).backward()
    torch.nn.functional.cross_entropy(model(x[own]), y[own]).backward()
    reference = network()
    (2 * torch.nn.functional.cross_entropy(reference(x), y)).backward()
    close([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])


def case_hooks(rank: int, size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    found = []
    for hook, make, most in (
        (default_hooks.allreduce_hook, lambda group: None, 1.0),
        (default_hooks.fp16_compress_hook, lambda group: None, 0.55),
        # torch refuses this hook on the CPU by its name.
        (
            lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket),
            lambda group: None,
            0.55,
        ),
        (
            powerSGD_hook.powerSGD_hook,
            lambda group: powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2),
            0.2,
        ),
    ):
        group: Any = dist.new_group()
        state = make(group)
        # The hooks of torch take the group as their state.
        model = DistributedDataParallel(network(), process_group=group)
        model.register_comm_hook(group if state is None else state, hook)
        optimizer = sgd(model)
        train(model, optimizer, rank, size)
        identical_on_all_ranks(model)
        if state is None:
            close(model.parameters(), serial(size), 1e-2)
        up, down = moved(group.job_name, lambda: train(model, optimizer, rank, size))
        found.append((up, down))
        assert up <= most * found[0][0] and down <= most * found[0][1], found
        dist.destroy_process_group(group)


def case_uneven_inputs(rank: int, size: int) -> None:
    model = DistributedDataParallel(network())
    optimizer = sgd(model)
    with model.join():
        for step in range(3 + rank):
            x, y = batch(step, size)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[:BATCH]), y[:BATCH]).backward()
            optimizer.step()
    identical_on_all_ranks(model)


def case_zero_redundancy_optimizer(rank: int, size: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, optimizer, rank, size)
    identical_on_all_ranks(model)
    close(
        model.parameters(),
        serial(size, lambda model: torch.optim.Adam(model.parameters(), lr=0.01)),
        1e-4,
    )


def sharded(rank: int, size: int, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    model = network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, sgd(model), rank, size)
    close([parameter.full_tensor() for parameter in model.parameters()], serial(size))


def case_fully_sharded(rank: int, size: int) -> None:
    if VERSION < (2, 13):
        raise unittest.SkipTest("no fully_shard")
    from torch.distributed.device_mesh import init_device_mesh

    sharded(rank, size, init_device_mesh("cpu", (size,)))


def case_hybrid_sharded(rank: int, size: int) -> None:
    if VERSION < (2, 13):
        raise unittest.SkipTest("no fully_shard")
    from torch.distributed.device_mesh import init_device_mesh

    for shape in ((size, 1), (1, size), (size // 2, 2)):
        if shape[0] > 0 and shape[0] * shape[1] == size:
            names = ("replicate", "shard")
            sharded(rank, size, init_device_mesh("cpu", shape, mesh_dim_names=names))


def case_distributed_tensors(rank: int, size: int) -> None:
    if VERSION < (2, 13):
        raise unittest.SkipTest("no DTensor")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(12.0 * size).view(4 * size, 3)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(rows.to_local(), whole[4 * rank : 4 * rank + 4])
    assert torch.equal(rows.full_tensor(), whole)
    assert torch.equal(rows.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal(rows.sum().full_tensor(), whole.sum())
    partial = (rows.t() @ rows).redistribute(mesh, [Replicate()])
    torch.testing.assert_close(partial.to_local(), whole.t() @ whole)
    assert rows.t().__matmul__(rows).placements[0] in (Partial(), Replicate(), Shard(0), Shard(1))

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8 * size), torch.nn.Linear(8 * size, 5))
    reference = copy.deepcopy(model)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(model(x), reference(x))
    model(x).sum().backward()
    reference(x).sum().backward()
    torch.testing.assert_close(model[0].weight.grad.full_tensor(), reference[0].weight.grad)


def case_checkpoint(rank: int, size: int) -> None:
    if VERSION < (2, 13):
        raise unittest.SkipTest("another API")
    import tempfile

    import torch.distributed.checkpoint as checkpoint

    folders = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folders, 0)
    state = {"weight": torch.arange(10.0), "step": 3}
    checkpoint.save(state, checkpoint_id=folders[0])
    loaded = {"weight": torch.zeros(10), "step": 0}
    checkpoint.load(loaded, checkpoint_id=folders[0])
    assert torch.equal(loaded["weight"], torch.arange(10.0)) and loaded["step"] == 3
