"""The demo of data frames: trips, joined with their zones, grouped and written on workers, each result checked against
PyArrow in this process. Run by `make demo-frames`."""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import shutil
import sys
import time
from html import escape
from pathlib import Path
from typing import Any

import dayfly
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import terminal
from dayfly.frames import col, count
from terminal import DemoError

SEED, RANKS, FILES = 1973, 4, 8
BOROUGHS = {"Harbour": 0.9, "Old Town": 1.6, "Hills": 0.5, "Airport": 0.4, "University": 1.1}
ZONES = 60


def trips(random: random.Random, count: int, first: int) -> pa.Table:
    """Returns trips: zone, hour, distance in kilometres, fare. Canceled ones have no distance and no fare."""
    weights = [list(BOROUGHS.values())[zone % len(BOROUGHS)] for zone in range(ZONES)]
    zones = random.choices(range(ZONES), weights, k=count)
    hours = [int(random.triangular(0, 24, 18)) % 24 for _ in range(count)]
    distances = [0.0 if random.random() < 0.02 else round(0.3 + random.expovariate(1 / 4.0), 2) for _ in range(count)]
    fares = [round(2.5 + 1.8 * distance + 0.4 * (zone % 7), 2) for distance, zone in zip(distances, zones, strict=True)]
    known: list[float | None] = [fare if distance else None for fare, distance in zip(fares, distances, strict=True)]
    number = pa.array(range(first, first + count), pa.int64())
    return pa.table({"trip": number, "zone": zones, "hour": hours, "distance": distances, "fare": known})


def write_input(place: Path, rows: int) -> None:
    """Writes the same files in every run."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "trips").mkdir(parents=True)
    drawn = random.Random(SEED)
    each = rows // FILES
    for file in range(FILES):
        pq.write_table(trips(drawn, each, file * each), place / f"trips/{file}.parquet")
    with (place / "zones.csv").open("w", newline="") as file:
        names = list(BOROUGHS)
        csv.writer(file).writerows([("zone", "borough"), *((zone, names[zone % len(names)]) for zone in range(ZONES))])


def expected(place: Path) -> list[dict[str, Any]]:
    """Returns the busiest boroughs and hours, computed in this process."""
    table = pq.read_table(place / "trips").filter(pc.field("distance") > 0)
    zones = pa.table({"zone": range(ZONES), "borough": [list(BOROUGHS)[zone % len(BOROUGHS)] for zone in range(ZONES)]})
    grouped = table.join(zones, "zone").group_by(["borough", "hour"]).aggregate([([], "count_all"), ("fare", "mean")])
    rows = grouped.rename_columns({"count_all": "trips", "fare_mean": "fare"}).to_pylist()
    return sorted(rows, key=lambda row: (row["borough"], row["hour"]))


def check(found: list[dict[str, Any]], right: list[dict[str, Any]], what: str) -> None:
    """Compares rows. The last digits of a mean depend on the order of its terms.

    Raises:
        DemoError: if they differ.
    """
    for row, wanted in zip(found, right, strict=False):
        exact = [name for name in wanted if not isinstance(wanted[name], float)]
        means = [name for name in wanted if isinstance(wanted[name], float)]
        if any(row[name] != wanted[name] for name in exact) or not all(
            math.isclose(row[name], wanted[name], rel_tol=1e-9) for name in means
        ):
            raise DemoError(f"{what}: the workers computed {row}, and this process {wanted}")
    if len(found) != len(right):
        raise DemoError(f"{what}: the workers computed {len(found)} rows, and this process {len(right)}")
    terminal.good("checked", f"{what}: {len(right):,} rows, as in one process")


def picture(rows: list[dict[str, Any]]) -> str:
    """Returns a drawing of the trips by borough and hour: the darker, the more."""
    most = max(row["trips"] for row in rows)
    boroughs = sorted({row["borough"] for row in rows})
    cell, left, top = 28, 110, 46
    width, height = left + 24 * cell + 20, top + len(boroughs) * cell + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="24" font-size="15">Trips by borough and hour, at most {most:,}</text>',
    ]
    for line, borough in enumerate(boroughs):
        middle = top + line * cell + cell // 2 + 4
        parts.append(f'<text x="{left - 8}" y="{middle}" text-anchor="end">{escape(borough)}</text>')
    for hour in range(0, 24, 3):
        x, y = left + hour * cell + cell // 2, top + len(boroughs) * cell + 18
        parts.append(f'<text x="{x}" y="{y}" text-anchor="middle">{hour}:00</text>')
    for row in rows:
        x, y = left + row["hour"] * cell, top + boroughs.index(row["borough"]) * cell
        shade = row["trips"] / most
        red, green, blue = (round(255 + shade * (full - 255)) for full in (12, 74, 110))
        title = f"{row['borough']}, {row['hour']}:00: {row['trips']:,} trips, {row['fare']:.2f} on average"
        parts.append(
            f'<rect x="{x}" y="{y}" width="{cell - 2}" height="{cell - 2}" fill="rgb({red},{green},{blue})">'
            f"<title>{escape(title)}</title></rect>"
        )
    return "\n".join([*parts, "</svg>\n"])


def run(client: dayfly.Client, place: Path, out: Path) -> None:
    start = time.perf_counter()
    with client.frames(ranks=RANKS, partition_bytes=1 << 16) as session:
        terminal.say("session", f"{session.ranks} workers in {terminal.seconds(time.perf_counter() - start)}")
        rides = session.scan_parquet(place / "trips/*.parquet")
        zones = session.scan_csv(place / "zones.csv")
        by_hour = (
            rides.filter(col("distance") > 0)
            .join(zones, on="zone")
            .group_by("borough", "hour")
            .agg(count().alias("trips"), col("fare").mean().alias("fare"))
            .sort("borough", "hour")
        )
        print(by_hour.explain())
        start = time.perf_counter()
        rows = by_hour.collect().to_pyarrow().to_pylist()
        terminal.say("on the workers", terminal.seconds(time.perf_counter() - start))
        start = time.perf_counter()
        right = expected(place)
        terminal.say("PyArrow, here", terminal.seconds(time.perf_counter() - start))
        check(rows, right, "trips by borough and hour")
        busiest = (
            by_hour.group_by("borough").agg(col("trips").sum().alias("trips")).sort("trips", descending=True).collect()
        )
        print(busiest)
        written = out / "by_zone"
        shutil.rmtree(written, ignore_errors=True)
        rides.write_parquet(written, partition_by="zone")
        back = session.sql(
            "SELECT zone, sum(fare) AS fare FROM t GROUP BY zone ORDER BY zone", t=session.scan_parquet(written)
        )
        table = pq.read_table(place / "trips").group_by("zone").aggregate([("fare", "sum")]).sort_by("zone")
        sums = table.rename_columns({"fare_sum": "fare"}).to_pylist()
        check(back.collect().to_pyarrow().to_pylist(), sums, "fares by zone, written by the workers and read back")
    (out / "frames.svg").write_text(picture(rows))
    terminal.say("picture", str(out / "frames.svg"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="directory for the picture and the data")
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of trips")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    place = options.out / "frames"
    try:
        terminal.title(f"{options.rows:,} trips on {RANKS} workers")
        write_input(place, options.rows)
        terminal.say(
            "input", f"{FILES} files of Parquet and one of CSV, in {terminal.seconds(time.perf_counter() - start)}"
        )
        if directory := os.environ.get("DAYFLY_BIN_DIR"):
            os.environ["DAYFLY_BIN"] = str(Path(directory) / "dayfly")
        with dayfly.connect() as client:
            run(client, place, options.out)
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    print(f"\nDone in {terminal.seconds(time.perf_counter() - start)}; the picture is in {options.out}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
