"""A small Debian for container tests, built once by debootstrap, cached, and never changed."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.programs import cache_dir, run

#: The Debian release for each minor version of Python.
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
#: A module that only the image has.
MODULE = "docopt"
#: Seconds. The download takes a minute on slow networks.
LIMIT = 600


def _build(root: Path, suite: str) -> str | None:
    """Builds the root file system. Returns why that failed, or None."""
    part = root.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    include = f"--include=python3,python3-venv,python3-{MODULE}"
    command = ["debootstrap", "--variant=minbase", include, suite, str(part)]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"debootstrap took more than {LIMIT} s"
    if done.returncode != 0:
        return f"debootstrap failed: {(done.stdout + done.stderr).strip().splitlines()[-1:]}"
    for name in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "dev"):
        shutil.rmtree(part / name, ignore_errors=True)
    (part / "dev").mkdir()
    part.rename(root)
    return None


@functools.cache
def debian() -> tuple[Path, str | None]:
    """Returns the root file system with Python, and why it is unavailable, or None."""
    suite = SUITES.get(sys.version_info[:2])
    root = cache_dir() / "images" / f"{suite}-3"
    if root.is_dir():
        return root, None
    if suite is None:
        return root, f"no Debian is known whose Python is {sys.version_info[0]}.{sys.version_info[1]}"
    if os.geteuid() != 0:
        return root, "debootstrap needs root"
    if shutil.which("debootstrap") is None:
        return root, "debootstrap not found; install it"
    root.parent.mkdir(parents=True, exist_ok=True)
    # Test processes run in parallel: one builds, the others wait.
    with open(root.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return root, None if root.is_dir() else _build(root, suite)


def archive(root: Path, to: Path, *more: str) -> Path:
    """Writes the root file system, and the named files, to an archive."""
    subprocess.run(["tar", "-C", root, "-cf", to, *more, "."], check=True)
    return to


class Podman:
    """Podman with a private storage."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        conf = directory / "storage.conf"
        graph, run = directory / "graph", directory / "run"
        # The vfs driver needs no kernel support.
        conf.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{graph}"\nrunroot = "{run}"\n')
        #: Environment variables that select this storage.
        self.environment = {"CONTAINERS_STORAGE_CONF": str(conf)}

    def __call__(self, *arguments: str | Path) -> str:
        return run("podman", *arguments, env=os.environ | self.environment, timeout=120).stdout.strip()

    def containers(self) -> list[str]:
        """Returns the ids of all containers, running or not."""
        return self("ps", "--all", "--quiet").split()

    def remove(self) -> None:
        """Removes all containers, images and the storage."""
        for image in self("images", "--quiet", "--all").split():
            self("rmi", "--force", image)
        shutil.rmtree(self.directory)
