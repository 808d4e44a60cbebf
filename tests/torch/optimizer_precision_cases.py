"""phub.torch.DistributedOptimizer with 16-bit gradients and parameters (gradient_dtype,
parameter_dtype). Each case runs on every rank, in one group."""

from __future__ import annotations

import copy
import pathlib
import tempfile
from typing import Any

import torch
import torch.distributed as dist

import phub
import phub.torch
from optimizer_failure_cases import fails
from optimizer_reference import Reference, adam, backward, gathered, wrapped
from phub.torch import DistributedOptimizer, NotServed, OptimizerError, reference
from training_cases import (
    BATCH,
    STEPS,
    batch,
    close,
    identical_on_all_ranks,
    network,
    serial,
    train,
)
from wire_bytes import moved

TYPES = (torch.bfloat16, torch.float16)


class Masters(Reference):
    """What the daemon's parameters must be."""

    def __init__(self, model: Any, gradient_dtype: Any) -> None:
        super().__init__(model)
        self.dtype = gradient_dtype

    def add(self, model: Any, rule: Any, size: int) -> None:
        self.count += 1
        rounded = [each.grad.to(self.dtype).float() for each in model.parameters()]
        ranks = gathered(rounded, size)
        for index, (mine, states) in enumerate(zip(self.parameters, self.states)):
            gradient = reference.combined([each[index] for each in ranks])
            reference.step(states, mine, gradient, rule, self.count)

    def check_rounded(self, model: Any, dtype: Any, what: str) -> None:
        for mine, (name, each) in zip(self.parameters, model.named_parameters()):
            assert each.dtype == torch.float32
            rounded = mine.to(dtype).float()
            assert torch.equal(rounded, each), f"{what}, step {self.count}: {name} differs"


def masters_of(model: Any, optimizer: Any) -> list[Any]:
    """Those of the daemon."""
    saved = optimizer.state_dict()["state"]
    return [saved[index]["master"] for index in range(len(list(model.parameters())))]


def case_bits(rank: int, size: int) -> None:
    """Gradients are rounded once on each rank, parameters once in the daemon."""
    for dtype in TYPES:
        for parameter_dtype in (None, dtype):
            torch.manual_seed(rank)
            model = network()  # a key with one parameter, and bundles
            optimizer = wrapped(model, adam, gradient_dtype=dtype, parameter_dtype=parameter_dtype)
            expected = Masters(network(), dtype)
            for step in range(4):
                optimizer.zero_grad()
                backward(model, step, rank, size)
                expected.add(model, phub.Adam(0.01), size)
                optimizer.step()
                expected.check_rounded(model, parameter_dtype or torch.float32, str(dtype))
            optimizer.leave()


def case_training(rank: int, size: int) -> None:
    model = network()
    optimizer = wrapped(
        model,
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        gradient_dtype=torch.bfloat16,
        parameter_dtype="bfloat16",
    )
    train(model, optimizer, rank, size)
    identical_on_all_ranks(model)
    close(model.parameters(), serial(size), 0.02)


def case_masters_keep_small_steps(rank: int, size: int) -> None:
    """Each step is far below the last bit of a bfloat16 parameter."""
    parameter = torch.nn.Parameter(torch.ones(9000))
    model = torch.nn.ParameterList([parameter])
    optimizer = wrapped(
        model, lambda p: torch.optim.SGD(p, 0.25), parameter_dtype=torch.bfloat16
    )
    for step in range(8):  # 8 times 2^-10; bfloat16 has multiples of 2^-8 below 1
        optimizer.zero_grad()
        (parameter.sum() * 2**-8).backward()
        optimizer.step()
        (master,) = masters_of(model, optimizer)
        assert torch.equal(master, torch.full((9000,), 1 - (step + 1) * 2**-10)), step
    assert torch.equal(parameter, torch.full((9000,), 1 - 2**-7))


def case_bytes_are_halved(rank: int, size: int) -> None:
    steps = 3
    found = {}
    for options in (
        {},
        {"gradient_dtype": torch.float16},
        {"parameter_dtype": torch.bfloat16},
        {"gradient_dtype": torch.bfloat16, "parameter_dtype": torch.bfloat16},
    ):
        model = network()
        optimizer = wrapped(model, adam, **options)

        def run() -> None:
            for step in range(steps):
                optimizer.zero_grad()
                backward(model, step, rank, size)
                optimizer.step()

        found[tuple(options)] = moved(optimizer._phub.job.name, run)
        optimizer.leave()
    whole = 4 * sum(each.numel() for each in network().parameters()) * size * steps
    assert found == {
        (): (whole, whole),
        ("gradient_dtype",): (whole // 2, whole),
        ("parameter_dtype",): (whole, whole // 2),
        ("gradient_dtype", "parameter_dtype"): (whole // 2, whole // 2),
    }, (whole, found)


def case_state_has_masters(rank: int, size: int) -> None:
    """A training that is saved and loaded has the same bits as one that is not."""
    options = {"gradient_dtype": torch.float16, "parameter_dtype": torch.bfloat16}
    for before, make, rule in (  # before: steps before it is saved
        (0, adam, phub.Adam(0.01)),
        (2, adam, phub.Adam(0.01)),
        (2, lambda p: torch.optim.SGD(p, 0.1), phub.Sgd(0.1)),
        (0, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), phub.Momentum(0.1, 0.9)),
        (0, lambda p: torch.optim.RMSprop(p, 0.01, centered=True), phub.RmsPropCentered(0.01)),
    ):
        model = network()
        optimizer = wrapped(model, make, **options)
        expected = Masters(network(), torch.float16)
        for step in range(before):
            optimizer.zero_grad()
            backward(model, step, rank, size)
            expected.add(model, rule, size)
            optimizer.step()
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        optimizer.leave()

        def loaded() -> tuple[Any, Any]:
            model = network()
            model.load_state_dict(saved[0])
            stock = make(model.parameters())
            stock.load_state_dict(copy.deepcopy(saved[1]))
            return model, stock

        model, stock = loaded()  # torch.optim continues from such a state
        backward(model, 9, rank, size)
        stock.step()
        model, stock = loaded()  # and so does a DistributedOptimizer that is made from it
        optimizer = DistributedOptimizer(stock, model.named_parameters(), **options)
        optimizer.load_state_dict(saved[1])
        backward(model, 3, rank, size)
        expected.add(model, rule, size)
        optimizer.step()
        expected.check_rounded(model, torch.bfloat16, type(rule).__name__)
        for mine, each in zip(expected.parameters, masters_of(model, optimizer)):
            assert torch.equal(mine, each), type(rule).__name__
        optimizer.leave()


def case_an_optimizer_with_masters_is_wrapped(rank: int, size: int) -> None:
    """The masters of its state count, also without a step."""
    model = network()
    optimizer = wrapped(model, adam, parameter_dtype=torch.bfloat16)
    masters = masters_of(model, optimizer)
    stock = adam(model.parameters())
    stock.load_state_dict(optimizer.state_dict())
    optimizer.leave()
    optimizer = DistributedOptimizer(
        stock, model.named_parameters(), parameter_dtype=torch.bfloat16
    )
    for mine, each in zip(masters, masters_of(model, optimizer)):
        assert torch.equal(mine, each)
    assert not torch.equal(masters[0], model[0].weight)
    optimizer.leave()


def case_parameters_that_changed_win_over_saved_masters(rank: int, size: int) -> None:
    model = network()
    options = {"parameter_dtype": torch.bfloat16}
    optimizer = wrapped(model, adam, **options)
    saved = copy.deepcopy(optimizer.state_dict())
    first = [each.clone() for each in masters_of(model, optimizer)]
    with torch.no_grad():
        model[0].weight[:100] += 1
        changed = model[0].weight.clone()
    optimizer.load_state_dict(saved)
    (weight, *others) = masters_of(model, optimizer)
    assert torch.equal(weight[:100], changed[:100])
    assert torch.equal(weight[100:], first[0][100:])
    assert all(torch.equal(a, b) for a, b in zip(others, first[1:]))
    saved["state"][0]["master"] = torch.ones(7)
    words = ["master of parameter 0.weight", "(7,)", "another model"]
    fails(OptimizerError, words, lambda: optimizer.load_state_dict(saved))


def case_files_have_masters(rank: int, size: int) -> None:
    model = network()
    optimizer = wrapped(model, adam, parameter_dtype=torch.float16)
    train(model, optimizer, rank, size)
    before = masters_of(model, optimizer)
    rounded = [each.detach().clone() for each in model.parameters()]
    with tempfile.TemporaryDirectory() as folder:
        where = str(pathlib.Path(folder) / "saved")
        dist.barrier()
        if rank == 0:
            optimizer.save_checkpoint(where)
        dist.barrier()
        train(model, optimizer, rank, size)
        assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), rounded))
        assert optimizer.load_checkpoint(where) >= STEPS
    assert all(torch.equal(a, b) for a, b in zip(masters_of(model, optimizer), before))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), rounded))


def case_scaled_gradients_are_rounded_after_they_are_unscaled(rank: int, size: int) -> None:
    """The scaled gradients are too large for float16."""
    model = network()
    optimizer = wrapped(
        model, adam, push="step", skip_nonfinite=True, gradient_dtype=torch.float16
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    twin = network()
    backward(twin, 0, rank, size)
    expected = Masters(twin, torch.float16)
    expected.add(twin, phub.Adam(0.01), size)
    x, y = batch(0, size)
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    scaler.scale(torch.nn.functional.cross_entropy(model(x[own]), y[own])).backward()
    assert float(model[3].weight.grad.abs().max()) > 65504
    scaler.step(optimizer)
    assert not optimizer.last_iteration().last_skipped
    expected.check_rounded(model, torch.float32, "scaled")


def case_gradients_that_are_too_large_for_float16(rank: int, size: int) -> None:
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(9000))])
    for dtype in TYPES:
        optimizer = wrapped(
            model, lambda p: torch.optim.SGD(p, 0.1), skip_nonfinite=True, gradient_dtype=dtype
        )
        optimizer.zero_grad()
        (model[0].sum() * 2.0**17).backward()
        optimizer.step()
        assert optimizer.last_iteration().last_skipped == (dtype == torch.float16), dtype
        optimizer.leave()


def half_network(dtype: Any) -> Any:
    return network().to(dtype)


def half_step(model: Any, optimizer: Any, step: int, rank: int, size: int, then: Any) -> None:
    """then: called between backward() and step()."""
    optimizer.zero_grad()
    x, y = batch(step, size)
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    output = model(x[own].to(model[0].weight.dtype))
    torch.nn.functional.cross_entropy(output.float(), y[own]).backward()
    then()
    optimizer.step()


def float_masters(dtype: Any) -> Masters:
    expected = Masters(half_network(dtype), dtype)
    expected.parameters = [each.float() for each in expected.parameters]
    return expected


def check_half(expected: Masters, model: Any, optimizer: Any, what: str) -> None:
    names = [name for name, _ in model.named_parameters()]
    own = zip(expected.parameters, names, model.parameters(), masters_of(model, optimizer))
    for mine, name, parameter, master in own:
        assert torch.equal(mine.to(parameter.dtype), parameter), f"{what}: {name} differs"
        assert torch.equal(mine, master), f"{what}: the master of {name} differs"


def case_16_bit_models(rank: int, size: int) -> None:
    """Gradients and parameters travel as they are; sums, state and updates are in float32."""
    for dtype in TYPES:
        model = half_network(dtype)
        optimizer = wrapped(model, adam)
        expected = float_masters(dtype)
        steps = 3

        def run() -> None:
            for step in range(steps):
                half_step(
                    model, optimizer, step, rank, size,
                    lambda: expected.add(model, phub.Adam(0.01), size),
                )

        found = moved(optimizer._phub.job.name, run)
        half = 2 * sum(each.numel() for each in model.parameters()) * size * steps
        assert found == (half, half), (half, found)
        check_half(expected, model, optimizer, str(dtype))
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        assert saved[1]["state"][0]["exp_avg"].dtype == torch.float32
        optimizer.leave()
        model = half_network(dtype)
        model.load_state_dict(saved[0])
        optimizer = wrapped(model, adam)
        optimizer.load_state_dict(saved[1])
        check_half(expected, model, optimizer, f"loaded, {dtype}")
        half_step(
            model, optimizer, 5, rank, size, lambda: expected.add(model, phub.Adam(0.01), size)
        )
        check_half(expected, model, optimizer, f"after loading, {dtype}")
        optimizer.leave()


def case_16_bit_models_in_shared_memory(rank: int, size: int) -> None:
    model = half_network(torch.bfloat16)
    optimizer = wrapped(model, adam, share_parameters=model)
    expected = float_masters(torch.bfloat16)
    for step in range(2):
        half_step(
            model, optimizer, step, rank, size, lambda: expected.add(model, phub.Adam(0.01), size)
        )
    check_half(expected, model, optimizer, "shared")
    optimizer.leave()


def case_models_of_several_types(rank: int, size: int) -> None:
    types = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    model = torch.nn.ParameterList(
        [torch.nn.Parameter(torch.full((50,), 1.0, dtype=dtype)) for dtype in types]
    )
    optimizer = wrapped(model, lambda p: torch.optim.SGD(p, 0.25))
    for _ in range(2):
        optimizer.zero_grad()
        sum(each.double().sum() for each in model).backward()
        optimizer.step()
    for parameter in model:
        assert torch.equal(parameter, torch.full((50,), 0.5, dtype=parameter.dtype)), parameter
    optimizer.leave()
    words = ["parameter 1 is bfloat16", "gradient_dtype=float16"]
    fails(NotServed, words, lambda: wrapped(model, adam, gradient_dtype=torch.float16))


def case_ranks_that_disagree(rank: int, size: int) -> None:
    if size == 1:
        return
    for mine, words in (
        ({"gradient_dtype": torch.bfloat16}, ["gradient_dtype=bfloat16", "gradient_dtype=None"]),
        ({"parameter_dtype": torch.float16}, ["parameter_dtype=float16", "parameter_dtype=None"]),
    ):
        options = mine if rank == 0 else {}
        words += ["rank 0", "rank 1"]
        fails(OptimizerError, words, lambda: wrapped(network(), adam, **options))
        dist.barrier()


def case_other_types(rank: int, size: int) -> None:
    for option in ("gradient_dtype", "parameter_dtype"):
        for given in (torch.float32, "int8"):
            words = [option, str(given), "torch.float16, torch.bfloat16 or None"]
            fails(ValueError, words, lambda: wrapped(network(), adam, **{option: given}))
        wide = torch.nn.Linear(2, 2).double()
        words = ["parameter weight is float64", f"{option}=float16", "float32"]
        fails(NotServed, words, lambda: wrapped(wide, adam, **{option: torch.float16}))


def case_sums_in_fixed_point(rank: int, size: int) -> None:
    """One parameter is one block: values far below its greatest one vanish."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(20))])
    optimizer = wrapped(model, lambda p: torch.optim.SGD(p, 1.0), op="sum", sum="fixed")
    gradient = torch.full((20,), 2.0**-40)
    gradient[3] = 1
    (model[0] * gradient).sum().backward()
    optimizer.step()
    expected = torch.zeros(20)
    expected[3] = -float(size)
    assert torch.equal(model[0].detach(), expected), model[0]
