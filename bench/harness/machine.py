"""The machine and the commit of a result."""

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def core_count() -> int:
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def commit(phubd: Path) -> str:
    """The commit that the daemon was built from, with "-dirty" if the tree had changes."""
    answer = subprocess.run([phubd, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\((\S+)\)", answer.stdout)
    return found[1] if found else "unknown"


def scheduling() -> str:
    """How the kernel divides cores: among sessions first (sched(7), autogroups), or not."""
    setting = Path("/proc/sys/kernel/sched_autogroup_enabled")
    grouped = setting.is_file() and setting.read_text().strip() == "1"
    return "by session" if grouped else "by thread"


def description(phubd: Path) -> dict[str, str]:
    return {
        "host": platform.node(),
        "cpu": f"{core_count()} x {cpu_model()}",
        "kernel": platform.release(),
        "scheduling": scheduling(),
        "commit": commit(phubd),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
