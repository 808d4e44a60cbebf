"""The numpy example: two ranks as processes, over shared memory and over tcp."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from daemon import PATIENCE_S, DaemonTest

EXAMPLES = pathlib.Path(__file__).parents[2] / "client" / "examples"


class Digits(DaemonTest):
    def train(self, transport: str, folder: str) -> float:
        files = [f"{folder}/{transport}-{rank}.npy" for rank in range(2)]
        ranks = [
            subprocess.Popen(
                [sys.executable, EXAMPLES / "numpy" / "digits.py", "--endpoint"]
                + [self.daemon.endpoint, "--job", transport, "--rank", str(rank)]
                + ["--world-size", "2", "--transport", transport, "--save", file]
                + ["--data", EXAMPLES / "digits" / "data" / "digits.csv.gz"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, file in enumerate(files)
        ]
        outputs = [rank.communicate(timeout=PATIENCE_S * 2) for rank in ranks]
        for rank, (_, errors) in zip(ranks, outputs):
            self.assertEqual(rank.returncode, 0, errors)
            self.assertEqual(errors, "")
        parameters = [np.load(file) for file in files]
        self.assertTrue(np.isfinite(parameters[0]).all())
        np.testing.assert_array_equal(parameters[0].view(np.uint32), parameters[1].view(np.uint32))
        found = re.search(rf"test accuracy ([0-9.]+) over {transport}\n", outputs[0][0])
        self.assertIsNotNone(found, outputs[0][0])
        assert found is not None
        return float(found.group(1))

    def test_ranks_learn_and_end_with_the_same_bits(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for transport in ("shm", "tcp"):
                with self.subTest(transport):
                    self.assertGreater(self.train(transport, folder), 0.93)


if __name__ == "__main__":
    unittest.main()
