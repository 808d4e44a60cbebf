"""What Chromium shows of the page: what phubctl prints, with hostile text as text."""

from __future__ import annotations

import html.parser
import os
import shutil
import signal
import socket
import subprocess
import sys
import unittest

from page_daemons import ENVIRONMENT, HOSTILE, PageDaemon
from waiting import wait_until

CHROMIUM = shutil.which("chromium")
ACTIVE = {"script", "img", "iframe", "object", "embed", "form", "style"}
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Shown(html.parser.HTMLParser):
    """The texts of elements by class, for each card; and every element that could do something."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.cards: list[dict[str, str]] = []
        self.active: list[tuple[str, str]] = []
        self.ids: dict[str, str] = {}
        self._open: list[tuple[str, list[str], str]] = []
        self.feed(dom)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        classes = values.get("class", "").split()
        if tag in ACTIVE:
            self.active.append((tag, values.get("src", "")))
        if "card" in classes and tag in ("details", "article"):
            self.cards.append({"kind": classes[0]})
        if tag not in VOID:
            self._open.append((tag, classes, values.get("id", "")))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not self._open:
            return
        _, classes, identity = self._open[-1]
        if identity:
            self.ids[identity] = self.ids.get(identity, "") + data
        if self.cards and classes:
            card = self.cards[-1]
            card.setdefault(classes[0], "")
            if classes[0] in ("name", "tenant", "chip", "iteration", "workers", "note"):
                card[classes[0]] += data


def look(url: str) -> Shown:
    assert CHROMIUM is not None
    answer = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--virtual-time-budget=3000", "--dump-dom", url],
        check=True, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    return Shown(answer.stdout)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class BrowserTest(unittest.TestCase):
    maxDiff = None

    def test_it_shows_what_phubctl_says_and_hostile_text_as_text(self) -> None:
        daemon = PageDaemon(self, "--liveness-timeout", "10m")
        evicted = daemon.rank("evicted", 0, 1)
        daemon.ctl("job", "evict", "evicted", "--yes", "--reason", HOSTILE)
        evicted.wait(timeout=60)
        daemon.rank(HOSTILE, 0, 3, reaches="")
        stopped = daemon.rank("stalled", 0, 2, reaches=""), daemon.rank("stalled", 1, 2)
        stopped[1].send_signal(signal.SIGSTOP)
        daemon.rank("running", 0, 1)
        daemon.rank("quiet", 0, 1).send_signal(signal.SIGSTOP)

        def states() -> dict[str, str]:
            rows = daemon.ctl("job", "list").splitlines()[1:]
            return {row.split()[1]: row.split()[2] for row in rows if "<" not in row}
        wait_until(lambda: states().get("stalled") == "stalled" and
                   daemon.job_of(daemon.status(), HOSTILE) is not None, "a job is stalled")
        before = states()
        shown = look(f"http://127.0.0.1:{daemon.page_port}/")
        after = states()
        jobs = {job["name"]: job for job in daemon.ctl_json("job", "list")["jobs"]}
        cards = {card["name"]: card for card in shown.cards if card["kind"] == "job"}
        self.assertEqual(set(cards), set(jobs))
        chips = {name: cards[name]["chip"] for name in cards}
        # It may begin to count as stalled before or after the page is read.
        self.assertIn(chips.pop("quiet"), (before["quiet"], after["quiet"]))
        self.assertEqual(chips, {"evicted": "failed", HOSTILE: "waiting", "stalled": "stalled",
                                 "running": "running"})
        for name, job in jobs.items():
            live = sum(worker["state"] == "live" for worker in job["workers"])
            self.assertEqual(cards[name]["workers"], f"{live}/{job['world_size']}")
            self.assertEqual(cards[name]["tenant"], job["tenant"])
        self.assertEqual(cards["stalled"]["iteration"], jobs["stalled"]["iteration"])
        self.assertEqual(cards[HOSTILE]["note"].splitlines()[0], "waits for ranks 1, 2 to join")
        self.assertIn(HOSTILE, cards["evicted"]["note"])
        self.assertEqual(shown.active, [("script", "page.js")])
        tenants = daemon.ctl_json("tenant", "list")["tenants"]
        self.assertEqual([card["name"] for card in shown.cards if card["kind"] == "tenant"],
                         [tenant["name"] for tenant in tenants])
        self.assertEqual(shown.ids["state"], "serving")

    def test_it_shows_the_plan_of_a_job_that_spans_racks(self) -> None:
        endpoints = [f"127.0.0.1:{port}" for port in free_ports(2)]
        racks = [PageDaemon(self, "--racks", ",".join(endpoints), listen=each)
                 for each in endpoints]
        racks[0].rank("wide", 0, 2, "--plan", "auto", "--pause-ms", "20", reaches="")
        racks[1].rank("wide", 1, 2, "--plan", "auto", "--pause-ms", "20")
        code, headers, picture = racks[0].ask("/plan.svg?tenant=default&job=wide")
        self.assertEqual(code, 200)
        self.assertEqual(headers["Content-Type"], "image/svg+xml")
        self.assertTrue(picture.startswith(b"<svg "))
        self.assertEqual(racks[0].status()["racks"], endpoints)


if __name__ == "__main__":
    if CHROMIUM is None:
        print("Chromium is not installed (apt-get install chromium)")
        sys.exit(1 if os.environ.get("CHROMIUM_TEST_REQUIRED") else 77)
    unittest.main(verbosity=2)
