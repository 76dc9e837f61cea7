"""The check of locked versions against known advisories."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.programs import ROOT

spec = importlib.util.spec_from_file_location("check_advisories", ROOT / "scripts" / "check_advisories.py")
assert spec is not None
assert spec.loader is not None
check: Any = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = check
spec.loader.exec_module(check)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One with a package of each ecosystem in its lock files."""
    (tmp_path / "Cargo.lock").write_text(
        '[[package]]\nname = "quick-xml"\nversion = "0.38.4"\nsource = "registry+somewhere"\n'
        '[[package]]\nname = "dayfly-node"\nversion = "0.1.0"\n'
    )
    (tmp_path / "requirements-dev.txt").write_text("# exact\nPillow==12.1.0\n")
    (tmp_path / "tests/oidc").mkdir(parents=True)
    packages = {"": {"name": "tests"}, "node_modules/a/node_modules/koa": {"version": "2.16.0"}}
    (tmp_path / "tests/oidc/package-lock.json").write_text(json.dumps({"packages": packages}))
    return tmp_path


def advisory(ecosystem: str, package: str, *affected: str, **more: str) -> dict[str, Any]:
    about = {"id": f"ID-{package}", "summary": "it fails", "affected": list(affected)}
    return about | {"ecosystem": ecosystem, "package": package} | more


def test_affected_version_is_named_for_each_lock_file(checkout: Path) -> None:
    known = [
        advisory("cargo", "quick-xml", "<0.41.0"),
        advisory("python", "pillow", "<12.1.1"),
        advisory("npm", "koa", "<2.15", ">=2.16,<2.16.4"),
        # Of the same names elsewhere, or of our own.
        advisory("npm", "pillow", ">=0"),
        advisory("cargo", "dayfly-node", ">=0"),
    ]
    assert check.complaints(known, check.locked(checkout)) == [
        "quick-xml 0.38.4 (cargo): ID-quick-xml: it fails; raise it",
        "pillow 12.1.0 (python): ID-pillow: it fails; raise it",
        "koa 2.16.0 (npm): ID-koa: it fails; raise it",
    ]


def test_accepted_advisory_passes_only_while_it_affects(checkout: Path) -> None:
    versions = check.locked(checkout)
    assert check.complaints([advisory("cargo", "quick-xml", ">=0", accepted="not read here")], versions) == []
    [stale] = check.complaints([advisory("cargo", "quick-xml", "<0.30", accepted="not read here")], versions)
    assert "ID-quick-xml was accepted and affects nothing any more" in stale


@pytest.mark.parametrize(
    ("version", "ranges", "affected"),
    [
        ("0.41.0", ["<0.41.0"], False),
        ("0.104.0-alpha.5", [">=0.104.0a1,<0.104.0a6"], True),
        ("0.104.0-alpha.6", [">=0.104.0a1,<0.104.0a6"], False),
        ("1.0.4+wasi-0.2.12", ["==1.0.4"], True),
        ("0.9.3", ["<0.8.6", ">=0.9.0,<0.9.3"], False),
    ],
)
def test_version_is_in_any_of_its_ranges(version: str, ranges: list[str], affected: bool) -> None:
    assert check.is_in(version, ranges) is affected


def test_missing_advisories_come_from_the_copied_database(checkout: Path, tmp_path: Path) -> None:
    of_package = tmp_path / "database" / "crates" / "quick-xml"
    of_package.mkdir(parents=True)
    about = '```toml\n[advisory]\nid = "{}"\npackage = "quick-xml"\n[versions]\npatched = {}\n```\n\n# It fails\n'
    (of_package / "RUSTSEC-2026-0001.md").write_text(about.format("RUSTSEC-2026-0001", '[">= 0.41.0"]'))
    (of_package / "RUSTSEC-2019-0001.md").write_text(about.format("RUSTSEC-2019-0001", '[">= 0.2"]'))
    versions = check.locked(checkout)
    [line] = check.missing(tmp_path / "database", [], versions)
    wanted = '{ id = "RUSTSEC-2026-0001", package = "quick-xml", affected = ["<0.41.0"], summary = "It fails" },'
    assert line.splitlines()[-1].strip() == wanted
    assert list(check.missing(tmp_path / "database", [{"id": "RUSTSEC-2026-0001"}], versions)) == []


def test_locked_versions_have_no_known_advisory() -> None:
    assert check.complaints(check.known_advisories(), check.locked(ROOT)) == []
