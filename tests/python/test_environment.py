"""Forms of environments: lists, requirements files, lock files and the installed packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

dayfly = pytest.importorskip("dayfly", reason="the package is not installed: make build")

from dayfly._functions.environment import environment_of  # noqa: E402 - it may not be there

REQUIREMENTS = """\
# What the model needs.
numpy>=2   # and later
requests[socks]==2.34.2 ; python_version >= "3.8"
idna==3.20 \\
    --hash=sha256:00ff \\
    --hash=sha256:11ee
"""

PYLOCK = """\
lock-version = "1.0"
created-by = "uv"

[[packages]]
name = "idna"
version = "3.20"
marker = "python_version >= '3.8'"
sdist = { url = "https://files.example/idna.tar.gz", hashes = { sha256 = "22dd" } }
wheels = [{ url = "https://files.example/idna.whl", hashes = { sha256 = "00ff" } }]
"""


def test_environment_accepts_lists_but_no_single_string() -> None:
    assert dayfly.Environment(["numpy", "scipy"]).requirements == ("numpy", "scipy")
    assert environment_of(["numpy"]) == dayfly.Environment(["numpy"])
    assert environment_of(None) is None
    with pytest.raises(TypeError, match="from_file"):
        dayfly.Environment("numpy")


def test_requirements_file_is_read_as_pip_does(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(REQUIREMENTS)
    read = environment_of(file)
    assert read is not None
    assert read.requirements == (
        "numpy>=2",
        'requests[socks]==2.34.2 ; python_version >= "3.8"',
        "idna==3.20 --hash=sha256:00ff --hash=sha256:11ee",
    )
    assert environment_of(str(file)) == read
    for option in ("--index-url https://elsewhere.example", "-r other.txt", "-e ."):
        file.write_text(f"numpy\n{option}\n")
        with pytest.raises(ValueError, match=option.split()[0]):
            environment_of(file)


def test_lock_file_gives_exact_versions_with_hashes(tmp_path: Path) -> None:
    file = tmp_path / "pylock.toml"
    file.write_text(PYLOCK)
    locked = dayfly.Environment.from_file(file)
    assert locked.requirements == ("idna==3.20 ; python_version >= '3.8' --hash=sha256:00ff --hash=sha256:22dd",)
    file.write_text(PYLOCK + '\n[[packages]]\nname = "mine"\ndirectory = { path = "." }\n')
    with pytest.raises(ValueError, match="mine"):
        dayfly.Environment.from_file(file)


def test_installed_packages_are_captured_with_versions() -> None:
    # The package under test was installed from a file, and is left out automatically.
    captured = dayfly.Environment.captured()
    lines = dict(line.split("==") for line in captured.requirements)
    assert lines["pytest"] == pytest.__version__
    assert not {"dayfly", "pip", "uv"} & {name.lower() for name in lines}
    assert "pytest" not in " ".join(
        dayfly.Environment.captured(without=["PyTest", "pytest-xdist", "pytest_timeout"]).requirements
    )


def install(place: Path, name: str, origin: str) -> None:
    """A package that was installed from this place."""
    info = place / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "direct_url.json").write_text(origin)


def test_package_from_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    install(tmp_path, "mine", '{"url": "file:///nowhere/mine", "dir_info": {"editable": true}}')
    program = "import dayfly; print(dayfly.Environment.captured(without=['mine'] if {left_out} else []))"

    def captured(left_out: bool) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program.format(left_out=left_out)],
            env={"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    refused = captured(left_out=False)
    assert refused.returncode != 0
    assert "mine (file:///nowhere/mine)" in refused.stderr
    assert "pytest==" in captured(left_out=True).stdout


def test_capture_refuses_only_unavailable_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a wheel").touch()
    here = (tmp_path / "a wheel").as_uri()
    install(tmp_path, "built-elsewhere", '{"url": "file:///croot/built_1700000000000/work", "dir_info": {}}')
    install(tmp_path, "downloaded", '{"url": "https://files.example/downloaded.whl", "archive_info": {}}')
    install(tmp_path, "editable", '{"url": "file:///nowhere/editable", "dir_info": {"editable": true}}')
    install(tmp_path, "cloned", '{"url": "https://git.example/cloned", "vcs_info": {"vcs": "git"}}')
    install(tmp_path, "local", f'{{"url": "{here}", "archive_info": {{}}}}')
    with pytest.raises(ValueError, match="from where nodes do not get it") as raised:
        dayfly.Environment.captured()
    said = str(raised.value).split(";")[0]
    assert said.endswith(f"cloned (https://git.example/cloned), editable (file:///nowhere/editable), local ({here})")
    captured = dayfly.Environment.captured(without=["cloned", "editable", "local"]).requirements
    assert {"built-elsewhere==1.0", "downloaded==1.0"} <= set(captured)
