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

ONE_RACK = """
[[rack]]
name = "rack"
daemons = 2
"""
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
        first = self.declare(ONE_RACK)
        # The record of a place: by hand without a lease, it does not keep a daemon away.
        self.etcd.put("/phub/places/rack/1", "by hand")
        first.wait_for('event=control_store_record_unreadable key="/places/rack/1"')
        second = self.at("b", "rack/1", "--health-listen", "127.0.0.1:0", key_of=first)
        second.wait_for("event=place_record_replaced")
        # It waits for the other place, and says so.
        second.wait_for("event=waiting_for_cluster view=1 "
                        'reason="no daemon has been at rack/0 yet"')
        self.assertEqual([second.health(path) for path in ("/healthz", "/readyz")], [200, 503])
        self.assertEqual(self.places(first)["rack/1"]["daemon"], "b")
        # With a lease, a newer phubd may have written it.
        lease = self.etcd.ctl("lease", "grant", "600").stdout.split()[1]
        self.etcd.ctl("put", "/phub/places/rack/0", "damaged", f"--lease={lease}")
        self.assertIn("/places/rack/0 in etcd was not written by phub",
                      self.at("c", "rack/0", key_of=first).fails())
        self.etcd.ctl("lease", "revoke", lease)
        third = self.at("d", "rack/0", key_of=first)
        for daemon in (third, second):
            daemon.serve()
        self.assertEqual(second.health("/readyz"), 200)
        # The view.
        self.etcd.put("/phub/view", "[[rack]]")
        self.says(first, "/view in etcd was not written by phub", "view", "show")
        self.assertIn("the view was not changed", first.ask("view", "set", self.file(TWO_RACKS)))
        self.assertIn("/view in etcd was not written by phub", second.ask("server", "list"))
        self.assertIn("/view in etcd was not written by phub",
                      self.at("e", "rack/0", key_of=first).fails())
        # Without a view, a daemon with a place waits for one.
        self.etcd.ctl("del", "/phub/view")
        self.says(first, "no view has been declared", "view", "show")
        waiting = self.at("f", "north/0", key_of=first)
        waiting.wait_for(
            'reason="the cluster has no view; declare one with `phubctl store set-view`')
        waiting.process.send_signal(signal.SIGTERM)
        self.assertIn("was stopped while it waited", waiting.fails())


class Places(ViewTest):
    def test_each_place_has_one_daemon_and_every_daemon_knows_all(self) -> None:
        first = self.declare(ONE_RACK)
        self.assertEqual(self.places(first)["rack/0"]["state"], "not claimed")
        zero = self.at("a", "rack/0", "--quota-grace", "10m", key_of=first)
        one = self.at("b", "rack/1", "--quota-grace", "10s", key_of=first)
        for daemon in (zero, one):
            daemon.serve()
        token = self.token(first, "--role", "admin")
        for daemon in (first, zero, one):
            self.says(daemon, "rack/1", "server", "list", token=token)
            places = self.places(daemon, token)
            self.assertEqual({name: (each["daemon"], each["endpoint"], each["state"])
                              for name, each in places.items()},
                             {"rack/0": ("a", zero.endpoint, "serving"),
                              "rack/1": ("b", one.endpoint, "serving")})
        # Without a token for the others, the list shows that they live.
        self.assertEqual(self.places(first)["rack/1"]["state"], "alive")
        said = first.ask("server", "list")
        self.assertIn(f"the daemon of rack/0 ({zero.endpoint}) does not tell its state: ", said)
        self.assertIn("1 more daemon(s) do not tell theirs", said)

        # Another daemon cannot have it, and says who has it.
        taken = self.at("c", "rack/0", key_of=first).fails()
        self.assertIn(f"place rack/0 is taken by daemon a ({zero.endpoint} on host ", taken)
        self.assertIn("this is daemon c (127.0.0.1:", taken)
        self.assertNotIn("event=serving", taken)
        missing = self.at("d", "rack/2", key_of=first).fails()
        self.assertIn("place rack/2 is not in view 1: rack has 2 daemons", missing)
        self.assertIn("place west/0 is not in view 1, which has rack",
                      self.at("e", "west/0", key_of=first).fails())

        # It comes back under its id while its old lease would last for minutes.
        zero.process.send_signal(signal.SIGKILL)
        zero.process.wait()
        self.assertEqual(self.places(first, token)["rack/0"]["state"], "does not answer")
        zero.start()
        zero.serve()
        self.assertEqual(self.places(one, token)["rack/0"]["state"], "serving")

        # A daemon that stops leaves its place, and the view stays.
        one.stop()
        wait_until(lambda: self.places(first, token)["rack/1"]["state"] == "gone", "it is gone")
        self.assertEqual(self.places(first, token)["rack/1"]["endpoint"], one.endpoint)
        other = self.at("f", "rack/1", key_of=first)
        other.serve()
        self.says(zero, other.endpoint, "server", "list", token=token)
        zero.wait_for(f"event=place_moved place=rack/1 from={one.endpoint} to={other.endpoint}")

        # Running daemons keep their view.
        self.assertIn("view 2", first.ask("view", "set", self.file(ONE_RACK.replace("2", "1"))))
        zero.wait_for("event=view_differs used=1 declared=2")
        self.says(zero, "1 (declared: 2)", "server", "list", token=token)
        self.says(zero, "rack/1 (not in the view)", "server", "list", token=token)


if __name__ == "__main__":
    if not find_programs():
        print("etcd is not installed and cannot be downloaded (try apt-get update)")
        sys.exit(1 if os.environ.get("ETCD_TEST_REQUIRED") else 77)
    unittest.main(verbosity=2)
