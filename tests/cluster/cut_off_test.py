"""Suspensions and revocations at a daemon while a real etcd does not answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import cluster_test
from cluster_test import ClusterTest
from daemons import ENVIRONMENT, Daemon
from waiting import wait_until


class CutOff(ClusterTest):
    def join(self, daemon: Daemon, token: Path) -> str:
        """What a worker says that joins a job and trains twice."""
        done = subprocess.run(
            [os.environ["PHUB_TRAINER"], "--endpoint", daemon.endpoint, "--job", "j", "--rank", "0",
             "--world-size", "1", "--iterations", "2"], check=False, text=True,
            env={**ENVIRONMENT, "PHUB_TOKEN_FILE": str(token)}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        return done.stdout

    def kept(self, daemon: Daemon) -> list[Path]:
        return list(daemon.folder.glob("token.key.*.local"))

    def test_suspend_and_revoke_hold_there_through_kills_and_then_everywhere(self) -> None:
        first, second = self.pair()
        first.ask("tenant", "create", "acme")
        token, worker = (self.token(first, "--tenant", "acme") for _ in range(2))
        operator = self.token(first, "--role", "operator")
        self.says(second, "role operator", "whoami", token=operator)
        self.says(second, "role tenant", "whoami", token=worker)
        self.assertNotIn("suspended", self.join(second, worker))
        self.etcd.stop()
        said = second.ask("tenant", "suspend", "acme", "--yes")
        self.assertIn("phubctl: warning: 1 suspension or revocation applies only at", said)
        said = second.ask("-o", "json", "token", "revoke", token.read_text().split("_")[1], "--yes")
        self.assertIn('"warning": "2 suspensions and revocations apply only at this', said)
        said = second.ask("server", "drain", "--yes", token=operator)
        self.assertIn("1 audit entry waits for etcd", said)
        second.ask("server", "undrain", token=operator)
        self.assertIn("not in etcd yet", second.ask("tenant", "resume", "acme"))
        for what in "as it was asked", "after a kill and a restart":
            with self.subTest(what):
                self.assertIn("was revoked", second.ask("whoami", token=token))
                self.assertIn("tenant acme is suspended", self.join(second, worker))
                if self.etcd.members[0] is None:
                    self.assertIn("role tenant", first.ask("whoami", token=token))
                    self.assertEqual(len(self.kept(second)), 1)
                    second.close()
                    second.start()
                    second.wait_for("event=waiting_for_control_store")
                    self.etcd.start()
                    second.serve()
                    self.assertIn("event=local_changes_read count=4", second.log())
        self.says(first, "suspended", "tenant", "get", "acme")
        self.says(first, "was revoked", "whoami", token=token)
        self.says(first, "server.undrain", "audit", "tail")
        log = first.ask("audit", "tail")
        for action in "tenant.suspend", "token.revoke", "server.drain":
            self.assertEqual(log.count(action), 1, log)
        self.assertEqual(log.count("made at daemon"), 2, log)
        wait_until(lambda: not self.kept(second), "the file is gone")
        first.ask("tenant", "resume", "acme")
        self.says(second, "active", "tenant", "get", "acme")

    def test_the_stricter_state_wins_and_a_damaged_file_is_an_error(self) -> None:
        first, second = self.pair()
        first.ask("tenant", "create", "acme")
        self.says(second, "acme", "tenant", "list")
        self.etcd.stop()
        second.ask("tenant", "suspend", "acme", "--yes")
        second.close()
        self.etcd.start()
        limit = ["tenant", "set-quota", "acme", "--jobs", "3"]
        wait_until(lambda: "phubctl:" not in first.ask(*limit), "the other daemon is connected")
        for arguments in ["suspend", "acme", "--yes"], ["resume", "acme"]:
            self.assertNotIn("phubctl:", first.ask("tenant", *arguments))
        file, = self.kept(second)
        right = file.read_bytes()
        file.write_bytes(right[:-1])
        second.start()
        self.assertIn(f"{file} cannot be read", second.fails())
        self.assertIn("active", first.ask("tenant", "get", "acme"))
        file.write_bytes(right)
        second.start()
        second.wait_for("event=local_change_overrode action=tenant.suspend subject=acme")
        self.says(first, "suspended", "tenant", "get", "acme")


if __name__ == "__main__":
    raise SystemExit(cluster_test.main())
