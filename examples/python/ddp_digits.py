"""Trains a network on handwritten digits with the data divided over ranks, and compares the result with one process.

`python ddp_digits.py`, or `dayfly run --ranks 3 ddp_digits.py`. Fails if the losses differ.
"""

import sys

import dayfly
import numpy as np
from dayfly import MPI
from sklearn.datasets import load_digits

EPOCHS, BATCH, RATE = 15, 128, 0.5


def gradients(weights, x, y):
    """Returns the loss and its gradient in one array, both summed over the images."""
    first, second = weights[: 65 * 32].reshape(65, 32), weights[65 * 32 :].reshape(33, 10)
    x = np.column_stack([x, np.ones(len(x))])
    hidden = np.column_stack([np.tanh(x @ first), np.ones(len(x))])
    scores = hidden @ second
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    loss = -np.log(odds[np.arange(len(y)), y]).sum()
    error = odds - np.eye(10)[y]
    back = (error @ second.T)[:, :-1] * (1 - hidden[:, :-1] ** 2)
    return np.concatenate([[loss], (x.T @ back).ravel(), (hidden.T @ error).ravel()])


def train(comm, x, y):
    """Returns the loss of each epoch and the weights, which are equal on all ranks."""
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 0.1, 65 * 32 + 33 * 10)
    losses = []
    for _ in range(EPOCHS):
        order, lost = rng.permutation(len(y)), 0.0
        for start in range(0, len(y), BATCH):
            batch = order[start : start + BATCH]
            own = batch[comm.rank :: comm.size]
            total = np.empty(len(weights) + 1)
            comm.Allreduce(gradients(weights, x[own], y[own]), total)
            weights -= RATE / len(batch) * total[1:]
            lost += total[0]
        losses.append(lost / len(y))
    return losses, weights


def together(x, y):
    return train(MPI.COMM_WORLD, x, y)


digits = load_digits()
data = digits.data / 16, digits.target
alone, _ = train(MPI.COMM_SELF, *data)
if MPI.COMM_WORLD.size > 1:  # started by `dayfly run`: this process is one of the ranks
    ranks, results = MPI.COMM_WORLD.size, [together(*data)]
else:
    ranks, results = 3, dayfly.run(together, ranks=3, args=data)
for losses, weights in results:
    if not np.allclose(losses, alone, rtol=1e-6) or not np.array_equal(weights, results[0][1]):
        sys.exit(f"losses {losses} on {ranks} ranks, and {alone} in one process")
if MPI.COMM_WORLD.rank == 0:
    print(
        f"on {ranks} ranks as in one process: loss {alone[0]:.3f} after the first epoch, {alone[-1]:.3f} after the last"
    )
