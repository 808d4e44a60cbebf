"""A real Prometheus with the shipped scrape configuration and rules, and real daemons: one with a
job that stalls, one whose job has lost a rank, one that refuses workers, one whose memory is full,
and one that is down. Exactly the alerts for these states fire, and none names a healthy job.

Durations in the rules are shorter here: a minute is a second, but none is below 4 seconds.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import phub
from daemons import REPOSITORY, SHIPPED, Daemon, DaemonsTest, run_tests
from prometheus import Prometheus
from waiting import wait_until

MINUTE_MS = 1000
SHORTEST_MS = 4000  # on a busy machine, a healthy daemon may answer some scrapes too late
LONGEST_S = 15 * MINUTE_MS / 1000  # of the rules' durations


class AlertsTest(DaemonsTest):
    @staticmethod
    def rules() -> str:
        """The shipped ones, with shorter durations."""
        def shorter(match: re.Match[str]) -> str:
            minutes = int(match[1]) * (60 if match[2] == "h" else 1)
            return f"{max(minutes * MINUTE_MS, SHORTEST_MS)}ms"
        text = (SHIPPED / "alerts.yml").read_text()
        return re.sub(r"(?<=\[|\s)(\d+)([mh])(?=\]|\n)", shorter, text)

    def refuse(self, daemon: Daemon) -> None:
        """A job waits for a rank, which tries again and again with other options."""
        session = phub.connect(daemon.endpoint)
        job = session.join("picky", rank=0, world_size=2)
        over = threading.Event()

        def keep_trying() -> None:
            while not over.wait(0.1):
                with self.assertRaises(phub.Error):
                    session.join("picky", rank=1, world_size=2, chunk_bytes=4096)
        thread = threading.Thread(target=keep_trying)
        thread.start()

        def end() -> None:
            over.set()
            thread.join()
            job.leave()
        self.addCleanup(end)

    def memory_of(self, daemon: Daemon) -> int:
        with urllib.request.urlopen(f"http://{daemon.instance}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = re.search(r"^phub_memory_reserved_bytes (\d+)$", text, re.MULTILINE)
        assert found is not None, text
        return int(found[1])

    def test_exactly_the_expected_alerts_fire(self) -> None:
        healthy_and_stuck = self.daemon("mixed")
        self.job([healthy_and_stuck] * 2, "healthy", "--pause-ms", "50")
        stuck = self.job([healthy_and_stuck] * 3, "stuck", "--pause-ms", "50")
        losing = self.daemon("losing")
        # Its ranks do not push again, so it does not stall.
        idles = ["--pause-ms", "1000000", "--scale", "40"]
        lost = self.job([losing] * 2, "lost", "--wait-timeout-ms", "1000000", *idles)
        refusing = self.daemon("refusing")
        self.refuse(refusing)
        # Memory is scarce from 90 % on, a quota from 95 % on.
        full = self.daemon("full", "--memory-max", str(self.memory_of(losing) * 100 // 93))
        self.job([full] * 2, "large", *idles)
        down = self.daemon("down")
        down.close()

        daemons = [healthy_and_stuck, losing, refusing, full, down]
        prometheus = self.prometheus([daemon.instance for daemon in daemons], self.rules())
        stuck[2].process.send_signal(signal.SIGSTOP)
        self.addCleanup(lambda: stuck[2].process.send_signal(signal.SIGCONT))
        lost[1].process.kill()

        def alert(name: str, daemon: Daemon, **labels: str) -> str:
            return self.text_of({"alertname": name, "instance": daemon.instance, **labels})
        expected = {
            alert("PhubRoundsStall", healthy_and_stuck, job="stuck", tenant="default"),
            alert("PhubWorkersLost", losing),
            alert("PhubRefusals", refusing, reason="options"),
            alert("PhubMemoryScarce", full, job="phub"),
            alert("PhubDown", down, job="phub"),
        }
        fired: set[str] = set()  # on a busy machine, scrapes are late and alerts stop for a while

        def fire() -> set[str]:
            fired.update(self.firing(prometheus))
            return fired
        try:
            wait_until(lambda: expected <= fire(), "the expected alerts")
            # No other alert follows.
            end = time.monotonic() + 1.5 * LONGEST_S
            while time.monotonic() < end:
                self.assertEqual(fire(), expected)
                time.sleep(0.5)
        except AssertionError as error:
            firing = "\n".join(sorted(self.firing(prometheus)))
            raise AssertionError(f"{error}\nfiring:\n{firing}") from error
        for each in prometheus.ask("alerts")["alerts"]:
            if each["state"] == "firing":
                self.assertNotIn("healthy", str(each))

    @staticmethod
    def text_of(labels: dict[str, str]) -> str:
        shown = {name: value for name, value in labels.items() if name not in ("severity", "state")}
        return " ".join(f"{name}={shown[name]}" for name in sorted(shown))

    def firing(self, prometheus: Prometheus) -> set[str]:
        return {self.text_of(each["labels"]) for each in prometheus.ask("alerts")["alerts"]
                if each["state"] == "firing"}

    def test_promtool_accepts_the_rules_on_recorded_series(self) -> None:
        tests = REPOSITORY / "tests" / "alerts" / "alerts_test.yml"
        checked = subprocess.run([self.programs / "promtool", "test", "rules", tests], check=False,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout)


if __name__ == "__main__":
    sys.exit(run_tests())
