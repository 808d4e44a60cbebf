"""Two daemons with one control store in a real etcd: what one changes, the other knows; what etcd
holds and does wrong permits nothing. PHUB_TEST_LONG: three members, and waiting."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from daemons import ENVIRONMENT, PATIENCE_S, PHUBCTL, Daemon
from etcd import Etcd, find_programs
from waiting import wait_until

LONG = bool(os.environ.get("PHUB_TEST_LONG"))


class ClusterTest(unittest.TestCase):
    members = 1

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="phub-cluster-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        programs = find_programs()
        assert programs is not None
        self.programs = programs
        self.etcd = Etcd(programs, self.folder, self.members)
        self.addCleanup(self.etcd.stop)

    def daemon(self, name: str, *arguments: str, key_of: Daemon | None = None,
               notify: str = "", listen: str = "127.0.0.1:0") -> Daemon:
        daemon = Daemon(self.folder, name, self.etcd.endpoints, *arguments, listen=listen,
                        token_key=key_of.token_key if key_of else None, notify=notify)
        self.addCleanup(daemon.close)
        return daemon

    def pair(self, *arguments: str) -> tuple[Daemon, Daemon]:
        self.etcd.start()
        first = self.daemon("a", *arguments)
        first.serve()
        second = self.daemon("b", *arguments, key_of=first)
        second.serve()
        return first, second

    def token(self, daemon: Daemon, *arguments: str) -> Path:
        file = self.folder / f"token-{len(list(self.folder.glob('token-*')))}"
        said = daemon.ask("token", "issue", *arguments, "--file", str(file))
        self.assertTrue(file.exists(), said)
        return file

    def says(self, daemon: Daemon, text: str, *arguments: str, token: Path | None = None) -> None:
        """Other daemons hear of a change a moment later."""
        said = ""

        def does() -> bool:
            nonlocal said
            said = daemon.ask(*arguments, token=token)
            return text in said
        try:
            wait_until(does, text)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{said}\n{daemon.log()}") from error


class Sharing(ClusterTest):
    def test_a_daemon_waits_for_etcd_and_then_knows_what_others_change(self) -> None:
        supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(supervisor.close)
        supervisor.settimeout(PATIENCE_S)
        supervisor.bind(str(self.folder / "notify"))
        first = self.daemon("a", "--health-listen", "127.0.0.1:0",
                            notify=str(self.folder / "notify"))
        first.wait_for("event=waiting_for_control_store")
        self.assertNotIn("event=serving", first.log())
        # A supervisor sees that it lives, and gives it time.
        self.assertIn(b"EXTEND_TIMEOUT_USEC=", supervisor.recv(1000))
        self.assertEqual([first.health(path) for path in ("/healthz", "/readyz")], [200, 503])
        self.etcd.start()
        first.serve()
        self.assertEqual(first.health("/readyz"), 200)
        second = self.daemon("b", key_of=first)
        second.serve()

        first.ask("tenant", "create", "acme", "--jobs", "4")
        token = self.token(first, "--tenant", "acme")
        self.says(second, "of tenant acme, role tenant", "whoami", token=token)
        second.ask("tenant", "suspend", "acme", "--yes")
        self.says(first, "suspended", "tenant", "list")
        second.ask("token", "revoke", token.read_text().split("_")[1], "--yes")
        self.says(first, "was revoked", "whoami", token=token)
        # A token of a tenant that another daemon deletes.
        token = self.token(first, "--tenant", "acme")
        self.says(second, "role tenant", "whoami", token=token)
        first.ask("tenant", "delete", "acme", "--yes")
        self.says(second, "is not valid", "whoami", token=token)

        # The token key is not in etcd, and neither are the secrets of tokens.
        held = self.etcd.ctl("get", "", "--prefix", "--write-out=json").stdout
        self.assertIn("kvs", held)
        self.assertNotIn(first.token_key.read_bytes().hex(), held)

        # A daemon that stops while it waits.
        self.etcd.stop()
        third = self.daemon("c", key_of=first)
        third.wait_for("event=waiting_for_control_store")
        third.process.send_signal(signal.SIGTERM)
        self.assertIn("was stopped while it waited", third.fails())

    def test_changes_of_two_daemons_have_one_order(self) -> None:
        first, second = self.pair()
        first.ask("tenant", "create", "acme")
        self.says(second, "acme", "tenant", "list")

        def change(daemon: Daemon, limit: str) -> None:
            for i in range(10):
                said = daemon.ask("tenant", "set-quota", "acme", limit, str(i + 1))
                self.assertNotIn("phubctl:", said)
        threads = [threading.Thread(target=change, args=each)
                   for each in ((first, "--jobs"), (second, "--workers"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # No daemon has written back what it knew before the other's change.
        for daemon in first, second:
            self.says(daemon, "0 of 10  0 of 10", "tenant", "list")
        self.assertEqual(first.ask("audit", "tail", "-n", "100").count("tenant.set-quota"), 20)
        self.assertEqual(first.ask("audit", "tail", "-n", "100"),
                         second.ask("audit", "tail", "-n", "100"))
        # The chain holds for a daemon that starts now, and a removed entry breaks it.
        second.close()
        second.start()
        second.serve()
        self.assertNotIn("event=audit_log_broken", second.log())
        self.etcd.ctl("del", f"/phub/audit/{5:019}")
        second.close()
        second.start()
        second.wait_for("audit entry 5 is missing")

    def test_while_etcd_is_away_changes_are_refused_and_reads_go_on(self) -> None:
        first, second = self.pair()
        first.ask("tenant", "create", "acme")
        token = self.token(first, "--tenant", "acme")
        operator = self.token(first, "--role", "operator")
        self.says(second, "role operator", "whoami", token=operator)
        self.etcd.stop()
        said = second.ask("tenant", "create", "zeta")
        self.assertIn("etcd does not answer", said)
        for refused in (["set-quota", "acme", "--jobs", "1"], ["resume", "acme"],
                        ["delete", "acme", "--yes"]):
            self.assertIn("nothing was changed", second.ask("tenant", *refused))
        self.assertIn("acme", second.ask("tenant", "list"))
        self.assertNotIn("suspended", second.ask("tenant", "list"))
        self.assertIn("role tenant", second.ask("whoami", token=token))
        # An operator's calls work, and their audit entries wait.
        said = second.ask("server", "drain", "--yes", token=operator)
        self.assertIn("1 audit entry waits for etcd", said)
        self.etcd.start()
        second.wait_for("event=control_store_answers")
        self.says(second, "server.drain", "audit", "tail")
        self.assertNotIn("phubctl:", second.ask("tenant", "create", "zeta"))
        self.says(first, "zeta", "tenant", "list")

    def test_a_restored_backup_counts(self) -> None:
        first, second = self.pair()
        first.ask("tenant", "create", "acme")
        self.etcd.save(self.folder / "backup")
        for name in "zeta", "eta", "theta":
            first.ask("tenant", "create", name)
        self.says(second, "theta", "tenant", "list")
        self.etcd.stop()
        for daemon in first, second:
            daemon.wait_for("event=control_store_unreachable")
        self.etcd.restore(self.folder / "backup")
        self.etcd.start()
        for daemon in first, second:
            daemon.wait_for("event=control_store_went_back")
            self.assertNotIn("zeta", daemon.ask("tenant", "list"))
        self.assertNotIn("phubctl:", first.ask("tenant", "create", "iota"))
        self.says(second, "iota", "tenant", "list")


class WrongValues(ClusterTest):
    def test_what_phub_has_not_written_permits_nothing(self) -> None:
        first, second = self.pair()
        for name in "acme", "zeta":
            first.ask("tenant", "create", name)
        token = self.token(first, "--tenant", "zeta")
        token_id = token.read_text().split("_")[1]
        self.says(second, "role tenant", "whoami", token=token)
        for value in "by hand", "", "\n\x12":
            self.etcd.put("/phub/tenants/acme", value)
        self.etcd.put(f"/phub/tokens/zeta/{token_id}", "x")
        for daemon in first, second:
            self.says(daemon, "suspended", "tenant", "get", "acme")
            self.says(daemon, "is not valid", "whoami", token=token)
            daemon.wait_for("event=control_store_record_unreadable")
            self.assertIn("cannot be changed", daemon.ask("tenant", "resume", "acme"))
        # A daemon that starts now says the same, and the administrator can delete the tenant.
        second.close()
        second.start()
        second.serve()
        self.says(second, "suspended", "tenant", "get", "acme")
        second.ask("tenant", "delete", "acme", "--yes")
        self.says(first, "no tenant acme", "tenant", "get", "acme")
        # Without the end of the audit log there are no changes.
        self.etcd.put("/phub/head", "x")
        first.wait_for('key="/head"')
        self.assertIn("/head in etcd", first.ask("tenant", "create", "eta"))

    def test_another_key_or_a_missing_one_is_named(self) -> None:
        self.etcd.start()
        first = self.daemon("a")
        first.serve()
        self.assertIn("copy the file from another daemon", self.daemon("b").fails())
        other = self.daemon("c", "--etcd-prefix", "/other")
        other.serve()
        wrong = self.daemon("d", key_of=other).fails()
        self.assertIn("was written with token key", wrong)
        self.assertIn("another etcd_prefix", wrong)
        self.assertIn("are both set", self.daemon("e", "--state-dir", "/nowhere").fails())


class Encrypted(ClusterTest):
    def pki(self, name: str) -> Path:
        folder = self.folder / name
        for arguments in (["init", str(folder)],
                          ["issue", str(folder), "server", "etcd", "--host", "127.0.0.1"],
                          ["issue", str(folder), "admin", "root"],
                          ["issue", str(folder), "server", "node", "--host", "127.0.0.1"]):
            subprocess.run([PHUBCTL, "pki", *arguments], check=True, env=ENVIRONMENT,
                           stdout=subprocess.DEVNULL)
        return folder

    def test_etcd_and_its_clients_show_certificates(self) -> None:
        ours, others = self.pki("ours"), self.pki("others")
        self.etcd = Etcd(self.programs, self.folder, tls=ours)
        self.addCleanup(self.etcd.stop)
        self.etcd.start()

        def files(authority: Path, client: Path) -> list[str]:
            return ["--etcd-ca", f"{authority}/ca.crt", "--etcd-certificate",
                    f"{client}/server-node.crt", "--etcd-key", f"{client}/server-node.key"]
        first = self.daemon("a", *files(ours, ours))
        first.serve()
        self.assertNotIn("phubctl:", first.ask("tenant", "create", "acme"))
        for name, authority, client in ("b", others, ours), ("c", ours, others):
            daemon = self.daemon(name, *files(authority, client), key_of=first)
            daemon.wait_for("event=waiting_for_control_store")
            self.assertNotIn("event=serving", daemon.log())


@unittest.skipUnless(LONG, "PHUB_TEST_LONG is not set")
class ThreeMembers(ClusterTest):
    members = 3

    def test_one_member_may_stop_or_die_at_any_time(self) -> None:
        first, second = self.pair()
        for i in range(6):
            member = i % 3
            self.etcd.stop_member(member, signal.SIGSTOP if i < 3 else signal.SIGKILL)

            def made(name: str) -> bool:
                # An election may be under way.
                return "phubctl:" not in first.ask("tenant", "create", name)
            wait_until(lambda name=f"t{i}": made(name), "a change with two members")
            self.says(second, f"t{i} ", "tenant", "list")
            if i < 3:
                self.etcd.stop_member(member, signal.SIGCONT)
            else:
                self.etcd.start_member(member)
            self.etcd.start()

    def test_without_a_quorum_new_jobs_are_refused_after_stale_max(self) -> None:
        first, _ = self.pair("--control-store-stale-max", "5s")
        first.ask("tenant", "create", "acme")
        token = self.token(first, "--tenant", "acme")
        trainer = [os.environ["PHUB_TRAINER"], "--endpoint", first.endpoint, "--job", "j", "--rank",
                   "0", "--world-size", "1"]
        environment = {**ENVIRONMENT, "PHUB_TOKEN_FILE": str(token)}
        with (self.folder / "job").open("w") as log:
            job = subprocess.Popen([*trainer, "--iterations", "100000000"], env=environment,
                                   stdout=log, stderr=log)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        wait_until(lambda: "iteration 1\n" in (self.folder / "job").read_text(), "a job")
        for member in range(2):
            self.etcd.stop_member(member)
        first.wait_for("event=control_store_fault")
        trainer[4] = "k"
        refused = subprocess.run([*trainer, "--iterations", "2"], env=environment, check=False,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertIn("control_store_stale_max is 5.0 s", refused.stdout)
        self.assertIsNone(job.poll())
        self.etcd.start()
        first.wait_for("event=control_store_recovered")
        subprocess.run([*trainer, "--iterations", "2"], env=environment, check=True,
                       stdout=subprocess.DEVNULL)
        self.assertIsNone(job.poll())

    def test_a_compaction_while_the_watch_is_away(self) -> None:
        first, second = self.pair()
        second.process.send_signal(signal.SIGSTOP)
        for i in range(50):
            first.ask("tenant", "create", f"t{i}")
        revision = self.etcd.ctl("get", "/phub/head", "--write-out=json").stdout
        newest = int(revision.split('"revision":')[1].split(",")[0])
        self.etcd.ctl("compact", str(newest))
        for member in range(3):
            self.etcd.stop_member(member)
        self.etcd.start()
        second.process.send_signal(signal.SIGCONT)
        self.says(second, "t49 ", "tenant", "list")
        self.assertEqual(first.ask("tenant", "list"), second.ask("tenant", "list"))


def main() -> int:
    if find_programs() is None:
        print("etcd is not installed and cannot be downloaded (try apt-get update)")
        return 1 if os.environ.get("ETCD_TEST_REQUIRED") else 77
    unittest.main(verbosity=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
