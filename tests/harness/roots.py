"""Clean Debian roots without a network, in which packages are installed and used."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from harness.programs import run

#: Seconds for a script. Installing wheels takes the most of it.
LIMIT = 240
#: Sets up namespaces' devices and /proc, and enters the root.
ENTER = """
set -e
ip link set lo up
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/run"
exec chroot "$1" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 /bin/sh -e /script
"""


class CleanRoot:
    """A copy of a root file system, made by an overlay, in which scripts run as root without a network."""

    def __init__(self, base: Path, directory: Path) -> None:
        self.path = directory / "root"
        self._layers = directory
        for name in ("root", "upper", "work"):
            (directory / name).mkdir(parents=True)
        options = f"lowerdir={base},upperdir={directory / 'upper'},workdir={directory / 'work'}"
        run("mount", "-t", "overlay", "-o", options, "overlay", self.path)

    def __enter__(self) -> CleanRoot:
        return self

    def __exit__(self, *_: object) -> None:
        run("umount", "--recursive", self.path)
        shutil.rmtree(self._layers)

    def put(self, path: str, *sources: Path) -> None:
        """Copies files into a directory of the root."""
        directory = self.path / path.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        for source in sources:
            shutil.copy(source, directory)

    def run(self, script: str) -> str:
        """Runs a shell script to its end, then ends what it left. Returns its output; a failure fails the test."""
        (self.path / "script").write_text(script)
        command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", self.path]
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout
