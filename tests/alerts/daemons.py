"""Daemons and jobs in chosen states, for tests of what Prometheus makes of their metrics."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from prometheus import Prometheus, find_programs
from waiting import wait_until

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SHIPPED = REPOSITORY / "deploy" / "prometheus"
PHUBD, TRAINER = os.environ["PHUB_PHUBD"], os.environ["PHUB_TRAINER"]
PATIENCE_S = 90


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
    def __init__(self, folder: Path, name: str, *arguments: str, listen: str) -> None:
        super().__init__([PHUBD, "--listen", listen, "--metrics-listen", "127.0.0.1:0",
                          "--cores", "1", "--liveness-timeout", "10m", *arguments], folder / name)
        self.wait_for("event=serving")
        log = self.output()
        found = re.search(r"event=serving .* listen=(\S+) .* metrics=http://([^/]+)/", log)
        assert found is not None, log
        self.endpoint, self.instance = found.groups()


class DaemonsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="phub-alerts-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        programs = find_programs()
        assert programs is not None
        self.programs = programs

    def daemon(self, name: str, *arguments: str, listen: str = "127.0.0.1:0") -> Daemon:
        daemon = Daemon(self.folder, name, *arguments, listen=listen)
        self.addCleanup(daemon.close)
        return daemon

    def job(self, daemons: list[Daemon], name: str, *arguments: str) -> list[Program]:
        """A job that trains, with a rank at each of `daemons`."""
        started = []
        for rank, daemon in enumerate(daemons):
            started.append(Program(
                [TRAINER, "--endpoint", daemon.endpoint, "--job", name, "--rank", str(rank),
                 "--world-size", str(len(daemons)), "--iterations", "1000000", *arguments],
                self.folder / f"{name}-{rank}"))
            self.addCleanup(started[-1].close)
        for each in started:
            each.wait_for("iteration 1\n")
        return started

    def prometheus(self, instances: list[str], rules: str) -> Prometheus:
        """With what phub ships, except for the targets, the interval and the rules."""
        configuration = (SHIPPED / "prometheus.yml").read_text()
        targets = ", ".join(f'"{instance}"' for instance in instances)
        configuration, replaced = re.subn(r"targets: \[.*\]", f"targets: [{targets}]",
                                          configuration)
        self.assertEqual(replaced, 1)
        file = self.folder / "alerts.yml"
        file.write_text(rules)
        self.assertIn("/usr/share/doc/phub/alerts.yml", configuration)
        configuration = configuration.replace("/usr/share/doc/phub/alerts.yml", str(file))
        configuration += "global: {scrape_interval: 500ms, evaluation_interval: 500ms}\n"
        file = self.folder / "prometheus.yml"
        file.write_text(configuration)
        subprocess.run([self.programs / "promtool", "check", "config", file], check=True,
                       stdout=subprocess.DEVNULL)
        started = Prometheus(self.programs, file, self.folder)
        self.addCleanup(started.close)
        started.wait(PATIENCE_S)
        return started


def run_tests() -> int:
    if find_programs() is None:
        print("Prometheus is not installed and cannot be downloaded (try apt-get update)")
        return 1 if os.environ.get("PROMETHEUS_TEST_REQUIRED") else 77
    unittest.main(verbosity=2)
    return 0
