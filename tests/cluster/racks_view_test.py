"""Racks whose daemons find each other through the declared view in a real etcd: jobs across racks,
daemons that come back, also elsewhere, and daemons of different views."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from daemons import ENVIRONMENT, PHUBCTL, PHUBD, Daemon
from declared_view_test import ViewTest
from etcd import find_programs
from waiting import free_ports

NAMES = ("north", "south")
VIEW = "".join(f'[[rack]]\nname = "{name}"\ndaemons = 2\n' for name in NAMES)
PLACES = [f"{name}/{number}" for name in NAMES for number in range(2)]
TRAINER = os.environ["PHUB_TRAINER"]
ITERATIONS = 5


class RacksTest(ViewTest):
    def setUp(self) -> None:
        super().setUp()
        self.etcd.start()
        pki = self.folder / "pki"
        for arguments in (["init", str(pki)],
                          ["issue", str(pki), "server", "node", "--host", "127.0.0.1"]):
            subprocess.run([PHUBCTL, "pki", *arguments], check=True, env=ENVIRONMENT,
                           stdout=subprocess.DEVNULL)
        self.pki = pki
        self.key = self.folder / "token.key"
        self.ports = dict(zip(PLACES, free_ports(len(PLACES))))
        self.racks: dict[str, Daemon] = {}

    def set_view(self, text: str) -> str:
        done = subprocess.run(
            [PHUBCTL, "store", "set-view", f"etcd:{self.etcd.endpoints}", self.file(text),
             "--token-key", str(self.key)], check=False, text=True,
            env={**ENVIRONMENT, "PATH": f"{Path(PHUBD).parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout

    def start(self, place: str, *, name: str = "", daemon_id: str = "") -> Daemon:
        files = [f"--tls-certificate={self.pki}/server-node.crt",
                 f"--tls-key={self.pki}/server-node.key", f"--tls-client-ca={self.pki}/ca.crt"]
        short = place.replace("/", "")
        daemon = Daemon(self.folder, name or short, self.etcd.endpoints, "--place", place, *files,
                        "--daemon-id", daemon_id or short,
                        token_key=self.key, listen=f"127.0.0.1:{self.ports[place]}")
        self.addCleanup(daemon.close)
        self.racks[place] = daemon
        return daemon

    def start_all(self) -> None:
        for place in PLACES:
            self.start(place)
        for daemon in self.racks.values():
            daemon.serve()

    def tenant(self) -> Path:
        first = self.racks["north/0"]
        self.assertNotIn("phubctl:", first.ask("tenant", "create", "acme"))
        token = self.token(first, "--tenant", "acme")
        for daemon in self.racks.values():
            self.says(daemon, "acme", "tenant", "list")
        return token

    def train(self, job: str, endpoints: list[str], token: Path | None = None) -> bytes:
        """The parameters that all ranks of a job across the racks have at its end."""
        environment = dict(ENVIRONMENT)
        if token:
            environment |= {"PHUB_TOKEN_FILE": str(token), "PHUB_CA_FILE": f"{self.pki}/ca.crt"}
        out = [self.folder / f"{job}-{rank}" for rank in range(4)]
        ranks = [subprocess.Popen(
            [TRAINER, "--endpoint", endpoints[rank // 2], "--job", job, "--rank", str(rank),
             "--world-size", "4", "--plan", "ring", "--iterations", str(ITERATIONS), "--out",
             str(out[rank])], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True) for rank in range(4)]
        said = [rank.communicate()[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0] * 4, "\n".join(said))
        parameters = [file.read_bytes() for file in out]
        self.assertEqual(parameters, parameters[:1] * 4)
        return parameters[0]

    def train_in_cluster(self, job: str, token: Path) -> bytes:
        return self.train(job, [self.racks[f"{name}/1"].endpoint for name in NAMES], token)

    def by_hand(self) -> bytes:
        """The same job at daemons with hand-written lists, without identities."""
        ports = dict(zip(PLACES, free_ports(len(PLACES))))
        at = {place: f"127.0.0.1:{port}" for place, port in ports.items()}
        daemons = []
        for place in PLACES:
            name, number = place.split("/")
            daemon = Daemon(self.folder, f"hand-{name}{number}", "", "--daemons",
                            ",".join(at[f"{name}/{i}"] for i in range(2)), "--racks",
                            ",".join(at[f"{each}/{number}"] for each in NAMES),
                            store=["--pin", "off"], listen=at[place], socket=False)
            self.addCleanup(daemon.close)
            daemons.append(daemon)
        for daemon in daemons:
            daemon.serve()
        result = self.train("hand", [at[f"{name}/1"] for name in NAMES])
        for daemon in daemons:
            daemon.stop()
        return result

    def says_at_all(self, text: str) -> None:
        for daemon in self.racks.values():
            self.says(daemon, text, "server", "list")


class TwoRacks(RacksTest):
    def test_daemons_find_each_other_and_those_that_come_back(self) -> None:
        self.assertIn("view 1: 2 racks, 4 daemons", self.set_view(VIEW))
        for place in PLACES[1:]:
            self.start(place)
        for daemon in self.racks.values():
            daemon.wait_for('reason="no daemon has been at north/0 yet"')
        self.start("north/0")
        for daemon in self.racks.values():
            daemon.serve()
        token = self.tenant()
        expected = self.by_hand()
        self.assertEqual(self.train_in_cluster("first", token), expected)
        for place in PLACES:
            self.says_at_all(place)

        # One dies and comes back where it was.
        back = self.racks["south/0"]
        back.process.send_signal(signal.SIGKILL)
        back.process.wait()
        back.start()
        back.serve()
        self.assertEqual(self.train_in_cluster("second", token), expected)

        # Another one comes back at another endpoint. Nobody else is restarted.
        moved = self.racks["north/1"]
        moved.stop()
        old = moved.endpoint
        self.ports["north/1"] = free_ports(1)[0]
        again = self.start("north/1", name="moved", daemon_id="north1")
        again.serve()
        self.assertNotEqual(again.endpoint, old)
        for place in ("north/0", "south/1"):
            self.racks[place].wait_for(
                f"event=place_moved place=north/1 from={old} to={again.endpoint}")
        self.assertEqual(self.train_in_cluster("third", token), expected)
        # Its rack's other daemon sends workers there.
        through = [self.racks["north/0"].endpoint, self.racks["south/0"].endpoint]
        self.assertEqual(self.train("fourth", through, token), expected)

    def test_daemons_of_different_views_refuse_each_other_by_number(self) -> None:
        self.set_view(VIEW)
        self.start_all()
        token = self.tenant()
        changed = self.racks["north/0"].ask("view", "set", self.file(VIEW.replace("south", "west")))
        self.assertIn("view 2: ", changed)
        self.says_at_all("not claimed")
        self.racks["south/1"].wait_for("event=view_differs used=1 declared=2")
        # A daemon of the new view, at a place that both have.
        self.racks["north/1"].stop()
        for place in ("west/0", "west/1"):
            self.ports[place] = free_ports(1)[0]
            self.start(place)
        again = self.start("north/1", name="again", daemon_id="north1")
        again.serve()
        difference = "view is 2 at rack 0 and 1 at rack 1"
        again.wait_for(f'event=peer_refused message="{difference}')
        self.racks["south/1"].wait_for(difference)
        done = subprocess.run(
            [TRAINER, "--endpoint", again.endpoint, "--job", "job", "--rank", "0", "--world-size",
             "4", "--plan", "ring"], check=False, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**ENVIRONMENT, "PHUB_TOKEN_FILE": str(token),
                                           "PHUB_CA_FILE": f"{self.pki}/ca.crt"})
        self.assertIn("have different configurations (view is ", done.stdout)


if __name__ == "__main__":
    if not find_programs():
        print("etcd is not installed and cannot be downloaded (try apt-get update)")
        sys.exit(1 if os.environ.get("ETCD_TEST_REQUIRED") else 77)
    unittest.main(verbosity=2)
