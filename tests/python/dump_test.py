"""Recorders of programs, as `phubctl job dump` shows them."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import unittest
import weakref

import numpy as np
from daemon import PATIENCE_S, DaemonTest, start_program

import phub

PROGRAM = """
import sys
import threading
import phub

job = phub.connect(sys.argv[1]).join(sys.argv[2])
asked = threading.Event()

def recorder(bytes_max):
    asked.set()
    return phub.DumpRecord("runs")

job.set_recorder(recorder)
print("joined")
asked.wait(20)
"""


class Dumps(DaemonTest):
    def ask(self) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [os.environ["PHUB_TEST_PHUBCTL"], "-e", self.daemon.endpoint, "job", "dump"]
            + [self.id(), "--wait", "20s"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3 * PATIENCE_S,
        )

    def dump(self) -> str:
        done = self.ask()
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_a_recorder_adds_to_the_record_of_its_rank(self) -> None:
        job = self.join()
        sizes: list[int] = []

        def recorder(bytes_max: int) -> phub.DumpRecord:
            sizes.append(bytes_max)
            return phub.DumpRecord("reads \x1b[1mdata\u2713", "line 1\nline 2", '{"a": 1}')

        job.set_recorder(recorder)
        text = self.dump()
        self.assertIn(" reads ?[1mdata\u2713; has no round in flight", text)
        self.assertIn("\n  | line 1\n  | line 2\n", text)
        self.assertEqual(len(sizes), 1)
        self.assertGreater(sizes[0], 10_000)
        job.set_recorder(lambda bytes_max: 1 // 0)  # type: ignore[arg-type, return-value]
        self.assertIn("its recorder failed: ZeroDivisionError", self.dump())
        job.set_recorder(None)
        self.assertNotIn("recorder failed", self.dump())
        self.assertEqual(len(sizes), 1)
        job.leave()
        with self.assertRaises(phub.FailedPrecondition):
            job.set_recorder(recorder)

    def test_rounds_are_shown_while_the_program_holds_the_interpreter_lock(self) -> None:
        first, second = self.join(0, 2), self.join(1, 2)
        keys = [each.add_key("w", (4,)) for each in (first, second)]
        keys[0].gradients[:] = 1
        handle = keys[0].push_pull()
        first.set_recorder(lambda bytes_max: phub.DumpRecord("answers"))
        program = start_asking(self.daemon.endpoint, self.id())
        ctypes.PyDLL(None).waitpid(program.pid, None, 0)  # keeps the interpreter lock
        out, _ = program.communicate(timeout=PATIENCE_S)
        self.assertIn("the program's recorder did not answer within 3.0 s", out)
        self.assertIn("  round key w, iteration 1 (reduce), for ", out)
        self.assertIn("rank 0 waits for rank 1 in key w, iteration 1", out)
        keys[1].gradients[:] = np.float32(2)
        keys[1].push_pull().wait()
        handle.wait()

    def test_a_job_with_a_recorder_is_left_when_nobody_refers_to_it(self) -> None:
        job = self.join()
        job.set_recorder(lambda bytes_max: phub.DumpRecord("x"))
        reference = weakref.ref(job)
        del job
        gc.collect()
        self.assertIsNone(reference())

    def test_a_process_with_a_recorder_ends(self) -> None:
        program = start_program(PROGRAM, self.daemon.endpoint, self.id())
        assert program.stdout is not None
        self.assertEqual(program.stdout.readline(), "joined\n")
        done = self.ask()  # the program ends as soon as it is asked, perhaps before it has answered
        ended = "ended while it was being dumped" in done.stdout
        self.assertTrue(done.returncode == 0 or ended, done.stdout)
        program.communicate(timeout=PATIENCE_S)
        self.assertEqual(program.returncode, 0)


def start_asking(endpoint: str, job: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [os.environ["PHUB_TEST_PHUBCTL"], "-e", endpoint, "job", "dump", job, "--wait", "3s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


if __name__ == "__main__":
    unittest.main()
