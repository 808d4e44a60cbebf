"""Tests of the network bench: its limits, and that its namespaces are always deleted."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from harness import iperf_links, namespaces
from harness.failure import BenchFailure
from harness.namespaces import Node
from harness.network import Shape, moved_bytes

RUN = Path(__file__).resolve().parent.parent.parent / "bench" / "run"
NO_NETWORKS = namespaces.missing()
START_SECONDS_MAX = 30


def names_of(pid: int) -> list[str]:
    answer = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in answer.stdout.splitlines()
            if line.startswith(f"{namespaces.PREFIX}-{pid}-")]


class LimitTest(unittest.TestCase):
    def test_resnet50_over_a_gigabit(self) -> None:
        self.assertAlmostEqual(Shape(1000).limit_s(), 0.855, delta=0.0005)
        self.assertAlmostEqual(Shape(1000, type="bf16").limit_s(), 0.4275, delta=0.0005)
        self.assertAlmostEqual(Shape(1000, servers=2).limit_s(), 0.855, delta=0.0005)

    def test_a_ring_moves_more_through_each_link(self) -> None:
        self.assertAlmostEqual(Shape(1000).own_limit_s(is_phub=False), 1.2827, delta=0.0005)
        # Servers on the workers' hosts have no links of their own.
        colocated = Shape(1000, servers=0)
        self.assertEqual(colocated.own_limit_s(is_phub=True), colocated.own_limit_s(is_phub=False))

    def test_each_byte_counts_once(self) -> None:
        model_bytes = Shape(1000).workload().bytes
        self.assertEqual(moved_bytes(Shape(1000), is_phub=True), 8 * model_bytes)
        self.assertEqual(moved_bytes(Shape(1000), is_phub=False), 6 * model_bytes)
        self.assertEqual(moved_bytes(Shape(1000, servers=0), is_phub=True), 6 * model_bytes)

    def test_single_tensors_are_drained_for(self) -> None:
        self.assertTrue(Shape(1000, model="1MiB").drained)
        self.assertFalse(Shape(1000).drained)


class IperfTest(unittest.TestCase):
    def test_both_ways_count(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            log.write_text('{"end": {"sum_received": {"bits_per_second": 16e9},'
                           ' "sum_received_bidir_reverse": {"bits_per_second": 8e9}}}')
            self.assertEqual(iperf_links.bytes_per_s(log), 3e9)

    def test_a_failure_is_told(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            log.write_text('{"error": "unable to connect"}')
            with self.assertRaisesRegex(BenchFailure, "unable to connect"):
                iperf_links.bytes_per_s(log)


@unittest.skipIf(NO_NETWORKS, NO_NETWORKS)
class NamespaceTest(unittest.TestCase):
    NODES = (Node("worker0", 1e8), Node("server0", 4e8, 4))

    def test_nodes_reach_each_other_and_go(self) -> None:
        with namespaces.network(self.NODES) as network:
            self.assertEqual(len(names_of(os.getpid())), 3)
            # "Connection refused" shows that the host was reached.
            reach = ("import socket, sys; s = socket.socket(); s.settimeout(5);"
                     "sys.exit(s.connect_ex((sys.argv[1], 1)))")
            answer = subprocess.run(
                [*network.prefix("worker0"), "python3", "-c", reach, network.address("server0")],
                check=False)
            self.assertEqual(os.strerror(answer.returncode), "Connection refused")
        self.assertEqual(names_of(os.getpid()), [])

    def test_they_go_whatever_happens(self) -> None:
        with contextlib.suppress(KeyboardInterrupt), namespaces.network(self.NODES):
            raise KeyboardInterrupt
        self.assertEqual(names_of(os.getpid()), [])

    @unittest.skipUnless(os.environ.get("PHUB_BENCH_OPTIMIZED") == "yes", "no optimised build")
    def test_an_interrupted_bench_leaves_nothing(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with subprocess.Popen(
                    [RUN, "network", "--no-build", "--build-dir",
                     os.environ["PHUB_BENCH_BUILD_DIR"], "--rate", "100", "--workers", "2",
                     "--systems", "phub"],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    start_new_session=True) as running:
                found: list[str] = []
                give_up = time.monotonic() + START_SECONDS_MAX
                while len(found) < 4 and time.monotonic() < give_up:
                    time.sleep(0.1)
                    found = names_of(running.pid)  # the launcher became the harness
                self.assertEqual(len(found), 4, "the network was not made")
                os.killpg(running.pid, number)
                self.assertNotEqual(running.wait(60), 0)
            self.assertEqual(names_of(running.pid), [])


if __name__ == "__main__":
    unittest.main(argv=["network_test"])
