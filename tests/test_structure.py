"""The rules of STYLE.md about files and names that a program can check."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from harness.programs import ROOT

MAX_LINES = 500
MAX_WORDS = 8
#: Begins the sentence with which a longer file gives its reason, in its first lines.
REASON = "One subject:"
#: Generated.
EXEMPT = {"bindings/c/include/dayfly.h"}

RUST_TEST = re.compile(r"#\[(?:tokio::)?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)")
PYTHON_TEST = re.compile(r"^\s*(?:async )?def test_(\w+)", re.MULTILINE)


def sources(*kinds: str) -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("a copy without its history does not say which files are its own")
    listed = subprocess.run(["git", "ls-files", *kinds], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_test(path: Path) -> bool:
    return "tests" in path.relative_to(ROOT).parts or path.name == "tests.rs" or "conformance" in path.parts


def lines_without_tests(text: str) -> int:
    return text.split("\n#[cfg(test)]\nmod tests {", maxsplit=1)[0].count("\n")


def test_long_source_file_gives_its_reason() -> None:
    silent = []
    for path in sources("*.rs", "*.py", "*.c", "*.h", "*.hpp"):
        text = path.read_text()
        if is_test(path) or relative(path) in EXEMPT or lines_without_tests(text) <= MAX_LINES:
            continue
        if REASON not in "\n".join(text.splitlines()[:20]):
            silent.append(f"{relative(path)}: {lines_without_tests(text)} lines")
    assert not silent, silent


def test_modules_have_one_style() -> None:
    # Cargo takes tests/foo.rs for a test, so a module that tests share is tests/foo/mod.rs.
    assert not [relative(path) for path in sources("*/mod.rs") if "tests" not in path.parts]


def test_bounds_begin_with_max() -> None:
    bound = re.compile(r"\b_?(?:MOST|MAXIMUM|UPTO)_[A-Z]")
    assert not [relative(path) for path in sources("*.rs", "*.py", "*.hpp", "*.c") if bound.search(path.read_text())]


def test_test_names_have_at_most_eight_words() -> None:
    long = []
    for pattern, kind in ((RUST_TEST, "*.rs"), (PYTHON_TEST, "*.py")):
        for path in sources(kind):
            names = pattern.findall(path.read_text())
            long += [f"{relative(path)}: {name}" for name in names if name.strip("_").count("_") >= MAX_WORDS]
    assert not long, "\n".join(long)
