"""A small Debian for tests of containers: built once by debootstrap, kept in the cache, never changed afterwards."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.programs import run

#: The Debian whose Python is of this minor version.
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
#: What only the image has: a module that no requirement of ours brings.
MODULE = "docopt"
#: The download alone takes a minute on slow lines.
LIMIT = 600


def _build(root: Path, suite: str) -> str | None:
    """Why it could not be built, if so."""
    part = root.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    include = f"--include=python3,python3-{MODULE}"
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
    """A root file system with Python, and why there is none, if so."""
    suite = SUITES.get(sys.version_info[:2])
    root = Path(os.environ.get("DAYFLY_CACHE") or os.path.expanduser("~/.cache/dayfly")) / "images" / f"{suite}-2"
    if root.is_dir():
        return root, None
    if suite is None:
        return root, f"no Debian is known whose Python is {sys.version_info[0]}.{sys.version_info[1]}"
    if os.geteuid() != 0:
        return root, "debootstrap needs root"
    if shutil.which("debootstrap") is None:
        return root, "debootstrap not found; install it"
    root.parent.mkdir(parents=True, exist_ok=True)
    # Tests run side by side: one builds, the others wait.
    with open(root.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return root, None if root.is_dir() else _build(root, suite)


def archive(root: Path, to: Path, *more: str) -> Path:
    """The root file system as an archive, with what else is named."""
    subprocess.run(["tar", "-C", root, "-cf", to, *more, "."], check=True)
    return to


class Podman:
    """Podman with a storage of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        conf = directory / "storage.conf"
        graph, run = directory / "graph", directory / "run"
        # Of all drivers the one that needs nothing of the kernel.
        conf.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{graph}"\nrunroot = "{run}"\n')
        #: For whoever shall see this storage.
        self.environment = {"CONTAINERS_STORAGE_CONF": str(conf)}

    def __call__(self, *arguments: str | Path) -> str:
        return run("podman", *arguments, env=os.environ | self.environment, timeout=120).stdout.strip()

    def containers(self) -> list[str]:
        """Those there are, running or not."""
        return self("ps", "--all", "--quiet").split()

    def remove(self) -> None:
        """Removes everything."""
        for image in self("images", "--quiet", "--all").split():
            self("rmi", "--force", image)
        shutil.rmtree(self.directory)
