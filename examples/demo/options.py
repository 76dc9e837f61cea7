"""Black-Scholes prices of a million options, computed by a C function that Python and C++ call."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import terminal

ROOT = Path(__file__).resolve().parents[2]
COUNT = 1_000_000
CHUNK = 50_000


def market() -> Any:
    """Returns rows of spot, strike, years to expiry, interest rate and volatility. The random seed is fixed."""
    random = np.random.default_rng(1973)
    low, high = np.array([(50, 150), (50, 150), (0.1, 3), (0.0, 0.08), (0.1, 0.6)]).T
    return random.uniform(low, high, (COUNT, 5))


def price(options: Any) -> Any:
    """Returns the prices, computed with NumPy."""
    from scipy.special import erfc

    spot, strike, years, rate, volatility = options.T
    spread = volatility * np.sqrt(years)
    d1 = (np.log(spot / strike) + (rate + 0.5 * volatility**2) * years) / spread

    def normal(x: Any) -> Any:
        return 0.5 * erfc(-x * np.sqrt(0.5))

    return spot * normal(d1) - strike * np.exp(-rate * years) * normal(d1 - spread)


def compiled(source: Path, output: Path, *flags: str) -> Path:
    """Compiles C or C++ with these flags."""
    compiler = os.environ.get("CXX", "c++") if source.suffix == ".cpp" else os.environ.get("CC", "cc")
    standard = ["-std=c++17"] if source.suffix == ".cpp" else []
    includes = [f"-I{ROOT / 'bindings' / part / 'include'}" for part in ("c", "cxx")]
    command = [compiler, *standard, "-O3", *includes, str(source), "-o", str(output), *flags]
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise terminal.DemoError(
            f"no compiler `{compiler}`: install one (apt-get install g++), or name it by CC and CXX"
        ) from None
    return output


def check(prices: Any, expected: Any, where: str) -> None:
    worst = float(np.max(np.abs(prices - expected)))
    if prices.shape != expected.shape or not np.allclose(prices, expected, rtol=1e-10, atol=1e-10):
        raise terminal.DemoError(f"the prices from {where} differ from NumPy's by up to {worst}")
    terminal.good("checked", f"all {len(prices):,} prices are NumPy's; the largest difference is {worst:.1e}")


def from_python(client: Any, workers: int, library: Path, options: Any, expected: Any) -> None:
    with client.lease(workers=workers, runtime="native") as lease:
        function = lease.library(str(library)).checked("blackscholes")
        function(options[:1])  # each worker loads the function at its first call
        prices = np.empty(COUNT)
        start = time.perf_counter()
        futures = [
            function.submit(options[at : at + CHUNK], out=prices[at : at + CHUNK]) for at in range(0, COUNT, CHUNK)
        ]
        for future in futures:
            future.result()
        took = time.perf_counter() - start
    terminal.say("from Python", f"{COUNT:,} prices in {terminal.seconds(took)}, {COUNT / took / 1e6:.1f} million/s")
    check(prices, expected, "Python")


def from_cxx(workers: int, library: Path, libraries: Path, out: Path, *, options: Any, expected: Any) -> None:
    flags = [f"-L{libraries}", "-ldayfly", f"-Wl,-rpath,{libraries}", "-pthread"]
    program = compiled(Path(__file__).parent / "blackscholes.cpp", out / "blackscholes", *flags)
    options.tofile(out / "options.bin")
    command = [str(program), str(library), str(out / "options.bin"), str(out / "prices.bin"), str(workers)]
    took = float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)
    terminal.say("from C++", f"{COUNT:,} prices in {terminal.seconds(took)}, {COUNT / took / 1e6:.1f} million/s")
    check(np.fromfile(out / "prices.bin"), expected, "C++")
    (out / "options.bin").unlink()
    (out / "prices.bin").unlink()


def run(client: Any, workers: int, libraries: Path, out: Path) -> None:
    terminal.title("Black-Scholes prices of a million options, by a C function")
    options = market()
    start = time.perf_counter()
    expected = price(options)
    took = time.perf_counter() - start
    terminal.say("NumPy, here", f"{COUNT:,} prices in {terminal.seconds(took)}, {COUNT / took / 1e6:.1f} million/s")
    source = ROOT / "examples" / "functions" / "blackscholes.c"
    library = compiled(source, out / "libblackscholes.so", "-shared", "-fPIC", "-lm")
    from_python(client, workers, library, options, expected)
    from_cxx(workers, library, libraries, out, options=options, expected=expected)
