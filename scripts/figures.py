#!/usr/bin/env python3
"""Draws the figures of the documentation: each docs/figures/NAME.txt becomes docs/figures/NAME.svg.

    scripts/figures.py            rewrite the pictures
    scripts/figures.py --check    compare them, and fail when one is stale

A description is read line by line; `#` begins a comment. Its first lines are `title TEXT` and `width PIXELS`.

A sequence has actors, from left to right, and steps, from top to bottom:

    actor ID NAME | ROLE
    section TEXT
    FROM -> TO  TEXT      a message; `=>` draws it thicker
    note ID  TEXT         something that an actor does by itself

A map has boxes and arrows, in pixels; a later box is drawn over an earlier one:

    height PIXELS
    box ID X Y WIDTH HEIGHT KIND  NAME | LINE | LINE       KIND is host, store, part or group
    arrow X Y, X Y, ...                                    ends in a point; `line` does not
    label X Y ALIGN  TEXT | TEXT                           ALIGN is start, middle or end

Only the standard library is used. Widths of texts are estimated for a wide font, so that a narrower one fits too, and a
text that does not fit is an error.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "figures"
#: In pixels. Text of 15 pixels stays legible when a figure 640 pixels wide is shrunk to the width of a phone.
FONT, LINE, MARGIN, SMALL = 15, 19, 14, 13
#: Names are bold, and as wide as regular text of this size.
NAME = FONT * 1.09
STYLE = """\
text { font: 15px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328; }
.small { font-size: 13px; }
.name { font-weight: 600; }
.section { font-weight: 600; fill: #0550ae; }
.paper { fill: #ffffff; stroke: #d0d7de; }
.halo { stroke: #ffffff; stroke-width: 5px; stroke-linejoin: round; paint-order: stroke; }
.life { stroke: #afb8c1; stroke-dasharray: 3 4; }
.rule { stroke: #d0d7de; }
.arrow { fill: none; stroke: #424a53; stroke-width: 1.5; }
.thick { stroke-width: 3.5; stroke: #0969da; }
.head { fill: #424a53; }
.thick-head { fill: #0969da; }
.host { fill: #ddf4ff; stroke: #0969da; }
.store { fill: #fff8c5; stroke: #9a6700; }
.part { fill: #ffffff; stroke: #57606a; }
.group { fill: #f6f8fa; stroke: #8c959f; stroke-dasharray: 6 4; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.section { fill: #79c0ff; }
.paper { fill: #0d1117; stroke: #30363d; }
.halo { stroke: #0d1117; }
.life { stroke: #6e7681; }
.rule { stroke: #30363d; }
.arrow { stroke: #c9d1d9; }
.thick { stroke: #58a6ff; }
.head { fill: #c9d1d9; }
.thick-head { fill: #58a6ff; }
.host { fill: #0c2d4d; stroke: #58a6ff; }
.store { fill: #3a2f06; stroke: #d29922; }
.part { fill: #161b22; stroke: #8b949e; }
.group { fill: #12161d; stroke: #6e7681; }
}"""


class FigureError(Exception):
    """A description that cannot be drawn."""


def width_of(text: str, size: float = FONT) -> float:
    """Returns the maximum width of a text in pixels, in DejaVu Sans, which is wider than most systems' fonts."""
    narrow, wide = set("ijlf.,:;'|()[]/ t"), set("mwMW@%")
    shares = [0.39 if c in narrow else 0.95 if c in wide else 0.69 if c.isupper() else 0.62 for c in text]
    return sum(shares) * size


def wrapped(text: str, room: float) -> list[str]:
    """Splits a text into the fewest lines of at most this many pixels, with lengths as equal as possible."""
    narrowest = min(room, max(width_of(word) for word in text.split()))
    if width_of(text) > room and narrowest == room:
        raise FigureError(f"a word of {text!r} is wider than {room:.0f} pixels")
    fewest = len(filled(text, room))
    goal = narrowest
    while goal < room and len(filled(text, goal)) > fewest:
        goal += 2
    return filled(text, min(goal, room))


def filled(text: str, room: float) -> list[str]:
    """Splits a text into lines, each with as many words as fit."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def text_at(x: float, y: float, text: str, kind: str = "", align: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{align}" class="{kind}">{escape(text, quote=False)}</text>'


def path_through(points: list[tuple[float, float]], *, pointed: bool, is_thick: bool = False) -> list[str]:
    """Returns a line through these points, with an arrow head at its end if it is pointed."""
    (before_x, before_y), (x, y) = points[-2:]
    length = max(abs(x - before_x), abs(y - before_y))
    along = ((x - before_x) / length, (y - before_y) / length)
    end = (x - along[0] * 7, y - along[1] * 7) if pointed else (x, y)
    drawn = " L".join(f"{a:.0f} {b:.0f}" for a, b in [*points[:-1], end])
    parts = [f'<path d="M{drawn}" class="arrow{" thick" if is_thick else ""}"/>']
    if pointed:
        back = (x - along[0] * 11, y - along[1] * 11)
        aside = (-along[1] * 5.5, along[0] * 5.5)
        sides = [(back[0] + aside[0], back[1] + aside[1]), (back[0] - aside[0], back[1] - aside[1])]
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in [(x, y), *sides])
        parts.append(f'<polygon points="{corners}" class="{"thick-head" if is_thick else "head"}"/>')
    return parts


@dataclass
class Figure:
    """The elements drawn so far, and their size."""

    title: str = ""
    width: int = 640
    height: float = 0
    parts: list[str] = field(default_factory=list)

    def svg(self) -> str:
        """Returns the content of the SVG file."""
        height = round(self.height)
        paper = f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{height - 1}" rx="8" class="paper"/>'
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height}" '
                f'width="{self.width}" height="{height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>\n{STYLE}\n</style>",
                paper,
                *self.parts,
                "</svg>\n",
            )
        )


class Sequence:
    """A sequence diagram: actors side by side, and their messages below."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.actors: list[tuple[str, list[str]]] = []
        self.y = 0.0

    def take(self, line: str) -> None:
        """Draws one line of the description."""
        word, _, rest = line.partition(" ")
        if word == "actor":
            name, _, texts = rest.strip().partition(" ")
            self.actors.append((name, [text.strip() for text in texts.split("|")]))
            return
        if not self.y:
            self._draw_actors()
        if word == "section":
            self._draw_section(rest.strip())
        elif word == "note":
            name, _, text = rest.strip().partition(" ")
            self._draw_note(self._x(name), text.strip())
        else:
            arrow, _, rest = rest.strip().partition(" ")
            to, _, text = rest.strip().partition(" ")
            if arrow not in ("->", "=>"):
                raise FigureError(f"no such step: {line}")
            self._draw_message(self._x(word), self._x(to), text.strip(), is_thick=arrow == "=>")

    def finish(self) -> None:
        """Draws the lines below the actors, behind everything else."""
        lives = [
            f'<path d="M{self._x(name):.0f} {self.top:.0f} V{self.y:.0f}" class="life"/>' for name, _ in self.actors
        ]
        self.figure.parts[0:0] = lives
        self.figure.height = self.y + MARGIN

    def _x(self, name: str) -> float:
        for number, (actor, _) in enumerate(self.actors):
            if actor == name:
                return MARGIN + self._lane() * (number + 0.5)
        raise FigureError(f"no such actor: {name}")

    def _lane(self) -> float:
        return (self.figure.width - 2 * MARGIN) / len(self.actors)

    def _draw_actors(self) -> None:
        width = self._lane() - 10
        height = max(len(texts) for _, texts in self.actors) * LINE + 12
        for name, texts in self.actors:
            left = self._x(name) - width / 2
            self.figure.parts.append(
                f'<rect x="{left:.0f}" y="{MARGIN}" width="{width:.0f}" height="{height}" rx="6" class="host"/>'
            )
            for number, text in enumerate(texts):
                if width_of(text, SMALL if number else NAME) > width:
                    raise FigureError(f"{text!r} is wider than its box")
                kind = "small" if number else "name"
                self.figure.parts.append(text_at(self._x(name), MARGIN + 20 + number * LINE, text, kind))
        self.top = MARGIN + height
        self.y = self.top + 8

    def _draw_section(self, text: str) -> None:
        self.y += 10
        right = self.figure.width - MARGIN
        self.figure.parts.append(f'<path d="M{MARGIN} {self.y:.0f} H{right}" class="rule"/>')
        for line in wrapped(text, right - MARGIN):
            self.y += LINE
            self.figure.parts.append(text_at(MARGIN, self.y, line, "section halo", "start"))
        self.y += 6

    def _draw_texts(self, x: float, room: float, text: str) -> None:
        """Draws the text above the current line, centred at this position, but within the picture."""
        for line in wrapped(text, room):
            half = width_of(line) / 2
            middle = min(max(x, MARGIN + half), self.figure.width - MARGIN - half)
            self.y += LINE
            self.figure.parts.append(text_at(middle, self.y, line, "halo"))

    def _draw_message(self, start: float, end: float, text: str, *, is_thick: bool) -> None:
        self._draw_texts((start + end) / 2, max(abs(end - start), 2.3 * self._lane()), text)
        self.y += 9
        self.figure.parts += path_through([(start, self.y), (end, self.y)], pointed=True, is_thick=is_thick)
        self.y += 7

    def _draw_note(self, x: float, text: str) -> None:
        lines = wrapped(text, self.figure.width * 0.55)
        half = max(width_of(line) for line in lines) / 2 + 8
        middle = min(max(x, MARGIN + half), self.figure.width - MARGIN - half)
        height = len(lines) * LINE + 10
        self.y += 8
        place = f'x="{middle - half:.0f}" y="{self.y:.0f}" width="{2 * half:.0f}" height="{height}"'
        self.figure.parts.append(f'<rect {place} rx="4" class="store"/>')
        for number, line in enumerate(lines):
            self.figure.parts.append(text_at(middle, self.y + 19 + number * LINE, line))
        self.y += height + 3


class Map:
    """Boxes at given positions, and arrows between them."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.labels: list[str] = []

    def take(self, line: str) -> None:
        """Draws one line of the description."""
        word, _, rest = line.partition(" ")
        if word == "height":
            self.figure.height = int(rest)
        elif word == "box":
            self._draw_box(rest)
        elif word in ("arrow", "line"):
            points = [tuple(map(float, point.split())) for point in rest.split(",")]
            self.figure.parts += path_through(points, pointed=word == "arrow")  # type: ignore[arg-type]
        elif word == "label":
            x, y, align, texts = rest.split(None, 3)
            for number, text in enumerate(texts.split("|")):
                self._draw_label(float(x), float(y) + number * 17, align, text.strip())
        else:
            raise FigureError(f"no such part of a map: {line}")

    def finish(self) -> None:
        """Draws the labels over everything else."""
        self.figure.parts += self.labels

    def _draw_label(self, x: float, y: float, align: str, text: str) -> None:
        width = width_of(text, SMALL)
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[align]
        if left < 4 or left + width > self.figure.width - 4:
            raise FigureError(f"{text!r} leaves the picture")
        self.labels.append(text_at(x, y, text, "small halo", align))

    def _draw_box(self, description: str) -> None:
        name, *numbers, kind, texts = description.split(None, 6)
        x, y, width, height = map(int, numbers)
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        self.figure.parts.append(f'<rect {place} rx="6" class="{kind}"/>')
        lines = [text.strip() for text in texts.split("|")]
        if len(lines) * 17 > height:
            raise FigureError(f"the box {name} is too low for {len(lines)} lines")
        is_group = kind == "group"
        left, align = (x + 12, "start") if is_group else (x + width / 2, "middle")
        top = y + 20 if is_group else y + height / 2 + 5 - (len(lines) - 1) * 17 / 2
        for number, text in enumerate(lines):
            if width_of(text, SMALL if number else NAME) > width - 8:
                raise FigureError(f"{text!r} is wider than the box {name}")
            self.figure.parts.append(text_at(left, top + number * 17, text, "small" if number else "name", align))


def drawn(description: str) -> str:
    """Returns the SVG of a description."""
    figure = Figure()
    lines = [line.strip() for line in description.splitlines() if line.strip() and not line.startswith("#")]
    kind = Sequence if any(line.startswith("actor ") for line in lines) else Map
    drawing = kind(figure)
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "title":
            figure.title = rest.strip()
        elif word == "width":
            figure.width = int(rest)
        else:
            drawing.take(line)
    drawing.finish()
    return figure.svg()


def main() -> int:
    """Rewrites the figures, or checks that they are current."""
    stale = []
    for source in sorted(FOLDER.glob("*.txt")):
        picture = source.with_suffix(".svg")
        try:
            svg = drawn(source.read_text())
        except FigureError as error:
            print(f"{source}: {error}", file=sys.stderr)
            return 1
        if "--check" not in sys.argv[1:]:
            picture.write_text(svg)
        elif not picture.exists() or picture.read_text() != svg:
            stale.append(str(picture))
    if stale:
        print(f"Stale figures: {', '.join(stale)}. Rewrite them with scripts/figures.py", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    raise SystemExit(main())
