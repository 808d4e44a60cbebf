#!/usr/bin/python3
"""Writes goldens/*.csv: PyTorch's optimizers, step by step, for goldens_test.cc.

Made with Debian 12's python3-torch 1.13.1+dfsg-4 (torch.__version__ is 1.13.0a0), Python 3.11.2:
  ATEN_CPU_CAPABILITY=default tests/unit/simd/make_goldens.py
With that capability PyTorch rounds every operation; its AVX2 kernels fuse multiplications with
additions, which phub does not.

All numbers but steps are in hexadecimal.
inputs.TYPE.csv, the same for all: `0,` and the parameters before the first step; then for each step
`step,` and its gradients.
NAME.TYPE.csv: a line with the optimizer and its arguments as `name=value`; then for each step
`step,learning_rate,` and the parameters after it.
"""
import os
import pathlib
import sys

import torch

STEPS = 10
ELEMENTS = 20
RATE_CHANGES_AFTER = 5

SGD, ADAM = torch.optim.SGD, torch.optim.Adam
ADAMW, ADAGRAD = torch.optim.AdamW, torch.optim.Adagrad
RMSPROP = torch.optim.RMSprop
# Name, optimizer of phub, class of PyTorch, learning rate, PyTorch's arguments.
CASES = [
    ("sgd", "sgd", SGD, 0.1, {}),
    ("sgd_decay", "sgd", SGD, 0.03, {"weight_decay": 0.01}),
    ("momentum", "momentum", SGD, 0.1, {"momentum": 0.9}),
    ("momentum_dampening", "momentum", SGD, 0.07,
     {"momentum": 0.85, "dampening": 0.3, "weight_decay": 0.013}),
    ("nesterov", "nesterov", SGD, 0.1, {"momentum": 0.9, "nesterov": True}),
    ("nesterov_decay", "nesterov", SGD, 0.05,
     {"momentum": 0.95, "nesterov": True, "weight_decay": 0.01}),
    ("adam", "adam", ADAM, 0.001, {"betas": (0.9, 0.999), "eps": 1e-8}),
    ("adam_decay", "adam", ADAM, 0.01, {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.02}),
    ("adamw", "adamw", ADAMW, 0.001, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}),
    ("adagrad", "adagrad", ADAGRAD, 0.01,
     {"lr_decay": 0.05, "initial_accumulator_value": 0.1, "eps": 1e-10}),
    ("adagrad_decay", "adagrad", ADAGRAD, 0.1, {"weight_decay": 0.02, "eps": 1e-10}),
    ("rmsprop", "rmsprop", RMSPROP, 0.01, {"alpha": 0.99, "eps": 1e-8}),
    ("rmsprop_decay", "rmsprop", RMSPROP, 0.03,
     {"alpha": 0.9, "eps": 1e-6, "weight_decay": 0.02}),
    ("rmsprop_momentum", "rmsprop_momentum", RMSPROP, 0.01,
     {"alpha": 0.95, "eps": 1e-8, "momentum": 0.9, "weight_decay": 0.01}),
    ("rmsprop_centered", "rmsprop_centered", RMSPROP, 0.01,
     {"alpha": 0.9, "eps": 1e-4, "centered": True, "weight_decay": 0.01}),
]
# What phub calls it.
NAMES = {"eps": "epsilon", "lr_decay": "learning_rate_decay",
         "initial_accumulator_value": "initial_accumulator"}


def arguments_of(told):
    yield from ((NAMES.get(name, name), value) for name, value in told.items()
                if name not in ("betas", "nesterov", "centered"))
    if "betas" in told:
        yield "beta1", told["betas"][0]
        yield "beta2", told["betas"][1]


def inputs_of(dtype):
    """The parameters before the first step, and the gradients of each."""
    generator = torch.Generator().manual_seed(12345)
    parameters = torch.randn(ELEMENTS, generator=generator, dtype=dtype)
    gradients = [torch.randn(ELEMENTS, generator=generator, dtype=dtype) for _ in range(STEPS)]
    gradients[2][::4] = 0.0
    return parameters, gradients


def line(step, *numbers):
    return ",".join([str(step), *(number.hex() for number in numbers)]) + "\n"


def write_inputs(path, dtype):
    parameters, gradients = inputs_of(dtype)
    with open(path, "w", encoding="ascii") as file:
        file.write(line(0, *parameters.tolist()))
        for step, gradient in enumerate(gradients, start=1):
            file.write(line(step, *gradient.tolist()))


def write_case(path, optimizer_name, optimizer_class, learning_rate, told, dtype):
    parameters, gradients = inputs_of(dtype)
    parameters.requires_grad_()
    optimizer = optimizer_class([parameters], lr=learning_rate, foreach=False, **told)
    with open(path, "w", encoding="ascii") as file:
        told_text = " ".join(f"{name}={value.hex()}" for name, value in arguments_of(told))
        file.write(f"optimizer={optimizer_name} {told_text}".rstrip() + "\n")
        for step, gradient in enumerate(gradients, start=1):
            rate = learning_rate if step <= RATE_CHANGES_AFTER else learning_rate * 0.3
            optimizer.param_groups[0]["lr"] = rate
            parameters.grad = gradient
            optimizer.step()
            file.write(line(step, rate, *parameters.tolist()))


def main():
    if os.environ.get("ATEN_CPU_CAPABILITY") != "default":
        sys.exit("set ATEN_CPU_CAPABILITY=default, see above")
    folder = pathlib.Path(__file__).parent / "goldens"
    folder.mkdir(exist_ok=True)
    for dtype, suffix in ((torch.float32, "f32"), (torch.float64, "f64")):
        write_inputs(folder / f"inputs.{suffix}.csv", dtype)
        for name, *case in CASES:
            write_case(folder / f"{name}.{suffix}.csv", *case, dtype)


if __name__ == "__main__":
    main()
