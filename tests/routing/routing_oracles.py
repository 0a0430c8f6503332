"""Every routing algorithm once more, as loops over plain Python floats, written from docs and papers alone.

Nothing is shared with the package: no tensors, no log space, no broadcasting. ``ORACLES`` must have an entry for every
registered algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from capsella.routing import Routed

Nested = Any  # lists of lists of floats


def as_lists(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, Tensor) else value for key, value in options.items()}


def squash(s: Sequence[float], kind: str) -> list[float]:
    n = math.sqrt(sum(x * x for x in s))
    if kind == "none" or n == 0:
        return list(s)
    size = n**2 / (1 + n**2) if kind == "sabour" else 1 - math.exp(-n)
    return [size * x / n for x in s]


def norm(v: Sequence[float]) -> float:
    return math.sqrt(sum(x * x for x in v))


def softmax(row: Sequence[float]) -> list[float]:
    powers = [math.exp(x - max(row)) for x in row]
    return [p / sum(powers) for p in powers]


def combine(votes: Nested, c: Nested, bias: Nested | None, kind: str) -> list[list[float]]:
    """Route one sample with couplings c[i][j]: one squashed weighted sum per upper capsule."""
    I, J, D = len(votes), len(votes[0]), len(votes[0][0])
    poses = []
    for j in range(J):
        s = [sum(c[i][j] * votes[i][j][d] for i in range(I)) + (bias[j][d] if bias else 0.0) for d in range(D)]
        poses.append(squash(s, kind))
    return poses


def fixed(
    votes: Nested, *, couplings: Nested, bias: Nested | None = None, squash: str
) -> list[tuple[Nested, Nested, list[Nested]]]:
    results = []
    for sample in votes:
        poses = combine(sample, couplings, bias, squash)
        results.append((poses, [norm(v) for v in poses], [couplings]))
    return results


def trainable(votes: Nested, *, squash: str = "exp", **options: Any) -> list[Any]:
    return fixed(votes, squash=squash, **options)


def quadratic(votes: Nested, *, squash: str = "sabour", **options: Any) -> list[Any]:
    return fixed(votes, squash=squash, **options)


def uniform(votes: Nested, *, normalise: str = "targets", squash: str = "sabour", bias: Nested | None = None) -> list[Any]:
    I, J = len(votes[0]), len(votes[0][0])
    share = 1 / J if normalise == "targets" else 1 / I
    return fixed(votes, couplings=[[share] * J for _ in range(I)], bias=bias, squash=squash)


def agreement(
    votes: Nested,
    *,
    num_iters: int = 3,
    normalise: str = "targets",
    bias: Nested | None = None,
    prior: Nested | None = None,
    squash: str = "sabour",
) -> list[Any]:
    results = []
    for sample in votes:
        I, J = len(sample), len(sample[0])
        b = [list(row) for row in prior] if prior else [[0.0] * J for _ in range(I)]
        trace = []
        for _ in range(num_iters):
            if normalise == "targets":
                c = [softmax(row) for row in b]
            else:
                columns = [softmax([b[i][j] for i in range(I)]) for j in range(J)]
                c = [[columns[j][i] for j in range(J)] for i in range(I)]
            trace.append(c)
            poses = combine(sample, c, bias, squash)
            for i in range(I):
                for j in range(J):
                    b[i][j] += sum(x * v for x, v in zip(sample[i][j], poses[j], strict=True))
        results.append((poses, [norm(v) for v in poses], trace))
    return results


def em(
    votes: Nested,
    *,
    activations: Nested,
    beta_a: Sequence[float],
    beta_u: Sequence[float],
    num_iters: int = 3,
    inverse_temperature: float | Sequence[float] = 1e-3,
    eps: float = 1e-8,
    bias: Nested | None = None,
    cost_log: str = "std",
    normaliser: str = "gaussian",
    output: str = "mean",
) -> list[Any]:
    results = []
    for sample, below in zip(votes, activations, strict=True):
        I, J, D = len(sample), len(sample[0]), len(sample[0][0])
        v = [[[sample[i][j][d] + (bias[j][d] if bias else 0.0) for d in range(D)] for j in range(J)] for i in range(I)]
        R = [[1 / J] * J for _ in range(I)]
        trace = []
        for t in range(num_iters):
            trace.append(R)
            means, variances, above = [], [], []
            for j in range(J):
                r = [R[i][j] * below[i] for i in range(I)]
                total = sum(r)
                mean = [sum(r[i] * v[i][j][d] for i in range(I)) / total for d in range(D)]
                var = [sum(r[i] * (v[i][j][d] - mean[d]) ** 2 for i in range(I)) / total + eps for d in range(D)]
                logs = [math.log(math.sqrt(x)) if cost_log == "std" else math.log(x) for x in var]
                cost = sum((beta_u[j] + log) * total for log in logs)
                heat = inverse_temperature if isinstance(inverse_temperature, float) else inverse_temperature[t]
                above.append(1 / (1 + math.exp(-heat * (beta_a[j] - cost))))
                means.append(mean)
                variances.append(var)
            R = []
            for i in range(I):
                p = []
                for j in range(J):
                    density = above[j]
                    for d in range(D):
                        density *= math.exp(-((v[i][j][d] - means[j][d]) ** 2) / (2 * variances[j][d]))
                        if normaliser == "gaussian":
                            density /= math.sqrt(2 * math.pi * variances[j][d])
                    p.append(density)
                R.append([x / sum(p) for x in p])
        poses = (
            means if output == "mean" else [[a * x / norm(mean) for x in mean] for a, mean in zip(above, means, strict=True)]
        )
        results.append((poses, above, trace))
    return results


ORACLES = {"agreement": agreement, "em": em, "quadratic": quadratic, "trainable": trainable, "uniform": uniform}


def oracle(name: str, votes: Tensor, options: dict[str, Any]) -> Routed:
    """Run the independent computation and pack it like the real one, trace included."""
    results = ORACLES[name](votes.tolist(), **as_lists(options))
    poses, activations, traces = zip(*results, strict=True)
    trace = tuple(torch.tensor(step, dtype=torch.float64) for step in zip(*traces, strict=True))
    return Routed(torch.tensor(poses, dtype=torch.float64), torch.tensor(activations, dtype=torch.float64), trace[-1], trace)


def assert_agrees(result: Routed, expected: Routed) -> None:
    """Compare every part, couplings of every iteration included, to 1e-9."""
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(result.poses, expected.poses, **close)
    torch.testing.assert_close(result.activations, expected.activations, **close)
    torch.testing.assert_close(result.couplings, expected.couplings, **close)
    torch.testing.assert_close(result.trace, expected.trace, **close)
