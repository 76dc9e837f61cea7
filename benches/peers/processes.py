"""Runs one peer, and removes its processes, files in shared memory and temporary directory afterwards."""

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SHARED = Path("/dev/shm")


def become_subreaper() -> None:
    """Makes daemons that a peer leaves behind children of this process, so that it can find and stop them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _below(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def end_all(grace: float = 3.0, patience: float = 10.0) -> int:
    """Terminates all descendants of this process, and kills them after `grace` seconds. Returns the number killed."""
    deadline = time.monotonic() + grace
    for pid in (asked := _below(os.getpid())):
        _signal(pid, signal.SIGTERM)
    while _below(os.getpid()) and time.monotonic() < deadline:
        _reap()
        time.sleep(0.02)
    killed: set[int] = set()
    deadline = time.monotonic() + patience
    while (left := _below(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            _signal(pid, signal.SIGKILL)
        killed.update(left)
        _reap()
        time.sleep(0.02)
    if left:
        raise RuntimeError(f"processes {left} do not end")
    return len(set(asked) | killed)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _mapped() -> set[str]:
    """Returns the files in shared memory that a process has mapped."""
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            maps = Path(f"/proc/{entry}/maps").read_text()
        except OSError:
            continue
        found |= {line.split(maxsplit=5)[5] for line in maps.splitlines() if "/dev/shm/" in line}
    return found


def _shared() -> set[str]:
    try:
        return set(os.listdir(SHARED))
    except FileNotFoundError:
        return set()


def run(command: list[str], env: dict[str, str], deadline: float, shared_prefixes: tuple[str, ...]) -> tuple[str, int]:
    """Runs a peer within its deadline. Returns the error ("" for success) and the number of processes it left."""
    before = _shared()
    # A short path, because Ray's sockets below it have a limit of 107 bytes.
    scratch = Path(tempfile.mkdtemp(prefix="peer-", dir="/tmp"))
    home = {name: str(scratch) for name in ("TMPDIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")}
    problem = ""
    try:
        with open(scratch / "output", "wb") as output:
            process = subprocess.Popen(
                command,
                cwd=scratch,
                env={**env, **home},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # not a new session: Dragon's launcher would wait for ever in one
            )
            try:
                status = process.wait(deadline)
                if status:
                    problem = f"ended with status {status}"
            except subprocess.TimeoutExpired:
                problem = f"not done within its {deadline:.0f} s"
        left = end_all()
        if problem:
            text = (scratch / "output").read_text(errors="replace").strip()
            problem = "\n".join([problem, *text.splitlines()[-12:]])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        mapped = _mapped()
        for name in _shared() - before:
            path = SHARED / name
            if name.startswith(shared_prefixes) and str(path) not in mapped:
                path.unlink(missing_ok=True)
    return problem, left
