"""All-to-all exchanges among the neighbours of small grids, in every form. For any MPI."""

import itertools
import json
import pathlib
import sys
from array import array

from mpi4py import MPI

world = MPI.COMM_WORLD
found = {}


def started(request):
    request.Start()
    request.Wait()
    request.Free()


def forms(grid, sent, got):
    """What exchanges one number with each neighbour."""
    ones, places = [1] * len(sent), list(range(len(sent)))
    offsets = [place * sent.itemsize for place in places]
    plain = (sent, MPI.INT), (got, MPI.INT)
    placed = [sent, ones, places, MPI.INT], [got, ones, places, MPI.INT]
    typed = [sent, ones, offsets, [MPI.INT] * len(sent)], [got, ones, offsets, [MPI.INT] * len(sent)]
    for name, arguments in ("alltoall", plain), ("alltoallv", placed), ("alltoallw", typed):
        yield name, lambda name=name, arguments=arguments: getattr(grid, f"Neighbor_{name}")(*arguments)
        yield f"i{name}", lambda name=name, arguments=arguments: getattr(grid, f"Ineighbor_{name}")(*arguments).Wait()
        if MPI.VERSION >= 4:
            yield (
                f"{name}_init",
                lambda name=name, arguments=arguments: started(getattr(grid, f"Neighbor_{name}_init")(*arguments)),
            )


for sizes in [world.size], [1, world.size], [world.size, 1]:
    for wraps in itertools.product([False, True], repeat=len(sizes)):
        grid = world.Create_cart(sizes, wraps)
        sent = array("i", [10 * grid.rank + at for at in range(2 * len(sizes))])
        for name, exchange in forms(grid, sent, got := array("i", sent)):
            got[:] = array("i", [-1] * len(sent))
            exchange()
            found[f"{sizes} {wraps} {name}"] = got.tolist()
        grid.Free()
pathlib.Path(sys.argv[1], f"{world.rank}.json").write_text(json.dumps(found))
