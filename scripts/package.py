"""Packs built programs, libraries and wheels: a tarball, a Debian package, an RPM, a bill of materials, checksums.

``scripts/package`` builds them and calls this. Debian's and Red Hat's own tools write the packages from one staged
tree, so that all three have the same files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
PROGRAMS = ("dayfly", "dayfly-bench", "dayfly-executor")
#: The MPI libraries as they are built, and the names by which programs ask for them: those of MPICH's family, and those
#: with the standard's binary interface.
MPI_LIBRARIES = {"libmpi.so": "libmpi.so.12", "libmpi_abi.so": "libmpi_abi.so.1"}
#: The names of the compilers and of the launcher, all of them scripts.
MPI_PROGRAMS = {"mpicc": ("mpicc", "mpicxx", "mpic++"), "mpiexec": ("mpiexec", "mpirun")}
#: Architectures by the names of Python, Debian and Red Hat.
ARCHITECTURES = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}
FORMATS = ("tar", "deb", "rpm")
#: The libraries that a program may need. All else is linked into it.
LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1"}
LOADER = re.compile(r"ld-linux-[\w-]+\.so\.\d")
#: The package's directory in the sources, which wheels are built from.
PACKAGE = ROOT / "bindings" / "python" / "python" / "dayfly"


def version() -> str:
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def run(*command: str | Path, **options) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0:
        sys.exit(f"package: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def filled(template: Path, **values: object) -> str:
    """Returns a template with the value of each ``@NAME@``."""
    return re.sub(r"@([A-Z]+)@", lambda name: str(values[name[1]]), template.read_text())


def put(text: str, path: Path, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def copy(source: Path, path: Path, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    path.chmod(mode)


def put_development_files(programs: Path, prefix: Path, library: str, *, archive: bool) -> None:
    """Puts headers and libraries of C and C++ below a prefix, with what pkg-config and CMake need to find them.

    Their paths are relative to these files, so the prefix can be moved.
    """
    for header in (ROOT / "bindings" / "c" / "include").glob("*.h"):
        copy(header, prefix / "include" / header.name)
    for header in (ROOT / "bindings" / "cxx" / "include" / "dayfly").glob("*.hpp"):
        copy(header, prefix / "include" / "dayfly" / header.name)
    copy(programs / "libdayfly.so", prefix / library / "libdayfly.so", 0o755)
    if archive:
        copy(programs / "libdayfly.a", prefix / library / "libdayfly.a")
        run("strip", "--strip-debug", prefix / library / "libdayfly.a")
    values = {"VERSION": version(), "PREFIX": "/".join([".."] * (len(Path(library).parts) + 1))}
    development = PACKAGING / "development"
    put(filled(development / "dayfly.pc.in", **values), prefix / library / "pkgconfig" / "dayfly.pc")
    for name in ("dayfly-config.cmake", "dayfly-config-version.cmake"):
        put(filled(development / f"{name}.in", **values), prefix / library / "cmake" / "dayfly" / name)


def put_mpi(programs: Path, directory: Path) -> None:
    """Puts the MPI libraries, their header, the compilers and the launcher into a directory.

    It is a directory of its own, so that only programs that look for Dayfly's MPI find it: other MPIs use these names.
    """
    for built, name in MPI_LIBRARIES.items():
        # Replace the file instead of overwriting it: a program may be using the old one.
        part = directory / f".{name}.new"
        copy(programs / built, part, 0o755)
        part.rename(directory / name)
    copy(ROOT / "crates" / "mpi-abi" / "include" / "mpi.h", directory / "include" / "mpi.h")
    for script, names in MPI_PROGRAMS.items():
        for name in names:
            put(filled(PACKAGING / "mpi" / script, VERSION=version()), directory / "bin" / name, 0o755)


def put_mpi_description(pkgconfig: Path, mpi: str) -> None:
    """Puts the file for pkg-config into a directory, from which ``mpi`` is the path of the MPI libraries."""
    text = filled(PACKAGING / "mpi" / "dayfly-mpi.pc.in", VERSION=version(), MPI=mpi)
    put(text, pkgconfig / "dayfly-mpi.pc")


def place_mpi(programs: Path) -> None:
    """Puts MPI beside built programs."""
    directory = programs / "mpi"
    put_mpi(programs, directory)
    put_mpi_description(directory / "pkgconfig", "..")
    for name in MPI_LIBRARIES.values():
        link = directory / name.rpartition(".")[0]
        link.unlink(missing_ok=True)
        link.symlink_to(name)


def fill_wheel(programs: Path) -> None:
    """Puts programs, headers and the library where the build of the wheel takes them from."""
    shutil.rmtree(PACKAGE / "native", ignore_errors=True)
    for name in PROGRAMS:
        # Replace the file instead of overwriting it: the old program may be running.
        part = PACKAGE / "bin" / f".{name}.new"
        copy(programs / name, part, 0o755)
        part.rename(PACKAGE / "bin" / name)
    put_development_files(programs, PACKAGE / "native", "lib", archive=False)
    put_mpi(programs, PACKAGE / "native" / "mpi")
    put_mpi_description(PACKAGE / "native" / "lib" / "pkgconfig", "../../mpi")


def stage(programs: Path, wheels: list[Path], root: Path, library: str) -> None:
    """Puts all files of a package below a root."""
    usr = root / "usr"
    for name in PROGRAMS:
        copy(programs / name, usr / "bin" / name, 0o755)
        run("strip", "--strip-unneeded", usr / "bin" / name)
    put_development_files(programs, usr, library, archive=True)
    mpi = usr / "lib" / "dayfly" / "mpi"
    put_mpi(programs, mpi)
    # From the directory of other libraries, which is lib64 on some systems.
    put_mpi_description(usr / library / "pkgconfig", "../../lib/dayfly/mpi")
    for name in MPI_LIBRARIES.values():
        run("strip", "--strip-unneeded", mpi / name)
    dayfly = programs / "dayfly"
    manual = usr / "share" / "man" / "man1"
    manual.mkdir(parents=True)
    run(dayfly, "manual", manual)
    for page in manual.iterdir():
        run("gzip", "--no-name", "--best", page)
    completions = {
        "bash": "bash-completion/completions/dayfly",
        "zsh": "zsh/site-functions/_dayfly",
        "fish": "fish/vendor_completions.d/dayfly.fish",
    }
    for shell, path in completions.items():
        put(run(dayfly, "completions", shell), usr / "share" / path)
    systemd = PACKAGING / "systemd"
    for name in ("dayfly-manager.service", "dayfly-node.service"):
        copy(systemd / name, usr / "lib" / "systemd" / "system" / name)
    copy(systemd / "dayfly-endpoint@.service", usr / "lib" / "systemd" / "user" / "dayfly-endpoint@.service")
    copy(systemd / "dayfly.sysusers", usr / "lib" / "sysusers.d" / "dayfly.conf")
    for name in ("manager.conf", "node.conf"):
        copy(systemd / name, root / "etc" / "dayfly" / name)
    for name in ("README.md", "CHANGELOG.md", "THIRD-PARTY.md", "SECURITY.md"):
        copy(ROOT / name, usr / "share" / "doc" / "dayfly" / name)
    copy(ROOT / "LICENSE", usr / "share" / "doc" / "dayfly" / "copyright")
    for wheel in wheels:
        copy(wheel, usr / "share" / "dayfly" / "wheels" / wheel.name)


def tarball(root: Path, out: Path, level: int) -> Path:
    """Packs the tree without /etc and units of the system, for an installation below any directory."""
    name = f"dayfly-{version()}-linux-{platform.machine()}"
    path = out / f"{name}.tar.gz"

    def renamed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if "/systemd/system" in entry.name or "/sysusers.d" in entry.name:
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        return entry

    with tarfile.open(path, "w:gz", compresslevel=level) as archive:
        for directory in sorted((root / "usr").iterdir()):
            archive.add(directory, f"{name}/{directory.name}", filter=renamed)
        archive.add(PACKAGING / "modulefile", f"{name}/share/modulefiles/dayfly/{version()}", filter=renamed)
    return path


def deb(root: Path, out: Path, glibc: str, release: str, level: int) -> Path:
    architecture = ARCHITECTURES[platform.machine()][0]
    full = f"{version()}-{release}"
    values = {
        "VERSION": full,
        "ARCHITECTURE": architecture,
        "GLIBC": glibc,
        "KIBIBYTES": sum(path.stat().st_size for path in files(root)) // 1024,
    }
    put(filled(PACKAGING / "deb" / "control.in", **values), root / "DEBIAN" / "control")
    put("/etc/dayfly/manager.conf\n/etc/dayfly/node.conf\n", root / "DEBIAN" / "conffiles")
    for script in ("postinst", "prerm", "postrm"):
        copy(PACKAGING / "deb" / script, root / "DEBIAN" / script, 0o755)
    path = out / f"dayfly_{full}_{architecture}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zgzip", f"-z{level}", "--build", root, path)
    shutil.rmtree(root / "DEBIAN")
    return path


def rpm(root: Path, out: Path, glibc: str, release: str, level: int) -> Path:
    names = "\n".join(
        f"{'%config(noreplace) ' if path.is_relative_to(root / 'etc') else ''}/{path.relative_to(root)}"
        for path in files(root)
    )
    values = {"VERSION": version(), "RELEASE": release, "GLIBC": glibc, "STAGE": root, "FILES": names}
    with tempfile.TemporaryDirectory() as build:
        spec = Path(build) / "dayfly.spec"
        spec.write_text(filled(PACKAGING / "rpm" / "dayfly.spec.in", **values))
        architecture = ARCHITECTURES[platform.machine()][1]
        payload = f"_binary_payload w{level}.gzdio"
        run(
            "rpmbuild",
            "-bb",
            "--quiet",
            "--target",
            architecture,
            "--define",
            f"_topdir {build}",
            "--define",
            payload,
            spec,
        )
        (built,) = Path(build).rglob("*.rpm")
        return Path(shutil.move(built, out / built.name))


def files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file() and "DEBIAN" not in path.parts)


def check_links(path: Path, glibc: str) -> None:
    """Ends the program if a file needs a later glibc or another library than it may."""
    dump = run("objdump", "-T", "-p", path)
    needed = {name for name in re.findall(r"NEEDED\s+(\S+)", dump) if not LOADER.fullmatch(name)}
    if more := needed - LIBRARIES:
        sys.exit(f"package: {path} needs {', '.join(sorted(more))}, which a machine may not have")
    most = tuple(map(int, glibc.split(".")))
    for symbol in set(re.findall(r"GLIBC_([0-9.]+)", dump)):
        if tuple(map(int, symbol.split("."))) > most:
            sys.exit(f"package: {path} needs glibc {symbol}, and may need {glibc}")


def check_all_links(root: Path, glibc: str) -> None:
    """As :func:`check_links`, for each program and library below a directory, also in wheels."""
    for path in files(root):
        if path.suffix == ".whl":
            with tempfile.TemporaryDirectory() as unpacked, zipfile.ZipFile(path) as wheel:
                wheel.extractall(unpacked)
                check_all_links(Path(unpacked), glibc)
        elif path.open("rb").read(4) == b"\x7fELF":
            check_links(path, glibc)


def bill_of_materials(out: Path) -> Path:
    """Writes what is linked into the programs, in CycloneDX 1.5: each crate with version, licence and checksum."""
    metadata = json.loads(run("cargo", "metadata", "--format-version", "1", "--locked", cwd=ROOT))
    checksums = {
        (package["name"], package["version"]): package.get("checksum")
        for package in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    }
    components = []
    for package in sorted(metadata["packages"], key=lambda package: (package["name"], package["version"])):
        name, release = package["name"], package["version"]
        component = {"type": "library", "name": name, "version": release, "purl": f"pkg:cargo/{name}@{release}"}
        if package["license"]:
            component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if checksum := checksums.get((name, release)):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, (ROOT / 'Cargo.lock').read_text())}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "dayfly", "version": version()}},
        "components": components,
    }
    path = out / f"dayfly-{version()}.cdx.json"
    path.write_text(json.dumps(bill, indent=1))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Packs built programs and wheels.")
    parser.add_argument("--programs", type=Path, required=True, help="directory of the programs and libraries")
    parser.add_argument("--fill-wheel", action="store_true", help="only put them where wheels are built from")
    parser.add_argument("--place-mpi", action="store_true", help="only put MPI into a directory beside them")
    parser.add_argument("--out", type=Path, help="directory for the packages")
    parser.add_argument("--glibc", help="the oldest glibc on which they run")
    parser.add_argument("--release", default="1", help="number of this package of the version")
    # Most of a package is wheels, which are compressed already: level 9 takes five times as long for one percent.
    parser.add_argument("--level", type=int, default=6, help="level of gzip, 1 to 9")
    parser.add_argument("--format", action="append", dest="formats", choices=FORMATS, help="default: all")
    parser.add_argument("wheels", nargs="*", type=Path, help="ours, and those that they need")
    options = parser.parse_args()
    if options.fill_wheel:
        fill_wheel(options.programs)
        return
    if options.place_mpi:
        place_mpi(options.programs)
        return
    options.formats = options.formats or FORMATS
    out = options.out.resolve()
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="dayfly-package-") as directory:
        root = Path(directory) / "root"
        stage(options.programs, options.wheels, root, "lib")
        check_all_links(root, options.glibc)
        made = []
        if "tar" in options.formats:
            made.append(tarball(root, out, options.level))
        if "deb" in options.formats:
            made.append(deb(root, out, options.glibc, options.release, options.level))
        if "rpm" in options.formats and shutil.which("rpmbuild"):
            (root / "usr" / "lib64").mkdir()
            for name in ("libdayfly.so", "libdayfly.a", "pkgconfig", "cmake"):
                (root / "usr" / "lib" / name).rename(root / "usr" / "lib64" / name)
            made.append(rpm(root, out, options.glibc, options.release, options.level))
        elif "rpm" in options.formats:
            print("package: no rpmbuild, so no RPM; install the package rpm", file=sys.stderr)
    made += [Path(shutil.copy(wheel, out)) for wheel in options.wheels if wheel.name.startswith("dayfly")]
    made.append(bill_of_materials(out))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (out / "SHA256SUMS").write_text("".join(sums))
    for path in made:
        print(f"{path.stat().st_size / 1e6:7.1f} MB  {path}")


if __name__ == "__main__":
    main()
