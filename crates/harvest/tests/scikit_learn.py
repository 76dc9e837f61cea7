#!/usr/bin/env python3
"""Make `scikit_learn.json`: ten synthetic functions, and what scikit-learn's random forests score on them.

Usage: pip install scikit-learn==1.9.1 && python3 scikit_learn.py > scikit_learn.json

The functions have the shapes of the ten in table 2 of LIBRA: the demand of the first five depends on the size of their
input, that of the others does not. Classes are those of `profile/classes.rs`. Scores are means over five seeds.
"""

import json
import math

import numpy
import sklearn
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

ROWS = 540
TRAIN = 270
SEEDS = range(5)
# The settings of the profiles, and the defaults of scikit-learn.
SETTINGS = {"profile": {"n_estimators": 32, "min_samples_leaf": 3}, "default": {}}


def cpu_class(milli_cores: int) -> int:
    return max(1, -(-milli_cores // 250)) if milli_cores <= 1000 else -(-milli_cores // 1000) + 3


def memory_class(mib: int) -> int:
    return 0 if mib <= 64 else math.ceil(2 * math.log2(mib / 64) - 1e-9)


def functions(random: numpy.random.Generator):
    """Yield the name and, for each call, bytes, size, thousandths of a core, MiB and milliseconds."""

    def noise(share: float):
        return random.normal(1, share, ROWS)

    size = random.uniform(1, 100, ROWS)
    yield "upload", size * 1e4, size, 300 + 9 * size * noise(0.1), 90 + size * noise(0.02), 40 + 12 * size * noise(0.12)
    size = random.integers(100, 4000, ROWS)
    area = size * size / 1e6
    yield "thumbnail", area * 4e4, size, 400 + 200 * area * noise(0.03), 70 + 24 * area, 30 + 60 * area * noise(0.1)
    size = random.uniform(1, 64, ROWS)
    threads = numpy.minimum(8, 1 + size // 8)
    yield "compress", size * 1e6, size, 970 * threads * noise(0.01), 60 + 9 * size, 50 * size * noise(0.06)
    size = random.integers(1, 200, ROWS)
    yield "dna", size * 1e3, size, 990 + 0 * size * noise(0.1), 120 + 1.5 * size, 8 * size * noise(0.05)
    size = random.integers(1, 5000, ROWS)
    yield (
        "html",
        90 + 0 * size,
        size,
        180 + 0.11 * size * noise(0.1),
        60 + 0.01 * size * noise(0.1),
        2 + size / 90 * noise(0.15),
    )

    size = random.uniform(1, 100, ROWS)
    kind = random.integers(0, 3, ROWS)
    yield (
        "video",
        size * 1e6,
        size,
        1000 + 2500 * kind * noise(0.1),
        200 * 1.6**kind * noise(0.1),
        random.lognormal(8, 1, ROWS),
    )
    size = random.uniform(1, 20, ROWS)
    kind = random.random(ROWS) < 0.3
    yield (
        "recognise",
        size * 1e5,
        size,
        1500 + 3000 * kind * noise(0.1),
        300 + 250 * kind * noise(0.1),
        random.lognormal(6, 0.6, ROWS),
    )
    for name, spread in (("pagerank", 0.5), ("tree", 0.3), ("search", 0.8)):
        size = random.integers(10, 100000, ROWS)
        content = random.random(ROWS)
        yield (
            name,
            size * 8,
            size,
            500 + 4000 * content**2,
            100 + 500 * content,
            1000 * random.lognormal(0, spread, ROWS),
        )


def scores(rows, options) -> list[float]:
    """Return the accuracy of the CPU class and of the memory class, and R2 of the duration."""
    rows = numpy.array(rows, dtype=float)
    features = rows[:, :2].astype(numpy.float32)
    means = []
    for model, column in ((RandomForestClassifier, 3), (RandomForestClassifier, 5), (RandomForestRegressor, 6)):
        found = []
        for seed in SEEDS:
            forest = model(random_state=seed, **options).fit(features[:TRAIN], rows[:TRAIN, column])
            found.append(forest.score(features[TRAIN:], rows[TRAIN:, column]))
        means.append(round(float(numpy.mean(found)), 4))
    return means


def main() -> None:
    made = []
    for name, *drawn in functions(numpy.random.default_rng(20231)):
        columns = [numpy.maximum(1, numpy.rint(column)).astype(int).tolist() for column in drawn]
        rows = [
            [size, count, cores, cpu_class(cores), mib, memory_class(mib), duration]
            for size, count, cores, mib, duration in zip(*columns, strict=True)
        ]
        found = {settings: scores(rows, options) for settings, options in SETTINGS.items()}
        made.append({"name": name, "scores": found, "rows": rows})
    made = {"scikit_learn": sklearn.__version__, "train": TRAIN, "functions": made}
    print(json.dumps(made, separators=(",", ":")).replace('{"name"', '\n{"name"'))


if __name__ == "__main__":
    main()
