"""Packages: made from the built programs, installed and used in clean Debian roots without a compiler or a network."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.daemons import Daemon
from harness.images import Podman, archive, debian
from harness.programs import ROOT, bin_dir, cache_dir, clean_environment, program, run
from harness.roots import CleanRoot

PACK = ROOT / "scripts" / "package.py"
#: The wheel of `make build`, and that of another project. Data frames have the same format, and would only take longer.
WHEELS = [*(Path(sys.prefix) / "wheels").glob("*.whl"), *(cache_dir() / "wheels").glob("*.whl")]
UNITS = ROOT / "packaging" / "systemd"
#: The MPI library of a package.
MPI = "/usr/lib/dayfly/mpi/libmpi.so.12"
#: Tasks whose results outlive an upgrade.
PROGRAM = """
import sys, dayfly

def area(width, height):
    return width * height

with dayfly.connect() as client:
    if sys.argv[1] == "submit":
        print(sum(client.map(area, range(100), range(100), tag="areas", endpoint="mine").results(timeout=60)))
    else:
        print("kept", sum(client.tasks("areas").results(timeout=60)))
"""


def glibc() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION").split()[1]


def packed(out: Path, *options: str, check: bool = True):
    command = (sys.executable, PACK, "--programs", bin_dir(), "--out", out, "--level", "1", *options, *WHEELS)
    return run(*command, timeout=240, check=check, env=clean_environment())


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of this build, and a second Debian package of a later number."""
    if len(WHEELS) < 2:
        pytest.skip("there are not all wheels: make build, and scripts/bootstrap tests")
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb not found")
    out = tmp_path_factory.mktemp("packages")
    (out / "next").mkdir()
    packed(out, "--glibc", glibc())
    packed(out / "next", "--glibc", glibc(), "--release", "2", "--format", "deb")
    return out


@pytest.fixture
def root(tmp_path: Path) -> Iterator[CleanRoot]:
    base, why = debian()
    if why:
        pytest.skip(why)
    with CleanRoot(base, tmp_path / "layers") as root:
        yield root


def ten_lines() -> str:
    """The first Python program of the README."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]


def command_of(unit: str) -> str:
    """The command of a unit, as systemd would start it without options."""
    found = re.search(r"^ExecStart=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)
    return found[1].split(" $")[0]


def test_debian_package_leads_to_a_result(packages: Path, root: CleanRoot) -> None:
    root.put("packages", *packages.glob("*.deb"))
    (root.path / "ten.py").write_text(ten_lines())
    output = root.run(
        f"""
        dpkg --install /packages/*.deb
        dayfly doctor
        python3 -m venv /opt/dayfly
        /opt/dayfly/bin/pip install --quiet --no-index --find-links /usr/share/dayfly/wheels dayfly
        /opt/dayfly/bin/python /ten.py
        test -f /usr/share/man/man1/dayfly-node.1.gz
        test -x {MPI}
        grep -q dayfly /usr/share/bash-completion/completions/dayfly
        """
    )
    assert output.splitlines()[-2:] == ["42", "332833500"]


def test_upgrade_and_removal_keep_the_state(packages: Path, root: CleanRoot) -> None:
    root.put("packages", *packages.glob("*.deb"))
    root.put("next", *(packages / "next").glob("*.deb"))
    (root.path / "tasks.py").write_text(PROGRAM)
    start = f"""
        start_manager() {{
            mkdir -p /var/lib/dayfly/manager && chown -R dayfly:dayfly /var/lib/dayfly
            mkfifo /ready
            setpriv --reuid dayfly --regid dayfly --clear-groups {command_of("dayfly-manager.service")} --json >/ready &
            manager=$!
            read -r _ </ready
            rm /ready
        }}
        export DAYFLY_MANAGER=/var/lib/dayfly/manager
    """
    output = root.run(
        f"""
        {start}
        dpkg --install /packages/*.deb
        echo '# ours' >> /etc/dayfly/manager.conf
        python3 -m venv /opt/dayfly
        /opt/dayfly/bin/pip install --quiet --no-index --find-links /usr/share/dayfly/wheels dayfly
        start_manager
        export DAYFLY_PYTHON=/opt/dayfly/bin/python
        dayfly endpoint setup mine
        dayfly endpoint start mine
        /opt/dayfly/bin/python /tasks.py submit
        dayfly endpoint stop mine
        kill $manager && wait $manager
        dpkg --install --force-confold /next/*.deb
        dpkg-query --show dayfly
        start_manager
        /opt/dayfly/bin/python /tasks.py again
        kill $manager && wait $manager
        dpkg --remove dayfly
        ! command -v dayfly
        test -s /var/lib/dayfly/manager/manager.db
        grep -q ours /etc/dayfly/manager.conf
        dpkg --purge dayfly
        test -s /var/lib/dayfly/manager/manager.db
        ! test -e /etc/dayfly
        """
    )
    assert "\n328350\n" in output
    assert re.search(r"^dayfly\s+\S+-2$", output, re.MULTILINE)
    assert "\nkept 328350\n" in output
    assert "the state stays in /var/lib/dayfly" in output


def test_archive_runs_from_any_directory(packages: Path, root: CleanRoot) -> None:
    (path,) = packages.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(root.path / "opt", filter="data")
    (root.path / "ten.py").write_text(ten_lines())
    output = root.run(
        """
        mv /opt/dayfly-* /opt/tools
        useradd --create-home --home-dir /srv/user user
        cat > /srv/user/script <<'END'
            export PATH=/opt/tools/bin:$PATH HOME=/srv/user
            cd
            dayfly doctor
            python3 -m venv here
            here/bin/pip install --quiet --no-index --find-links /opt/tools/share/dayfly/wheels dayfly
            here/bin/python /ten.py
            test -x /opt/tools/lib/dayfly/mpi/libmpi.so.12
            test -x /opt/tools/lib/dayfly/mpi/libmpi_abi.so.1
            /opt/tools/lib/dayfly/mpi/bin/mpicc -show -c a.c | grep -q -e -I/opt/tools/lib/dayfly/mpi/include
END
        setpriv --reuid user --regid user --clear-groups sh -e /srv/user/script
        """
    )
    assert output.splitlines()[-2:] == ["42", "332833500"]


def test_rpm_is_installed_and_removed(packages: Path, root: CleanRoot) -> None:
    if shutil.which("rpm") is None:
        pytest.skip("rpm not found; install it")
    (path,) = packages.glob("*.rpm")
    # The root's own packages are Debian's, so rpm knows no dependency.
    rpm = ("rpm", "--root", root.path, "--dbpath", "/var/lib/rpm")
    run(*rpm, "--nodeps", "--install", path, timeout=120)
    assert run(*rpm, "--verify", "--nodeps", "dayfly").stdout == ""
    assert "dayfly 0" in root.run(
        f"dayfly version; getent passwd dayfly; test -e /usr/lib64/libdayfly.so; test -e {MPI}; "
        "test -e /usr/lib64/pkgconfig/../../lib/dayfly/mpi/include/mpi.h; grep -q ../../lib/dayfly/mpi "
        "/usr/lib64/pkgconfig/dayfly-mpi.pc"
    )
    run(*rpm, "--nodeps", "--erase", "dayfly")
    assert not (root.path / "usr/bin/dayfly").exists()


def test_image_has_a_program_that_runs(packages: Path, tmp_path: Path) -> None:
    base, why = debian()
    if why or shutil.which("podman") is None:
        pytest.skip(why or "podman not found; install it")
    storage = tmp_path / "storage"
    storage.mkdir()
    context = tmp_path / "context"
    context.mkdir()
    shutil.copy(next(packages.glob("*.deb")), context)
    podman = Podman(storage)
    try:
        podman("import", archive(base, tmp_path / "base.tar"), "clean")
        file = ROOT / "packaging" / "container" / "Containerfile"
        # Containers need control groups of one version, and test machines may have both.
        podman(
            "build",
            "--quiet",
            "--isolation=chroot",
            "--layers=false",
            "--build-arg=BASE=clean",
            "-f",
            file,
            "-t",
            "dayfly",
            context,
        )
        # `podman run` needs control groups of one version, and test machines may have both. So the image's command runs
        # in a root of its own.
        config = json.loads(podman("inspect", "dayfly"))[0]["Config"]
        command = " ".join([*config["Entrypoint"], "version"])
        with CleanRoot(Path(podman("image", "mount", "dayfly")), tmp_path / "layers") as root:
            ran = root.run(f"setpriv --reuid {config['User']} --regid dayfly --clear-groups {command}")
        assert ran.startswith("dayfly ")
        podman("image", "unmount", "dayfly")
    finally:
        podman.remove()


def test_units_are_valid_and_confined(packages: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze not found")
    (path,) = packages.glob("*.deb")
    run("dpkg-deb", "-x", path, tmp_path)
    for unit in tmp_path.glob("usr/lib/systemd/*/*.service"):
        # Other units of this machine may have faults, and the program is not installed on it.
        command = ("systemd-analyze", f"--{unit.parent.name}", "verify", "--man=no", unit)
        told = run(*command, check=False, env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}).stderr
        assert not [line for line in told.splitlines() if unit.name in line and "executable" not in line], told
    manager = tmp_path / "usr/lib/systemd/system/dayfly-manager.service"
    shown = run("systemd-analyze", "security", "--offline=true", f"--root={tmp_path}", manager, check=False).stdout
    exposure = float(re.search(r"exposure level for \S+: ([0-9.]+)", shown)[1])
    assert exposure < 3, shown


def test_programs_for_a_later_glibc_are_refused(tmp_path: Path) -> None:
    done = packed(tmp_path, "--glibc", "2.3", check=False)
    assert done.returncode != 0
    assert re.search(r"needs glibc 2\.[0-9.]+, and may need 2\.3", done.stderr)


def test_mpi_library_for_a_later_glibc_is_refused() -> None:
    library = program("libmpi.so")
    check = f"import package; from pathlib import Path; package.check_links(Path({str(library)!r}), '2.3')"
    done = run(sys.executable, "-c", check, cwd=PACK.parent, check=False)
    assert re.search(r"libmpi.so needs glibc 2\.[0-9.]+, and may need 2\.3", done.stderr)


def test_wheel_runs_mpi4py_in_fresh_environment(packages: Path, start: Callable[..., Daemon], tmp_path: Path) -> None:
    mpi4py = pytest.importorskip("mpi4py", reason="mpi4py is not installed: scripts/bootstrap tests")
    installed = Path(mpi4py.__file__).parent
    venv = tmp_path / "venv"
    python = venv / "bin" / "python"
    run(sys.executable, "-m", "venv", venv)
    find = [option for wheel in WHEELS for option in ("--find-links", wheel.parent)]
    run(python, "-m", "pip", "install", "--quiet", "--no-index", *find, *packages.glob("dayfly-*.whl"), timeout=120)
    shutil.copytree(installed, next(venv.glob("lib/python*/site-packages")) / installed.name)
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom mpi4py import MPI\n"
        "print(MPI.COMM_WORLD.allreduce(1), MPI.Get_library_version().split()[0], os.environ['MPI4PY_LIBMPI'])"
    )
    site = start("up", "--listen", "127.0.0.1:0", "--sandbox", "process", "--python", python)
    variables = site.client_environment() | {"DAYFLY_PYTHON": str(python)}
    done = run(venv / "bin" / "dayfly", "run", "--ranks", "2", script, env=variables, cwd=tmp_path)
    library = next(venv.glob("lib/python*/site-packages")) / "dayfly/native/mpi/libmpi.so.12"
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 2 Dayfly {library}" for rank in range(2)]


def test_checksums_and_bill_name_everything(packages: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (packages / "SHA256SUMS").read_text().splitlines())
    for name, digest in sums.items():
        assert hashlib.sha256((packages / name).read_bytes()).hexdigest() == digest
    assert {path.suffix for path in map(Path, sums)} >= {".deb", ".gz", ".whl", ".json"}
    bill = json.loads(next(packages.glob("*.cdx.json")).read_text())
    tokio = [part for part in bill["components"] if part["name"] == "tokio"]
    assert tokio[0]["licenses"] == [{"expression": "MIT"}]
    assert len(tokio[0]["hashes"][0]["content"]) == 64


def test_compilers_find_the_library_in_the_wheel(tmp_path: Path) -> None:
    config = (sys.executable, "-m", "dayfly", "config")
    flags = run(*config, "--cflags", "--libs", cwd=tmp_path).stdout.split()
    compiled = tmp_path / "hello"
    run("cc", ROOT / "examples/c/hello.c", "-o", compiled, *flags)
    assert "not found" not in run("ldd", compiled, env={"PATH": os.environ["PATH"]}).stdout
    directory = run(*config, "--pkgconfigdir", cwd=tmp_path).stdout.strip()
    found = run("pkg-config", "--cflags", "--libs", "dayfly", env=os.environ | {"PKG_CONFIG_PATH": directory}).stdout
    run("cc", ROOT / "examples/c/hello.c", "-o", compiled, *found.split())
    assert run(*config, check=False, cwd=tmp_path).returncode == 2


def test_mpicc_of_the_wheel_compiles_programs(tmp_path: Path) -> None:
    config = (sys.executable, "-m", "dayfly", "config")
    mpi = Path(run(*config, "--mpidir", cwd=tmp_path).stdout.strip())
    compiled = tmp_path / "program"
    run(mpi / "bin" / "mpicxx", ROOT / "tests/mpi/program.cpp", "-o", compiled)
    assert run(compiled).stdout == "rank 0 of 1 is done\n"
    directory = run(*config, "--pkgconfigdir", cwd=tmp_path).stdout.strip()
    variables = os.environ | {"PKG_CONFIG_PATH": directory}
    found = run("pkg-config", "--cflags", "--libs", "dayfly-mpi", env=variables).stdout
    run("c++", ROOT / "tests/mpi/program.cpp", "-o", compiled, *found.split())
    assert run(compiled).stdout == "rank 0 of 1 is done\n"
    assert (mpi / "bin" / "mpiexec").stat().st_mode & 0o111


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake not found; install it")
def test_cmake_finds_mpi_by_its_compiler(tmp_path: Path) -> None:
    mpi = run(sys.executable, "-m", "dayfly", "config", "--mpidir", cwd=tmp_path).stdout.strip()
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(ranks CXX)\nfind_package(MPI REQUIRED)\n"
        f"add_executable(ranks {ROOT}/tests/mpi/program.cpp)\ntarget_link_libraries(ranks MPI::MPI_CXX)\n"
    )
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DMPI_HOME={mpi}")
    run("cmake", "--build", tmp_path / "build")
    assert run(tmp_path / "build" / "ranks").stdout == "rank 0 of 1 is done\n"


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake not found; install it")
def test_cmake_finds_the_library_in_the_wheel(tmp_path: Path) -> None:
    directory = run(sys.executable, "-m", "dayfly", "config", "--cmakedir", cwd=tmp_path).stdout.strip()
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(hello C)\nfind_package(dayfly 0.1 REQUIRED)\n"
        f"add_executable(hello {ROOT}/examples/c/hello.c)\ntarget_link_libraries(hello dayfly::dayfly)\n"
    )
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Ddayfly_DIR={directory}")
    run("cmake", "--build", tmp_path / "build")
    assert (tmp_path / "build" / "hello").exists()
