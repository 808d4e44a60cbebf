"""Follows the documents as a reader would: runs their shell blocks in order, as written."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

from hosts import Host, connect, wait_until

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROGRAMS = [Path(os.environ[name]) for name in ("PHUB_PHUBD", "PHUB_PHUBCTL", "PHUB_DIGITS")]
LIBRARY = Path(os.environ["PHUB_LIBRARY"])
DATA = REPOSITORY / "client" / "examples" / "digits" / "data" / "digits.csv.gz"


def blocks(document: str, heading: str) -> list[str]:
    """The blocks of code below a heading, up to the next heading of the same level."""
    text = (REPOSITORY / document).read_text()
    section = re.split(rf"^{re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    section = re.split(rf"^{'#' * heading.index(' ')} ", section, flags=re.MULTILINE)[0]
    return re.findall(r"^```\w+\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)


def endless(block: str) -> str:
    """The commands of a block that watch until they are interrupted, each for four seconds."""
    lines = (line.split("#")[0].strip() for line in block.splitlines())
    return "\n".join(
        f"timeout --preserve-status --signal=INT 4 {line} || [[ $? == 130 ]]" for line in lines
    )


class DocumentTest(unittest.TestCase):
    def setUp(self) -> None:
        os.environ["REPOSITORY"] = str(REPOSITORY)
        folder = tempfile.TemporaryDirectory(prefix="phub-documents-")
        self.addCleanup(folder.cleanup)
        self.scratch = Path(folder.name)
        self.scratch.chmod(0o755)

    def host(self, name: str) -> Host:
        host = Host(name, self.scratch, [*PROGRAMS, LIBRARY])
        self.addCleanup(host.close)
        return host


class DocumentsTest(DocumentTest):
    def test_first_rack_in_ten_minutes(self) -> None:
        addresses = {"mine": "10.0.0.9", "node1": "10.0.0.1", "node2": "10.0.0.2"}
        hosts = {name: self.host(name) for name in addresses}
        connect(hosts, addresses)
        mine, nodes = hosts["mine"], [hosts["node1"], hosts["node2"]]
        (_, install, certificates, files, settings, restart, administration, training, watching,
         alone) = blocks("docs/operations.md", "## First rack in ten minutes")

        for node in nodes:
            self.assertIn("serving", node.run(install))
        # One host without TLS, before the rack is made.
        (nodes[0].home / "client").symlink_to(REPOSITORY / "client")
        nodes[0].run(alone)
        nodes[0].run("phubctl tenant delete acme --yes")

        mine.run(certificates)
        for node in nodes:
            node.run(files)
            own = settings.replace('listen = "10.0.0.1', f'listen = "{addresses[node.name]}')
            toml = node.home / "own.toml"
            toml.write_text(own)
            keys = "|".join(re.findall(r"^(\w+) =", own, flags=re.MULTILINE))
            node.run(f"sed -i -E '/^({keys}) =/d' /etc/phub/phubd.toml\n"
                     "cat own.toml >>/etc/phub/phubd.toml")
            self.assertIn("ok\n", node.run(restart))
        listed = mine.run(administration)
        self.assertEqual(len(re.findall(r"^\S+:7700 +serving ", listed, re.MULTILINE)), 2,
                         listed)

        mine.run("cp phub-pki/ca.crt phub-pki/tenant-acme.* .")
        (mine.home / "client").symlink_to(REPOSITORY / "client")
        trained = mine.run(training)
        self.assertIn("accuracy", trained)
        longer = training.replace("--world-size 2", "--world-size 2 --iterations 1000000")
        running = mine.start(longer)
        wait_until(lambda: re.search(r"digits +running +2/2", mine.run("phubctl job list")))
        watched = mine.run(endless(watching))
        for words in ("10.0.0.2:7700", "digits"):
            self.assertIn(words, watched)
        (quotas,) = [block for block in blocks("docs/tenants.md", "## Racks of several daemons")
                     if "set-quota" in block]
        self.assertEqual(mine.run(quotas).count('"3221225472"'), 2)
        mine.run("phubctl --tenant acme job evict digits --yes --reason over")
        printed, _ = running.communicate(timeout=60)
        self.assertIn("over", printed)


    def test_create_the_first_tenant(self) -> None:
        addresses = {"mine": "10.0.0.9", "node7": "10.0.0.7"}
        hosts = {name: self.host(name) for name in addresses}
        connect(hosts, addresses)
        mine, node = hosts["mine"], hosts["node7"]
        certificates, tenant, _ = blocks("docs/tenants.md", "## Create the first tenant")
        mine.run(certificates)
        begun, _, rest = tenant.partition("&\n")
        node.run("mkdir -p /var/lib && rm -rf /var/lib/phub")
        node.start(begun)
        wait_until(lambda: "serving" in node.run("phubctl health || true"))
        node.run(rest)
        for name in ("acme.token", "ca.crt"):
            mine.run(f"install -m 0600 {node.home}/{name} .")
        said = mine.run("phubctl -e node7:7700 --ca-file ca.crt --token-file acme.token whoami")
        self.assertIn("acme", said)

    def test_readme_by_hand(self) -> None:
        host = self.host("own")
        build, daemon, train, compare, inspect = blocks("README.md", "## By hand")[:5]
        # The build is there: tests/run made it.
        path = [line for line in build.splitlines() if line.startswith("export PATH=")]
        self.assertEqual(len(path), 1)
        here = f"cd '{REPOSITORY}'\n{path[0]}\n"
        there = [block.replace("/tmp/", f"{host.home}/")
                 for block in (train, compare, inspect)]
        host.start(here + daemon)
        wait_until(lambda: "serving" in host.run("phubctl health || true"))
        self.assertIn("identical", host.run(here + there[0] + there[1]))
        options = "--world-size 4 --iterations 1000000"
        running = host.start(here + there[0].replace("--world-size 4", options))
        wait_until(lambda: re.search(r"digits +running +4/4", host.run("phubctl job list")))
        self.assertIn("digits", host.run(endless(there[2])))
        # "of a worker that is stopped they hear after two seconds"
        worker = "pkill --ns $$ --nslist net --full --signal"
        host.run(f"{worker} STOP -- '--rank 2'")
        wait_until(lambda: "running" not in host.run("phubctl job list"))
        host.run(f"{worker} KILL -- '--rank 2'")
        printed, _ = running.communicate(timeout=60)
        self.assertIn("rank 2", printed)


class RacksTest(DocumentTest):
    """docs/racks.md."""

    def setUp(self) -> None:
        super().setUp()
        (self.settings, self.restart, self.planes) = blocks("docs/racks.md", "## Setting it up")
        (_, self.training, self.shown) = blocks("docs/racks.md", "## Starting a job")
        (self.aggregator,) = blocks("docs/racks.md", "## Aggregators")

    def racks(self, *addresses: str) -> dict[str, Host]:
        """Hosts of one network, by address."""
        hosts = {f"h{address.replace('.', '-')}": address for address in addresses}
        made = {name: self.host(name) for name in hosts}
        connect(made, hosts, prefix=16)
        for host in made.values():
            host.run("install -d /etc/phub")
            (host.home / "client").symlink_to(REPOSITORY / "client")
        return {hosts[name]: host for name, host in made.items()}

    def start(self, host: Host, settings: str) -> None:
        (host.home / "phubd.toml").write_text(settings)
        host.run("install -m 0644 phubd.toml /etc/phub/phubd.toml")
        self.assertIn("ok\n", host.run(self.restart))

    def train(self, hosts: dict[str, Host], addresses: list[str], plan: str = "auto") -> None:
        """Rack r's ranks at the r-th address, as the page starts those of rack 1."""
        ranks = 6 // len(addresses)
        running = []
        for rack, address in enumerate(addresses):
            own = " ".join(str(rack * ranks + i) for i in range(ranks))
            script = self.training.replace("10.0.1.5", address).replace("2 3;", f"{own};")
            script = script.replace("--plan auto", f"--plan {plan}")
            script = script.replace("wait\n", "for job in $(jobs -p); do wait $job; done\n")
            running.append(hosts[address].start(script))
        printed = ""
        for each in running:
            printed += each.communicate(timeout=100)[0]
            self.assertEqual(each.returncode, 0, printed)
        self.assertIn("accuracy", printed)

    def assert_shown(self, printed: str, shown: str) -> None:
        """The lines of a block appear as written, except for measured and computed times."""
        times = re.compile(r"[0-9.]+ (?:ns|us|ms|s)\b|  +")
        lines = {times.sub(" ", line).strip() for line in printed.splitlines()}
        for line in shown.splitlines():
            if line != "..." and not line.startswith("$ "):
                self.assertIn(times.sub(" ", line).strip(), lines, printed)

    def test_one_daemon_in_each_rack(self) -> None:
        addresses = ["10.0.0.5", "10.0.1.5", "10.0.2.5"]
        hosts = self.racks(*addresses)
        for address, host in hosts.items():
            self.start(host, self.settings.replace('listen    = "10.0.1.5', f'listen = "{address}'))
        self.train(hosts, addresses)
        command = re.findall(r"^\$ (.*)", self.shown, flags=re.MULTILINE)[0]
        self.assert_shown(hosts["10.0.1.5"].run(command), self.shown)

    def test_aggregator(self) -> None:
        addresses = ["10.0.0.5", "10.0.1.5", "10.0.2.5"]
        hosts = self.racks(*addresses, "10.0.9.5")
        (aggregators,) = re.findall(r"^aggregators = .*\n", self.aggregator, flags=re.MULTILINE)
        for address in addresses:
            own = self.settings.replace('listen    = "10.0.1.5', f'listen = "{address}')
            self.start(hosts[address], own + aggregators)
        self.start(hosts["10.0.9.5"], self.aggregator)
        self.train(hosts, addresses, plan="in-switch")

    def test_two_daemons_in_each_rack(self) -> None:
        # The settings of the two daemons are next to each other, the second ones after a '#'.
        lines = self.planes.splitlines()[1:]
        columns = [[line.partition("  # ")[2 * daemon].strip() for line in lines]
                   for daemon in (0, 1)]
        addresses = ["10.0.0.5", "10.0.1.5"]
        hosts = self.racks(*addresses, "10.0.0.6", "10.0.1.6")
        for address, host in hosts.items():
            own = "\n".join(columns[int(address[-1]) - 5])
            if address.startswith("10.0.0."):
                own = own.replace('listen  = "10.0.1.', 'listen  = "10.0.0.')
                own = re.sub(r"(?m)^daemons = .*", 'daemons = "10.0.0.5:7700,10.0.0.6:7700"', own)
            self.start(host, own)
        self.train(hosts, addresses)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: namespaces need root")
        sys.exit(77)
    unittest.main()
