"""Output of the demo: titles, rows and times, in colour on a terminal."""

from __future__ import annotations

import os
import sys

COLOURS = sys.stdout.isatty() and "NO_COLOR" not in os.environ


def paint(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOURS else text


def title(text: str) -> None:
    print(f"\n{paint(text, '1;36')}\n{paint('─' * len(text), '36')}", flush=True)


def say(label: str, text: str) -> None:
    print(f"  {paint(f'{label:<22}', '2')}{text}", flush=True)


def good(label: str, text: str) -> None:
    say(label, f"{paint('✓', '1;32')} {text}")


def seconds(length: float) -> str:
    return f"{length * 1e3:.1f} ms" if length < 1 else f"{length:.2f} s"


class DemoError(Exception):
    """A result differs from the local computation, or a requirement of the demo is missing."""
