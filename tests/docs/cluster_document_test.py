"""Follows docs/cluster.md: two daemons move from SQLite to etcd, and one of them back."""

from __future__ import annotations

import os
import re
import sys
import unittest
from pathlib import Path

import debian_programs
from documents_test import DocumentTest, blocks
from hosts import Host, connect, wait_until

ADDRESSES = {"etcd1": "10.0.0.5", "node1": "10.0.0.1", "node2": "10.0.0.2"}
CERTIFICATES = """phubctl pki init pki
phubctl pki issue pki server etcd1 --host etcd1 --host 10.0.0.5
phubctl pki issue pki server client --host client"""


def find_programs() -> Path | None:
    return debian_programs.find_programs(["etcd-server", "etcd-client"], ["etcd", "etcdctl"])


class MovingTest(DocumentTest):
    def test_from_sqlite_to_etcd_and_back(self) -> None:
        hosts = {name: self.host(name) for name in ADDRESSES}
        connect(hosts, ADDRESSES)
        self.start_etcd(hosts["etcd1"])
        (copy, settings, serve, keys,
         back) = blocks("docs/cluster.md", "## Move from SQLite to etcd, and back")
        install = blocks("docs/operations.md", "## First rack in ten minutes")[1]
        tokens = {}
        nodes = [hosts["node1"], hosts["node2"]]
        for node in nodes:
            node.run(install)
            node.run(f"phubctl tenant create of-{node.name} --jobs 4\n"
                     f"phubctl token issue --tenant of-{node.name} --file token")
            tokens[node.name] = (node.home / "token").read_text()
            node.run(f"cp {hosts['etcd1'].home}/etcd-* /etc/phub/\n"
                     "chown phub /etc/phub/etcd-client.key")
        for node in nodes:
            self.carry_keys(nodes, keys)
            copied = node.run(copy)
            self.assertIn("dry run: nothing was written", copied)
            self.assertIn("copied. The sources are frozen", copied)
            self.set(node, settings)
            self.assertIn(f"of-{node.name} ", node.run(serve))
        self.carry_keys(nodes, keys)
        for node in nodes:
            for tenant, token in tokens.items():
                self.assert_valid(node, tenant, token)
        # Back: both tenants, both tokens.
        nodes[0].run(back)
        self.set(nodes[0], 'state_dir = "/var/lib/phub/alone"\n')
        self.assertIn("of-node2 ", nodes[0].run(serve))
        for tenant, token in tokens.items():
            self.assert_valid(nodes[0], tenant, token)
        self.assertIn("is frozen", nodes[1].run("phubctl tenant create late 2>&1 || true"))

    def start_etcd(self, host: Host) -> None:
        host.run(CERTIFICATES)
        for name, file in (("ca.crt", "etcd-ca.crt"), ("server-client.crt", "etcd-client.crt"),
                           ("server-client.key", "etcd-client.key")):
            host.run(f"cp pki/{name} {file}")
        programs = find_programs()
        host.start(
            f"exec {programs}/etcd --data-dir data --listen-client-urls https://10.0.0.5:2379 "
            "--advertise-client-urls https://etcd1:2379 --cert-file pki/server-etcd1.crt "
            "--key-file pki/server-etcd1.key --trusted-ca-file pki/ca.crt --client-cert-auth "
            ">etcd.log 2>&1")
        wait_until(lambda: "ready to serve" in host.run("cat etcd.log || true"))

    def set(self, node: Host, settings: str) -> None:
        """Replaces the settings of the control store."""
        node.run("sed -i -E '/^(state_dir|control_store|token_key|etcd_[a-z]+) =/d' "
                 f"/etc/phub/phubd.toml\ncat >>/etc/phub/phubd.toml <<'END'\n{settings}END")

    def carry_keys(self, nodes: list[Host], install: str) -> None:
        """All token keys to all hosts."""
        for node in nodes:
            node.run(f"cp /var/lib/phub/cluster.key* {self.scratch} 2>/dev/null || true")
        if (self.scratch / "cluster.key").exists():
            for node in nodes:
                node.run(f"rm -f cluster.key*; cp {self.scratch}/cluster.key* .\n"
                         "rm -f cluster.key.daemon\n" + install)

    def assert_valid(self, node: Host, tenant: str, token: str) -> None:
        (node.home / "one").write_text(token)
        node.run("chmod 600 one")
        said = ""

        def is_valid() -> bool:
            nonlocal said
            said = node.run("phubctl -e 127.0.0.1:7700 --token-file one whoami 2>&1 || true")
            return re.search(f"tenant of-{tenant}", said) is not None
        try:
            wait_until(is_valid)
        except AssertionError as error:
            raise AssertionError(f"{node.name}: {said}\n{node.log()}") from error


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root, for namespaces")
        sys.exit(77)
    if not find_programs():
        print("etcd is not installed and cannot be downloaded (try apt-get update)")
        sys.exit(1 if os.environ.get("ETCD_TEST_REQUIRED") else 77)
    unittest.main(verbosity=2)
