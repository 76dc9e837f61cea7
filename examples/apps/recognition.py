"""Recognises digits in photographs with a neural network, which each worker loads once.

    python examples/apps/recognition.py

The network is a multilayer perceptron that scikit-learn trains on its own images of digits, from a fixed seed. A larger
one, such as ResNet-50, needs weights that are not part of any package here.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

#: Pixels on a side of the network's input, and its largest value.
SIDE, WHITE = 8, 16.0
#: The networks of this process by the path of their file: loaded once, and used by all calls of this worker.
_networks: dict[str, list[tuple[Any, Any]]] = {}
_loaded: list[str] = []


def train(path: Path) -> float:
    """Trains the network and writes it to a file. Returns the share of unseen digits that it recognises."""
    import warnings

    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    digits = load_digits()
    seen = len(digits.data) * 3 // 4
    model = MLPClassifier((64, 32), random_state=0, max_iter=25, learning_rate_init=0.005)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it stops before it has converged
        model.fit(digits.data[:seen] / WHITE, digits.target[:seen])
    layers = {f"w{i}": weights for i, weights in enumerate(model.coefs_)}
    np.savez(path, **layers, **{f"b{i}": bias for i, bias in enumerate(model.intercepts_)})
    return float(model.score(digits.data[seen:] / WHITE, digits.target[seen:]))


def _network(path: str) -> list[tuple[Any, Any]]:
    if path not in _networks:
        with np.load(path) as file:
            count = len(file.files) // 2
            _networks[path] = [(file[f"w{i}"], file[f"b{i}"]) for i in range(count)]
        _loaded.append(path)
    return _networks[path]


def loads() -> int:
    """Returns how many times this process has loaded a network."""
    return len(_loaded)


def recognise(path: str, photos: Sequence[bytes]) -> list[int]:
    """Returns the digit in each of a batch of JPEGs."""
    inputs = np.empty((len(photos), SIDE * SIDE))
    for row, photo in zip(inputs, photos, strict=True):
        with Image.open(io.BytesIO(photo)) as image:
            image.draft("L", (SIDE * 8, SIDE * 8))
            small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
        row[:] = np.asarray(small, dtype=float).ravel() / 255.0
    layers = _network(path)
    values = inputs
    for number, (weights, bias) in enumerate(layers):
        values = values @ weights + bias
        if number < len(layers) - 1:
            values = np.maximum(values, 0.0)
    return [int(digit) for digit in values.argmax(axis=1)]


def photograph(digit: Any, side: int, seed: int) -> bytes:
    """Returns a noisy JPEG of one of scikit-learn's digits, with ``side`` pixels on a side."""
    image = Image.fromarray((digit / WHITE * 255).astype(np.uint8)).resize((side, side), Image.Resampling.BOX)
    noise = np.random.default_rng(seed).normal(0.0, 12.0, (side, side))
    pixels = np.clip(np.asarray(image, dtype=float) + noise, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=85)
    return out.getvalue()


def main() -> None:
    import dayfly
    from sklearn.datasets import load_digits

    digits = load_digits()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "network.npz"
        print(f"the network recognises {train(path):.1%} of unseen digits")
        photos = [photograph(digits.images[i], 256, i) for i in range(-64, 0)]
        batches = [photos[i : i + 8] for i in range(0, len(photos), 8)]
        with dayfly.connect() as client, client.lease(workers=2) as lease:
            futures = [lease.submit(recognise, str(path), batch) for batch in batches]
            found = [digit for future in futures for digit in future.result()]
    right = sum(int(one == other) for one, other in zip(found, digits.target[-64:], strict=True))
    print(f"{right} of {len(found)} photographs recognised on leased workers")


if __name__ == "__main__":
    main()
