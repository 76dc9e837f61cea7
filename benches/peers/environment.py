"""The Python environment of the peers, cached under a name derived from its content."""

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"


def cache() -> Path:
    """Returns the cache directory of the scripts, with a fallback if the home directory is not writable."""
    path = Path(os.environ.get("DAYFLY_CACHE") or Path.home() / ".cache/dayfly")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        path = Path(tempfile.gettempdir()) / f"dayfly-cache-{os.getuid()}"
        path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def _pip(python: Path, *args: str) -> str:
    """Installs packages. Returns the last lines of pip's output on a failure."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return "pip took more than 300 s"
    return "" if done.returncode == 0 else " ".join((done.stderr or done.stdout).strip().splitlines()[-2:])


def prepare(peers: list[str]) -> tuple[Path, dict[str, str]]:
    """Returns the environment's Python, and the reason for each peer that could not be installed."""
    key = hashlib.sha256(f"{REQUIREMENTS.read_text()}{sys.version}{sys.base_prefix}{HERE}".encode()).hexdigest()[:12]
    venv = cache() / f"venv-peers-{key}"
    python = venv / "bin/python"
    with open(cache() / "peers.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (venv / "complete").exists():
            print(f"==> Installing the peers into {venv}", file=sys.stderr)
            base = getattr(sys, "_base_executable", sys.executable)
            subprocess.run([base, "-m", "venv", "--clear", venv], check=True)
            (venv / "checkout").write_text(f"{HERE.parent.parent}\n")  # see scripts/bootstrap
            whole = _pip(python, "--no-deps", "-r", str(REQUIREMENTS))
            # Not every Python has a wheel of every peer. Install each separately, and keep the reasons of the failures.
            reasons = {}
            if whole:
                pins = {line.split("==")[0]: line for line in REQUIREMENTS.read_text().split() if "==" in line}
                reasons = {peer: why for peer in peers if (why := _pip(python, pins[peer], "-c", str(REQUIREMENTS)))}
            (venv / "missing").write_text("\0".join(f"{peer}\1{why}" for peer, why in reasons.items()))
            if not reasons:  # else the next run tries again
                (venv / "complete").touch()
        text = (venv / "missing").read_text()
    return python, dict(entry.split("\1", 1) for entry in text.split("\0") if entry)


def has_dayfly() -> bool:
    return importlib.util.find_spec("dayfly") is not None
