"""The declared view of a cluster in a real etcd: who may change it, which daemon is at which place,
and what becomes of records that are damaged."""

from __future__ import annotations

import json
import os
import signal
import sys
import unittest
from pathlib import Path

from cluster_test import ClusterTest
from daemons import Daemon
from etcd import find_programs
from waiting import free_ports, wait_until

TWO_RACKS = """
[[rack]]
name = "north"
daemons = 1
[[rack]]
name = "south"
daemons = 1
"""


class ViewTest(ClusterTest):
    def file(self, text: str, name: str = "view.toml") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def at(self, name: str, place: str, *arguments: str, key_of: Daemon | None = None) -> Daemon:
        """A daemon at a place, on a port that it keeps."""
        port = free_ports(1)[0]
        return self.daemon(name, "--place", place, *arguments, "--daemon-id", name, key_of=key_of,
                           listen=f"127.0.0.1:{port}")

    def declare(self, text: str = TWO_RACKS) -> Daemon:
        """A daemon without a place, after it has declared the view."""
        self.etcd.start()
        first = self.daemon("first", "--daemon-id", "first", "--quota-grace", "10s")
        first.serve()
        self.assertIn("view 1: ", first.ask("view", "set", self.file(text)))
        return first

    def places(self, daemon: Daemon, token: Path | None = None) -> dict[str, dict[str, str]]:
        said = daemon.ask("-o", "json", "server", "list", token=token)
        listed = json.loads(said[said.index("{"):])
        return {each["place"]["place"]: {**each, **each["place"]} for each in listed["daemons"]}


class Declaring(ViewTest):
    def test_each_change_has_the_next_number_and_one_audit_entry(self) -> None:
        first, second = self.pair()
        self.assertIn("no view has been declared", first.ask("view", "show"))
        self.assertIn("ENDPOINT", first.ask("server", "list").splitlines()[0])
        self.assertEqual(first.ask("view", "set", "--expect", "0", self.file(TWO_RACKS)),
                         "view 1: 2 racks, 2 daemons\n")
        self.says(second, "# view 1", "view", "show")
        # What `show` prints can be set, and changes nothing.
        shown = self.file(second.ask("view", "show"), "shown.toml")
        self.assertIn("view 1:", second.ask("view", "set", shown))
        three = self.file(TWO_RACKS + '[[rack]]\nname = "west"\ndaemons = 1\n')
        self.assertIn("its number is 1, not 0", second.ask("view", "set", "--expect", "0", three))
        self.assertIn("view 2: 3 racks", second.ask("view", "set", "--expect", "1", three))
        self.says(first, "# view 2", "view", "show")
        said = json.loads(first.ask("-o", "json", "view", "show"))
        self.assertEqual([rack["name"] for rack in said["racks"]], ["north", "south", "west"])
        entries = [line for line in first.ask("audit", "tail").splitlines() if "view." in line]
        self.assertEqual(len(entries), 2, entries)
        self.assertIn("view.set view 2 (view 2: 3 racks, 3 daemons)", entries[1])

        # An operator may look, but not change.
        token = self.token(first, "--role", "operator")
        refused = first.ask("view", "set", self.file(TWO_RACKS), token=token)
        self.assertIn("phub.v1.Membership/DeclareView requires one of: admin", refused)
        self.assertIn("# view 2", first.ask("view", "show", token=token))

    def test_bad_files_name_the_file_the_field_and_the_reason(self) -> None:
        first = self.declare()
        for text, problem in (
                ("# nothing\n", "rack is missing"),
                ("[[rack]]\nname = 'a'\n", "line 1: rack[0].daemons is missing"),
                ("[[rack]]\nname = 'a'\ndaemons = 0\n", "line 3: rack[0].daemons must be a number"),
                (TWO_RACKS + "colour = 1\n", 'line 8: unknown field "colour" in [[rack]]'),
                ("topology = 'no.toml'\n" + TWO_RACKS, "line 1: topology: "),
                ("x = " + "9" * 2_000_000, "at most 1048576")):
            said = first.ask("view", "set", self.file(text))
            self.assertIn(f"{self.folder}/view.toml: ", said)
            self.assertIn(problem, said)
        self.assertIn("# view 1", first.ask("view", "show"))

    def test_records_that_phub_has_not_written_are_not_used(self) -> None:
        first = self.declare()
        # The record of a place: by hand without a lease, it does not keep a daemon away.
        self.etcd.put("/phub/places/south/0", "by hand")
        first.wait_for('event=control_store_record_unreadable key="/places/south/0"')
        second = self.at("b", "south/0", key_of=first)
        second.serve()
        self.assertIn("event=place_record_replaced", second.log())
        self.assertEqual(self.places(second)["south/0"]["daemon"], "b")
        # With a lease, a newer phubd may have written it.
        lease = self.etcd.ctl("lease", "grant", "600").stdout.split()[1]
        self.etcd.ctl("put", "/phub/places/north/0", "damaged", f"--lease={lease}")
        self.assertIn("/places/north/0 in etcd was not written by phub",
                      self.at("c", "north/0", key_of=first).fails())
        # The view.
        self.etcd.put("/phub/view", "[[rack]]")
        self.says(first, "/view in etcd was not written by phub", "view", "show")
        self.assertIn("the view was not changed", first.ask("view", "set", self.file(TWO_RACKS)))
        self.assertIn("/view in etcd was not written by phub", second.ask("server", "list"))
        self.assertIn("/view in etcd was not written by phub",
                      self.at("d", "north/0", key_of=first).fails())
        self.etcd.ctl("del", "/phub/view")
        self.says(first, "no view has been declared", "view", "show")
        self.assertIn("the cluster has no view", self.at("e", "north/0", key_of=first).fails())


class Places(ViewTest):
    def test_each_place_has_one_daemon_and_every_daemon_knows_all(self) -> None:
        first = self.declare()
        self.assertEqual(self.places(first)["north/0"]["state"], "not claimed")
        north = self.at("a", "north/0", "--quota-grace", "10m", key_of=first)
        north.serve()
        south = self.at("b", "south/0", "--quota-grace", "10s", key_of=first)
        south.serve()
        token = self.token(first, "--role", "admin")
        for daemon in (first, north, south):
            self.says(daemon, "south/0", "server", "list", token=token)
            places = self.places(daemon, token)
            self.assertEqual({name: (each["daemon"], each["endpoint"], each["state"])
                              for name, each in places.items()},
                             {"north/0": ("a", north.endpoint, "serving"),
                              "south/0": ("b", south.endpoint, "serving")})
        # Without a token for the others, the list shows that they live.
        self.assertEqual(self.places(first)["south/0"]["state"], "alive")

        # Another daemon cannot have it, and says who has it.
        taken = self.at("c", "north/0", key_of=first).fails()
        self.assertIn(f"place north/0 is taken by daemon a ({north.endpoint} on host ", taken)
        self.assertIn("this is daemon c (127.0.0.1:", taken)
        self.assertNotIn("event=serving", taken)
        missing = self.at("d", "south/1", key_of=first).fails()
        self.assertIn("place south/1 is not in view 1: south has 1 daemon", missing)
        self.assertIn("place west/0 is not in view 1, which has north, south",
                      self.at("e", "west/0", key_of=first).fails())

        # It comes back under its id while its old lease would last for minutes.
        north.process.send_signal(signal.SIGKILL)
        north.process.wait()
        self.assertEqual(self.places(first, token)["north/0"]["state"], "does not answer")
        north.start()
        north.serve()
        self.assertEqual(self.places(south, token)["north/0"]["state"], "serving")

        # A daemon that stops leaves its place, and the view stays.
        south.stop()
        wait_until(lambda: self.places(first, token)["south/0"]["state"] == "gone", "south is gone")
        self.assertEqual(self.places(first, token)["south/0"]["endpoint"], south.endpoint)
        other = self.at("f", "south/0", key_of=first)
        other.serve()
        self.assertEqual(self.places(north, token)["south/0"]["daemon"], "f")
        self.assertIn("# view 1", north.ask("view", "show"))

        # A place that a later view does not have.
        self.assertIn("view 2", first.ask("view", "set", self.file(TWO_RACKS.replace("south",
                                                                                    "west"))))
        self.says(north, "south/0 (not in the view)", "server", "list", token=token)


if __name__ == "__main__":
    if not find_programs():
        print("etcd is not installed and cannot be downloaded (try apt-get update)")
        sys.exit(1 if os.environ.get("ETCD_TEST_REQUIRED") else 77)
    unittest.main(verbosity=2)
