"""Intercommunicators of the even and the odd ranks: communicators of groups, and arguments that mean nothing."""

from array import array

from mpi4py import MPI

world = MPI.COMM_WORLD
own = world.rank % 2
local = world.Split(own, world.rank)
inter = local.Create_intercomm(0, world, 1 - own, 3)


def created(members):
    """A communicator of these ranks of each side."""
    group = inter.group.Incl(members[own])
    made = inter.Create(group)
    group.Free()
    return made


def part_of_each_group():
    """All even ranks in reverse, and the first odd one."""
    evens = (world.size + 1) // 2
    members = [list(range(evens))[::-1], [0]]
    made = created(members)
    if local.rank not in members[own]:
        assert made == MPI.COMM_NULL
        return
    assert made.is_inter
    assert (made.size, made.rank) == (len(members[own]), members[own].index(local.rank))
    others = made.allgather(world.rank)
    assert others == [2 * rank + 1 - own for rank in members[1 - own]]
    made.Free()


def empty_group():
    """Without ranks on one side there is no communicator."""
    assert created([[0], []]) == MPI.COMM_NULL


def arguments_without_meaning():
    """The root of an intercommunicator gives no elements of its own; its neighbours give nothing at all."""
    nothing = [None, 0, MPI.DATATYPE_NULL]
    values = array("i", [0] * inter.remote_size)
    root = 0 if own == 1 else MPI.ROOT if local.rank == 0 else MPI.PROC_NULL
    mine = array("i", [world.rank])
    match root:
        case MPI.ROOT:
            inter.Gather(nothing, values, root)
            assert values.tolist() == [2 * rank + 1 for rank in range(inter.remote_size)]
            inter.Scatter(values, nothing, root)
            inter.Bcast(mine, root)
        case MPI.PROC_NULL:
            inter.Gather(nothing, nothing, root)
            inter.Scatter(nothing, nothing, root)
            inter.Bcast(nothing, root)
        case _:
            inter.Gather(mine, nothing, root)
            got = array("i", [-1])
            inter.Scatter(nothing, got, root)
            assert got == mine
            inter.Bcast(got, root)
            assert got[0] == 0


part_of_each_group()
empty_group()
arguments_without_meaning()
inter.Free()
local.Free()
print(f"rank {world.rank} of {world.size} is done")
