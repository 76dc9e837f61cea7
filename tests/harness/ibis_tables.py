"""Tables with the columns of Ibis' test data, made by rules."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa

#: Columns of one player's year.
COUNTS = ("AB", "R", "H", "X2B", "X3B", "HR", "RBI", "SB", "CS", "BB", "SO", "IBB", "HBP", "SH", "SF", "GIDP")


def _alltypes() -> pa.Table:
    begin = dt.datetime(2009, 1, 1)
    rows = []
    for number in range(7_300):
        digit = number % 10
        at = begin + dt.timedelta(hours=number * 2.4, minutes=digit, milliseconds=digit * 100)
        rows.append(
            {
                "id": number,
                "bool_col": digit % 2 == 0,
                "tinyint_col": digit,
                "smallint_col": digit,
                "int_col": digit,
                "bigint_col": digit * 10,
                "float_col": digit * 1.1,
                "double_col": digit * 10.1,
                "date_string_col": f"{at:%m/%d/%y}",
                "string_col": str(digit),
                "timestamp_col": at,
                "year": at.year,
                "month": at.month,
            }
        )
    return pa.Table.from_pylist(rows)


def _players(chosen: random.Random, number: int) -> list[str]:
    return [f"{chosen.choice(['aaron', 'baker', 'cobb', 'dimag'])}{player % 400:02}" for player in range(number)]


def _batting() -> pa.Table:
    chosen = random.Random(1)
    number = 4_000
    counts = {name: [chosen.randrange(40) for _ in range(number)] for name in COUNTS}
    keys = {
        "playerID": _players(chosen, number),
        "yearID": [1871 + row % 145 for row in range(number)],
        "stint": [1 + row % 3 for row in range(number)],
        "teamID": [chosen.choice(["BOS", "CHN", "NYA", "WAS"]) for _ in range(number)],
        "lgID": [chosen.choice(["AL", "NL", None]) for _ in range(number)],
        "G": [chosen.randrange(160) for _ in range(number)],
    }
    return pa.table(keys | counts | {"RBI": [row % 40 for row in range(number)]})


def _awards() -> pa.Table:
    chosen = random.Random(2)
    number = 2_000
    # Ibis' tests expect so many years before 1900, and some of 2015.
    years = [1877, 1878, 1884, 1887, 1888, 1889, 1894, *range(1900, 2016)]
    return pa.table(
        {
            "playerID": _players(chosen, number),
            "awardID": [chosen.choice(["Gold Glove", "MVP", "Triple Crown"]) for _ in range(number)],
            "yearID": [years[row % len(years)] for row in range(number)],
            "lgID": [chosen.choice(["AL", "NL", "ML"]) for _ in range(number)],
            "tie": pa.array([chosen.choice(["Y", None]) for _ in range(number)], pa.string()),
            "notes": pa.array([chosen.choice(["1B", "OF", None]) for _ in range(number)], pa.string()),
        }
    )


def _diamonds() -> pa.Table:
    chosen = random.Random(3)
    number = 2_000
    sizes = {name: [chosen.randrange(300, 900) / 100 for _ in range(number)] for name in "xyz"}
    return pa.table(
        {
            "carat": [chosen.randrange(20, 300) / 100 for _ in range(number)],
            "cut": [chosen.choice(["Fair", "Good", "Ideal", "Premium", "Very Good"]) for _ in range(number)],
            "color": [chosen.choice("DEFGHIJ") for _ in range(number)],
            "clarity": [chosen.choice(["IF", "SI1", "SI2", "VS1", "VVS2"]) for _ in range(number)],
            "depth": [chosen.randrange(550, 700) / 10 for _ in range(number)],
            "table": [float(chosen.randrange(50, 70)) for _ in range(number)],
            "price": [chosen.randrange(300, 19_000) for _ in range(number)],
        }
        | sizes
    )


def made(name: str) -> pa.Table:
    """Returns a table. That of astronauts is empty."""
    makers = {
        "functional_alltypes": _alltypes,
        "batting": _batting,
        "awards_players": _awards,
        "diamonds": _diamonds,
    }
    return makers[name]() if name in makers else None
