"""Environments: the packages that functions import, listed, read from a lock file, or captured from this process."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

#: Dayfly's own packages, which no index has.
OWN = frozenset({"dayfly", "dayfly-frames"})
#: Tools that build environments and are not part of them.
TOOLS = frozenset({"pip", "setuptools", "uv", "wheel"})
#: A lock file that only `uv` can read.
UV_LOCK = "uv.lock"


@dataclass(frozen=True)
class Environment:
    """Python packages that functions import. Nodes build an environment with ``uv``, once for the same content.

    Packages are installed as wheels, from the index of the node's ``uv``. Requirements without exact versions get the
    newest version at the time of the build. `locked` and `captured` give the same versions on all nodes.

    Args:
        requirements: lines of a requirements file, one for each package, such as ``numpy>=2``.
        python: Python version, as ``major.minor``; by default the client's, which pickled functions need. Functions
            registered as source run in any version.
    """

    requirements: tuple[str, ...]
    python: str = ""

    def __init__(self, requirements: Iterable[str] = (), *, python: str = "") -> None:
        if isinstance(requirements, str):
            raise TypeError(
                f"requirements={requirements!r} is one text; give a list, or a file to Environment.from_file"
            )
        object.__setattr__(self, "requirements", tuple(requirements))
        object.__setattr__(self, "python", python)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, python: str = "") -> Self:
        """Reads a requirements file, a ``pylock.toml`` or a ``uv.lock``. The latter requires the program ``uv``.

        Raises:
            ValueError: if the file has entries that nodes do not build, such as packages from a URL or a directory.
        """
        file = Path(path)
        if file.name == UV_LOCK:
            arguments = (
                "export",
                "--frozen",
                "--no-emit-project",
                "--no-header",
                "--quiet",
                "--project",
                str(file.parent),
            )
            return cls(_lines(_uv(*arguments), file.name), python=python)
        text = file.read_text()
        if file.suffix == ".toml":
            return cls(_pylock(text, file.name), python=python)
        return cls(_lines(text, file.name), python=python)

    @classmethod
    def captured(cls, *, without: Iterable[str] = ()) -> Self:
        """Returns the installed packages of this interpreter, in exactly these versions.

        Args:
            without: names of packages to leave out.

        Raises:
            ValueError: if a package was installed from a directory or a repository, which nodes cannot access.
        """
        import importlib.metadata

        left_out = {_plain(name) for name in without} | OWN | TOOLS
        found: dict[str, str] = {}
        local = []
        for distribution in importlib.metadata.distributions():
            name = distribution.metadata["Name"]
            if not name or _plain(name) in left_out or _plain(name) in found:
                continue
            origin = distribution.read_text("direct_url.json")
            if origin is not None and _is_own(where := json.loads(origin)):
                local.append(f"{name} ({where.get('url', '?')})")
            found[_plain(name)] = f"{name}=={distribution.version}"
        if local:
            raise ValueError(
                f"installed here from where nodes do not get it: {', '.join(sorted(local))}; leave it out with "
                "without=[...] (an editable install travels with the functions that are submitted), or use a container "
                "image"
            )
        return cls(found[name] for name in sorted(found))

    def locked(self) -> Self:
        """Returns this environment with exact versions of all packages, as ``uv`` resolves them now."""
        version = self.python or f"{sys.version_info.major}.{sys.version_info.minor}"
        arguments = ("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:")
        text = _uv(
            *arguments, "--generate-hashes", "--python-version", version, "-", given="\n".join(self.requirements)
        )
        return type(self)(_lines(text, "uv pip compile"), python=self.python)


#: Accepted forms of an environment: an `Environment`, its requirements, or the path of its file.
EnvironmentLike: TypeAlias = Environment | Iterable[str] | str | os.PathLike[str] | None


def environment_of(what: EnvironmentLike) -> Environment | None:
    """Returns the environment given by a list of requirements, a file or an `Environment`."""
    if what is None or isinstance(what, Environment):
        return what
    if isinstance(what, (str, os.PathLike)):
        return Environment.from_file(what)
    return Environment(what)


def environment_spec(environment: Environment | None) -> dict[str, Any] | None:
    """Returns an environment in the form of the API."""
    if environment is None:
        return None
    return {"python": environment.python, "requirements": list(environment.requirements)}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_own(origin: dict[str, Any]) -> bool:
    """Returns whether a package was installed from a place that nodes cannot access."""
    if origin.get("dir_info", {}).get("editable") or "vcs_info" in origin:
        return True
    # Distributions such as conda record directories of their build hosts, which do not exist here.
    url = urllib.parse.urlsplit(origin.get("url", ""))
    return url.scheme == "file" and os.path.exists(urllib.parse.unquote(url.path))


def _lines(text: str, whence: str) -> list[str]:
    """Returns the requirements of a requirements file."""
    lines = []
    for raw in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if line.startswith("-"):
            raise ValueError(
                f"{whence}: {line.split()[0]!r} is an option, and options are for the node, whose `uv` knows where "
                "packages are; leave it out"
            )
        if line:
            lines.append(" ".join(line.split()))
    return lines


def _pylock(text: str, whence: str) -> list[str]:
    """Returns the requirements of a PEP 751 lock file."""
    import tomllib

    lines = []
    for package in tomllib.loads(text).get("packages", []):
        name, version = package["name"], package.get("version")
        if version is None or {"vcs", "directory", "archive"} & package.keys():
            raise ValueError(
                f"{whence}: {name} is not from an index, from where alone nodes get packages; leave it out"
            )
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        hashes = [f"--hash={kind}:{digits}" for file in files for kind, digits in sorted(file["hashes"].items())]
        marker = f" ; {package['marker']}" if "marker" in package else ""
        lines.append(" ".join([f"{name}=={version}{marker}", *hashes]))
    return lines


def _uv_settings() -> dict[str, str]:
    """Returns default settings of `uv`, the same as on nodes: timeouts and trusted certificates."""
    settings = {"UV_HTTP_TIMEOUT": "15", "UV_HTTP_CONNECT_TIMEOUT": "15"}
    trusted = ssl.get_default_verify_paths()
    if trusted.cafile or trusted.capath:
        # A site's proxy may have a certificate that only this machine trusts. Older versions use the second name.
        settings |= {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
    return settings


def _uv(*arguments: str, given: str | None = None) -> str:
    """Runs `uv`, preferably the one next to this Python interpreter, and returns its output."""
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.is_file() else "uv"
    try:
        done = subprocess.run(
            [program, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env=_uv_settings() | os.environ,
        )
    except FileNotFoundError:
        raise FileNotFoundError("the program `uv` is not installed; install it (`pip install uv`)") from None
    if done.returncode != 0:
        raise ValueError(f"uv {arguments[0]}: {done.stderr.strip()}")
    return done.stdout
