"""A tenant is deleted at one daemon of a cluster while others may run its jobs, with a real etcd.
PHUB_TEST_LONG: many deletions, and daemons that are cut off."""

from __future__ import annotations

import random
import signal
import threading
import time
import unittest

import cluster_test
from cluster_test import LONG
from daemons import Daemon
from quota_test import QuotaTest
from waiting import wait_until


class RemovalTest(QuotaTest):
    def assert_deleted(self, daemon: Daemon, tenant: str = "acme") -> None:
        """The jobs that have used it are just ending."""
        said = ""

        def is_deleted() -> bool:
            nonlocal said
            said = daemon.ask("tenant", "delete", tenant, "--yes")
            return "phubctl:" not in said
        try:
            wait_until(is_deleted, "the tenant is deleted")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{said}") from error


class InUse(RemovalTest):
    def test_jobs_at_another_daemon_keep_the_tenant(self) -> None:
        daemons = first, second = self.daemons(2)
        for limits in [], ["--jobs", "64", "--workers", "64"]:
            token = self.tenant(daemons, *limits)
            crowd = self.crowd(token, [second], jobs=2, keys=3)
            self.assertEqual(crowd.wait(), 2)
            said = first.ask("tenant", "delete", "acme", "--yes")
            self.assertIn("acme was not deleted, it is in use: b (127.0.0.1:0 on host ", said)
            self.assertRegex(said, r" uses 2 jobs, 2 workers, 6 keys, [0-9.]+ .iB memory\. Suspend")
            # The daemon that runs them refuses, too, and it starts jobs again.
            self.assertIn("it is in use: b (", second.ask("tenant", "delete", "acme", "--yes"))
            more = self.crowd(token, daemons, jobs=2, prefix="more", retries=100)
            self.assertEqual(more.wait(), 2)
            self.assertIn("it is in use: a (", first.ask("tenant", "delete", "acme", "--yes"))
            crowd.leave()
            more.leave()
            # What both daemons hold of the quotas without using it does not keep the tenant.
            self.assert_deleted(first)
            self.says(second, "no tenant acme", "tenant", "get", "acme")
            for keys in "/phub/grants/", "/phub/removals/":
                self.assertEqual(self.etcd.ctl("get", keys, "--prefix").stdout, "")

    def test_a_daemon_that_does_not_answer_keeps_the_tenant(self) -> None:
        daemons = first, second = self.daemons(2)
        self.tenant(daemons)
        second.process.send_signal(signal.SIGSTOP)
        said = first.ask("tenant", "delete", "acme", "--yes")
        self.assertIn("these daemons have not answered, and may run its jobs: b (", said)
        self.assertIn("acme", first.ask("tenant", "list"))
        second.process.send_signal(signal.SIGCONT)
        self.assert_deleted(first)


class RaceTest(RemovalTest):
    def race(self, daemons: list[Daemon], count: int, seed: int) -> None:
        """Jobs that start while their tenant is deleted: either happens, and never both."""
        drawn = random.Random(seed)
        tokens = []
        for i in range(count):
            limits = ["--jobs", "40"] if i % 2 else []
            said = daemons[0].ask("tenant", "create", f"t{i}", *limits)
            self.assertNotIn("phubctl:", said)
            tokens.append(self.token(daemons[0], "--tenant", f"t{i}"))
        for daemon in daemons:
            self.says(daemon, "role tenant", "whoami", token=tokens[-1])
        admissions = []
        for i, token in enumerate(tokens):
            at = daemons[drawn.randrange(len(daemons))]
            said: list[str] = []

            def delete(daemon: Daemon, name: str, said: list[str] = said) -> None:
                said.append(daemon.ask("tenant", "delete", name, "--yes"))
            deletions = [threading.Thread(target=delete, args=(daemon, f"t{i}"))
                         for daemon in drawn.sample(daemons, 1 + i % 2)]
            # The job takes longer to start than the deletion.
            crowd = self.crowd(token, [at], jobs=1, prefix=f"j{i}")
            time.sleep(drawn.random() * 0.02)
            for deletion in deletions:
                deletion.start()
            for deletion in deletions:
                deletion.join()
            admitted = crowd.wait() == 1
            deleted = any("phubctl:" not in each for each in said)
            self.assertNotEqual(admitted, deleted, (i, said, crowd.refusals))
            self.assertEqual(f"t{i} " in daemons[0].ask("tenant", "list"), admitted)
            admissions.append(admitted)
            crowd.leave()
        print(f"seed {seed}: {sum(admissions)} of {count} jobs started; the other tenants are gone")


class Race(RaceTest):
    def test_a_job_starts_or_its_tenant_is_deleted(self) -> None:
        self.race(self.daemons(2), 16, seed=26)


@unittest.skipUnless(LONG, "PHUB_TEST_LONG is not set")
class Long(RaceTest):
    def test_many_deletions_at_four_daemons(self) -> None:
        self.race(self.daemons(4), 200, seed=random.randrange(1 << 30))

    def test_after_its_grace_a_daemon_is_not_asked_and_starts_no_jobs(self) -> None:
        daemons = first, second = self.daemons(2, "--quota-grace", "10s", "--liveness-timeout",
                                               "600s")
        token = self.tenant(daemons)
        crowd = self.crowd(token, [second], jobs=1)
        self.assertEqual(crowd.wait(), 1)
        second.process.send_signal(signal.SIGSTOP)
        self.assert_deleted(first)
        second.process.send_signal(signal.SIGCONT)
        late = self.crowd(token, [second], jobs=1, prefix="late")
        self.assertEqual(late.wait(), 0)
        # Its job goes on.
        second.wait_for("event=deleted_tenant_has_jobs tenant=acme")


if __name__ == "__main__":
    raise SystemExit(cluster_test.main())
