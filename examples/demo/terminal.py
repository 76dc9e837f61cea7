"""How the demo speaks: titles, rows and times, with colours where a terminal shows them."""

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
    """A result that the local computation contradicts, or something that the demo needs and does not find."""
