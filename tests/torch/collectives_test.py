"""Collectives of the backend "phub" of torch.distributed, against a real daemon."""

import unittest

from ranks import TorchTest, all_cases


def cases(rank: int, size: int, module: str, transport: str = "auto") -> list[str]:
    import phub.torch

    return all_cases(module, rank, size, pg_options=phub.torch.Options(transport=transport))


def delayed_cases(
    rank: int, size: int, module: str, transport: str, ranks: tuple[int, ...]
) -> list[str]:
    if rank in ranks:
        import delayed_copies

        delayed_copies.install()
    return cases(rank, size, module, transport)


class Collectives(TorchTest):
    def check(self, size: int, module: str, transport: str = "auto") -> None:
        for rank, errors in enumerate(self.run_ranks(size, cases, module, transport)):
            self.assertEqual(errors, [], f"rank {rank}")

    def test_two_ranks(self) -> None:
        self.check(2, "collective_cases")

    def test_unusual_and_wrong_tensors(self) -> None:
        self.check(2, "unusual_cases")
        self.check(3, "unusual_cases", "tcp")

    def test_training(self) -> None:
        self.check(2, "training_cases")

    def test_tensors_that_are_still_being_copied(self) -> None:
        for module, transport, ranks in (
            ("collective_cases", "tcp", (0, 1)),
            ("movement_cases", "shm", (0, 1)),
            ("movement_cases", "shm", (1,)),
        ):
            results = self.run_ranks(2, delayed_cases, module, transport, ranks)
            for rank, errors in enumerate(results):
                self.assertEqual(errors, [], f"rank {rank}")

    def test_two_ranks_over_tcp(self) -> None:
        self.check(2, "collective_cases", "tcp")

    def test_movements_of_the_same_size(self) -> None:
        self.check(2, "movement_cases")
        self.check(3, "movement_cases", "tcp")

    def test_three_ranks(self) -> None:
        self.check(3, "collective_cases")


if __name__ == "__main__":
    unittest.main()
