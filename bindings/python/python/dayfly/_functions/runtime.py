"""The runtime of pickled functions: the interpreter and the packages that workers need for them."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from typing import Any

import cloudpickle

from dayfly._functions.environment import Environment, environment_spec

#: Version of this interpreter.
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"


def module_path() -> list[str]:
    """Returns the directories of ``sys.path`` that another start of this interpreter would not search."""
    paths = sysconfig.get_paths()
    own = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own |= {os.path.realpath(path) for path in [*site.getsitepackages(), site.getusersitepackages()]}
    own.add(os.path.realpath(os.path.join(paths["stdlib"], "lib-dynload")))
    found = []
    for entry in sys.path:
        real = os.path.realpath(entry or os.curdir)
        if real not in own and os.path.isdir(real) and real not in found:
            found.append(real)
    return found


def runtime(environment: Environment | None = None) -> dict[str, Any]:
    """Returns the description of the interpreter and the packages that workers need for this process's functions."""
    extra = {} if environment is None else {"environment": environment_spec(environment)}
    return {
        "kind": "python",
        "version": PYTHON,
        "cloudpickle": cloudpickle.__version__,
        "executable": sys.executable or None,
        "path": module_path(),
        **extra,
    }
