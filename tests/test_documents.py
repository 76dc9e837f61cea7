"""What the documents promise about the checkout: links lead somewhere, commands exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from harness.programs import ROOT

# Documents that people start from, and everything below docs/.
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(#[^)\s]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_checkout_resolve(page: Path) -> None:
    targets = [match[1] for match in LINK.finditer(page.read_text())]
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing, f"{page.relative_to(ROOT)} links to {missing}"


def words_of_sources() -> set[str]:
    """Every identifier of the sources."""
    kinds = ("*.rs", "*.py", "*.toml", "*.h", "*.json", "scripts/*")
    listed = subprocess.run(["git", "ls-files", *kinds], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / line for line in listed.stdout.splitlines() if line != "tests/test_documents.py"]
    return {word for path in paths for word in re.findall(r"[a-z][a-z0-9_]*", path.read_text())}


#: Names of tests, functions and fields; one that is cut ends with dots.
NAME = re.compile(r"(?:[\w/.-]+::)?([a-z][a-z0-9]*(?:_[a-z0-9]+){2,}_?)(\.\.\.)?")
#: Paths in the checkout.
PLACE = re.compile(r"(?:crates|tests|scripts|docs|benches|bindings|examples)/[\w./-]*[\w/-]")
#: They give examples of names.
EXAMPLES = {"STYLE.md", "CHANGELOG.md"}
#: What belongs to others.
FOREIGN = {"no_new_privs", "init_process_group", "ssh_public_key"}


def test_every_test_and_file_that_documents_name_exists() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("a copy without its history does not say which files are its own")
    words, missing = words_of_sources(), []
    for page in PAGES:
        if page.name in EXAMPLES:
            continue
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for quoted in re.findall(r"`([^`\n]+)`", prose):
            if (place := PLACE.match(quoted)) and not (ROOT / place[0]).exists():
                missing.append(f"{page.relative_to(ROOT)}: {quoted}")
            if (found := NAME.fullmatch(quoted)) and found[1] not in FOREIGN:
                name, is_cut = found[1], found[2]
                if not (any(word.startswith(name) for word in words) if is_cut else name in words):
                    missing.append(f"{page.relative_to(ROOT)}: {quoted}")
    assert not missing, missing


#: Source files as internals name them: CRATE/FILE.rs for crates/CRATE/src/FILE.rs, or a file's name alone.
SOURCE = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:rs|py|js))`")


def test_architecture_fits_in_ten_kilobytes() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= 10 * 1024


def test_every_source_file_in_internals_exists() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("a copy without its history does not say which files are its own")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files, missing = listed.stdout.splitlines(), []
    for page in [ROOT / "ARCHITECTURE.md", *(ROOT / "docs" / "internals").glob("*.md")]:
        for name in SOURCE.findall(page.read_text()):
            crate, _, rest = name.partition("/")
            is_in_crate = f"crates/{crate}/src/{rest}" in files
            if not is_in_crate and not any(f"/{file}".endswith(f"/{name}") for file in files):
                missing.append(f"{page.relative_to(ROOT)}: {name}")
    assert not missing, missing


ROW = re.compile(r"^\| (\d) \| `([\w-]+)` \|", re.MULTILINE)
LEVEL = re.compile(r'\("dayfly-([\w-]+)", (\d)\)')


def test_floors_in_architecture_match_dependency_levels() -> None:
    written = {crate: floor for floor, crate in ROW.findall((ROOT / "ARCHITECTURE.md").read_text())}
    levels = dict(LEVEL.findall((ROOT / "crates/testkit/tests/dependencies.rs").read_text()))
    crates = {manifest.parent.name for manifest in (ROOT / "crates").glob("*/Cargo.toml")}
    assert written == {crate: levels.get(crate) for crate in crates}


def test_every_make_command_in_the_documents_exists() -> None:
    helped = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = set(re.findall(r"make ([a-z-]+)", helped.stdout))
    wanted = {
        command
        for page in PAGES
        for block in re.findall(r"(?:^(?:    )?|`)(make [a-z-]+)", page.read_text(), re.MULTILINE)
        for command in [block.removeprefix("make ")]
    }
    assert wanted <= targets, f"no such target: {sorted(wanted - targets)}"


def test_every_promise_names_its_test_or_command() -> None:
    promises, missing = 0, []
    checked = False
    for line in (ROOT / "SPECIFICATION.md").read_text().splitlines():
        if not line.startswith("|"):
            checked = False
        elif line == "| promise | bound | test or command |":
            checked = True
        elif checked and not line.startswith("|---"):
            promises += 1
            _, _promise, _bound, check, _ = re.split(r" ?\| ?", line)
            if "`" not in check:
                missing.append(line)
    assert promises > 100
    assert not missing, missing


def test_all_files_name_the_same_version() -> None:
    def found(path: str, pattern: str) -> str:
        match = re.search(pattern, (ROOT / path).read_text(), re.MULTILINE)
        assert match, path
        return match[1]

    versions = {
        found("Cargo.toml", r'^version = "(.*)"'),
        found("bindings/python/pyproject.toml", r'^version = "(.*)"'),
        found("bindings/python/pyproject.toml", r'^frames = \["dayfly-frames==(.*)"\]'),
        found("bindings/frames/pyproject.toml", r'^version = "(.*)"'),
        found("bindings/frames/pyproject.toml", r'^dependencies = \["dayfly==(.*)"\]'),
        found("bindings/python/python/dayfly/__init__.py", r'^__version__ = "(.*)"'),
        found("CITATION.cff", r"^version: (.*)"),
    }
    assert len(versions) == 1, versions
    assert f"## [{versions.pop()}]" in (ROOT / "CHANGELOG.md").read_text()
