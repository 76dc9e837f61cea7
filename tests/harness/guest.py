"""A small virtual machine: a Debian in memory, with its own kernel, that runs one script to its end.

For kernel features that this machine lacks, such as control groups of version 2 only.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from harness.images import debian
from harness.programs import run

#: Debian's kernel for virtual machines. All required drivers are built in, so no modules are loaded.
KERNEL = "linux-image-cloud-amd64"
#: Seconds. The guest is emulated, because /dev/kvm may hang on a machine that is a guest itself.
LIMIT = 1200
#: The guest's first script. It leaves the initial file system, on which pivot_root is not possible.
INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t tmpfs -o size=75%,mode=755 none /mnt && cp -ax /. /mnt && cd /mnt || exit 1
mount -t devtmpfs none dev && mount -t proc none proc && mount -t sysfs none sys
mount -t cgroup2 none sys/fs/cgroup
mkdir -p dev/shm && mount -t tmpfs none dev/shm
mount --move . / && exec chroot . /guest/last
"""
#: The guest's last script, whether or not the test's script succeeded.
LAST = """#!/bin/sh
/bin/sh /guest/script
echo "GUEST ENDED $?"
sync
echo o > /proc/sysrq-trigger
sleep 10
"""


def _fetch(kernel: Path) -> str | None:
    """Fetches the kernel. Returns why it is unavailable, or None."""
    part = kernel.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    depends = run("apt-cache", "depends", KERNEL, check=False).stdout
    found = re.search(r"Depends: (linux-image-[0-9]\S*)", depends)
    if found is None:
        return f"this system's packages have no {KERNEL}"
    fetched = run("apt-get", "-qq", "download", found[1], check=False, cwd=part, timeout=300)
    packages = list(part.glob("*.deb"))
    if not packages:
        return f"the kernel could not be fetched: {fetched.stderr.strip()[-200:]}"
    run("dpkg-deb", "-x", packages[0], part / "unpacked", timeout=120)
    next((part / "unpacked" / "boot").glob("vmlinuz-*")).rename(kernel)
    shutil.rmtree(part)
    return None


def kernel() -> tuple[Path, str | None]:
    """Returns the path of the guests' kernel, and why it is unavailable, or None."""
    root, why = debian()
    place = root.parent / f"{root.name}-vmlinuz"
    if why:
        return place, why
    if platform.machine() != "x86_64":
        return place, "guests are made for x86_64"
    for tool in ["qemu-system-x86_64", "cpio"]:
        if shutil.which(tool) is None:
            return place, f"{tool} not found; install qemu-system-x86 and cpio"
    if place.is_file():
        return place, None
    if shutil.which("apt-get") is None:
        return place, "the kernel comes from apt-get, which is not there"
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return place, None if place.is_file() else _fetch(place)


def _archive(directory: Path) -> bytes:
    names = subprocess.run(["find", ".", "-print0"], cwd=directory, check=True, capture_output=True).stdout
    command = ["cpio", "--null", "--create", "--format=newc", "--quiet"]
    return subprocess.run(command, cwd=directory, input=names, check=True, capture_output=True).stdout


def boot(script: str, files: dict[str, Path], directory: Path) -> str:
    """Runs a script as root in a guest with these files below ``/guest``. Returns the console output."""
    vmlinuz, why = kernel()
    assert why is None, why
    own = directory / "own"
    guest = own / "guest"
    guest.mkdir(parents=True)
    for name, path in files.items():
        shutil.copy(path, guest / name)
    (guest / "script").write_text(script)
    (guest / "last").write_text(LAST)
    (own / "init").write_text(INIT)
    for path in [own / "init", guest / "last"]:
        path.chmod(0o755)
    memory = directory / "initrd"
    # The kernel unpacks concatenated archives in order.
    memory.write_bytes(_archive(debian()[0]) + _archive(own))
    command = ["qemu-system-x86_64", "-machine", "accel=tcg", "-cpu", "max", "-smp", "2", "-m", "3G"]
    command += ["-nographic", "-no-reboot", "-nic", "none", "-kernel", str(vmlinuz), "-initrd", str(memory)]
    command += ["-append", "console=ttyS0 quiet panic=-1 rdinit=/init cgroup_no_v1=all"]
    done = run(*command, check=False, timeout=LIMIT, env=dict(os.environ))
    memory.unlink()
    return done.stdout.replace("\r", "")
