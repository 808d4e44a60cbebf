"""`phubctl job dump` of process groups: who waits for whom, in which collective."""

from __future__ import annotations

import json
import os
import subprocess
import time
import unittest
from typing import Any

from ranks import CONTEXT, PATIENCE_S, TorchTest, initialize

WAITS = "waits in operation 2, all_reduce(SUM) of 3 float32"


def late(rank: int, size: int, calls: Any, go_on: Any) -> str:
    """Rank 1 calls its second collective when it may."""
    import torch
    import torch.distributed as dist

    initialize(PATIENCE_S)
    dist.barrier()
    calls.release()
    if rank == 1:
        go_on.wait(PATIENCE_S)
    dist.all_reduce(torch.ones(3))
    name = dist.group.WORLD.job_name
    dist.destroy_process_group()
    return str(name)


class Dumps(TorchTest):
    def ask(self, *arguments: str) -> str:
        done = subprocess.run(
            [os.environ["PHUB_TEST_PHUBCTL"], "-e", self.daemon.endpoint, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def job(self) -> str:
        jobs = json.loads(self.ask("job", "list", "-o", "json"))["jobs"]
        (name,) = [each["name"] for each in jobs if each["state"] == "running"]
        return str(name)

    def dump_with(self, words: str, *more: str) -> str:
        """Ranks may need a moment to call the collective."""
        end = time.monotonic() + PATIENCE_S
        while True:
            text = self.ask("job", "dump", self.job(), *more)
            if words in text or time.monotonic() > end:
                self.assertIn(words, text)
                return text

    def test_shows_who_waits_for_whom_in_which_operation(self) -> None:
        calls, go_on = CONTEXT.Semaphore(0), CONTEXT.Event()
        run = self.start(2, late, calls, go_on)
        for _ in range(2):
            self.assertTrue(calls.acquire(timeout=PATIENCE_S), run.errors())
        text = self.dump_with(f"; rank 0 {WAITS}", "--wait", "20s")
        # Rank 0's main thread waits inside of the collective. Rank 1 sleeps.
        for line in (
            r"  rank 0 waits for rank 1 in .*; rank 0 waits in operation 2, all_reduce",
            r"  rank 1 \(.*\) last called operation 1, barrier; waits in none; has no round in",
            r"  \| +2  waits +\d+\.\d{3} s  all_reduce\(SUM\) of 3 float32",
        ):
            self.assertRegex(text, "\n" + line)
        dump = json.loads(self.ask("job", "dump", self.job(), "-o", "json", "--wait", "20s"))
        waiting, sleeping = [json.loads(each["record"]["json"]) for each in dump["ranks"]]
        self.assertEqual((waiting["waits_in"], sleeping["waits_in"]), (2, None))
        self.assertEqual(
            [(each["sequence"], each["state"]) for each in waiting["operations"]],
            [(2, "waits"), (1, "completed")],
        )
        go_on.set()
        self.assertEqual(len(set(run.results())), 1)


if __name__ == "__main__":
    unittest.main()
