"""Quotas of a cluster: crowds of jobs start at several daemons at once, and a tenant never has more
than its quota. Daemons die, come back or never do. PHUB_TEST_LONG: 1,000 joins, lower quotas,
and daemons that are cut off."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import unittest
from pathlib import Path

import cluster_test
from cluster_test import LONG, ClusterTest
from daemons import ENVIRONMENT, Daemon
from waiting import wait_until

CROWD = os.environ["PHUB_CROWD"]


class Crowd:
    """Jobs that start at the same time, and stay until leave()."""

    def __init__(self, token: Path, daemons: list[Daemon], *, jobs: int, workers: int = 1,
                 prefix: str = "job", threads: int = 16, retries: int = 0, keys: int = 0) -> None:
        endpoints = [each for daemon in daemons for each in ("--endpoint", daemon.endpoint)]
        self.process = subprocess.Popen(
            [CROWD, *endpoints, "--jobs", str(jobs), "--world-size", str(workers), "--prefix",
             prefix, "--threads", str(threads), "--retries", str(retries), "--keys", str(keys)],
            env={**ENVIRONMENT, "PHUB_TOKEN_FILE": str(token)}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self.refusals: list[str] = []
        self.admitted = -1

    def wait(self) -> int:
        """The number of jobs that were admitted."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.fullmatch(r"admitted (\d+) refused \d+\n", line):
                self.admitted = int(found[1])
                return self.admitted
            self.refusals.append(line)
        raise AssertionError("the crowd ended: " + "".join(self.refusals))

    def leave(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.process.stdin.closed:
            return
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class QuotaTest(ClusterTest):
    def daemons(self, count: int, *arguments: str) -> list[Daemon]:
        self.etcd.start()
        first = self.daemon("a", "--daemon-id", "a", *arguments)
        first.serve()
        rest = [self.daemon(name, "--daemon-id", name, *arguments, key_of=first)
                for name in "bcdefgh"[:count - 1]]
        for daemon in rest:
            daemon.serve()
        return [first, *rest]

    def tenant(self, daemons: list[Daemon], *limits: str) -> Path:
        self.assertNotIn("phubctl:", daemons[0].ask("tenant", "create", "acme", *limits))
        token = self.token(daemons[0], "--tenant", "acme")
        for daemon in daemons[1:]:
            self.says(daemon, "role tenant", "whoami", token=token)
        return token

    def crowd(self, token: Path, daemons: list[Daemon], *, jobs: int, workers: int = 1,
              prefix: str = "job", threads: int = 16, retries: int = 0, keys: int = 0) -> Crowd:
        crowd = Crowd(token, daemons, jobs=jobs, workers=workers, prefix=prefix, threads=threads,
                      retries=retries, keys=keys)
        self.addCleanup(crowd.leave)
        return crowd


class Sharing(QuotaTest):
    def test_a_crowd_at_all_daemons_gets_the_quota_and_no_more(self) -> None:
        daemons = self.daemons(4)
        token = self.tenant(daemons, "--jobs", "10", "--workers", "24")
        crowd = self.crowd(token, daemons, jobs=40, workers=2)
        self.assertEqual(crowd.wait(), 10)
        self.assertIn("needs 1 job, tenant acme may have 10 in the whole cluster, and daemons "
                      "hold 10: ", "".join(crowd.refusals))
        # 4 of the workers are left, but no job.
        alone = self.crowd(token, daemons[:1], jobs=1, prefix="late")
        self.assertEqual(alone.wait(), 0)
        # All of it can move to one daemon, and workers limit there.
        crowd.leave()
        moved = self.crowd(token, daemons[3:], jobs=4, workers=6, prefix="big", retries=20)
        self.assertEqual(moved.wait(), 4)
        more = self.crowd(token, daemons[2:], jobs=1, workers=2, prefix="more")
        self.assertEqual(more.wait(), 0)
        self.assertIn("needs 2 workers", "".join(more.refusals))

    def test_daemons_that_ask_at_the_same_time_do_not_get_the_same_job(self) -> None:
        daemons = self.daemons(4)
        crowds = []
        for i in range(8):
            daemons[0].ask("tenant", "create", f"t{i}", "--jobs", "1")
            token = self.token(daemons[0], "--tenant", f"t{i}")
            for daemon in daemons:
                self.says(daemon, "role tenant", "whoami", token=token)
            crowds.append(self.crowd(token, daemons, jobs=4, prefix=f"t{i}", threads=4))
        self.assertEqual([crowd.wait() for crowd in crowds], [1] * 8)

    def test_memory_and_keys_count_at_all_daemons(self) -> None:
        daemons = self.daemons(2)
        token = self.tenant(daemons, "--keys", "30", "--memory", "1GiB")
        crowd = self.crowd(token, daemons, jobs=12, keys=4)
        self.assertEqual(crowd.wait(), 7)
        self.assertIn("it needs 4 keys, tenant acme may have 30 in the whole cluster, and daemons "
                      "hold 28: ", "".join(crowd.refusals))
        said = json.loads(daemons[0].ask("-o", "json", "tenant", "get", "acme"))
        self.assertEqual(said["cluster"]["held"]["keys"], "28")
        crowd.leave()
        # Memory for some jobs, which have the same size.
        crowd = self.crowd(token, daemons[:1], jobs=1, prefix="one", retries=20)
        self.assertEqual(crowd.wait(), 1)
        said = json.loads(daemons[0].ask("-o", "json", "tenant", "get", "acme"))
        size = int(said["cluster"]["used"]["memory_bytes"])
        daemons[0].ask("tenant", "set-quota", "acme", "--memory", str(size * 11 // 2))
        more = self.crowd(token, daemons, jobs=10, prefix="more")
        self.assertEqual(more.wait(), 4)
        self.assertIn(" memory, tenant acme may have ", "".join(more.refusals))

    def test_what_a_dead_daemon_held_comes_back(self) -> None:
        daemons = self.daemons(2, "--quota-grace", "10s")
        first, second = daemons
        token = self.tenant(daemons, "--jobs", "4")
        self.assertEqual(self.crowd(token, [second], jobs=3).wait(), 3)
        second.process.send_signal(signal.SIGKILL)
        second.process.wait()
        # The grace has not passed: at most one job fits now.
        self.assertLessEqual(self.crowd(token, [first], jobs=1, prefix="one").wait(), 1)
        second.start()
        second.serve()
        self.assertIn("event=daemon_place_taken id=b", second.log())
        # Its next instance has nothing, so three fit at once.
        self.assertEqual(self.crowd(token, [first], jobs=3, prefix="three", retries=20).wait(), 3)


@unittest.skipUnless(LONG, "PHUB_TEST_LONG is not set")
class Long(QuotaTest):
    def test_a_lower_quota_refuses_new_jobs_at_every_daemon(self) -> None:
        daemons = self.daemons(2)
        token = self.tenant(daemons, "--jobs", "6")
        self.assertEqual(self.crowd(token, daemons, jobs=6).wait(), 6)
        daemons[0].ask("tenant", "set-quota", "acme", "--jobs", "3")
        for daemon in daemons:
            self.says(daemon, "of 3", "tenant", "list")
            crowd = self.crowd(token, [daemon], jobs=1, prefix="late")
            self.assertEqual(crowd.wait(), 0)
        daemons[1].ask("tenant", "set-quota", "acme", "--jobs", "7")
        self.says(daemons[0], "of 7", "tenant", "list")
        self.assertEqual(self.crowd(token, daemons[:1], jobs=2, prefix="more").wait(), 1)

    def test_two_daemons_with_one_id_are_both_named(self) -> None:
        first = self.daemons(1)[0]
        said = self.daemon("x", "--daemon-id", "a", key_of=first).fails()
        self.assertIn("daemon id a is used by two daemons", said)

    def test_without_etcd_the_present_grant_is_used(self) -> None:
        first = self.daemons(1)[0]
        token = self.tenant([first], "--jobs", "64")
        self.assertEqual(self.crowd(token, [first], jobs=1).wait(), 1)
        self.etcd.stop()
        first.wait_for("event=control_store_unreachable")
        crowd = self.crowd(token, [first], jobs=10, prefix="away")
        # A sixteenth of the quota was asked for in advance.
        self.assertEqual(crowd.wait(), 4)
        self.assertIn("does not cover it, and cannot be enlarged: etcd does not answer",
                      "".join(crowd.refusals))
        self.etcd.start()
        first.wait_for("event=control_store_answers")
        self.assertEqual(self.crowd(token, [first], jobs=6, prefix="back").wait(), 6)

    def test_a_thousand_joins_over_four_daemons(self) -> None:
        daemons = self.daemons(4)
        token = self.tenant(daemons, "--jobs", "150", "--workers", "200")
        crowds = [self.crowd(token, daemons, jobs=250, workers=1 + i % 2, prefix=f"c{i}",
                             threads=64) for i in range(4)]
        admitted = [crowd.wait() for crowd in crowds]
        workers = sum(count * (1 + i % 2) for i, count in enumerate(admitted))
        self.assertLessEqual(sum(admitted), 150)
        self.assertLessEqual(workers, 200)
        # One of the quotas is used up.
        self.assertTrue(sum(admitted) == 150 or workers >= 199, admitted)
        for crowd in crowds:
            crowd.leave()
        again = self.crowd(token, daemons[2:3], jobs=150, prefix="again", retries=20)
        self.assertEqual(again.wait(), 150)

    def test_a_daemon_that_never_returns(self) -> None:
        first, second = daemons = self.daemons(2, "--quota-grace", "10s")
        token = self.tenant(daemons, "--jobs", "4")
        self.assertEqual(self.crowd(token, [second], jobs=4).wait(), 4)
        second.process.send_signal(signal.SIGKILL)
        second.process.wait()
        self.assertEqual(self.crowd(token, [first], jobs=4, prefix="new", retries=60).wait(), 4)

    def test_a_daemon_that_was_cut_off_keeps_what_its_jobs_use(self) -> None:
        # Workers wait for the stopped daemon.
        first, second = daemons = self.daemons(2, "--quota-grace", "10s", "--liveness-timeout",
                                               "600s")
        token = self.tenant(daemons, "--jobs", "4")
        self.assertEqual(self.crowd(token, [second], jobs=3).wait(), 3)
        second.process.send_signal(signal.SIGSTOP)
        crowd = self.crowd(token, [first], jobs=4, prefix="new", retries=60)
        self.assertEqual(crowd.wait(), 4)
        second.process.send_signal(signal.SIGCONT)
        second.wait_for("event=grants_above_quota tenant=acme")
        for daemon in daemons:
            self.assertEqual(self.crowd(token, [daemon], jobs=1, prefix="more").wait(), 0)
        crowd.leave()
        wait_until(lambda: self.crowd(token, [first], jobs=1, prefix="fits").wait() == 1, "room")


if __name__ == "__main__":
    raise SystemExit(cluster_test.main())
