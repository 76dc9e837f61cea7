"""Shows how the ranks of a group reach each other: `dayfly run --ranks 4 ways.py`."""

from dayfly import groups

group = groups.world()
ways = group.gather(group.ways)
for rank, row in enumerate(ways or []):  # only rank 0 has the gathered rows
    print(f"from {rank}:", *(f"{way or '-':8}" for way in row))
