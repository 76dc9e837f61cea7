"""The programs under test, and functions that run them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def cache_dir() -> Path:
    """Returns the directory of what is built or downloaded once."""
    return Path(os.environ.get("DAYFLY_CACHE") or os.path.expanduser("~/.cache/dayfly"))


def target_dir() -> Path:
    """Returns cargo's target directory, by the same rule as scripts/environment.sh."""
    key = hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]
    return Path(os.environ.get("CARGO_TARGET_DIR") or cache_dir() / f"target-{key}")


def bin_dir() -> Path:
    """Returns the directory of the release programs and libraries: ``DAYFLY_BIN_DIR``, or cargo's release directory."""
    return Path(os.environ.get("DAYFLY_BIN_DIR") or target_dir() / "release")


def program(name: str = "dayfly") -> Path:
    """Returns the path of a program or library. Raises an error with the build command if it is missing."""
    path = bin_dir() / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: run `make build`, or set DAYFLY_BIN_DIR")
    return path


def clean_environment(**extra: str) -> dict[str, str]:
    """Returns this process's environment without the user's Dayfly settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DAYFLY_") or k in ("DAYFLY_BIN_DIR",)}
    kept.setdefault("RUST_BACKTRACE", "1")
    # Programs that start daemons must find those under test.
    kept["PATH"] = f"{bin_dir()}{os.pathsep}{kept.get('PATH', '')}"
    return kept | extra


def run(
    *args: str | os.PathLike[str],
    timeout: float = 60,
    check: bool = True,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end. With ``check``, a failure fails the test with the whole output."""
    done = subprocess.run(
        [os.fspath(a) for a in args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=env or clean_environment(),
        cwd=cwd,
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, args))} ended with {done.returncode}\n"
            f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        )
    return done


def run_python(text: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs Python source, which may be indented, in a new interpreter with these variables set."""
    return run(sys.executable, "-c", textwrap.dedent(text), *args, env={**os.environ, **variables})


def run_json(*args: str | os.PathLike[str], timeout: float = 60, env: dict[str, str] | None = None) -> Any:
    """Runs ``dayfly ARGS --json``. Returns the parsed output."""
    return json.loads(run(program(), *args, "--json", timeout=timeout, env=env).stdout)
