"""Lends the idle core of one function to another, with and without, and draws what happened.

python examples/python/harvest.py [--out build/harvest.svg]

`pages` owns half of the cores and waits for a part of its time, which depends on its input. `keys` owns
the other half and could use all. First the node only watches, then it lends. It takes a minute.
"""

import argparse
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


def picture(results, rows):
    """The median times of each case as bars, and the node's cores over time below them."""
    width, height, parts = 640, 180, []
    longest = max(seconds for found in results.values() for both in found.values() for seconds in both)
    colors = {"watch": "#8a94a6", "on": "#1f77b4"}
    for number, case in enumerate(CASES):
        for kind, name in enumerate(("pages", "keys")):
            for side, mode in enumerate(("watch", "on")):
                seconds = results[mode][case][kind]
                x, tall = 20 + number * 210 + kind * 95 + side * 40, seconds / longest * 130
                parts.append(
                    f'<rect x="{x}" y="{150 - tall:.1f}" width="36" height="{tall:.1f}" fill="{colors[mode]}"/>'
                )
                parts.append(f'<text x="{x + 18}" y="{145 - tall:.1f}" text-anchor="middle">{seconds:.2f} s</text>')
            parts.append(f'<text x="{x - 2}" y="165" text-anchor="middle">{name}</text>')
        parts.append(f'<text x="{100 + number * 210}" y="185" text-anchor="middle">{case}</text>')
    parts.append('<text x="20" y="15">Median time of a call. Gray: without lending. Blue: with it.</text>')
    if points := rates(rows):
        most = max(max(point[1:]) for point in points) or 1
        parts.append(
            '<g transform="translate(20,230)"><text y="-8">Cores: owned (gray), used (green), borrowed (blue)</text>'
        )
        for column, color in ((1, "#8a94a6"), (2, "#2ca02c"), (3, "#1f77b4")):
            path = line(points, column, width - 40, height - 40, most)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        end = f'x="{width - 40}" y="{height - 22}" text-anchor="end"'
        parts.append(f'<text y="{height - 22}">0 s</text><text {end}>{points[-1][0]:.0f} s</text></g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 420" font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="420" fill="white"/>{"".join(parts)}</svg>'
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
