"""The location of PyTorch: the tests' Python, or the distribution's if both have the same version."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

_DISTRIBUTION = Path("/usr/lib/python3/dist-packages")


@cache
def folder() -> str | None:
    """Returns the directory to append to the path to import torch: empty if none is needed, None if unavailable."""
    if importlib.util.find_spec("torch") is not None:
        return ""
    text = f"import sys; sys.path.append({str(_DISTRIBUTION)!r}); import torch, torch.distributed"
    there = (_DISTRIBUTION / "torch").is_dir()
    if there and subprocess.run([sys.executable, "-c", text], capture_output=True, check=False).returncode == 0:
        return str(_DISTRIBUTION)
    return None


needs_torch = pytest.mark.skipif(
    folder() is None,
    reason="this Python finds no PyTorch. Install with: sudo apt-get install python3-torch, or pip install torch",
)
