"""A real Prometheus with the shipped scrape configuration and rules, and real daemons: one with a
job that stalls, one whose job has lost a rank, one that refuses workers, one whose memory is full,
and one that is down. Exactly the alerts for these states fire, and none names a healthy job.

Durations in the rules are shorter here: a minute is a second, but none is below 4 seconds.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path
from typing import Callable, Optional

import phub
from prometheus import Prometheus, find_programs

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SHIPPED = REPOSITORY / "deploy" / "prometheus"
PHUBD, TRAINER = os.environ["PHUB_PHUBD"], os.environ["PHUB_TRAINER"]
PATIENCE_S = 90
MINUTE_MS = 1000
SHORTEST_MS = 4000  # on a busy machine, a healthy daemon may answer some scrapes too late
LONGEST_S = 15 * MINUTE_MS / 1000  # of the rules' durations


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.1)


class Program:
    """A process whose output goes to a file."""

    def __init__(self, arguments: list[str], output: Path) -> None:
        self._output = output
        with output.open("w") as file:
            environment = {name: value for name, value in os.environ.items()
                           if not name.startswith("PHUB_")}
            self.process = subprocess.Popen(arguments, stdout=file, stderr=subprocess.STDOUT,
                                            env=environment)

    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> None:
        def is_there() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"it ended:\n{self.output()}")
            return text in self.output()
        wait_until(is_there, text)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Daemon(Program):
    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        super().__init__([PHUBD, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                          "--cores", "1", "--liveness-timeout", "10m", *arguments], folder / name)
        self.wait_for("event=serving")
        log = self.output()
        found = re.search(r"event=serving .* listen=(\S+) .* metrics=http://([^/]+)/", log)
        assert found is not None, log
        self.endpoint, self.instance = found.groups()


class AlertsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="phub-alerts-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        programs = find_programs()
        assert programs is not None
        self.programs = programs

    def daemon(self, name: str, *arguments: str) -> Daemon:
        daemon = Daemon(self.folder, name, *arguments)
        self.addCleanup(daemon.close)
        return daemon

    def job(self, daemon: Daemon, name: str, ranks: int, *arguments: str) -> list[Program]:
        """A job that trains."""
        started = []
        for rank in range(ranks):
            started.append(Program(
                [TRAINER, "--endpoint", daemon.endpoint, "--job", name, "--rank", str(rank),
                 "--world-size", str(ranks), "--iterations", "1000000", *arguments],
                self.folder / f"{name}-{rank}"))
            self.addCleanup(started[-1].close)
        for each in started:
            each.wait_for("iteration 1\n")
        return started

    def prometheus(self, instances: list[str]) -> Prometheus:
        """With what phub ships, except for the targets and the durations."""
        configuration = (SHIPPED / "prometheus.yml").read_text()
        targets = ", ".join(f'"{instance}"' for instance in instances)
        configuration, replaced = re.subn(r"targets: \[.*\]", f"targets: [{targets}]",
                                          configuration)
        self.assertEqual(replaced, 1)
        rules = self.folder / "alerts.yml"
        self.assertIn("/usr/share/doc/phub/alerts.yml", configuration)
        configuration = configuration.replace("/usr/share/doc/phub/alerts.yml", str(rules))
        configuration += "global: {scrape_interval: 500ms, evaluation_interval: 500ms}\n"
        file = self.folder / "prometheus.yml"
        file.write_text(configuration)

        def shorter(match: re.Match[str]) -> str:
            minutes = int(match[1]) * (60 if match[2] == "h" else 1)
            return f"{max(minutes * MINUTE_MS, SHORTEST_MS)}ms"
        text = (SHIPPED / "alerts.yml").read_text()
        rules.write_text(re.sub(r"(?<=\[|\s)(\d+)([mh])(?=\]|\n)", shorter, text))
        subprocess.run([self.programs / "promtool", "check", "config", file], check=True,
                       stdout=subprocess.DEVNULL)
        started = Prometheus(self.programs, file, self.folder)
        self.addCleanup(started.close)
        started.wait(PATIENCE_S)
        return started

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
        self.job(healthy_and_stuck, "healthy", 2, "--pause-ms", "50")
        stuck = self.job(healthy_and_stuck, "stuck", 3, "--pause-ms", "50")
        losing = self.daemon("losing")
        # Its ranks do not push again, so it does not stall.
        idles = ["--pause-ms", "1000000", "--scale", "40"]
        lost = self.job(losing, "lost", 2, "--wait-timeout-ms", "1000000", *idles)
        refusing = self.daemon("refusing")
        self.refuse(refusing)
        # Memory is scarce from 90 % on, a quota from 95 % on.
        full = self.daemon("full", "--memory-max", str(self.memory_of(losing) * 100 // 93))
        self.job(full, "large", 2, *idles)
        down = self.daemon("down")
        down.close()

        daemons = [healthy_and_stuck, losing, refusing, full, down]
        prometheus = self.prometheus([daemon.instance for daemon in daemons])
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
        try:
            wait_until(lambda: expected <= self.firing(prometheus), "the expected alerts")
            # No other alert follows.
            end = time.monotonic() + 1.5 * LONGEST_S
            while time.monotonic() < end:
                self.assertEqual(self.firing(prometheus), expected)
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


def main() -> Optional[int]:
    if find_programs() is None:
        print("Prometheus is not installed and cannot be downloaded (try apt-get update)")
        return 1 if os.environ.get("PROMETHEUS_TEST_REQUIRED") else 77
    unittest.main(verbosity=2)
    return None


if __name__ == "__main__":
    sys.exit(main())
