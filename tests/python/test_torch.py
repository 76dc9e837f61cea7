"""``torch.distributed`` over the ranks of a group, by the backend that `dayfly.torch` registers."""

from __future__ import annotations

import sys

import cloudpickle
import dayfly
import pytest
from harness.pytorch import folder, needs_torch
from sklearn.datasets import load_digits

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = needs_torch
TORCH = folder()


def begin():
    """Initializes PyTorch and its process group in a rank."""
    if TORCH and TORCH not in sys.path:
        # First, because it needs its own NumPy.
        sys.path.insert(0, TORCH)
    import dayfly.torch  # noqa: F401 (registers the backend)
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("dayfly")
    return torch, torch.distributed


def collectives():
    torch, dist = begin()
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks = range(size)
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64]

    def same(found, expected):
        assert torch.equal(found, expected), (found, expected)

    for dtype in types:
        every = [torch.arange(6).reshape(2, 3).add(r).to(dtype) for r in ranks]
        own = every[rank].clone()
        dist.all_reduce(own)
        same(own, sum(every[1:], every[0]))
        for op, expected in ((dist.ReduceOp.MAX, every[-1]), (dist.ReduceOp.MIN, every[0])):
            # Every second column: tensors that are not contiguous are received into, too.
            wide = torch.zeros(2, 6, dtype=dtype)
            wide[:, ::2] = every[rank]
            dist.all_reduce(wide[:, ::2], op=op)
            same(wide[:, ::2], expected)
            same(wide[:, 1::2], torch.zeros(2, 3, dtype=dtype))
        own = every[rank].clone()
        dist.reduce(own, dst=size - 1)
        same(own, sum(every[1:], every[0]) if rank == size - 1 else every[rank])
        own = every[rank].clone()
        dist.broadcast(own, src=size - 1)
        same(own, every[-1])
        outs = [torch.empty(2, 3, dtype=dtype) for _ in ranks]
        dist.all_gather(outs, every[rank])
        for found, expected in zip(outs, every, strict=True):
            same(found, expected)
        outs = [torch.empty(2, 3, dtype=dtype) for _ in ranks]
        dist.gather(every[rank], outs if rank == 0 else None, dst=0)
        same(torch.stack(outs) if rank == 0 else torch.stack(every), torch.stack(every))
        own = torch.empty(2, 3, dtype=dtype)
        dist.scatter(own, every if rank == 0 else None, src=0)
        same(own, every[rank])
        dist.reduce_scatter(own, [one.clone() for one in every])
        same(own, every[rank] * size)
        outs = [torch.empty(2, 3, dtype=dtype) for _ in ranks]
        dist.all_to_all(outs, [every[rank] + r for r in ranks])
        same(torch.stack(outs), torch.stack([every[r] + rank for r in ranks]))
        flat, into = torch.cat([every[r].reshape(-1) for r in ranks]), torch.empty(6 * size, dtype=dtype)
        dist.all_to_all_single(into, flat)
        same(into, torch.cat([every[rank].reshape(-1)] * size))
        # Parts of different lengths: as many rows as the number of the rank.
        rows = torch.full((size * (rank + 1), 2), rank).to(dtype)
        into = torch.empty(sum(r + 1 for r in ranks), 2, dtype=dtype)
        dist.all_to_all_single(into, rows, [r + 1 for r in ranks], [rank + 1] * size)
        same(into, torch.cat([torch.full((r + 1, 2), r).to(dtype) for r in ranks]))
        dist.all_reduce(torch.empty(0, dtype=dtype))
    if hasattr(dist, "all_gather_into_tensor"):
        into = torch.empty(2 * size)
        dist.all_gather_into_tensor(into, torch.full((2,), float(rank)))
        same(into, torch.arange(size).repeat_interleave(2).float())
        own = torch.empty(2)
        dist.reduce_scatter_tensor(own, into)
        same(own, torch.full((2,), float(rank * size)))
    odd = torch.tensor([rank % 2 == 1, False])
    dist.all_reduce(odd, op=dist.ReduceOp.MAX)
    assert odd.tolist() == [size > 1, False]
    mean = torch.tensor([float(rank)])
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert mean.item() == sum(ranks) / size
    # Operations in the background, and objects, which travel as tensors.
    works = [(t, dist.all_reduce(t, async_op=True)) for t in [torch.full((1000,), float(n)) for n in range(4)]]
    for number, (tensor, work) in enumerate(works):
        work.wait()
        assert work.is_completed()
        same(tensor, torch.full((1000,), float(number * size)))
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": r} for r in ranks]
    dist.barrier()
    # Messages in a circle, in both directions at once, and long ones.
    ahead, back = (rank + 1) % size, (rank - 1) % size
    for length in (3, 500_000):
        out, into = torch.full((length,), float(rank)), torch.empty(length)
        works = [dist.isend(out, ahead, tag=4), dist.irecv(into, back, tag=4)] if size > 1 else []
        for work in works:
            work.wait()
        same(into if size > 1 else out, torch.full((length,), float(back)))
    swapped = torch.empty(1)
    messages = [dist.P2POp(dist.irecv, swapped, back), dist.P2POp(dist.isend, torch.ones(1) * rank, ahead)]
    for work in dist.batch_isend_irecv(messages) if size > 1 else []:
        work.wait()
    assert size == 1 or swapped.item() == back
    if rank == 0:
        seen = {dist.recv(torch.empty(1)) for _ in range(size - 1)}
        assert seen == set(range(1, size))
    else:
        dist.send(torch.zeros(1), 0)
    # Ranks outside a group take no part in creating it.
    part = dist.new_group([r for r in ranks if r != 1])
    if rank != 1:
        own = torch.tensor([rank])
        dist.all_reduce(own, group=part)
        assert own.item() == sum(r for r in ranks if r != 1)
    with pytest.raises(dayfly.RequestError, match="tensors of the processor"):
        dist.all_reduce(torch.empty(2, device="meta"))
    dist.destroy_process_group()
    return rank


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_pytorch_collectives_and_messages_are_correct(client, ranks):
    assert dayfly.run(collectives, ranks=ranks, client=client, timeout=100) == list(range(ranks))


def train(x, y, epochs=3):
    """Returns the losses of a network whose gradients are averaged over the ranks, and the sum of its weights."""
    torch, dist = begin()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # each rank begins elsewhere, and takes over the weights of rank 0
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)).double()
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = torch.tensor(x, dtype=torch.float64) / 16, torch.tensor(y)
    losses = []
    for _ in range(epochs):
        # Batch sizes are divisible by all numbers of ranks, so that the average of averages is the average.
        for start in range(0, len(y) - 119, 120):
            own = slice(start + rank, start + 120, size)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[own]), y[own])
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(total.item() / size)
    dist.destroy_process_group()
    return losses, sum(parameter.double().sum().item() for parameter in model.parameters())


def test_data_parallel_training_has_the_sequential_losses(client):
    digits = load_digits()
    data = digits.data.tolist(), digits.target.tolist()
    [(alone, weights)] = dayfly.run(train, ranks=1, args=data, client=client, timeout=100)
    assert alone[-1] < alone[0] / 2, "it learns"
    for ranks in (2, 3):
        found = dayfly.run(train, ranks=ranks, args=data, client=client, timeout=100)
        assert len({total for _, total in found}) == 1, "the weights are the same everywhere"
        for losses, total in found:
            assert losses == pytest.approx(alone, rel=1e-8)
            assert total == pytest.approx(weights, rel=1e-6)
