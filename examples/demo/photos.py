"""Thumbnails of the photographs in scikit-learn and scikit-image, made by Python workers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import terminal
from PIL import Image

#: The photographs in scikit-image's wheel, which need no download.
NAMES = ("astronaut", "chelsea", "coffee", "rocket", "hubble_deep_field", "retina", "motorcycle_left", "camera", "moon")
WIDTHS = (320, 240, 160, 120, 80, 64)
COLUMNS, CELL, MARGIN = 4, 240, 12


def thumbnail(photo: Any, width: int) -> Any:
    """Returns a smaller photograph. Runs on the workers."""
    height = max(1, round(photo.shape[0] * width / photo.shape[1]))
    return np.asarray(Image.fromarray(photo).resize((width, height), Image.Resampling.LANCZOS))


def load() -> dict[str, Any]:
    """Returns all photographs as arrays, by name."""
    import skimage.data
    from sklearn.datasets import load_sample_images

    samples = load_sample_images()
    photos = {Path(name).stem: image for name, image in zip(samples.filenames, samples.images, strict=True)}
    directory = Path(skimage.data.__file__).parent
    for name in NAMES:
        for path in (directory / f"{name}.png", directory / f"{name}.jpg"):
            if path.exists():
                photos[name] = np.asarray(Image.open(path).convert("RGB"))
    return {name: np.ascontiguousarray(photo) for name, photo in photos.items()}


def contact_sheet(photos: dict[str, Any], out: Path) -> None:
    """Writes a picture of all thumbnails to `out`."""
    rows = -(-len(photos) // COLUMNS)
    size = (COLUMNS * (CELL + MARGIN) + MARGIN, rows * (CELL + MARGIN) + MARGIN)
    sheet = Image.new("RGB", size, (24, 26, 32))
    for index, photo in enumerate(photos.values()):
        small = Image.fromarray(photo)
        small.thumbnail((CELL, CELL))
        x = MARGIN + index % COLUMNS * (CELL + MARGIN) + (CELL - small.width) // 2
        y = MARGIN + index // COLUMNS * (CELL + MARGIN) + (CELL - small.height) // 2
        sheet.paste(small, (x, y))
    sheet.save(out)


def run(client: Any, workers: int, out: Path) -> None:
    terminal.title("Thumbnails of real photographs, by Python workers")
    photos = load()
    megapixels = sum(photo.shape[0] * photo.shape[1] for photo in photos.values()) / 1e6
    terminal.say("photographs", f"{len(photos)} with {megapixels:.1f} megapixels: {', '.join(photos)}")
    jobs = [(name, width) for width in WIDTHS for name in photos]

    start = time.perf_counter()
    local = [thumbnail(photos[name], width) for name, width in jobs]
    alone = time.perf_counter() - start

    start = time.perf_counter()
    with client.lease(workers=workers) as lease:
        black = np.zeros((8, 8, 3), np.uint8)
        first = lease.submit(thumbnail, black, 4).result()
        ready = time.perf_counter() - start
        for future in [lease.submit(thumbnail, black, 4) for _ in range(4 * workers)]:
            future.result()  # each worker imports Pillow at its first call
        start = time.perf_counter()
        futures = [lease.submit(thumbnail, photos[name], width) for name, width in jobs]
        remote = [future.result() for future in futures]
        took = time.perf_counter() - start

    if first.any() or not all(map(np.array_equal, local, remote)):
        raise terminal.DemoError("a worker's thumbnail differs from the same one made here")
    terminal.say(
        "first result", f"{terminal.seconds(ready)} after asking for the lease (starts Python, imports Pillow)"
    )
    terminal.say(
        "thumbnails", f"{len(jobs)} in {terminal.seconds(took)} on {workers} workers; here {terminal.seconds(alone)}"
    )
    terminal.good("checked", f"all {len(jobs)} equal those made in this process, pixel by pixel")
    largest = {name: picture for (name, width), picture in zip(jobs, remote, strict=True) if width == WIDTHS[0]}
    contact_sheet(largest, out / "thumbnails.png")
    terminal.say("contact sheet", str(out / "thumbnails.png"))
