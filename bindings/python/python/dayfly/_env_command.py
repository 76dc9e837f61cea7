"""``python -m dayfly._env_command``: the part of ``dayfly env`` that needs an interpreter."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from dayfly._errors import Error
from dayfly._functions.environment import Environment

#: Source of a function that an endpoint runs to build an environment. Any version of Python can run it.
_READY = """
def ready():
    import importlib.metadata, sys
    packages = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return {"python": sys.version.split()[0], "packages": dict(sorted(packages.items())), "prefix": sys.prefix}
"""


def _build(environment: Environment, endpoint: str | None, wait: float) -> dict[str, Any]:
    """Has a node build an environment, and returns the versions of its packages."""
    from dayfly._client import connect
    from dayfly._functions.runtime import runtime
    from dayfly._tasks.registered import Registered

    with connect() as client:
        batch = client.batch(endpoint=endpoint)
        about = {
            "description": "what an environment has",
            "form": {"form": "source", "entry": "ready"},
            # Source runs in any version that the environment has.
            "runtime": runtime(environment) | ({"version": "", "cloudpickle": ""} if environment.python else {}),
        }
        status = json.loads(batch._executor._pool.register(json.dumps(about), _READY.encode()))
        begin = time.monotonic()
        future = batch.submit(Registered(status))
        try:
            built: dict[str, Any] = future.result(wait)
        except BaseException:
            future.cancel()
            raise
        return built | {"seconds": round(time.monotonic() - begin, 3)}


def _named(words: list[str], version: str) -> Environment:
    """Returns the environment given by requirements, or by the one file that contains them."""
    if len(words) == 1 and os.path.isfile(words[0]):
        return Environment.from_file(words[0], python=version)
    for word in filter(_names_file, words):
        if os.path.isfile(word):
            raise ValueError(f"{word} is a file; name it alone, or requirements without files")
        raise ValueError(f"there is no file {word}")
    return Environment(words, python=version)


def _names_file(word: str) -> bool:
    """Returns whether a word is a file name rather than a package name, even if no such file exists."""
    return word.endswith((".txt", ".toml", ".lock", ".in")) or (os.sep in word and "://" not in word)


def _main() -> None:
    """Runs the command of the command line."""
    parser = argparse.ArgumentParser(prog="dayfly env")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("capture").add_argument("--without", action="append", default=[])
    for name in ("lock", "build"):
        command = commands.add_parser(name)
        command.add_argument("--version", default="")
        command.add_argument("requirements", nargs="+")
    command.add_argument("--endpoint")
    command.add_argument("--wait", type=float, required=True)
    command.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    try:
        if asked.command == "capture":
            lines = Environment.captured(without=asked.without).requirements
        elif asked.command == "lock":
            lines = _named(asked.requirements, asked.version).locked().requirements
        else:
            built = _build(_named(asked.requirements, asked.version), asked.endpoint, asked.wait)
            if asked.json:
                lines = (json.dumps(built),)
            else:
                packages = [f"  {name} {version}" for name, version in built["packages"].items()]
                ready = f"Ready after {built['seconds']:.1f} s, with Python {built['python']}, at {built['prefix']}"
                lines = (ready, *packages)
    except (Error, ValueError, OSError) as error:
        print(f"dayfly env: {error}", file=sys.stderr)
        sys.exit(1)
    print("\n".join(lines))


if __name__ == "__main__":
    _main()
