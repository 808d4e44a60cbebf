"""Checkpoints: what the job's daemon says of them, also of copies that are deleted soon."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile
import threading
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

    def test_a_rank_may_leave_while_it_waits_for_others_to_load(self) -> None:
        session = phub.connect(self.daemon.endpoint)
        first = session.join("left", 0, 2)
        job = session.join("left", 1, 2)
        errors: list[BaseException] = []

        def load() -> None:
            try:
                job.load_checkpoint()
            except phub.Error as error:
                errors.append(error)

        loads = threading.Thread(target=load, daemon=True)
        loads.start()
        loads.join(0.5)
        leaves = threading.Thread(target=job._leave_quietly, daemon=True)
        leaves.start()
        for thread in (leaves, loads):
            thread.join(60)
            self.assertFalse(thread.is_alive())
        self.assertIn("rank 1 leaves job left while it waits for other ranks", str(errors[0]))
        del first


if __name__ == "__main__":
    unittest.main()
