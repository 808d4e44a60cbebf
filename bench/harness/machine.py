"""Which machine and which commit a result is of."""

import datetime
import os
import platform
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


def commit(root: Path) -> str:
    """Of the tree that the bench lies in, with "-dirty" if it has changes."""
    answer = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"],
        cwd=root, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def description(root: Path) -> dict[str, str]:
    return {
        "host": platform.node(),
        "cpu": f"{core_count()} x {cpu_model()}",
        "kernel": platform.release(),
        "commit": commit(root),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
