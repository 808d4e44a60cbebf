"""A smoke test with Debian's PyTorch 1.13.1, which has no entry points and an older interface."""

import datetime
import os
import signal
import subprocess
import sys
import threading
import unittest

try:
    import torch
except ImportError:
    print("debian_test: skipped, this interpreter has no torch (package python3-torch)")
    sys.exit(77)
if not torch.__version__.startswith("1.13"):
    print(f"debian_test: skipped, torch is {torch.__version__}")
    sys.exit(77)

from collectives_test import cases
from ranks import TorchTest, initialize


def optimizer(rank: int, size: int) -> str:
    """The error of a DistributedOptimizer, which needs a newer torch."""
    import phub.torch

    initialize()
    try:
        phub.torch.DistributedOptimizer(torch.optim.SGD([torch.ones(1)], lr=0.1))
    except phub.torch.NotServed as error:
        return str(error)
    return ""


def mismatch(rank: int, size: int, how: str) -> str:
    """The error of ranks that call different collectives."""
    dist = initialize()
    wrong = rank == 1
    try:
        if how == "training":
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
            loss = model(torch.ones(1, 2)).sum()
            if wrong:
                dist.broadcast(torch.ones(5), 0)
            else:
                loss.backward()
        elif how == "messages":
            values = torch.ones(4 if wrong else 5)
            dist.send(values, 0) if wrong else dist.recv(values, 1)
        else:
            values = torch.ones(5)
            asynchronous = how != "blocking"
            if wrong:
                work = dist.broadcast(values, 0, async_op=asynchronous)
            else:
                work = dist.all_reduce(values, async_op=asynchronous)
            if how == "work":
                work.wait()
            elif how == "future":
                work.get_future().wait()
    except RuntimeError as error:
        return str(error)
    return ""


STORE = """
import sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


class Smoke(TorchTest):
    def test_the_store_may_be_slow_after_phub_has_used_it(self) -> None:
        """torch's own barrier in new_group() uses the same connection."""
        from phub.torch._published import Published, keys_of

        server = subprocess.Popen(
            [sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(server.communicate)
        assert server.stdout is not None
        port = int(server.stdout.readline())
        limit = datetime.timedelta(seconds=60)
        store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
        published = Published(store)
        self.assertIsNone(published.read("key"))
        store.add("ranks", 1)
        os.kill(server.pid, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, [server.pid, signal.SIGCONT]).start()
        self.assertEqual(store.add("ranks", 1), 2)
        published.write("key", {"waits": 1})
        self.assertEqual(published.read("key"), {"waits": 1})
        for key in keys_of(store, "key"):
            store.delete_key(key)
        self.assertIsNone(published.read("key"))

    def test_optimizer(self) -> None:
        self.assertIn("needs torch 2.1", self.run_ranks(1, optimizer)[0])

    def test_errors_reach_those_who_wait(self) -> None:
        """In Python, and in C++ that takes a future's value."""
        for how in ("blocking", "work", "future", "training", "messages"):
            with self.subTest(how=how):
                for error in self.run_ranks(2, mismatch, how):
                    self.assertRegex(error, "rank 0.*rank 1|rank 1.*rank 0")

    def test_collectives_and_training(self) -> None:
        for module in ("collective_cases", "training_cases"):
            for rank, errors in enumerate(self.run_ranks(2, cases, module)):
                self.assertEqual(errors, [], f"rank {rank}")


if __name__ == "__main__":
    unittest.main()
