"""The modules of the Python package form rooms, whose imports go down only, and no cycle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "bindings/python/python/dayfly"

#: The rooms from the lowest to the highest. Each has a module, a package with all its modules, or several of these.
ROOMS = [
    ("_native", "_text", "_trace", "_progress", "_errors"),
    ("_pool_errors", "_command", "_modules", "_program", "_providers"),
    ("_failures", "_mpi_library", "_output", "_worker", "_worker_streams"),
    ("MPI", "executor", "groups"),
    ("_codec",),
    ("_connection", "_futures", "_functions"),
    ("_leases",),
    ("_tasks", "_groups", "frames"),
    ("_client",),
    # Programs and adapters, which use the package as users do.
    (
        "",
        "__main__",
        "_bench",
        "_bench_harvest",
        "_bench_record",
        "_bench_tasks",
        "_env_command",
        "_rank_program",
        "_run_command",
        "accelerator",
        "joblib",
        "parsl",
        "torch",
    ),
]


def modules(package: Path) -> dict[str, Path]:
    """Returns the files of a package, by the names of their modules below it. The package itself has the name ""."""
    found = {}
    for path in sorted(package.rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            parts = path.relative_to(package).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yields the modules of the package that one imports: at its start, in functions, and for type checkers alone."""
    inside = ["dayfly", *name.split(".")] if name else ["dayfly"]
    around = inside if path.name == "__init__.py" else inside[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = around[: len(around) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            targets = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for target in targets:
            first, _, rest = target.partition(".")
            if first != "dayfly":
                continue
            # The longest part that is a module. The others are names in it.
            while rest and rest not in known:
                rest = rest.rpartition(".")[0]
            if rest != name:
                yield rest


def graph(package: Path) -> dict[str, set[str]]:
    known = modules(package)
    return {name: set(imports(name, path, known)) for name, path in known.items()}


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Returns the modules of a cycle; empty if there is none."""
    ended: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in ended:
            for target in sorted(edges[name]):
                if found := visit(target, [*path, name]):
                    return found
            ended.add(name)
        return []

    return next((found for name in sorted(edges) if (found := visit(name, []))), [])


def floor(name: str) -> int:
    room = name.partition(".")[0]
    return next(number for number, rooms in enumerate(ROOMS) if room in rooms)


def climbs(edges: dict[str, set[str]]) -> list[str]:
    """Returns the imports that go up. The package's own names refer to all rooms, for its users and type checkers."""
    pairs = ((name, target) for name, targets in sorted(edges.items()) for target in sorted(targets))
    return [f"{name} imports {target}" for name, target in pairs if floor(target) > floor(name)]


def test_every_module_has_one_room() -> None:
    rooms = [room for rooms in ROOMS for room in rooms]
    found = {name.partition(".")[0] for name in modules(PACKAGE)}
    assert sorted(rooms) == sorted(found)


def test_modules_form_no_cycle() -> None:
    assert cycle(graph(PACKAGE)) == []


def test_no_import_climbs() -> None:
    assert climbs(graph(PACKAGE)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from dayfly._leases.lease import Lease",
        "import dayfly._leases.lease",
        "from .._leases import lease",
        "def late():\n    from dayfly._leases.lease import Lease",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dayfly._leases.lease import Lease",
    ],
)
def test_cycle_and_upward_import_are_found(tmp_path: Path, line: str) -> None:
    files = {
        "__init__.py": "",
        "_codec/__init__.py": "",
        "_codec/trust.py": line,
        "_leases/__init__.py": "",
        "_leases/lease.py": "from dayfly._codec import trust",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    edges = graph(tmp_path)
    assert cycle(edges) == ["_codec.trust", "_leases.lease", "_codec.trust"]
    assert climbs(edges) == ["_codec.trust imports _leases.lease"]
