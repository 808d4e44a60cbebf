"""`phubctl store copy`: tenants, tokens and audit logs move between the stores of single daemons
and a cluster in a real etcd, and back."""

from __future__ import annotations

import hmac
import os
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Optional

import cluster_test
from cluster_test import ClusterTest
from daemons import ENVIRONMENT, PHUBCTL, PHUBD, Daemon
from waiting import wait_until

MANY = 6000  # entries: more than a page, and many transactions


class Alone(Daemon):
    """A daemon with a store of its own."""

    def __init__(self, folder: Path, name: str, state: Path) -> None:
        super().__init__(folder, name, "", store=["--state-dir", str(state)])


class StoreTest(ClusterTest):
    def alone(self, name: str, state: Optional[Path] = None) -> Alone:
        daemon = Alone(self.folder, name, state or self.folder / f"state-{name}")
        self.addCleanup(daemon.close)
        daemon.serve()
        return daemon

    def of(self, name: str) -> str:
        return f"sqlite:{self.folder / f'state-{name}'}"

    @property
    def cluster(self) -> str:
        return f"etcd:{self.etcd.endpoints}"

    @property
    def key(self) -> Path:
        return self.folder / "cluster.key"

    def store(self, *arguments: str, code: int = 0) -> str:
        path = f"{Path(PHUBD).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [PHUBCTL, "store", *arguments, "--token-key", str(self.key)], check=False, text=True,
            env={**ENVIRONMENT, "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def join(self, name: str) -> Daemon:
        """A daemon of the cluster, with all token keys."""
        daemon = Daemon(self.folder, name, self.etcd.endpoints, token_key=self.key)
        self.addCleanup(daemon.close)
        daemon.serve()
        return daemon

    def records(self, store: str) -> list[str]:
        """What must not change: tenants and tokens."""
        return sorted(line for line in self.store("show", store).splitlines()
                      if line.startswith(("tenant ", "token ")))

    def entries(self, store: str, log: str) -> list[str]:
        lines = self.store("show", "--entries", store).splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith(f"audit log {log}"))
        rest = lines[begin + 1:]
        end = next((i for i, line in enumerate(rest) if not line.startswith("  ")), len(rest))
        return rest[:end]

    def log_of(self, store: str) -> str:
        return next(line.split()[2].rstrip(":") for line in self.store("show", store).splitlines()
                    if line.startswith("audit log ") and ", of " not in line)


class ThereAndBack(StoreTest):
    def test_everything_that_a_daemon_has(self) -> None:
        first = self.alone("a")
        for arguments in (["create", "acme", "--jobs", "4", "--memory", "1GiB", "--weight", "3"],
                          ["create", "zeta", "--encryption", "required"],
                          ["suspend", "zeta", "--yes"], ["create", "eta"],
                          ["delete", "eta", "--yes"]):
            self.assertNotIn("phubctl:", first.ask("tenant", *arguments))
        tokens = [self.token(first, *who) for who in
                  (["--tenant", "acme", "--label", "ci"], ["--role", "operator"],
                   ["--role", "admin", "--lifetime", "24h"])]
        revoked = self.token(first, "--tenant", "acme")
        first.ask("token", "revoke", revoked.read_text().split("_")[1], "--yes")
        source, log = self.of("a"), ""
        self.etcd.start()
        # Not while its daemon runs.
        said = self.store("copy", source, self.cluster, code=1)
        self.assertIn(f"process {first.process.pid} has ", said)
        first.stop()
        before, log = self.records(source), self.log_of(source)
        self.assertIn("dry run: nothing was written",
                      self.store("copy", source, self.cluster, "--dry-run"))
        self.assertEqual(self.etcd.ctl("get", "", "--prefix").stdout, "")
        self.assertFalse(self.key.exists())
        said = self.store("copy", source, self.cluster)
        self.assertIn("tenants        2 to copy, 0 equal\n  acme: memory 1GiB, jobs 4, weight 3\n"
                      "  zeta: no limits, encryption required, suspended\n", said)
        self.assertIn("nothing is to be done", self.store("copy", source, self.cluster))
        self.assertEqual(self.records(self.cluster), before)
        self.assertEqual(self.entries(self.cluster, log), self.entries(source, log))
        # The source is frozen.
        self.assertIn("is frozen, because it was copied to etcd:", Alone(
            self.folder, "frozen", self.folder / "state-a").fails())

        member = self.join("m")
        self.check(member, tokens, revoked)
        self.assertIn("store.copy", member.ask("audit", "tail"))
        self.assertNotIn("phubctl:", member.ask("tenant", "set-quota", "acme", "--jobs", "5"))
        tokens.append(self.token(member, "--tenant", "acme"))
        back = self.of("back")
        self.store("copy", self.cluster, back)
        self.assertIn("nothing is to be done", self.store("copy", self.cluster, back))
        self.assertEqual(self.records(back), self.records(self.cluster))
        self.assertEqual(self.entries(back, log), self.entries(source, log))
        of_cluster = self.log_of(self.cluster)
        self.assertEqual(self.entries(back, of_cluster), self.entries(self.cluster, of_cluster))
        # So is the cluster, until somebody thaws it.
        self.assertIn("the control store is frozen, because it was copied to sqlite:",
                      member.ask("tenant", "create", "late"))
        self.check(self.alone("back"), tokens, revoked)
        self.store("thaw", self.cluster)
        self.assertNotIn("phubctl:", member.ask("tenant", "create", "late"))

    def check(self, daemon: Daemon, tokens: list[Path], revoked: Path) -> None:
        for token, role in zip(tokens, ("tenant", "operator", "admin", "tenant")):
            self.assertIn(f"role {role}", daemon.ask("whoami", token=token))
        self.assertIn("was revoked", daemon.ask("whoami", token=revoked))
        self.assertIn("suspended", daemon.ask("tenant", "get", "zeta"))

    def test_two_daemons_with_a_key_each(self) -> None:
        self.etcd.start()
        tokens = []
        for name, limit in ("a", "4"), ("b", "5"):
            daemon = self.alone(name)
            daemon.ask("tenant", "create", "both", "--keys", "9")
            daemon.ask("tenant", "create", f"of-{name}", "--jobs", limit)
            daemon.ask("tenant", "create", "differs", "--jobs", limit)
            tokens.append(self.token(daemon, "--tenant", "both"))
            daemon.stop()
        stores = [self.of("a"), self.of("b")]
        said = self.store("copy", *stores, self.cluster, code=1)
        self.assertIn(f'tenant differs: {stores[1]} has "jobs 5", {stores[0]} has "jobs 4"', said)
        self.assertNotIn("tenant both", said)
        self.assertEqual(self.etcd.ctl("get", "", "--prefix").stdout, "")
        self.store("copy", stores[0], self.cluster)
        # While the first daemon serves already.
        member = self.join("m")
        said = self.store("copy", stores[1], self.cluster, code=1)
        self.assertIn(f'has "jobs 5", {self.cluster} (/phub) has "jobs 4"', said)
        self.assertIn("nothing was copied", said)
        again = Alone(self.folder, "b2", self.folder / "state-b")
        self.addCleanup(again.close)
        again.serve()
        again.ask("tenant", "set-quota", "differs", "--jobs", "4")
        again.stop()
        said = self.store("copy", stores[1], self.cluster)
        self.assertIn("tenants        1 to copy, 2 equal", said)
        self.says(member, "of-b", "tenant", "list")
        # The running daemon refuses the tokens until it has their key; a starting one says so.
        member.wait_for("event=token_key_missing")
        self.assertIn("cannot be checked on this daemon", member.ask("whoami", token=tokens[1]))
        late = Daemon(self.folder, "late", self.etcd.endpoints, token_key=self.key)
        self.addCleanup(late.close)
        self.assertIn("copy it from the host where phubctl store copy ran", late.fails().lower())
        other = next(self.folder.glob("cluster.key.????????"))
        for daemon in member, late:
            shutil.copy(other, f"{daemon.token_key}{other.suffix}")
        for token in tokens:
            self.says(member, "role tenant", "whoami", token=token)
        late.start()
        late.serve()
        for token in tokens:
            self.assertIn("role tenant", late.ask("whoami", token=token))
        # Both keys go back with their tokens.
        self.store("copy", self.cluster, self.of("back"))
        back = self.alone("back")
        for token in tokens:
            self.assertIn("role tenant", back.ask("whoami", token=token))


class Interrupted(StoreTest):
    def test_a_copy_that_is_killed_is_completed_by_the_next_one(self) -> None:
        self.etcd.start()
        daemon = self.alone("a")
        daemon.ask("tenant", "create", "acme")
        daemon.stop()
        source = self.of("a")
        self.lengthen(self.folder / "state-a", MANY)
        log = self.log_of(source)
        path = f"{Path(PHUBD).parent}:{os.environ['PATH']}"
        for wait_s in 0, 0.1, 0.2:
            process = subprocess.Popen(
                [PHUBCTL, "store", "copy", source, self.cluster, "--token-key", str(self.key)],
                env={**ENVIRONMENT, "PATH": path}, stdout=subprocess.DEVNULL)
            wait_until(lambda process=process: self.copied() > 0 or process.poll() is not None,
                       "entries")
            time.sleep(wait_s)
            process.kill()
            process.wait()
            print(f"killed after {self.copied()} of {MANY} entries")
        self.store("copy", source, self.cluster)
        self.assertIn("nothing is to be done", self.store("copy", source, self.cluster))
        entries = self.entries(self.cluster, log)
        self.assertEqual(entries, self.entries(source, log))
        # Without doubles.
        self.assertEqual(len(entries), len({line.split()[0] for line in entries}))
        self.assertGreater(len(entries), MANY)
        self.assertEqual(self.etcd.ctl("get", "/phub/frozen").stdout, "")
        self.assertNotIn("phubctl:", self.join("m").ask("tenant", "create", "zeta"))

    def copied(self) -> int:
        keys = self.etcd.ctl("get", "/phub/chains/", "--prefix", "--keys-only").stdout
        return keys.count("/phub/chains/")

    def lengthen(self, state: Path, count: int) -> None:
        """Entries as phubd writes them."""
        key = (state / "token.key").read_bytes()
        database = sqlite3.connect(state / "control.db")
        sequence, chain = database.execute(
            "SELECT sequence, chain FROM audit ORDER BY sequence DESC LIMIT 1").fetchone()
        for _ in range(count):
            sequence += 1
            fields = ["uid 0", "here", "tenant.set-quota", "acme", f"jobs {sequence}", "ok"]
            text = f"{sequence}|17" + "".join(f"|{len(field)}:{field}" for field in fields)
            chain = hmac.digest(key, chain + text.encode(), "sha256")
            database.execute("INSERT INTO audit VALUES (?, 17, ?, ?, ?, ?, ?, ?, ?)",
                             (sequence, *fields, chain))
        database.commit()
        database.close()


class Wrong(StoreTest):
    def test_what_cannot_be_copied_is_named(self) -> None:
        self.assertIn("is not a control store; write sqlite:DIR",
                      self.store("copy", "/nowhere", self.of("b"), code=2))
        self.assertIn("has no control.db", self.store("copy", self.of("a"), self.of("b"), code=3))
        self.assertIn("name the stores", self.store("copy", self.of("a"), code=2))
        self.assertIn("named twice", self.store("copy", self.of("a"), self.of("a"), code=2))
        daemon = self.alone("a")
        daemon.ask("tenant", "create", "acme")
        daemon.stop()
        state = self.folder / "state-a"
        # etcd does not run.
        said = self.store("copy", self.of("a"), self.cluster, code=5)
        self.assertIn("etcd does not answer", said)
        self.etcd.start()
        other = self.daemon("o", "--etcd-prefix", "/other")
        other.serve()
        shutil.copy(other.token_key, self.key)
        member = self.daemon("m")  # with another key
        member.serve()
        self.assertIn("was written with token key",
                      self.store("copy", self.of("a"), self.cluster, code=1))
        self.etcd.ctl("put", "/other/frozen", "x")
        self.assertIn("/frozen in etcd was not written by phub", self.store(
            "copy", self.of("a"), self.cluster, "--etcd-prefix", "/other", code=1))
        self.etcd.ctl("del", "/other/frozen")
        self.etcd.ctl("put", "/other/tenants/acme", "x")
        self.assertIn("/tenants/acme in etcd was not written by phub", self.store(
            "copy", self.cluster, self.of("b"), "--etcd-prefix", "/other", code=1))
        self.assertFalse((self.folder / "state-b").exists())
        good = self.folder / "good"
        shutil.copytree(state, good)

        def again() -> None:
            shutil.rmtree(state)
            shutil.copytree(good, state)
        database = state / "control.db"
        database.write_bytes(b"not a database, but long enough for one" * 100)
        self.assertIn("file is not a database", self.show(1))
        again()
        database.write_bytes(database.read_bytes()[:-5000])
        self.assertIn("phubctl: ", self.show(1))
        again()
        self.edit(database, "PRAGMA user_version = 99")
        self.assertIn("newer phubd", self.show(1))
        again()
        self.edit(database, "DROP TRIGGER audit_is_not_changed", "UPDATE audit SET actor = 'x'")
        self.assertIn("audit entry 1 was changed", self.show(1))
        self.assertIn("audit entry 1 was changed",
                      self.store("copy", self.of("a"), self.of("b"), code=1))
        again()
        (state / "token.key").write_bytes(b"k" * 32)
        self.assertIn("token.key is not the key", self.show(1))
        again()
        database.unlink()
        self.edit(database, "CREATE TABLE t (x)")
        self.assertIn("is not a control store of phub", self.show(1))
        self.assertFalse((self.folder / "state-b").exists())

    def show(self, code: int) -> str:
        return self.store("show", self.of("a"), code=code)

    @staticmethod
    def edit(file: Path, *statements: str) -> None:
        database = sqlite3.connect(file)
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()


if __name__ == "__main__":
    raise SystemExit(cluster_test.main())
