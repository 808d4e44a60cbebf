"""The wheel is enough: torch finds the backend by itself, and nothing of phub is imported first."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from ranks import PATIENCE_S, TorchTest

SCRIPT = """
import sys
import torch
assert "phub" not in sys.modules
torch.distributed.init_process_group("phub")
assert sys.argv[1] in sys.modules["phub"].__file__
tensor = torch.ones(5)
torch.distributed.all_reduce(tensor)
print(tensor.tolist())
"""


class Wheel(TorchTest):
    def test_torch_finds_the_backend(self) -> None:
        root = pathlib.Path(__file__).parents[2]
        with tempfile.TemporaryDirectory(prefix="phub-torch-wheel-") as folder:
            built = subprocess.run(
                [root / "deploy" / "python-wheel", "--system-libraries", "--output", folder]
                + ["--build-dir", os.environ["PHUB_TEST_BUILD"]],
                check=True,
                capture_output=True,
                text=True,
            )
            wheel = built.stdout.strip().splitlines()[-1]
            subprocess.run(
                [sys.executable, "-m", "pip", "--quiet", "install", "--no-index", "--no-deps"]
                + ["--target", f"{folder}/site", wheel],
                check=True,
            )
            environment = {
                key: value for key, value in os.environ.items() if key != "PHUB_LIBRARY"
            }
            environment.update(
                PYTHONPATH=f"{folder}/site",
                PHUB_ENDPOINT=self.daemon.endpoint,
                RANK="0",
                WORLD_SIZE="1",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT="0",
            )
            done = subprocess.run(
                [sys.executable, "-c", SCRIPT, folder],
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
            self.assertEqual(done.stdout, "[1.0, 1.0, 1.0, 1.0, 1.0]\n", done.stderr)

    def test_the_entry_point_loads_nothing_of_phub(self) -> None:
        script = (
            "import sys, torch, _phub_torch\n_phub_torch.autoload()\nprint('phub' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        self.assertEqual(done.stdout, "False\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
