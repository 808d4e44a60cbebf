"""The shipped Grafana dashboards, without Grafana: their variables are replaced as Grafana does it,
and every query is sent to a real Prometheus that scrapes real daemons. One has a healthy and a
stalled job, one a job that has lost a rank, and a job spans two racks. Each query has data, and the
important panels show these states.
"""

from __future__ import annotations

import json
import math
import random
import re
import signal
import socket
import sys
import threading
from functools import partial
from typing import Any, Callable

import phub
from daemons import REPOSITORY, SHIPPED, Daemon, DaemonsTest, run_tests
from prometheus import Prometheus
from waiting import wait_until

FOLDER = REPOSITORY / "deploy" / "grafana"
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
# Grafana takes at least four times the interval of the scrapes, which is half a second here.
RATE_INTERVAL = "5s"


def free_endpoints(count: int) -> list[str]:
    """Below Linux's ephemeral ports, because those may be taken before a daemon starts."""
    held: list[socket.socket] = []
    while len(held) < count:
        each = socket.socket()
        try:
            each.bind(("127.0.0.1", random.randrange(10_000, 32_000)))
        except OSError:
            each.close()
            continue
        held.append(each)
    endpoints = [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    for each in held:
        each.close()
    return endpoints


class Dashboard:
    def __init__(self, name: str) -> None:
        self.content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
        self.variables: dict[str, dict[str, Any]] = {
            each["name"]: each for each in self.content["templating"]["list"]}

    def queries(self) -> list[tuple[str, dict[str, str]]]:
        return [(panel["title"], target) for panel in self.content["panels"]
                for target in panel["targets"]]

    def replaced(self, text: str) -> str:
        """As Grafana does it when "All" is chosen for every variable."""
        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name == "__rate_interval":
                return RATE_INTERVAL
            return str(self.variables[name]["allValue"])
        return VARIABLE.sub(value, text)


class DashboardsTest(DaemonsTest):
    def start(self) -> tuple[Prometheus, list[Daemon]]:
        mixed, losing = self.daemon("mixed"), self.daemon("losing")
        self.job([mixed] * 2, "healthy", "--pause-ms", "20")
        stuck = self.job([mixed] * 2, "stuck", "--pause-ms", "20")
        lost = self.job([losing] * 2, "lost", "--wait-timeout-ms", "1000000", "--pause-ms",
                        "1000000")
        endpoints = free_endpoints(2)
        racks = [self.daemon(f"rack{i}", "--racks", ",".join(endpoints), listen=each)
                 for i, each in enumerate(endpoints)]
        self.job(racks, "wide", "--plan", "auto", "--pause-ms", "20")
        self.grouped(mixed)
        daemons = [mixed, losing, *racks]
        prometheus = self.prometheus([each.instance for each in daemons],
                                     (SHIPPED / "alerts.yml").read_text())
        stuck[1].process.send_signal(signal.SIGSTOP)
        self.addCleanup(lambda: stuck[1].process.send_signal(signal.SIGCONT))
        lost[1].process.kill()
        return prometheus, daemons

    def grouped(self, daemon: Daemon) -> None:
        """A job whose two ranks form a group. They run in threads of this process."""
        session = phub.connect(daemon.endpoint)
        over = threading.Event()

        def train(rank: int) -> None:
            job = session.join("grouped", rank=rank, world_size=2)
            key = job.new_group("pair", [0, 1]).add_key("sum", 1000)
            while key.parameters[0] == 0:  # both ranks see the same sum, so both stop
                key.gradients[0] = over.wait(0.02)
                key.push_pull().wait()
            job.leave()
        threads = [threading.Thread(target=train, args=[rank]) for rank in range(2)]
        for thread in threads:
            thread.start()

        def end() -> None:
            over.set()
            for thread in threads:
                thread.join()
        self.addCleanup(end)

    @staticmethod
    def values(prometheus: Prometheus, query: str) -> dict[frozenset[str], float]:
        """By labels ("job=healthy"), without values that are no numbers."""
        found = {}
        for each in prometheus.query(query):
            value = float(each["value"][1])
            if math.isfinite(value):
                labels = frozenset(f"{name}={text}" for name, text in each["metric"].items())
                found[labels] = value
        return found

    def has_data(self, prometheus: Prometheus, query: str) -> bool:
        return bool(self.values(prometheus, query))

    def test_every_panel_has_data(self) -> None:
        prometheus, daemons = self.start()
        names = sorted(each.stem for each in FOLDER.glob("*.json"))
        self.assertEqual(names, ["cluster", "job", "racks", "tenant"])
        for name in names:
            dashboard = Dashboard(name)
            for title, target in dashboard.queries():
                query = dashboard.replaced(target["expr"])
                wait_until(partial(self.has_data, prometheus, query),
                           f"data of {name}, {title}: {query}")
                # The legend has only labels that the query returns.
                for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                    for labels in self.values(prometheus, query):
                        self.assertIn(f"{label}=", " ".join(labels), f"{name}, {title}")
        self.check_states(prometheus, daemons)
        self.check_variables(prometheus, daemons)

    def check_states(self, prometheus: Prometheus, daemons: list[Daemon]) -> None:
        def shown(name: str, title: str, *labels: str) -> float:
            """The sum over all series with these labels."""
            dashboard = Dashboard(name)
            expr = next(target["expr"] for panel, target in dashboard.queries() if panel == title)
            series = self.values(prometheus, dashboard.replaced(expr))
            return sum(value for found, value in series.items() if found >= set(labels))

        states: dict[str, Callable[[], bool]] = {
            "four daemons": lambda: shown("cluster", "Daemons") == 4,
            "jobs on four daemons": lambda: shown("cluster", "Running jobs") == 6,
            "a lost worker": lambda: shown("cluster", "Lost workers") == 1,
            "the lost rank": lambda: shown("job", "Workers", "job=lost", "state=lost") == 1,
            "healthy rounds": lambda: shown("job", "Rounds", "job=healthy") > 0,
            "no rounds of the stalled job": lambda: shown("job", "Rounds", "job=stuck") == 0,
            "the tenant's workers": lambda: shown("tenant", "Live workers", "tenant=default") == 9,
            "gradients": lambda: shown("cluster", "Gradients received",
                                       f"instance={daemons[0].instance}") > 0,
            "traffic of rack 0": lambda: shown("racks", "Sent to other racks",
                                               f"instance={daemons[2].instance}") > 0,
            "traffic of rack 1": lambda: shown("racks", "Sent to other racks",
                                               f"instance={daemons[3].instance}") > 0,
            "rounds of the group": lambda: shown("job", "Round duration of groups",
                                                 "job=grouped", "group=pair") > 0,
            "partial sums": lambda: shown("racks", "Partial sums received") > 0,
            "results": lambda: shown("racks", "New parameters received") > 0,
        }
        for what, is_shown in states.items():
            wait_until(is_shown, what)

    def check_variables(self, prometheus: Prometheus, daemons: list[Daemon]) -> None:
        """The lists from which a user chooses."""
        def choices(name: str, variable: str) -> set[str]:
            dashboard = Dashboard(name)
            query = dashboard.variables[variable]["query"]["query"]
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
            assert found is not None, query
            return {each["metric"][found[2]]
                    for each in prometheus.query(dashboard.replaced(found[1]))}
        instances = {each.instance for each in daemons}
        self.assertEqual(choices("cluster", "instance"), instances)
        self.assertEqual(choices("racks", "instance"), instances)
        self.assertEqual(choices("tenant", "tenant"), {"default"})
        self.assertEqual(choices("job", "tenant"), {"default"})
        self.assertEqual(choices("job", "job"), {"healthy", "stuck", "lost", "wide", "grouped"})


if __name__ == "__main__":
    sys.exit(run_tests())
