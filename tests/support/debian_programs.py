"""Programs of Debian packages that tests run without installing them: an installed package would
start a service."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Optional, Sequence


def find_programs(packages: Sequence[str], programs: Sequence[str]) -> Optional[Path]:
    """The folder of the programs: from the PATH, or unpacked into a cache. None: they are not
    installed, and the packages cannot be downloaded."""
    installed = [shutil.which(program) for program in programs]
    if all(installed):
        return Path(str(installed[0])).parent
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / f"phub-{packages[0]}"
    folder = cache / "usr" / "bin"
    if all((folder / program).exists() for program in programs):
        return folder
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        download = f"apt-get download -q {' '.join(packages)}"
        script = (f"{download} || {{ apt-get update -q && {download}; }}\n"
                  "for each in *.deb; do dpkg-deb -x $each unpacked; done")
        unpacked = subprocess.run(["bash", "-ec", script], cwd=scratch, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if unpacked.returncode != 0:
            print(unpacked.stdout)
            return None
        shutil.rmtree(cache, ignore_errors=True)
        shutil.move(str(Path(scratch) / "unpacked"), cache)
    return folder
