"""Trains one model as one rank, in one form, and writes the memory that it needs.

Memory is PSS (proportional set size): a page that several processes map counts for each with its
share. The peak is the largest value after a forward pass, after a backward pass and after a step,
of all steps; it counts from that of the process after it has trained a tiny model alone.
"""

import argparse
import datetime
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_training import OPTIMIZERS, Gpt, workload


def pss_bytes(pid: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/{pid}/smaps_rollup has no Pss")


def model_of(name: str, batch: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    if name != "gpt350":
        return workload(name, batch, dist.get_rank())
    torch.manual_seed(1)  # 350 million parameters
    x = torch.randint(24000, (batch, 32))
    return Gpt(24000, 1024, 24, 32), x, x.roll(-1, 1).flatten()


def sharded(model: nn.Module) -> nn.Module:
    """FSDP2: one unit for each layer of a transformer, or for each linear layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    units = [each for each in model.modules() if isinstance(each, nn.TransformerEncoderLayer)]
    for unit in units or [each for each in model.modules() if isinstance(each, nn.Linear)]:
        fully_shard(unit, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def trained(form: str, model: nn.Module, kind: str,
            given: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and the optimizer of a form. kind: of OPTIMIZERS; zero1 has Adam."""
    import phub.torch

    if form == "fsdp2":
        model = sharded(model)
    if form.startswith("ddp") or form == "zero1":
        group = dist.new_group(backend="phub" if form == "ddp-phub" else "gloo",
                               pg_options=given if form == "ddp-phub" else None)
        model = DistributedDataParallel(model, process_group=group,
                                        gradient_as_bucket_view=form == "ddp-views")
    if form == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-5)
    optimizer = OPTIMIZERS[kind](model.parameters())
    if form.startswith("daemon"):
        phub.torch.DistributedOptimizer(optimizer, options=given,
                                        share_parameters=model if form == "daemon-shared" else None)
    return model, optimizer


def warm_up() -> None:
    """So that code and caches of torch are in memory already."""
    tiny = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 8, 0.0))
    optimizer = torch.optim.Adam(tiny.parameters(), lr=1e-5)
    for _ in range(2):
        nn.functional.cross_entropy(tiny(torch.randn(4, 8)), torch.arange(4)).backward()
        optimizer.step()
    dist.all_reduce(torch.ones(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--form", "--model", "--endpoint", "--daemon-pid", "--transport"):
        parser.add_argument(name, required=True)
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), required=True)
    for name in ("--batch", "--steps"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    import phub.torch

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    warm_up()
    dist.barrier()
    base, daemon_base = pss_bytes("self"), pss_bytes(options.daemon_pid)
    dist.barrier()
    model, x, y = model_of(options.model, options.batch)
    count = sum(each.numel() for each in model.parameters())
    given = phub.torch.Options(endpoint=options.endpoint, transport=options.transport)
    model, optimizer = trained(options.form, model, options.optimizer, given)
    peaks, times_s = [0, 0], []

    def look() -> None:
        dist.barrier()  # all ranks are at the same place, so that shares are those of all
        for index, pid in enumerate(("self", options.daemon_pid)):
            peaks[index] = max(peaks[index], pss_bytes(pid))
        dist.barrier()

    for _ in range(options.steps):
        elapsed = 0.0
        for part in ("forward", "backward", "step"):
            begun = time.monotonic()
            if part == "forward":
                loss = nn.functional.cross_entropy(model(x), y)
            elif part == "backward":
                loss.backward()
            else:
                optimizer.step()
                optimizer.zero_grad()
            elapsed += time.monotonic() - begun
            look()
        times_s.append(elapsed)
    options.output.write_text(json.dumps({
        "parameters": count, "rank_bytes": peaks[0] - base, "daemon_bytes": peaks[1] - daemon_base,
        "step_s": sorted(times_s)[len(times_s) // 2]}))
    dist.barrier()


if __name__ == "__main__":
    main()
