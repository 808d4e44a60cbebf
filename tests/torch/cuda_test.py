"""CUDA tensors on the backend "phub", against a real daemon. Skipped where there is no GPU."""

import sys
import unittest

import torch

from ranks import TorchTest, all_cases

SKIPPED = 77  # for ctest


def cases(rank: int, size: int, module: str, transport: str, device: str) -> list[str]:
    import phub.torch

    # The modules of tests for the CPU create their tensors on the default device.
    torch.set_default_device(device)
    return all_cases(module, rank, size, pg_options=phub.torch.Options(transport=transport))


class Cuda(TorchTest):
    def check(self, size: int, module: str, transport: str = "shm", device: str = "cuda") -> None:
        for rank, errors in enumerate(self.run_ranks(size, cases, module, transport, device)):
            self.assertEqual(errors, [], f"rank {rank}")

    def test_streams(self) -> None:
        self.check(2, "cuda_cases", device="cpu")
        self.check(3, "cuda_cases", "tcp", device="cpu")

    def test_collectives(self) -> None:
        self.check(2, "collective_cases")
        self.check(2, "collective_cases", "tcp")

    def test_movements_of_the_same_size(self) -> None:
        self.check(2, "movement_cases")
        self.check(3, "movement_cases", "tcp")

    def test_unusual_and_wrong_tensors(self) -> None:
        self.check(2, "unusual_cases")

    def test_training(self) -> None:
        self.check(2, "training_cases")
        self.check(3, "training_cases", "tcp")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("cuda_test: skipped, torch finds no GPU")
        sys.exit(SKIPPED)
    unittest.main()
