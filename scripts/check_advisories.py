"""Compares the versions in the lock files with the known advisories in advisories.toml, without a network.

``check_advisories.py`` prints a line for each advisory that affects a locked version, and fails if there is one.
``--missing DIR`` prints the advisories for locked packages in a copy of the RustSec database that advisories.toml
lacks, as lines for that file. docs/advisories.md describes how to refresh the file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
KNOWN = Path(__file__).with_name("advisories.toml")
#: Older advisories affect only versions that no lock file contains.
FIRST_YEAR = 2024

#: Locked versions, by ecosystem and package.
Locked = dict[tuple[str, str], set[str]]


def _python_name(name: str) -> str:
    """Returns a package name in the normal form of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(root: Path) -> Locked:
    """Returns the packages in the three lock files."""
    found: Locked = {}
    for package in tomllib.loads((root / "Cargo.lock").read_text())["package"]:
        # Skip packages of the workspace, which have no source.
        if "source" in package:
            found.setdefault(("cargo", package["name"]), set()).add(package["version"])
    for line in (root / "requirements-dev.txt").read_text().splitlines():
        if pinned := re.match(r"([\w.-]+)==([\w.+!-]+)", line):
            found.setdefault(("python", _python_name(pinned[1])), set()).add(pinned[2])
    packages = json.loads((root / "tests/oidc/package-lock.json").read_text())["packages"]
    for path, package in packages.items():
        if path:
            found.setdefault(("npm", path.rpartition("node_modules/")[2]), set()).add(package["version"])
    return found


def known_advisories(file: Path = KNOWN) -> list[dict[str, Any]]:
    """Returns all advisories in the file, each with its ecosystem."""
    return [
        advisory | {"ecosystem": ecosystem}
        for ecosystem, advisories in tomllib.loads(file.read_text()).items()
        for advisory in advisories
    ]


def is_in(version: str, ranges: list[str]) -> bool:
    """Returns whether a version is in one of the ranges. Ignores build metadata, which follows a `+`."""
    plain = Version(version.partition("+")[0])
    return any(SpecifierSet(one).contains(plain, prereleases=True) for one in ranges)


@dataclass(frozen=True)
class Finding:
    """An advisory and the locked version that it affects."""

    advisory: dict[str, Any]
    version: str

    def __str__(self) -> str:
        about = self.advisory
        return f"{about['package']} {self.version} ({about['ecosystem']}): {about['id']}: {about['summary']}"


def findings(known: list[dict[str, Any]], versions: Locked) -> list[Finding]:
    """Returns every locked version that an advisory affects."""
    return [
        Finding(advisory, version)
        for advisory in known
        for version in sorted(versions.get((advisory["ecosystem"], advisory["package"]), ()))
        if is_in(version, advisory["affected"])
    ]


def complaints(known: list[dict[str, Any]], versions: Locked) -> list[str]:
    """Returns messages about affected packages, and about accepted advisories that no longer apply."""
    found = findings(known, versions)
    affecting = {finding.advisory["id"] for finding in found}
    wrong = [f"{finding}; raise it" for finding in found if "accepted" not in finding.advisory]
    wrong += [
        f"{advisory['id']} was accepted and affects nothing any more; remove `accepted`"
        for advisory in known
        if "accepted" in advisory and advisory["id"] not in affecting
    ]
    return wrong


def _affected(versions: dict[str, list[str]]) -> list[str]:
    """Returns the complement of RustSec's `patched` and `unaffected` if it is one range; else an empty list."""
    patched, unaffected = versions.get("patched", []), versions.get("unaffected", [])
    if not patched:
        return [">=0"] if not unaffected else []
    [*others, last] = patched
    if others or not re.fullmatch(r">= ?[\w.+-]+", last) or not all(re.match(r"<", one) for one in unaffected):
        return []
    from_version = [one.replace("<=", ">").replace("<", ">=") for one in unaffected[-1:]]
    return [",".join([*from_version, last.replace(">=", "<")]).replace(" ", "")]


def missing(database: Path, known: list[dict[str, Any]], versions: Locked) -> Iterator[str]:
    """Yields advisories for locked packages in a copy of the RustSec database that the file lacks."""
    ids = {advisory["id"] for advisory in known}
    for file in sorted(database.glob("crates/*/RUSTSEC-*.md")):
        text = file.read_text()
        parsed = tomllib.loads(text.partition("```toml")[2].partition("```")[0])
        about = parsed["advisory"]
        package, year = about["package"], int(file.stem.split("-")[1])
        if ("cargo", package) not in versions or year < FIRST_YEAR or file.stem in ids or "withdrawn" in about:
            continue
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        fields = {
            "id": file.stem,
            "package": package,
            "affected": _affected(parsed["versions"]),
            "summary": title[1] if title else "",
        }
        line = ", ".join(f"{key} = {json.dumps(value)}" for key, value in fields.items())
        yield f"    # {parsed['versions']}\n    {{ {line} }},"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--missing", type=Path, metavar="DIR", help="a copy of the RustSec database")
    asked = parser.parse_args()
    known = known_advisories()
    versions = locked(ROOT)
    if asked.missing:
        print("\n".join(missing(asked.missing, known, versions)))
        return 0
    wrong = complaints(known, versions)
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
