"""Every operation of a group with random sizes, types and roots: ``operations.py MODULE FOLDER CASES SEED...``.

Each rank writes into the folder, line by line, what it called and a digest of what came of it. These are the same for
mpi4py over Open MPI (MODULE is ``mpi4py``) and over Dayfly (``dayfly``). Values are such that the order in which they
are added up does not matter.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MPI: Any = importlib.import_module(f"{sys.argv[1]}.MPI")

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
NUMBERS = [*INTEGERS, "f4", "f8"]
COMPLEX = ["c8", "c16"]
TYPES = {
    "i1": MPI.SIGNED_CHAR,
    "i2": MPI.SHORT,
    "i4": MPI.INT,
    "i8": MPI.LONG,
    "u1": MPI.UNSIGNED_CHAR,
    "u2": MPI.UNSIGNED_SHORT,
    "u4": MPI.UNSIGNED,
    "u8": MPI.UNSIGNED_LONG,
    "f4": MPI.FLOAT,
    "f8": MPI.DOUBLE,
    "c8": MPI.C_FLOAT_COMPLEX,
    "c16": MPI.C_DOUBLE_COMPLEX,
    "?": MPI.C_BOOL,
}
PAIRS = {
    "DOUBLE_INT": "f8",
    "LONG_INT": "i8",
    "FLOAT_INT": "f4",
    "TWOINT": "i4",
    "SHORT_INT": "i2",
}


def last(left: Any, right: Any, _type: Any) -> None:
    """Returns the last value that is not zero, so the order of the ranks matters."""
    a, b = np.frombuffer(left, "i8"), np.frombuffer(right, "i8")
    b[:] = np.where(b == 0, a, b)


def composed(left: Any, right: Any, _type: Any) -> None:
    """Maps ``x -> a * x + b`` in sixteen bits each, one after the other."""
    f, g = np.frombuffer(left, "i8"), np.frombuffer(right, "i8")
    a, b, c, d = f >> 16, f & 0xFFFF, g >> 16, g & 0xFFFF
    g[:] = (a * c % 251) << 16 | (a * d + b) % 251


def paired(left: Any, right: Any, _type: Any) -> Any:
    return left, right


LAST = MPI.Op.Create(last, commute=False)
COMPOSED = MPI.Op.Create(composed, commute=False)
PAIRED = MPI.Op.Create(paired, commute=False)


def digest(value: Any) -> str:
    if isinstance(value, np.ndarray):
        if value.dtype.names:
            value = [value[name].tolist() for name in value.dtype.names]
        else:
            if value.dtype.kind == "c":
                value = value + 0  # the sign of a zero depends on the order
            value = (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest())
    elif isinstance(value, (list, tuple)):
        value = [digest(one) for one in value]
    text = repr(value)
    return text if len(text) < 100 else hashlib.sha256(text.encode()).hexdigest()[:16]


class Cases:
    """One sequence of operations, which all ranks derive from the same seed."""

    def __init__(self, seed: int) -> None:
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.rng = random.Random(seed)
        self.seed = seed
        self.number = 0

    def count(self) -> int:
        # Include lengths around the limits between algorithms, and beyond what is sent ahead.
        choices = [0, 1, self.rng.randrange(20), self.rng.randrange(2000), self.rng.randrange(8000, 40_000)]
        return self.rng.choices(choices, [1, 2, 6, 2, 1])[0]

    def values(self, rank: int, count: int, dtype: str) -> Any:
        rng = np.random.default_rng([self.seed, self.number, rank])
        if dtype == "?":
            return rng.integers(0, 2, count).astype("?")
        low = 0 if dtype[0] == "u" else -3
        own = rng.integers(low, 4, count)
        if dtype[0] == "c":
            return (own + 1j * rng.integers(-3, 4, count)).astype(dtype)
        return own.astype(dtype)

    def pairs(self, rank: int, count: int, name: str) -> Any:
        rng = np.random.default_rng([self.seed, self.number, rank])
        made = np.empty(count, dtype=np.dtype([("v", PAIRS[name]), ("i", "i4")], align=True))
        # Bytes between the members are undefined.
        made.view("u1").reshape(-1)[:] = rng.integers(0, 256, made.nbytes)
        made["v"], made["i"] = rng.integers(-2, 3, count), rng.integers(0, 100, count)
        return made

    def reduction(self) -> tuple[str, Any, Any, Callable[[int, int], Any]]:
        """An operation: its name, the operation, the datatype, and a rank's values."""
        rng = self.rng
        name = rng.choice(
            [
                "SUM",
                "PROD",
                "MIN",
                "MAX",
                "LAND",
                "LOR",
                "LXOR",
                "BAND",
                "BOR",
                "BXOR",
                "MINLOC",
                "MAXLOC",
                "LAST",
                "COMPOSED",
            ]
        )
        if name in ("MINLOC", "MAXLOC"):
            kind = rng.choice(list(PAIRS))
            return f"{name} {kind}", getattr(MPI, name), getattr(MPI, kind), lambda rank, n: self.pairs(rank, n, kind)
        if name in ("LAST", "COMPOSED"):
            return name, globals()[name], MPI.LONG, lambda rank, n: np.abs(self.values(rank, n, "i8")) * 65537
        kinds = {"SUM": NUMBERS + COMPLEX, "PROD": NUMBERS + COMPLEX, "MIN": NUMBERS, "MAX": NUMBERS}
        dtype = rng.choice(kinds.get(name, [*INTEGERS, "?"] if name[0] == "L" else INTEGERS))
        return f"{name} {dtype}", getattr(MPI, name), TYPES[dtype], lambda rank, n: self.values(rank, n, dtype)

    def named(self, array: Any, datatype: Any, count: int | None = None) -> Any:
        """A buffer in one of the accepted forms; the count is that of one rank's part."""
        count = len(array) if count is None else count
        plain = array.dtype.names is None
        forms = [[array, datatype], [array, count, datatype], [array, (count, 0), datatype], (array, datatype)]
        if plain:
            forms += [array, [array, count], [array, array.dtype.char], [array, None, datatype]]
        return self.rng.choice(forms)

    def empty(self, like: Any, count: int) -> Any:
        made = np.empty(count, dtype=like.dtype)
        made.view("u1").reshape(-1)[:] = 7
        return made

    def finish(self, background: bool, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        request = call(*args, **options)
        if not background:
            assert request is None
        elif self.rng.random() < 0.5:
            request.Wait()
        else:
            while not MPI.Request.Testall([request]):
                pass

    def method(self, name: str) -> tuple[bool, Callable[..., Any]]:
        background = self.rng.random() < 0.5
        return background, getattr(self.comm, f"I{name.lower()}" if background else name)

    # Each of these returns its name and its result.

    def buffers(self) -> tuple[str, Any]:
        kind = self.rng.choice(["Bcast", "Gather", "Scatter", "Allgather", "Alltoall"])
        dtype, count, root = self.rng.choice(list(TYPES)), self.count(), self.rng.randrange(self.size)
        in_place = self.rng.random() < 0.3
        background, call = self.method(kind)
        datatype, own = TYPES[dtype], self.values(self.rank, count, dtype)
        every = [self.values(rank, count, dtype) for rank in range(self.size)]
        here = self.rank == root
        title = f"{kind} {dtype} {count} root={root} background={background} in_place={in_place}"
        if kind == "Bcast":
            self.finish(background, call, self.named(own, datatype), root=root)
            return title, own
        if kind == "Scatter":
            out, into = np.concatenate(every), self.empty(own, count)
            args = self.named(out, datatype, count), MPI.IN_PLACE if in_place and here else self.named(into, datatype)
            self.finish(background, call, args[0] if here else None, args[1], root=root)
            return title, (out, into)
        into = self.empty(own, count * self.size)
        if kind == "Alltoall":
            out = self.values(self.rank, count * self.size, dtype)
            if in_place and not background:
                into[:] = out
            send = MPI.IN_PLACE if in_place and not background else self.named(out, datatype, count)
            self.finish(background, call, send, self.named(into, datatype, count))
            return title, into
        placed = in_place and (here or kind == "Allgather")
        if placed:
            into[self.rank * count : (self.rank + 1) * count] = own
        send = MPI.IN_PLACE if placed else self.named(own, datatype)
        receive = self.named(into, datatype, count)
        if kind == "Gather":
            self.finish(background, call, send, receive if here else None, root=root)
        else:
            self.finish(background, call, send, receive)
        return title, into

    def laid_out(self, counts: list[int]) -> tuple[list[int], int]:
        """Returns random places of blocks of these lengths, with gaps, and the total length."""
        order = list(range(len(counts)))
        self.rng.shuffle(order)
        displs, at = [0] * len(counts), 0
        for rank in order:
            at += self.rng.randrange(3)
            displs[rank] = at
            at += counts[rank]
        return displs, at

    def varying(self) -> tuple[str, Any]:
        kind = self.rng.choice(["Gatherv", "Scatterv", "Allgatherv", "Alltoallv"])
        dtype, root = self.rng.choice(list(TYPES)), self.rng.randrange(self.size)
        datatype, background_and_call = TYPES[dtype], self.method(kind)
        table = [[self.rng.choice([0, 3, self.count()]) for _ in range(self.size)] for _ in range(self.size)]
        layouts = [self.laid_out(counts) for counts in table]
        packed, form = self.rng.random() < 0.4, self.rng.randrange(3)
        counts, (displs, total) = table[0], layouts[0]
        title = f"{kind} {dtype} {counts} root={root} packed={packed} background={background_and_call[0]}"

        def named(array: Any, counts: list[int], displs: list[int]) -> Any:
            if packed:
                return [[array, counts, datatype], [array, np.array(counts)], [array, (counts, None), datatype]][form]
            return [[array, (counts, displs), datatype], [array, counts, displs, datatype], [array, (counts, displs)]][
                form
            ]

        def room(counts: list[int], total: int) -> int:
            return sum(counts) if packed else total

        own = self.values(self.rank, counts[self.rank], dtype)
        here = self.rank == root
        background, call = background_and_call
        if kind == "Alltoallv":
            mine, theirs = table[self.rank], [table[rank][self.rank] for rank in range(self.size)]
            out = self.values(self.rank, room(mine, layouts[self.rank][1]), dtype)
            layout = random.Random(self.seed + self.rank).sample(range(self.size), self.size)
            starts, at = [0] * self.size, 0
            for rank in layout:
                starts[rank] = at
                at += theirs[rank]
            into = self.empty(own, sum(theirs))
            self.finish(background, call, named(out, mine, layouts[self.rank][0]), named(into, theirs, starts))
            return title, into
        if kind == "Scatterv":
            out, into = self.values(root, room(counts, total), dtype), self.empty(own, counts[self.rank])
            self.finish(background, call, named(out, counts, displs) if here else None, into, root=root)
            return title, into
        into = self.empty(own, room(counts, total))
        if kind == "Gatherv":
            self.finish(background, call, own, named(into, counts, displs) if here else None, root=root)
        else:
            self.finish(background, call, own, named(into, counts, displs))
        return title, into

    def mixed(self) -> tuple[str, Any]:
        """Parts with different types, with gaps between them."""
        ranks = range(self.size)
        kinds = [[self.rng.choice(list(TYPES)) for _ in ranks] for _ in ranks]
        table = [[self.rng.choice([0, 3, self.count()]) for _ in ranks] for _ in ranks]
        background, call = self.method("Alltoallw")
        gap, form = 16 * self.rng.randrange(2), self.rng.randrange(2)

        def laid_out(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int], list[Any], Any]:
            parts = [(table[source][target], np.dtype(kinds[source][target])) for source, target in pairs]
            starts, at = [], 0
            for count, dtype in parts:
                starts.append(at)
                at += -(-count * dtype.itemsize // 16) * 16 + gap
            types = [TYPES[kinds[source][target]] for source, target in pairs]
            return [count for count, _ in parts], starts, types, np.full(at, 7, "u1")

        def named(counts: list[int], starts: list[int], types: list[Any], memory: Any) -> Any:
            return [[memory, counts, starts, types], [memory, (counts, starts), types]][form]

        *sent, out = laid_out([(self.rank, target) for target in ranks])
        for target, start in enumerate(sent[1]):
            part = self.values(self.rank, table[self.rank][target], kinds[self.rank][target]).view("u1")
            out[start : start + len(part)] = part
        *received, into = laid_out([(source, self.rank) for source in ranks])
        self.finish(background, call, named(*sent, out), named(*received, into))
        return f"Alltoallw {kinds} {table} background={background}", into

    def reductions(self) -> tuple[str, Any]:
        kind = self.rng.choice(["Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan"])
        name, op, datatype, values = self.reduction()
        count, root, in_place = self.count(), self.rng.randrange(self.size), self.rng.random() < 0.3
        background, call = self.method(kind)
        title = f"{kind} {name} {count} root={root} background={background} in_place={in_place}"
        if kind.startswith("Reduce_scatter"):
            count = min(count, 3000)
            counts = [self.rng.randrange(count + 1) if kind == "Reduce_scatter" else count for _ in range(self.size)]
            own = values(self.rank, sum(counts))
            into = self.empty(own, counts[self.rank])
            more = {"recvcounts": counts} if kind == "Reduce_scatter" else {}
            if in_place and not background:
                call(MPI.IN_PLACE, [own, datatype], op=op, **more)
                return title, own[: counts[self.rank]]
            if self.rng.random() < 0.5:
                more = {}
            self.finish(background, call, [own, datatype], [into, datatype], op=op, **more)
            return title, into
        own = values(self.rank, count)
        into = self.empty(own, count)
        placed = in_place and (kind != "Reduce" or self.rank == root)
        if placed:
            into[:] = own
        send = MPI.IN_PLACE if placed else self.named(own, datatype)
        receive = self.named(into, datatype)
        if kind == "Reduce":
            self.finish(background, call, send, receive if self.rank == root else None, op=op, root=root)
        else:
            self.finish(background, call, send, receive, op=op)
        # Rank 0's result of an exclusive scan, and other ranks' results of a reduction, are undefined.
        left = (kind == "Exscan" and self.rank == 0) or (kind == "Reduce" and self.rank != root)
        return title, None if left else into

    def messages(self) -> tuple[str, Any]:
        comm, status = self.comm, MPI.Status()
        dtype, count, tag = self.rng.choice(list(TYPES)), self.count(), self.rng.randrange(1000)
        own, datatype = self.values(self.rank, count, dtype), TYPES[dtype]
        ahead, back = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        into = self.empty(own, count + self.rng.randrange(3))
        kind = self.rng.choice(["Sendrecv", "Sendrecv_replace", "Isend", "Recv", "all", "nobody", "probe", "started"])
        title = f"{kind} {dtype} {count} tag={tag}"
        send, receive = self.named(own, datatype), self.named(into, datatype)
        found: Any = None
        if kind == "Sendrecv":
            source = self.rng.choice([back, MPI.ANY_SOURCE])
            comm.Sendrecv(send, ahead, tag, receive, source, self.rng.choice([tag, MPI.ANY_TAG]), status)
            # A rank that is ahead must not send messages of the next case yet.
            comm.Barrier()
        elif kind == "Sendrecv_replace":
            comm.Sendrecv_replace(send, ahead, tag, back, tag, status)
            into = own
        elif kind == "Isend":
            requests = [comm.Irecv(receive, back, tag), comm.Isend(send, ahead, tag)]
            statuses = [status, MPI.Status()]
            MPI.Request.Waitall(requests, statuses)
        elif kind == "Recv":
            request = comm.Isend(send, ahead, tag)
            comm.Recv(receive, back, tag, status)
            request.Wait()
        elif kind == "probe":
            request = comm.Isend([own, datatype], ahead, tag)
            comm.Probe(back, tag, status)
            into = self.empty(own, status.Get_count(datatype))
            comm.Recv(into, status.Get_source(), status.Get_tag())
            request.Wait()
        elif kind == "started":
            requests = [comm.Recv_init(receive, back, tag), comm.Send_init(send, ahead, tag)]
            found = []
            for _ in range(3):
                MPI.Prequest.Startall(requests)
                MPI.Request.Waitall(requests, [status, MPI.Status()])
                found.append(into.copy())
                own[:] = own[::-1].copy()
        elif kind == "nobody":
            comm.Send(own, MPI.PROC_NULL)
            comm.Recv(into, MPI.PROC_NULL, status=status)
            comm.Isend(own, MPI.PROC_NULL).Wait()
            found = comm.recv(source=MPI.PROC_NULL)
            comm.Sendrecv(own, MPI.PROC_NULL, 0, into, MPI.PROC_NULL)
        else:
            every = [self.empty(own, count) for _ in range(self.size)]
            # Two messages to each rank keep their order, with one tag and with several.
            tags = [tag, tag + self.rng.randrange(2)]
            second = [self.empty(own, count) for _ in range(self.size)]
            requests = [comm.Irecv(every[rank], rank, tags[0]) for rank in range(self.size)]
            requests += [comm.Isend(send, rank, tags[0]) for rank in range(self.size)]
            requests += [comm.Isend([own[::-1].copy(), datatype], rank, tags[1]) for rank in range(self.size)]
            requests += [comm.Irecv(second[rank], rank, tags[1]) for rank in range(self.size)]
            order = list(range(len(requests)))
            self.rng.shuffle(order)
            seen = set()
            if self.rng.random() < 0.5:
                for number in order:
                    requests[number].Wait()
            else:
                while (number := MPI.Request.Waitany(requests)) != MPI.UNDEFINED:
                    seen.add(number)
                assert seen == set(order), seen
            return title, (every, second)
        # MPI libraries have their own numbers for nobody and for any tag.
        source, under = status.Get_source(), status.Get_tag()
        envelope = "nobody" if source == MPI.PROC_NULL else source, "any" if under == MPI.ANY_TAG else under
        return title, (into, envelope, status.Get_count(MPI.BYTE), found)

    def thing(self, rank: int) -> Any:
        rng = random.Random(f"{self.seed} {self.number} {rank}")
        kinds = [
            None,
            rng.random(),
            "x" * rng.randrange(50),
            {"a": [rng.randrange(9)] * rng.randrange(9)},
            (1, {2: b"3"}),
        ]
        return rng.choice([*kinds, list(range(rng.randrange(20_000))), np.arange(rng.randrange(3000))])

    def objects(self) -> tuple[str, Any]:
        comm, size = self.comm, self.size
        kind = self.rng.choice(
            ["bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan"]
        )
        root = self.rng.randrange(size)
        title = f"{kind} root={root}"
        if kind in ("bcast", "gather"):
            return title, getattr(comm, kind)(self.thing(self.rank), root=root)
        if kind == "scatter":
            return title, comm.scatter([self.thing(r) for r in range(size)] if self.rank == root else None, root=root)
        if kind == "allgather":
            return title, comm.allgather(self.thing(self.rank))
        if kind == "alltoall":
            return title, comm.alltoall([self.thing(10 * self.rank + rank) for rank in range(size)])
        number = random.Random(f"{self.seed} {self.number} {self.rank}").randrange(-4, 5)
        operations: list[tuple[str, Any, Any]] = [
            (name, getattr(MPI, name), number)
            for name in ["SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR"]
        ]
        operations += [("SUM of lists", MPI.SUM, [self.rank] * abs(number)), ("SUM of text", MPI.SUM, str(number))]
        operations += [(name, getattr(MPI, name), (number, self.rank)) for name in ("MINLOC", "MAXLOC")]
        operations += [("PAIRED", PAIRED, number)]
        name, op, value = self.rng.choice(operations)
        more = {"root": root} if kind == "reduce" else {}
        # The algorithm decides how pairs are nested, but not their order.
        result = getattr(comm, kind)(value, op=op, **more)
        return f"{title} {name}", repr(result).replace("(", "").replace(")", "") if name == "PAIRED" else result

    def letters(self) -> tuple[str, Any]:
        comm, size, status = self.comm, self.size, MPI.Status()
        ahead, back = (self.rank + 1) % size, (self.rank - 1) % size
        kind = self.rng.choice(["sendrecv", "isend", "any", "reversed", "iprobe", "some"])
        own = self.thing(self.rank)
        if kind == "sendrecv":
            found = comm.sendrecv(own, ahead, 5, None, back, self.rng.choice([5, MPI.ANY_TAG]), status)
            return kind, (found, status.Get_source(), status.Get_tag(), status.Get_count())
        if kind == "isend":
            request = comm.isend(own, ahead, tag=3)
            found = comm.recv(source=back, tag=3, status=status)
            request.wait()
            return kind, (found, status.Get_source(), status.Get_tag())
        if kind == "any":
            if self.rank == 0:
                seen = sorted(
                    (comm.recv(status=status), status.Get_source(), status.Get_tag()) for _ in range(size - 1)
                )
            else:
                comm.send(self.rank * 10, 0, tag=self.rank)
                seen = []
            comm.barrier()
            return kind, seen
        if kind == "iprobe":
            request = comm.isend(self.rank, ahead, tag=9)
            while not comm.iprobe(source=back, tag=9, status=status):
                pass
            found = comm.recv(source=status.Get_source(), tag=status.Get_tag())
            request.wait()
            nothing = comm.iprobe(source=back, tag=9)
            # A rank that is ahead must not send messages of the next case yet.
            comm.barrier()
            return kind, (found, nothing)
        # Wait for receives in another order than they were posted.
        tags = [self.rng.choice([1, 2]) for _ in range(6)]
        wanted = tags if self.rng.random() < 0.5 else [MPI.ANY_TAG] * 6
        receives = [comm.irecv(source=back, tag=tag) for tag in wanted]
        sends = [comm.isend((number, tag), ahead, tag=tag) for number, tag in enumerate(tags)]
        order = list(range(6))
        self.rng.shuffle(order)
        found: list[Any] = [None] * 6
        if kind == "reversed":
            for number in order:
                found[number] = receives[number].wait()
        else:
            while (done := MPI.Request.waitsome(receives)) != (None, None):
                for number, value in zip(*done, strict=True):
                    found[number] = value
        MPI.Request.waitall(sends)
        comm.barrier()
        return f"{kind} {wanted}", found

    def parts(self) -> tuple[str, Any]:
        comm = self.comm
        kind = self.rng.choice(["Split", "Dup", "type", "long"])
        colors = [self.rng.choice([0, 1, MPI.UNDEFINED]) for _ in range(self.size)]
        keys = [self.rng.randrange(-3, 4) for _ in range(self.size)]
        if kind == "long":
            # A message that is too long for its buffer is only an error.
            failed = False
            request = comm.Isend(np.arange(9, dtype="i4"), self.rank, 77)
            try:
                comm.Recv(np.zeros(3, dtype="i4"), self.rank, 77)
            except MPI.Exception:
                failed = True
            request.Wait()
            return kind, failed
        if kind == "Split":
            part = comm.Split(colors[self.rank], keys[self.rank])
            if part == MPI.COMM_NULL:
                return f"{kind} {colors} {keys}", "none"
        else:
            part = comm.Dup() if kind == "Dup" else comm.Split_type(MPI.COMM_TYPE_SHARED, keys[self.rank])
        found = part.rank, part.size, part.allgather(self.rank), part.allreduce(self.rank, op=MPI.MAX)
        part.Free()
        return f"{kind} {colors} {keys}", found

    def run(self, cases: int, write: Callable[[str], Any]) -> None:
        kinds = [self.buffers, self.varying, self.mixed, self.reductions, self.messages, self.objects]
        kinds += [self.letters, self.parts]
        for number in range(cases):
            self.number = number
            title, found = self.rng.choices(kinds, [4, 3, 2, 5, 4, 4, 2, 1])[0]()
            write(f"{self.seed} {number} {title}: {digest(found)}\n")
            # Ranks that do not wait must not receive messages of the next case.
            self.rng = random.Random(f"{self.seed} {number}")


def main(folder: str, cases: int, seeds: list[int]) -> None:
    rank = MPI.COMM_WORLD.Get_rank()
    with open(Path(folder) / f"rank-{rank}", "w", buffering=1) as file:
        for seed in seeds:
            Cases(seed).run(cases, file.write)


if __name__ == "__main__":
    main(sys.argv[2], int(sys.argv[3]), [int(seed) for seed in sys.argv[4:]])
