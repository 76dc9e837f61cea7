"""Shows how the ranks of a group reach each other: `dayfly run --ranks 4 ways.py`."""

from dayfly import MPI

ways = MPI.COMM_WORLD.gather(MPI.COMM_WORLD.ways)
for rank, row in enumerate(ways or []):  # only rank 0 has the gathered rows
    print(f"from {rank}:", *(f"{way or '-':8}" for way in row))
