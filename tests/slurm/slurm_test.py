"""phub under Slurm: a real slurmctld and slurmd on this host, with their own munge, settings and
ports."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from waiting import free_ports, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "deploy" / "slurm"
DATA = REPOSITORY / "client" / "examples" / "digits" / "data" / "digits.csv.gz"
PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")
PATIENCE_S = 60


SETTINGS = """
ClusterName=phub
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
PrologSlurmctld={folder}/prolog
Epilog={folder}/epilog
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""


class SlurmTest(unittest.TestCase):
    folder: Path
    endpoint: str
    environment: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = []

    @classmethod
    def start(cls, name: str, arguments: list[str]) -> None:
        with (cls.folder / f"{name}.log").open("w") as log:
            cls.processes.append(subprocess.Popen(arguments, stdout=log, stderr=log,
                                                  env=cls.environment))

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="phub-slurm-")
        cls.addClassCleanup(folder.cleanup)
        cls.addClassCleanup(cls.end)
        cls.folder = Path(folder.name)
        cls.folder.chmod(0o755)
        for name in ("munge", "state", "spool"):
            (cls.folder / name).mkdir(mode=0o755)
        cls.environment = {name: value for name, value in os.environ.items()
                           if not name.startswith(("PHUB_", "SLURM_"))}
        cls.environment["SLURM_CONF"] = str(cls.folder / "slurm.conf")
        cls.start_munge()
        cls.start("phubd", [os.environ["PHUB_PHUBD"], "--listen", "127.0.0.1:0", "--cores", "1"])
        log = cls.folder / "phubd.log"
        wait_until(lambda: "event=serving" in log.read_text(), "phubd serves")
        found = re.search(r"event=serving .* listen=(\S+)", log.read_text())
        assert found is not None
        cls.endpoint = found.group(1)
        cls.start_slurm()

    @classmethod
    def start_munge(cls) -> None:
        munge = cls.folder / "munge"
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        cls.start("munged", ["munged", "--foreground", "--force", f"--key-file={munge}/key",
                             f"--socket={munge}/socket", f"--log-file={munge}/log",
                             f"--pid-file={munge}/pid", f"--seed-file={munge}/seed"])
        wait_until(lambda: (munge / "socket").exists(), "munged serves")

    @classmethod
    def start_slurm(cls) -> None:
        host = socket.gethostname().split(".")[0]
        for name, script in (("prolog", "prolog-slurmctld.sh"), ("epilog", "epilog.sh")):
            file = cls.folder / name
            file.write_text(f"#!/bin/bash\nexport PHUB_SLURM_CONF={cls.folder}/phub.conf\n"
                            f"exec {SCRIPTS / script} >>{cls.folder}/{name}.log 2>&1\n")
            file.chmod(0o755)
        (cls.folder / "phub.conf").write_text(
            f"PHUB_ENDPOINT={cls.endpoint}\nPHUBCTL={os.environ['PHUB_PHUBCTL']}\n")
        (cls.folder / "slurm.conf").write_text(
            SETTINGS.format(host=host, ports=free_ports(2), folder=cls.folder))
        cls.start("slurmctld", ["slurmctld", "-D"])
        cls.start("slurmd", ["slurmd", "-D", "-N", host])
        wait_until(lambda: "idle" in cls.run_here("sinfo", "-h", "-o", "%T").stdout,
                   "the node is idle")

    @classmethod
    def end(cls) -> None:
        try:
            if (cls.folder / "slurmctld.log").exists():  # a failed test leaves jobs
                cls.run_here("scancel", "--user=root")
                wait_until(lambda: not cls.run_here("squeue", "-h").stdout, "no job is left")
        finally:
            cls.end_processes()

    @classmethod
    def end_processes(cls) -> None:
        for process in reversed(cls.processes):
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @classmethod
    def run_here(cls, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(arguments, env=cls.environment, capture_output=True, text=True,
                              timeout=PATIENCE_S)

    def ctl(self, *arguments: str) -> Any:
        done = self.run_here(os.environ["PHUB_PHUBCTL"], "-e", self.endpoint, "-o", "json",
                             *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def jobs(self) -> dict[str, Any]:
        return {job["name"]: job for job in self.ctl("job", "list")["jobs"]}

    def digits(self, endpoint: str, *more: str, ranks: str = "%n") -> list[str]:
        return [str(SCRIPTS / "phub-run"), os.environ["PHUB_DIGITS"], "--endpoint", endpoint,
                "--job", "%j", "--rank", "%r", "--world-size", ranks, "--data", str(DATA),
                "--quiet", *more]

    def test_a_step_trains_with_a_daemon_that_is_a_service(self) -> None:
        parameters = self.folder / "parameters"
        done = self.run_here("srun", "-n", "3", *self.digits(
            self.endpoint, "--iterations", "20", "--save", f"{parameters}.%r"))
        self.assertEqual(done.returncode, 0, done.stderr)
        saved = {Path(f"{parameters}.{rank}").read_bytes() for rank in range(3)}
        self.assertEqual(len(saved), 1)
        names = [name for name in self.jobs() if re.fullmatch(r"slurm-\d+\.0", name)]
        self.assertTrue(names)
        self.assertEqual(self.jobs()[names[-1]]["world_size"], 3)

    def test_a_step_trains_with_a_daemon_that_is_a_step(self) -> None:
        script = self.folder / "batch"
        port = self.folder / "port"
        trainer = " ".join(self.digits('"$PLACE"', "--iterations", "20"))
        script.write_text(f"""#!/bin/bash
srun --overlap -n 1 {os.environ['PHUB_PHUBD']} --listen 127.0.0.1:0 --cores 1 --port-file {port} &
until [[ -s {port} ]]; do sleep 0.1; done
export PLACE="127.0.0.1:$(cat {port})"
srun --overlap -n 2 {trainer}
echo "trained $?"
scancel --signal=TERM "$SLURM_JOB_ID.0"
wait
""")
        output = self.folder / "batch.out"
        done = self.run_here("sbatch", "--wait", "-n", "3", "-o", str(output), str(script))
        self.assertIn("trained 0", output.read_text(), done.stderr)

    def test_the_epilog_evicts_what_remains(self) -> None:
        # Rank 1 of the job never comes.
        waiting = subprocess.Popen(["srun", "-n", "1", *self.digits(self.endpoint, ranks="2")],
                                   env=self.environment,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        def mine() -> list[str]:
            return [name for name, job in self.jobs().items()
                    if job["world_size"] == 2 and job["state"] == "running"]
        wait_until(lambda: bool(mine()), "the job waits")
        name = mine()[0]
        # A rank outside of Slurm keeps the job alive.
        number = re.fullmatch(r"slurm-(\d+)\.\d+", name)
        assert number is not None
        left = f"slurm-{number.group(1)}.left"
        outside = subprocess.Popen(
            [os.environ["PHUB_DIGITS"], "--endpoint", self.endpoint, "--rank", "0", "--world-size",
             "2", "--data", str(DATA), "--quiet", "--job", left],
            env=self.environment, stderr=subprocess.PIPE, text=True)
        def end() -> None:
            outside.kill()
            outside.communicate()
        self.addCleanup(end)
        wait_until(lambda: left in self.jobs(), "it is left")
        self.run_here("scancel", number.group(1))
        waiting.communicate(timeout=PATIENCE_S)
        wait_until(lambda: self.jobs()[left]["state"] == "failed",
                   "the epilog evicts it")
        self.assertIn("its Slurm job has ended",
                      self.jobs()[left]["fault"])

    def test_the_prolog_checks_the_quota(self) -> None:
        self.ctl("tenant", "create", "full", "--jobs", "0")
        self.ctl("tenant", "create", "free", "--jobs", "3")
        refused = self.run_here("srun", "--account=full", "-n", "1", "true")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("tenant full has 0 jobs; its quota is 0",
                      (self.folder / "prolog.log").read_text())
        for account in ("free", "unknown"):
            done = self.run_here("srun", f"--account={account}", "-n", "1", "true")
            self.assertEqual(done.returncode, 0, done.stderr)
        wait_until(lambda: "idle" in self.run_here("sinfo", "-h", "-o", "%T").stdout,
                   "the node is idle, not drained")


if __name__ == "__main__":
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing or os.geteuid() != 0:
        print(f"needs root and Debian's slurm-wlm and munge; missing: {', '.join(missing) or '-'}")
        sys.exit(77)
    unittest.main(verbosity=2)
