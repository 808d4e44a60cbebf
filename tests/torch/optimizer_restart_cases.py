"""phub.torch.DistributedOptimizer with restart=True: ranks that die and are started again."""

from __future__ import annotations

import os
import pathlib
import signal
import tempfile
from typing import Any

STEPS = 8
DEATH = 4  # the step in which rank 1 dies


def train(rank: int, size: int, job: str, die: str, loads: bool) -> tuple[int, bytes]:
    """A script that can be started again. die: when rank 1 ends itself, once. loads: begins with a
    state of torch.optim. Returns the first step of this process, and the bits of the parameters."""
    import torch

    from optimizer_reference import adam, backward
    from phub.torch import DistributedOptimizer, Options
    from training_cases import network

    torch.set_num_threads(1)
    died = pathlib.Path(tempfile.gettempdir()) / f"phub-{os.environ['MASTER_PORT']}-{job}"
    model = network()
    optimizer = adam(model.parameters())
    if loads:
        backward(model, 100, 0, 1)
        optimizer.step()  # the same on all ranks
    DistributedOptimizer(
        optimizer, model.named_parameters(), restart=True, options=Options(job=job)
    )
    first = optimizer.iteration()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    for _ in range(first):
        scheduler.step()
    for step in range(first, STEPS):
        dies = bool(die) and rank == 1 and step == DEATH and not died.exists()
        if dies and die != "pushed":
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        backward(model, step, rank, size)
        if dies:
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        scheduler.step()
    bits = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    optimizer.leave()
    if rank == 1:
        died.unlink(missing_ok=True)
    return first, bits


def wrong_uses(rank: int, size: int) -> list[str]:
    """Returns what did not fail as it should."""
    import torch

    import phub.torch
    from optimizer_failure_cases import fails
    from optimizer_reference import adam, backward
    from phub.torch import DistributedOptimizer, NotServed, OptimizerError, Options
    from training_cases import network

    def wrap(**options: Any) -> Any:
        model = network()
        return model, DistributedOptimizer(
            adam(model.parameters()), model.named_parameters(), restart=True, **options
        )

    fails(ValueError, ["restart=True", "clip_norm"], lambda: wrap(clip_norm=1.0))
    fails(ValueError, ["needs a name that a restarted process knows", "PHUB_RUN"], wrap)
    fails(ValueError, ["process_group"], lambda: wrap(process_group=1))
    size_variable = os.environ.pop("WORLD_SIZE")
    fails(ValueError, ["restart=True needs this process's rank", "set PHUB_RANK"], wrap)
    os.environ.update(WORLD_SIZE=size_variable)
    away = network().to("meta")
    fails(
        NotServed,
        ["parameter 0.weight is on meta", "on the CPU only"],
        lambda: DistributedOptimizer(
            adam(away.parameters()),
            away.named_parameters(),
            restart=True,
            options=Options(job="away"),
        ),
    )
    os.environ.update(PHUB_RUN="wrong-uses")
    model, optimizer = wrap()
    assert optimizer._phub.job.name == "wrong-uses.optimizer0"
    state = optimizer.state_dict()
    fails(
        NotServed,
        ["add_param_group()", "restart=True"],
        lambda: optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]}),
    )
    fails(
        OptimizerError,
        ["broadcast_parameters()", "restart=True"],
        lambda: phub.torch.broadcast_parameters(model.state_dict()),
    )
    optimizer.load_state_dict(state)
    backward(model, 0, rank, size)
    optimizer.step()
    fails(
        OptimizerError,
        ["load_state_dict()", "only before the first step"],
        lambda: optimizer.load_state_dict(state),
    )
    optimizer.leave()
    return []


def load_on_one_rank(rank: int, size: int) -> str:
    """Rank 1 steps instead. Returns the errors of the ranks."""
    from optimizer_reference import adam, backward
    from phub.torch import DistributedOptimizer, OptimizerError, Options
    from training_cases import network

    model = network()
    optimizer = DistributedOptimizer(
        adam(model.parameters()),
        model.named_parameters(),
        restart=True,
        timeout=30.0,
        options=Options(job="one-loads"),
    )
    state = optimizer.state_dict()
    optimizer._phub.timeout = 1.0 if rank == 0 else 30.0
    try:
        if rank == 0:
            optimizer.load_state_dict(state)
        else:
            backward(model, 0, rank, size)
            optimizer.step()
    except OptimizerError as error:
        return str(error)
    return "no error"
