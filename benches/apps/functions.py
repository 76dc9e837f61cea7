"""Functions of a service: thumbnails and recognition on leased workers, beside other ways to run the same functions."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from measure import MIN_ROUNDS, Measured, WrongResultError, in_turns, note, row
from processes import EXAMPLES, HttpServer, cores, function_servers, has

sys.path.insert(0, str(EXAMPLES))
# One thread in each process, on all sides: the inputs are too small for more.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import recognition
import server
import thumbnails

#: Bytes of the inputs, as the papers have them.
THUMBNAIL_BYTES = {"97 kB": 97_000, "3.6 MB": 3_600_000}
RECOGNITION_BYTES = {"53 kB": 53_000, "230 kB": 230_000}
BATCH = 8
OURS = "leases"


def near(make: Callable[[int], bytes], size: int, side: int = 512) -> bytes:
    """Returns a picture of about ``size`` bytes. ``make`` takes its side, with whose square the length grows."""
    made = make(side)
    for _ in range(3):
        side = max(16, round(side * (size / len(made)) ** 0.5))
        made = make(side)
    return made


def photo(side: int) -> bytes:
    """Returns a JPEG of a photograph that scikit-image contains, scaled to a side."""
    import skimage.data
    from PIL import Image

    out = io.BytesIO()
    with Image.open(Path(skimage.data.__file__).parent / "astronaut.png") as image:
        image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC).save(out, "JPEG", quality=92)
    return out.getvalue()


class Ways:
    """The ways to run a function over items, each with its own processes."""

    def __init__(self, workers: int, ray: bool) -> None:
        self.workers = workers
        self.stack = ExitStack()
        # The pool is forked while this process has one thread.
        pool = multiprocessing.get_context("fork").Pool(workers)
        self.stack.callback(pool.join)
        self.stack.callback(pool.terminate)
        self.pool = pool
        self.servers: list[HttpServer] = []
        if has("uvicorn"):
            self.servers = self.stack.enter_context(function_servers(workers))
        import dayfly

        client = self.stack.enter_context(dayfly.Client._own())
        self.lease = self.stack.enter_context(client.lease(workers=workers, mode="warm", sandbox="process"))
        self.ray = self.stack.enter_context(_ray(workers)) if ray else None

    def by_lease(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Runs calls, each a function with its arguments."""
        futures: list[Future[Any]] = [self.lease.submit(*call) for call in calls]
        return [future.result() for future in futures]

    def by_http(self, path: str, bodies: Sequence[bytes]) -> list[bytes]:
        """Each connection takes the next item when its server has responded."""
        out: list[bytes] = [b""] * len(bodies)
        numbers, lock, failed = iter(range(len(bodies))), threading.Lock(), []

        def serve(client: HttpServer) -> None:
            try:
                while True:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    out[number] = client.call(path, bodies[number])
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=serve, args=(client,)) for client in self.servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return out

    def by_ray(self, call: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> list[Any]:
        import ray

        remote = ray.remote(call)
        found: list[Any] = ray.get([remote.remote(*item) for item in items])
        return found


@contextmanager
def _ray(workers: int) -> Iterator[bool]:
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, logging_level="error", log_to_driver=False)
    try:
        yield True
    finally:
        ray.shutdown()


#: Why a side won.
WHY = {
    "one process": {
        "won": "{workers} workers compute at once, and a call costs little beside its work",
        "lost": "the calls cost more than the second core gives",
    },
    "process pool": {
        "won": "arguments and results reach the workers through shared memory, not pickled through a pipe",
        "lost": "both run the same function on the same cores, and the pool's pipe costs less here than a call",
        "even": "both run the same function on the same cores, and its work hides what a call costs",
    },
    "HTTP function server": {
        "won": "no HTTP is parsed, and no body is copied through a socket",
        "lost": "its connections kept the cores busier than the calls did",
        "even": "the work of the function hides what HTTP costs",
    },
    "Ray": {
        "won": "no scheduler and no object store is between the program and its workers",
        "lost": "its workers were busier than those of the lease",
        "even": "the work of the function hides what a task costs",
    },
}


@dataclass
class Comparison:
    """One function over one list of inputs."""

    app: str
    given: str
    sides: dict[str, Callable[[], Any]]
    expected: Any

    def rows(self, rounds: int, workers: int) -> list[dict[str, Any]]:
        """Measures the sides in turns. Every result of every round must be the expected one."""
        compared = {name: self._checked(name, run) for name, run in self.sides.items()}
        for run in compared.values():
            run()  # imports, connections and first pages
        times = in_turns(compared, max(rounds, MIN_ROUNDS))
        here = len(cores())
        found = []
        for against in times:
            if against == OURS:
                continue
            why = {how: text.format(workers=workers) for how, text in WHY[against].items()}
            used = 1 if against == "one process" else min(workers, here)
            settings = {"cores": used, "leased_cores": min(workers, here), "input": self.given, "checked": True}
            found.append(row(self.app, OURS, against, times, why=why, **settings))
        return found

    def _checked(self, name: str, run: Callable[[], Any]) -> Callable[[], None]:
        def compare() -> None:
            if run() != self.expected:
                said = f"{self.app} of {self.given}: {name} returned something else than one process does"
                raise WrongResultError(said)

        return compare


def _thumbnails(ways: Ways, given: str, items: list[bytes]) -> Comparison:
    run = thumbnails.thumbnail
    sides: dict[str, Callable[[], Any]] = {
        OURS: lambda: ways.by_lease([(run, item) for item in items]),
        "one process": lambda: [run(item) for item in items],
        "process pool": lambda: ways.pool.map(run, items, chunksize=1),
    }
    if ways.servers:
        sides["HTTP function server"] = lambda: ways.by_http("/thumbnail", items)
    if ways.ray:
        sides["Ray"] = lambda: ways.by_ray(run, [(item,) for item in items])
    return Comparison("thumbnails", given, sides, [run(item) for item in items])


def measure_thumbnails(ways: Ways, quick: bool) -> list[dict[str, Any]]:
    found = []
    for given, size in chosen(THUMBNAIL_BYTES, quick):
        picture = near(photo, size, 512 if size < 1_000_000 else 3000)
        count = 4 if quick else 120 if size < 1_000_000 else 12
        note(f"thumbnails of {count} photographs of {len(picture)} bytes")
        found += _thumbnails(ways, given, [picture] * count).rows(6 if quick else 12, ways.workers)
    return found


def _recognition(ways: Ways, given: str, path: str, batches: list[list[bytes]]) -> Comparison:
    run = recognition.recognise
    bodies = [server.pack(batch) for batch in batches]
    sides: dict[str, Callable[[], Any]] = {
        OURS: lambda: ways.by_lease([(run, path, batch) for batch in batches]),
        "one process": lambda: [run(path, batch) for batch in batches],
        "process pool": lambda: ways.pool.starmap(run, [(path, batch) for batch in batches], chunksize=1),
    }
    if ways.servers:
        address = f"/recognise?{quote(path)}"
        sides["HTTP function server"] = lambda: [list(out) for out in ways.by_http(address, bodies)]
    if ways.ray:
        sides["Ray"] = lambda: ways.by_ray(run, [(path, batch) for batch in batches])
    return Comparison("recognition", given, sides, [run(path, batch) for batch in batches])


def measure_recognition(ways: Ways, quick: bool) -> list[dict[str, Any]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    found = []
    with tempfile.TemporaryDirectory(prefix="dayfly-apps-") as directory:
        path = Path(directory) / "network.npz"
        share = recognition.train(path)
        note(f"the network recognises {share:.1%} of unseen digits")
        if share < 0.85:
            raise WrongResultError(f"the network recognises only {share:.1%} of unseen digits")
        for given, size in chosen(RECOGNITION_BYTES, quick):
            side = side_of(digits.images[-1], size)
            count = BATCH * (2 if quick else 12)
            first = len(digits.images) - count
            photos = [recognition.photograph(digits.images[first + i], side, i) for i in range(count)]
            note(f"recognition of {count} photographs of {len(photos[0])} bytes in batches of {BATCH}")
            compared = _recognition(ways, given, str(path), [photos[i : i + BATCH] for i in range(0, count, BATCH)])
            digits_found = [digit for batch in compared.expected for digit in batch]
            right = sum(int(one == other) for one, other in zip(digits_found, digits.target[first:], strict=True))
            if right < count * 0.7:
                raise WrongResultError(f"the network recognises only {right} of {count} photographs")
            found += compared.rows(6 if quick else 12, ways.workers)
        loaded = set(ways.by_lease([(recognition.loads,)] * (ways.workers * 4)))
        # A worker that got no batch has loaded none.
        if not loaded <= {0, 1} or 1 not in loaded:
            raise WrongResultError(f"workers loaded the network {sorted(loaded)} times instead of once")
    return found


def side_of(digit: Any, size: int) -> int:
    """Returns the side of a photograph of this length."""
    side = 256
    for _ in range(3):
        side = max(16, round(side * (size / len(recognition.photograph(digit, side, 0))) ** 0.5))
    return side


def chosen(sizes: dict[str, int], quick: bool) -> list[tuple[str, int]]:
    """Returns all inputs, or the smallest."""
    return list(sizes.items())[: 1 if quick else None]


def measure(wanted: set[str], quick: bool) -> Measured:
    """Measures the wanted ones of both applications."""
    apps = [name for name in ("thumbnails", "recognition") if name in wanted]
    left_out: list[dict[str, str]] = []
    if not apps:
        return [], []
    for app in apps:
        if not has("uvicorn"):
            left_out.append({"app": app, "against": "HTTP function server", "why": "uvicorn is not installed"})
        if not has("ray"):
            left_out.append({"app": app, "against": "Ray", "why": "Ray is not installed"})
    if "recognition" in apps:
        why = "its weights are in no package that this measurement may use; a perceptron of scikit-learn's digits runs"
        left_out.append({"app": "recognition", "against": "ResNet-50", "why": why})
    ways = Ways(2, has("ray"))
    with ways.stack:
        found: list[dict[str, Any]] = []
        if "thumbnails" in apps:
            found += measure_thumbnails(ways, quick)
        if "recognition" in apps:
            found += measure_recognition(ways, quick)
    return found, left_out
