#!/usr/bin/env python3
"""Trains a small network on handwritten digits with numpy and phub, as one rank of a job.

    digits.py --endpoint 127.0.0.1:7700 --rank 0 --world-size 2 \\
        --data client/examples/digits/data/digits.csv.gz

Each layer's gradients are pushed as soon as they are known, and the daemon sums and applies them
while the gradients of the layer below are computed. All ranks end with the same bits.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt

import phub

SIZES = (64, 128, 64, 10)
TEST_SHARE = 5  # every fifth digit is used for the test only

Array = npt.NDArray[Any]


def load(path: str) -> tuple[Array, Array]:
    """Pixels from 0 to 1, one row per digit, and the digits' values."""
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    return table[:, :64] / 16, table[:, 64].astype(np.int64)


def initial(generator: np.random.Generator, inputs: int, outputs: int) -> Array:
    scale = np.sqrt(2.0 / inputs)
    values: Array = generator.standard_normal((inputs, outputs)) * scale
    return values.astype(np.float32)


def forward(layers: list[tuple[Array, Array]], pixels: Array) -> list[Array]:
    """The inputs of every layer, and the last layer's output."""
    values = [pixels]
    for i, (weight, bias) in enumerate(layers):
        output = values[-1] @ weight + bias
        values.append(np.maximum(output, 0) if i + 1 < len(layers) else output)
    return values


def train(job: phub.Job, arguments: argparse.Namespace) -> None:
    pixels, digits = load(arguments.data)
    is_test = np.arange(len(digits)) % TEST_SHARE == 0
    train_pixels, train_digits = pixels[~is_test], digits[~is_test]

    optimizer = phub.Momentum(learning_rate=0.1, momentum=0.9)
    # One key for each layer: its weights, then its biases.
    keys = [
        job.add_bundle(f"fc{i + 1}", [(inputs, outputs), outputs], optimizer=optimizer)
        for i, (inputs, outputs) in enumerate(zip(SIZES, SIZES[1:]))
    ]
    generator = np.random.default_rng(1)
    for key, inputs, outputs in zip(keys, SIZES, SIZES[1:]):
        weights = initial(generator, inputs, outputs).reshape(-1)
        key.initialize(np.concatenate([weights, np.zeros(outputs, np.float32)]))
    # Views of phub's memory: they show the new parameters after every round.
    tensors = [key.tensors() for key in keys]
    layers = [(weight[1], bias[1]) for weight, bias in tensors]

    batches = np.random.default_rng(arguments.rank + 100)
    for iteration in range(arguments.iterations):
        chosen = batches.integers(len(train_digits), size=arguments.batch)
        values = forward(layers, train_pixels[chosen])
        shifted = np.exp(values[-1] - values[-1].max(axis=1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
        labels = train_digits[chosen]
        rows = np.arange(arguments.batch)
        loss = -np.log(probabilities[rows, labels]).mean()

        delta = probabilities
        delta[rows, labels] -= 1
        delta /= arguments.batch
        handles = []
        for i in reversed(range(len(keys))):
            (weight_gradient, weight), (bias_gradient, _) = tensors[i]
            np.matmul(values[i].T, delta, out=weight_gradient)
            np.sum(delta, axis=0, out=bias_gradient)
            # After the push the weights belong to the round, so they are used before it.
            below = (delta @ weight.T) * (values[i] > 0) if i > 0 else delta
            handles.append(keys[i].push_pull())
            delta = below
        phub.wait_all(handles)
        if arguments.rank == 0 and (iteration + 1) % 50 == 0:
            print(f"iteration {iteration + 1}/{arguments.iterations} loss {loss:.3f}", flush=True)

    guessed = forward(layers, pixels[is_test])[-1].argmax(axis=1)
    if arguments.rank == 0:
        accuracy = (guessed == digits[is_test]).mean()
        print(f"test accuracy {accuracy:.3f} over {job.transports}", flush=True)
    if arguments.save:
        np.save(arguments.save, np.concatenate([key.parameters for key in keys]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits with numpy.")
    parser.add_argument("--endpoint", default="127.0.0.1:7700", help="daemon, as host:port")
    parser.add_argument("--job", default="numpy-digits", help="name of the job")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--transport", default="auto", help="auto, shm, tcp or verbs")
    parser.add_argument("--data", required=True, help="digits.csv.gz")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="digits per rank and iteration")
    parser.add_argument("--save", help="write the final parameters to this file (.npy)")
    arguments = parser.parse_args()
    with phub.connect(arguments.endpoint) as session, session.join(
        arguments.job, arguments.rank, arguments.world_size, transport=arguments.transport
    ) as job:
        train(job, arguments)


if __name__ == "__main__":
    main()
