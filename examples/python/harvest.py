"""Lends the idle core of one function to another, with and without, and draws what happened.

python examples/python/harvest.py [--out build/harvest.svg]

`pages` owns half of the cores and waits for a part of its time, which depends on its input. `keys` owns
the other half and could use all. First the node only watches, then it lends. It takes a minute.
"""

import argparse
import math
import os
import statistics
import threading
import time
from pathlib import Path

import dayfly

#: Shares of its time in which `pages` computes: few pages, more, and as many as its cores can make.
CASES = {"few pages": 10, "more pages": 50, "many pages": 100}
#: Calls of each case before it is measured: the first one runs as it is configured, and the next 20 are the profile.
LEARNING = 14


def pages(share):
    """Renders pages for a share of each hundredth of a second, in percent, and waits for a store in between."""
    import string
    import time

    page = string.Template("$name has $items. " * 20)
    begin, rendered = time.monotonic(), 0
    for turn in range(25):
        start = begin + turn / 100
        time.sleep(max(0.0, start - time.monotonic()))
        while time.monotonic() < start + share / 10_000:
            rendered += len(page.substitute(name="Ada", items=", ".join(map(str, range(20)))))
    return rendered


def keys(passwords, threads):
    """Derives a key from each password in several threads."""
    import hashlib
    from concurrent.futures import ThreadPoolExecutor

    def key(password):
        return hashlib.pbkdf2_hmac("sha256", password, b"salt", 50_000)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(key, passwords))


def timed(lease, function, *arguments):
    begin = time.perf_counter()
    lease.call(function, *arguments)
    return time.perf_counter() - begin


class Repeated(threading.Thread):
    """Calls a function of a lease again and again until it is stopped."""

    def __init__(self, lease, function, *arguments):
        super().__init__()
        self.seconds = []
        self._stopped = threading.Event()
        self._call = (lease, function, *arguments)
        self.start()

    def run(self):
        while not self._stopped.is_set():
            self.seconds.append(timed(*self._call))

    def stop(self):
        self._stopped.set()
        self.join()


class Watcher(threading.Thread):
    """Reads what the node's calls own, use and borrow."""

    def __init__(self, client):
        super().__init__()
        self.rows = []
        self._client, self._stopped = client, threading.Event()
        self.start()

    def run(self):
        begin = time.monotonic()
        while not self._stopped.wait(0.25):
            cpu = self._client.nodes()[0]["harvest"]["core_ms"]
            self.rows.append((time.monotonic() - begin, cpu["owned"], cpu["used"], cpu["borrowed"]))

    def stop(self):
        self._stopped.set()
        self.join()


def measured(mode, cores, passwords, calls):
    """Median seconds of both functions in each case, and what the node's calls used over time."""
    os.environ["DAYFLY_HARVEST"] = mode
    found = {}
    half = cores // 2
    with (
        dayfly.connect() as client,
        client.lease(cores=half, mode="warm") as front,
        client.lease(cores=half, mode="warm") as back,
    ):
        harvest = client.nodes()[0].get("harvest", {})
        if harvest.get("mode") != mode:
            raise SystemExit("A manager is running already. Stop it first: this program starts its own.")
        if "why" in harvest:
            raise SystemExit(f"This machine lends nothing. {harvest['why']}")
        watcher = Watcher(client)
        for case, share in CASES.items():
            lender = Repeated(front, pages, share)
            for _ in range(LEARNING):
                back.call(keys, passwords, cores)
            lender.seconds.clear()
            derived = [timed(back, keys, passwords, cores) for _ in range(calls)]
            lender.stop()
            found[case] = statistics.median(lender.seconds), statistics.median(derived)
        watcher.stop()
    return found, watcher.rows


def rates(rows):
    """Cores that were owned, used and borrowed between two readings that differ."""
    points, before = [], rows[0]
    for row in rows[1:]:
        if row[1] > before[1] and row[0] - before[0] > 0.9:
            seconds = row[0] - before[0]
            points.append(
                (row[0], *((now - then) / 1000 / seconds for now, then in zip(row[1:], before[1:], strict=True)))
            )
            before = row
    return points


def line(points, column, width, height, most):
    end = points[-1][0]
    return " ".join(f"{point[0] / end * width:.1f},{height - point[column] / most * height:.1f}" for point in points)


def bars(results):
    """The median times of each case."""
    longest = max(seconds for found in results.values() for both in found.values() for seconds in both)
    parts = ['<text x="20" y="18">Median time of a call without lending (gray) and with it (blue)</text>']
    for number, case in enumerate(CASES):
        for kind, name in enumerate(("pages", "keys")):
            left = 20 + number * 215 + kind * 100
            for side, (mode, color) in enumerate((("watch", "#8a94a6"), ("on", "#1f77b4"))):
                seconds = results[mode][case][kind]
                x, tall = left + side * 44, seconds / longest * 100
                parts.append(f'<rect x="{x}" y="{150 - tall:.1f}" width="40" height="{tall:.1f}" fill="{color}"/>')
                parts.append(f'<text x="{x + 20}" y="{145 - tall:.1f}" text-anchor="middle">{seconds:.2f} s</text>')
            parts.append(f'<text x="{left + 42}" y="166" text-anchor="middle">{name}</text>')
        parts.append(f'<text x="{112 + number * 215}" y="186" text-anchor="middle">{case}</text>')
    return parts


def timeline(points, width, height):
    """What the node's calls owned, used and borrowed while it lent."""
    most = math.ceil(max(max(point[1:]) for point in points)) or 1
    parts = [
        '<text x="20" y="222">Cores of running calls while the node lends: owned (gray), used (green), '
        "borrowed (blue)</text>",
        '<g transform="translate(45,240)">',
    ]
    for cores in range(most + 1):
        y = height - cores / most * height
        parts.append(f'<line x2="{width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{cores}</text>')
    for column, color in ((1, "#8a94a6"), (2, "#2ca02c"), (3, "#1f77b4")):
        path = line(points, column, width, height, most)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
    parts.append(f'<text y="{height + 20}">0 s</text>')
    parts.append(f'<text x="{width}" y="{height + 20}" text-anchor="end">{points[-1][0]:.0f} s</text></g>')
    return parts


def picture(results, rows):
    """Both drawings."""
    parts = bars(results)
    if points := rates(rows):
        parts += timeline(points, 600, 130)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 665 410" font-family="sans-serif" font-size="12">'
        f'<rect width="665" height="410" fill="white"/>{"".join(parts)}</svg>'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/harvest.svg"), help="the picture")
    parser.add_argument("--calls", type=int, default=8, help="measured calls of each case")
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) // 2 * 2
    if cores < 2:
        raise SystemExit("This needs two cores.")
    passwords = [f"password {number}".encode() for number in range(16 * cores)]
    results = {}
    for mode in ("watch", "on"):
        results[mode], rows = measured(mode, cores, passwords, given.calls)
    print(f"{'case':12} {'pages':>16} {'keys':>16} {'keys is faster by':>18}")
    for case in CASES:
        (slow_pages, slow), (fast_pages, fast) = results["watch"][case], results["on"][case]
        print(f"{case:12} {slow_pages:6.3f} -> {fast_pages:5.3f} s {slow:6.3f} -> {fast:5.3f} s {slow / fast:17.2f}x")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(picture(results, rows))
    print(f"The picture is {given.out}")


if __name__ == "__main__":
    main()
