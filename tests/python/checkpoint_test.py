"""Checkpoints: what the job's daemon says of them, also of copies that are deleted soon."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
from typing import Any

import numpy as np
from daemon import DaemonTest

import phub


class CheckpointTest(DaemonTest):
    def saved(self, job: str) -> Any:
        """The checkpoint that `phubctl job get` names."""
        shown = subprocess.run(
            [os.environ["PHUB_TEST_PHUBCTL"], "-e", self.daemon.endpoint, "job", "get", job,
             "-o", "json"],
            check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(shown.stdout).get("saved_state", {}).get("directory")

    def test_a_copy_is_not_named_as_a_checkpoint(self) -> None:
        job = phub.connect(self.daemon.endpoint).join("copied", 0, 1)
        key = job.add_key("weights", 4, optimizer=phub.Sgd(1.0))
        key.initialize(np.array([1, 2, 3, 4], np.float32))
        key.gradients[:] = 1
        key.push_pull().wait()
        with tempfile.TemporaryDirectory() as folder:
            kept, copy, other = (str(pathlib.Path(folder, each)) for each in ("a", "b", "c"))
            self.assertEqual(job.save_checkpoint(copy, lasts=False), 1)
            self.assertIsNone(self.saved("copied"))
            job.save_checkpoint(kept)
            self.assertEqual(self.saved("copied"), kept)
            key.push_pull().wait()
            self.assertEqual(job.save_checkpoint(copy, lasts=False), 2)
            self.assertEqual(job.load_checkpoint(copy, lasts=False), 2)
            self.assertEqual(self.saved("copied"), kept)
            np.testing.assert_array_equal(key.parameters, [-1, 0, 1, 2])
            job.save_checkpoint(other)
            self.assertEqual(self.saved("copied"), other)
            job.load_checkpoint(kept)
            self.assertEqual(self.saved("copied"), kept)
            subprocess.run(
                [os.environ["PHUB_TEST_PHUBCTL"], "-e", self.daemon.endpoint, "job", "evict",
                 "copied", "--yes"],
                check=True, stdout=subprocess.DEVNULL)
            with self.assertRaisesRegex(phub.Error, f"iteration 1 in {kept}"):
                while True:
                    key.push_pull().wait()


if __name__ == "__main__":
    unittest.main()
