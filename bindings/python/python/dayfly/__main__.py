"""``python -m dayfly config``: what compilers need to use the headers and the library in this package."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

NATIVE = Path(__file__).parent / "native"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dayfly", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    config = commands.add_parser(
        "config", help="print options for compilers", description="Print options for compilers."
    )
    config.add_argument("--cflags", action="store_true", help="options for the compiler")
    config.add_argument(
        "--libs", action="store_true", help="options for the linker; programs then find the library here"
    )
    config.add_argument("--cmakedir", action="store_true", help="value of dayfly_DIR for CMake's find_package(dayfly)")
    config.add_argument("--pkgconfigdir", action="store_true", help="directory for PKG_CONFIG_PATH")
    config.add_argument("--mpidir", action="store_true", help="directory of MPI: its libraries, include and bin")
    options = parser.parse_args()
    library = NATIVE / "lib"
    if not (library / "libdayfly.so").is_file():
        sys.exit("dayfly: this package contains no library for C and C++; install a wheel, or run `make build`")
    flags: list[str] = []
    if options.cflags:
        flags.append(f"-I{NATIVE / 'include'}")
    if options.libs:
        flags += [f"-L{library}", "-ldayfly", f"-Wl,-rpath,{library}"]
    if options.cmakedir:
        flags.append(str(library / "cmake" / "dayfly"))
    if options.pkgconfigdir:
        flags.append(str(library / "pkgconfig"))
    if options.mpidir:
        flags.append(str(NATIVE / "mpi"))
    if not flags:
        config.error("name at least one of --cflags, --libs, --cmakedir, --pkgconfigdir and --mpidir")
    print(shlex.join(flags))


if __name__ == "__main__":
    main()
