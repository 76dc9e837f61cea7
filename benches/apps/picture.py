"""Draws comparisons as SVG: a bar for each row, with its interval, on a logarithmic axis around 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, STEP = 1280, 600, 1120, 96, 26
INK, FAINT, GRID = "#1f2933", "#616e7c", "#e4e7eb"
#: Ours is faster, slower, or neither with certainty; distinct for any colour vision.
FASTER, SLOWER, EVEN = "#0072B2", "#D55E00", "#7b8794"


def _axis(rows: Sequence[dict[str, Any]]) -> float:
    """Returns the largest factor of the axis, which reaches from its inverse to it."""
    values = [abs(math.log10(each[name])) for each in rows for name in ("speedup", "low", "high") if each[name] > 0]
    return 10 ** (math.ceil(max([*values, 0.31]) * 10) / 10)


def colour(row: dict[str, Any]) -> str:
    if row["low"] > 1:
        return FASTER
    return SLOWER if row["high"] < 1 else EVEN


def draw(rows: Sequence[dict[str, Any]], subtitle: str) -> str:
    """Returns the picture."""
    limit = _axis(rows)
    height = TOP + STEP * len(rows) + 60
    bottom = TOP + STEP * len(rows) + 6

    def x(value: float) -> float:
        share = (math.log10(max(value, 1 / limit)) / math.log10(limit) + 1) / 2
        return LEFT + min(share, 1.0) * (RIGHT - LEFT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Noto Sans, Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">',
        "<title>Applications with leased workers</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<text x="32" y="40" font-size="22" font-weight="bold">Applications with leased workers</text>',
        f'<text x="32" y="64" fill="{FAINT}">{escape(subtitle)}</text>',
    ]
    for value in [v for d in range(-4, 5) for v in (10.0**d, 2 * 10.0**d, 5 * 10.0**d) if 1 / limit <= v <= limit]:
        dark = f'stroke="{FAINT}"' if value == 1 else f'stroke="{GRID}"'
        parts.append(f'<line x1="{x(value):.1f}" y1="{TOP - 8}" x2="{x(value):.1f}" y2="{bottom}" {dark}/>')
        if limit < 100 or math.log10(value) % 1 == 0:
            at = f'x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle" fill="{FAINT}"'
            parts.append(f"<text {at}>{value:g}</text>")
    for number, row in enumerate(rows):
        middle = TOP + STEP * number + STEP / 2
        name = " ".join(str(part) for part in (row["app"], row.get("input", ""), "·", row["ours"], "/", row["against"]))
        one, to = sorted((x(1.0), x(row["speedup"])))
        parts += [
            f'<text x="{LEFT - 12}" y="{middle + 4:.1f}" text-anchor="end" font-size="12">{escape(name)}</text>',
            f'<rect x="{one:.1f}" y="{middle - 8:.1f}" width="{max(to - one, 1):.1f}" height="16" '
            f'fill="{colour(row)}"/>',
            f'<line x1="{x(row["low"]):.1f}" y1="{middle:.1f}" x2="{x(row["high"]):.1f}" y2="{middle:.1f}" '
            f'stroke="{INK}" stroke-width="2"/>',
            f'<text x="{RIGHT + 14}" y="{middle + 4:.1f}">{row["speedup"]:.2f} '
            f'<tspan fill="{FAINT}">({row["low"]:.2f} to {row["high"]:.2f})</tspan></text>',
        ]
    label = "times as fast as what it is compared with (logarithmic), with intervals of 95 %"
    parts.append(f'<text x="{(LEFT + RIGHT) / 2:.0f}" y="{bottom + 42}" text-anchor="middle">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
