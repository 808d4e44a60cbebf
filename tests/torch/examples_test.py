"""The examples in client/examples/torch, started by torchrun."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

from ranks import PATIENCE_S, TorchTest

EXAMPLES = pathlib.Path(__file__).parents[2] / "client" / "examples" / "torch"


class Examples(TorchTest):
    def accuracy(self, program: str, *words: str) -> float:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
            + ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
            + [EXAMPLES / program, "--backend", "phub", "--iterations", "200"],
            env={**os.environ, "PHUB_ENDPOINT": self.daemon.endpoint, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in words:
            self.assertIn(word, done.stdout)
        found = re.search(r"test accuracy ([0-9.]+) with phub", done.stdout)
        assert found is not None, done.stdout
        return float(found[1])

    def test_data_parallel(self) -> None:
        self.assertGreater(self.accuracy("digits_ddp.py", "2 ranks", "identical=yes"), 0.9)

    def test_optimizer_in_the_daemon(self) -> None:
        self.assertGreater(self.accuracy("digits_server.py", "2 ranks", "identical=yes"), 0.9)

    def test_outer_optimizer_in_the_daemon(self) -> None:
        self.assertGreater(self.accuracy("digits_diloco.py", "2 ranks", "identical=yes"), 0.9)

    def test_fully_sharded(self) -> None:
        self.assertGreater(self.accuracy("digits_fsdp.py"), 0.9)


if __name__ == "__main__":
    unittest.main()
