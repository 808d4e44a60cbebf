"""A name with the addresses of several daemons of a rack: workers that use it reach one that
answers, and train with all. In a network and with a /etc/hosts of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from daemons import ENVIRONMENT, Daemon

TRAINER = os.environ["PHUB_TRAINER"]
INSIDE = "PHUB_TEST_NAMES_INSIDE"
# At the first address there is no daemon, but another program listens on the port of data lanes.
HOSTS = "127.0.0.9 rack\n127.0.0.2 rack\n127.0.0.3 rack\n127.0.0.1 localhost\n"
ADDRESSES = ("127.0.0.2", "127.0.0.3")
DATA_PORT = 7801


class NamesTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="phub-names-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        stranger = socket.create_server(("127.0.0.9", DATA_PORT))
        self.addCleanup(stranger.close)
        endpoints = [f"{address}:7700" for address in ADDRESSES]
        self.daemons = [Daemon(self.folder, address, "", "--daemons", ",".join(endpoints),
                               "--data-listen", f"{address}:{DATA_PORT}",
                               store=["--pin", "off"], listen=f"{address}:7700", socket=False)
                        for address in ADDRESSES]
        for daemon in self.daemons:
            self.addCleanup(daemon.close)
        for daemon in self.daemons:
            daemon.serve()

    def train(self, job: str, endpoint: str, transport: str) -> bytes:
        out = [self.folder / f"{job}-{rank}" for rank in range(2)]
        ranks = [subprocess.Popen(
            [TRAINER, "--endpoint", endpoint, "--job", job, "--rank", str(rank), "--world-size",
             "2", "--transport", transport, "--iterations", "5", "--out", str(out[rank])],
            env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for rank in range(2)]
        said = [rank.communicate()[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], "\n".join(said))
        parameters = [file.read_bytes() for file in out]
        self.assertEqual(parameters[0], parameters[1])
        return parameters[0]

    def test_workers_find_the_rack_by_a_name_of_several_daemons(self) -> None:
        expected = self.train("one", "127.0.0.3:7700", "tcp")
        # Lanes reach the daemon that has answered.
        self.assertEqual(self.train("name", "phub://rack", "tcp"), expected)
        self.assertEqual(self.train("shared", "phub://rack:7700", "shm"), expected)


def enter() -> int:
    """Runs this test in namespaces where the name has several addresses."""
    with tempfile.TemporaryDirectory(prefix="phub-names-") as folder:
        hosts = Path(folder) / "hosts"
        hosts.write_text(HOSTS)
        return subprocess.run(
            ["unshare", "--net", "--mount", "bash", "-c",
             f"ip link set lo up && mount --bind {hosts} /etc/hosts && exec \"$@\"", "names",
             sys.executable, __file__], env={**os.environ, INSIDE: "1"}, check=False).returncode


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root, for namespaces")
        sys.exit(77)
    if INSIDE not in os.environ:
        sys.exit(enter())
    unittest.main(verbosity=2)
