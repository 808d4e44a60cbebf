"""PyTorch's own suite of torch.distributed: tests that pass with gloo pass with phub, except those
in suite_exceptions.txt. PHUB_TEST_LONG=1 runs all of them, with 2 and with 4 ranks, and gloo first;
otherwise a few run with 2 ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

from ranks import TorchTest

FOLDER = pathlib.Path(__file__).parent
LONG = os.environ.get("PHUB_TEST_LONG") is not None
PATIENCE_S = 1800 if LONG else 240
SELECTION = [
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_reduce_complex_unsupported_ops",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_isend_torch_profiler",
    "test_scatter_checks",
]

Outcomes = dict[str, tuple[str, str]]  # of a test: passed, failed or skipped, and the message


def exceptions() -> set[str]:
    lines = (FOLDER / "suite_exceptions.txt").read_text().splitlines()
    return {line.split()[0] for line in lines if line and not line.startswith("#")}


class Suite(TorchTest):
    def outcomes(self, backend: str, size: int, names: list[str], like: str = "gloo") -> Outcomes:
        """names: patterns; none for all. like: the suite runs those of this backend."""
        done = subprocess.run(
            [sys.executable, FOLDER / "suite.py", *names],
            cwd=FOLDER,
            env={
                **os.environ,
                "PHUB_ENDPOINT": self.daemon.endpoint,
                "OMP_NUM_THREADS": "1",
                "WORLD_SIZE": str(size),
                "TORCH_SUITE_BACKEND": backend,
                "TORCH_SUITE_LIKE": like,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
        )
        results: Outcomes = {}
        for line in done.stdout.splitlines():
            if line.startswith('["test_'):  # tests print, too
                name, outcome, message, _ = json.loads(line)
                results[name] = (outcome, message)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.assertTrue(results, done.stderr[-4000:])
        return results

    def expect_passed(self, results: Outcomes) -> None:
        for name, (outcome, message) in results.items():
            with self.subTest(name):
                self.assertEqual(outcome, "passed", message)

    def compare(self, size: int) -> None:
        gloo = self.outcomes("gloo", size, [])
        passed = [name for name, (outcome, _) in gloo.items() if outcome == "passed"]
        self.assertGreater(len(passed), 80)
        names = [name for name in passed if name not in exceptions()]
        phub = self.outcomes("phub", size, names)
        count = sum(outcome == "passed" for outcome, _ in phub.values())
        print(f"{size} ranks: gloo passes {len(passed)} tests, phub {count} of them")
        self.expect_passed(phub)

    def test_a_selection(self) -> None:
        self.expect_passed(self.outcomes("phub", 2, SELECTION))

    @unittest.skipUnless(LONG, "takes minutes")
    def test_two_ranks(self) -> None:
        self.compare(2)

    @unittest.skipUnless(LONG, "takes minutes")
    def test_four_ranks(self) -> None:
        self.compare(4)

    @unittest.skipUnless(LONG, "takes minutes")
    def test_all_to_all(self) -> None:
        """The suite runs these with MPI only."""
        results = self.outcomes("phub", 2, ["*all_to_all*"], like="mpi")
        ran = {name: each for name, each in results.items() if each[0] != "skipped"}
        self.assertGreater(len(ran), 5)
        self.expect_passed(ran)


if __name__ == "__main__":
    if importlib.util.find_spec("expecttest") is None:
        print("suite_test: skipped, PyTorch's suite needs the package expecttest")
        sys.exit(77)
    unittest.main()
