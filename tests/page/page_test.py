"""The page's data, who may read it, and the health port."""

from __future__ import annotations

import base64
import re
import signal
import subprocess
import unittest
from pathlib import Path
from typing import Any

from page_daemons import ENVIRONMENT, HOSTILE, PHUBD, PageDaemon
from waiting import wait_until, wait_until_passes

SITE = Path(__file__).resolve().parents[2] / "server" / "page" / "site"
# What differs between two moments of a stopped job.
CHANGING = re.compile(r"_age_ns$|^age_ns$|^uptime_ns$|^awaited_for_ns$|^page_token$")


def settled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: settled(each) for name, each in value.items()
                if not CHANGING.search(name) and name != "next_page_token"}
    if isinstance(value, list):
        return [settled(each) for each in value]
    return value


class PageTest(unittest.TestCase):
    maxDiff = None

    def test_it_says_what_phubctl_says(self) -> None:
        daemon = PageDaemon(self)
        evicted = daemon.rank("evicted", 0, 1)
        daemon.ctl("job", "evict", "evicted", "--yes", "--reason", HOSTILE)
        evicted.wait(timeout=60)
        daemon.rank("waiting", 0, 2, reaches="")
        wait_until(lambda: daemon.job_of(daemon.status(), "waiting") is not None, "it waits")
        running = daemon.rank("running", 0, 1)
        running.send_signal(signal.SIGSTOP)

        status: Any = None
        jobs: Any = None

        # The evicted job's resources return after its rank has ended, between two reads.
        def same_on_both() -> None:
            nonlocal status, jobs
            status = settled(daemon.status())
            jobs = settled(daemon.ctl_json("job", "list"))
            self.assertEqual(status["job_list"], jobs)
            self.assertEqual(status["tenant_list"], settled(daemon.ctl_json("tenant", "list")))
        wait_until_passes(same_on_both)
        self.assertEqual({job["name"]: job["state"] for job in jobs["jobs"]},
                         {"evicted": "failed", "waiting": "running", "running": "running"})
        self.assertIn(HOSTILE, daemon.job_of(status, "evicted")["fault"])
        servers = daemon.ctl_json("server", "list")
        self.assertIn(status["server"]["listen"], [each["listen"] for each in _servers(servers)])

    def test_only_its_own_names_reach_it(self) -> None:
        daemon = PageDaemon(self)
        for host in ("127.0.0.1", "127.0.0.1:80", "[::1]:7781", "localhost:7781", "LOCALHOST"):
            self.assertEqual(daemon.ask("/status.json", Host=host)[0], 200, host)
        for host in ("evil.example", "evil.example:7781", "127.0.0.1.evil.example", "", "[::1",
                     "localhost.evil.example"):
            for path in ("/", "/status.json", "/plan.svg?job=a"):
                code, _, body = daemon.ask(path, Host=host)
                self.assertEqual(code, 421, f"{host} {path}")
                self.assertNotIn(b"server", body)

    def test_it_is_read_only_and_loads_nothing_else(self) -> None:
        daemon = PageDaemon(self)
        for path, kind in (("/", "text/html"), ("/page.css", "text/css"),
                           ("/page.js", "text/javascript"), ("/status.json", "application/json")):
            code, headers, _ = daemon.ask(path)
            self.assertEqual(code, 200)
            self.assertTrue(headers["Content-Type"].startswith(kind), headers)
            self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
            self.assertNotIn("unsafe", headers["Content-Security-Policy"])
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertEqual(daemon.ask(path, method="POST")[0], 405)
        self.assertEqual(daemon.ask("/metrics")[0], 404)
        self.assertEqual(daemon.ask("/plan.svg?tenant=default&job=none")[0], 404)
        for file in SITE.iterdir():
            self.assertIsNone(re.search(r"https?://|innerHTML|insertAdjacentHTML|document\.write",
                                        file.read_text()), file)

    def test_many_viewers_share_one_status(self) -> None:
        daemon = PageDaemon(self)
        daemon.rank("running", 0, 1)
        bodies = [daemon.ask("/status.json")[2] for _ in range(20)]
        self.assertLess(len(set(bodies)), 20)

    def test_health_has_a_port_of_its_own(self) -> None:
        daemon = PageDaemon(self)
        ask = lambda path: daemon.ask(path, port=daemon.health_port, Host="node7.cluster")[0]
        self.assertEqual([ask("/healthz"), ask("/readyz"), ask("/"), ask("/status.json")],
                         [200, 200, 404, 404])
        daemon.ctl("server", "drain", "--yes")
        self.assertEqual([ask("/healthz"), ask("/readyz")], [200, 503])

    def test_with_identities_it_asks_for_a_token(self) -> None:
        folder = PageDaemon(self).folder  # removed at the end
        socket = folder / "control.sock"
        daemon = PageDaemon(self, "--state-dir", str(folder / "state"), "--control-socket",
                            str(socket))
        daemon.endpoint = f"unix:{socket}"
        daemon.ctl("tenant", "create", "vision", "--jobs", "3")

        def ask(password: str) -> int:
            secret = base64.b64encode(f"me:{password}".encode()).decode()
            return daemon.ask("/status.json", Authorization=f"Basic {secret}")[0]

        def issue(*arguments: str) -> str:
            return daemon.ctl("token", "issue", *arguments).split()[-1]
        code, headers, body = daemon.ask("/status.json")
        self.assertEqual(code, 401)
        self.assertTrue(headers["WWW-Authenticate"].startswith("Basic "))
        self.assertNotIn(b"vision", body)
        self.assertEqual(daemon.ask("/status.json", Authorization="Basic %%%")[0], 401)
        self.assertEqual(ask("wrong"), 401)
        self.assertEqual(ask(issue("--tenant", "vision")), 401)
        self.assertEqual(ask(issue("--role", "operator")), 200)
        self.assertEqual(daemon.ask("/", port=daemon.health_port)[0], 404)
        self.assertEqual(daemon.ask("/readyz", port=daemon.health_port)[0], 200)

    def test_it_stays_on_loopback(self) -> None:
        def problems(*arguments: str) -> str:
            return subprocess.run(
                [PHUBD, "--page-listen", "0.0.0.0:0", "--check-config", *arguments],
                capture_output=True, text=True, env=ENVIRONMENT).stderr
        self.assertIn("--page-open", problems())
        self.assertNotIn("page_listen", problems("--page-open"))
        self.assertIn("not a loopback address",
                      problems("--page-open", "--state-dir", "/tmp/none"))


def _servers(value: Any) -> list[Any]:
    """Every object with addresses in the answer of `server list`."""
    if isinstance(value, dict):
        found = [value] if "listen" in value else []
        return found + [each for inner in value.values() for each in _servers(inner)]
    return [each for inner in value for each in _servers(inner)] if isinstance(value, list) else []


if __name__ == "__main__":
    unittest.main(verbosity=2)
