"""How couplings move: from image to image (mitterreiter2023's dynamics), among targets, from iteration to iteration.

A row of couplings is what one lower capsule gives to its targets. Where the softmax goes over the lower capsules instead
(``normalise="sources"``) an upper capsule chooses among them: every metric here is then of the couplings the other way round,
[N, J, I], with "source" and "target" exchanged. ``Seen.by_chooser`` turns them so; the doctor and ``watch`` do it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from capsella.analysis.moments import Moments
from capsella.shapes import dims


@dataclass(frozen=True)
class Dynamics:
    """How much routing depends on the image.

    Attributes:
        dyr: [I], the rate, 0 for couplings that never change and 1 for perfect routing; NaN with fewer than two live targets.
        dys: [I], the sum; the paper's expected number of targets.
        dyr_mean: over the lower capsules.
        dys_mean: over the lower capsules.
        targets: n, how many upper capsules were counted.
    """

    dyr: Tensor
    dys: Tensor
    dyr_mean: float
    dys_mean: float
    targets: int


class RoutingDynamics:
    """Streams ``routing_dynamics``: ``update(couplings)`` with each batch [N, I, J].

    Args:
        alive: as there; what is alive is often known at the end only, and may be said to ``compute`` instead.
        alive_sources: as there.
    """

    def __init__(self, *, alive: Tensor | None = None, alive_sources: Tensor | None = None) -> None:
        self._alive, self._alive_sources = alive, alive_sources
        self._moments = Moments()

    def update(self, couplings: Tensor) -> None:
        """Add the couplings [N, I, J] of N images."""
        dims(couplings, "N I J", name="couplings")
        self._moments.update(couplings)

    def compute(self, *, alive: Tensor | None = None, alive_sources: Tensor | None = None) -> Dynamics:
        """Return what ``routing_dynamics`` gives for all batches at once."""
        std = self._moments.std  # [I, J]
        I, J = std.shape
        live = _mask(self._alive if alive is None else alive, J, "alive").to(std.device)
        chosen = self._alive_sources if alive_sources is None else alive_sources
        sources = _mask(chosen, I, "alive_sources").to(std.device)
        n = int(live.sum())
        dyr = std.new_full((I,), math.nan) if n < 2 else std[:, live].mean(dim=1) / math.sqrt((1 - 1 / n) / n)
        dys = n * dyr
        # of no live source there is no mean: NaN, as torch says.
        means = float(dyr[sources].mean()), float(dys[sources].mean())
        return Dynamics(dyr.to(self._moments.dtype), dys.to(self._moments.dtype), *means, n)


def routing_dynamics(couplings: Tensor, *, alive: Tensor | None = None, alive_sources: Tensor | None = None) -> Dynamics:
    """Measure how much couplings depend on the image (mitterreiter2023, section 4.1).

    For lower capsule i, n upper capsules j and the population's standard deviation over images::

        dyr(i) = (1/n) Σ_j std_images(c_ij) / std(pr_n),   std(pr_n) = √((1 − 1/n)/n),   dys(i) = n · dyr(i)

    std(pr_n) is the spread of a coupling that is 1 for one of n targets, each as often as the others: perfect routing has
    dyr = 1, static routing dyr = 0; the paper reads dys as the expected number of targets. The paper's printed figures fit
    only if dead targets are left out and n counts the live ones (dys / dyr of its Table 1 is the number alive in the next
    layer); that is the reading with ``alive``. Without it n counts all targets, as the formula is printed. Couplings are not
    divided among the living again.

    Args:
        couplings: [N, I, J] over N images.
        alive: boolean [J]; dead targets are left out, and n counts the live ones. All if None.
        alive_sources: boolean [I]; the means are over these. All if None.

    Example:
        >>> perfect = torch.eye(2)[torch.tensor([0, 1])][:, None]  # one source, two targets, each for one image
        >>> routing_dynamics(perfect).dyr.tolist()
        [1.0]
    """
    found = RoutingDynamics()
    found.update(couplings)
    return found.compute(alive=alive, alive_sources=alive_sources)


def live_dynamics(
    streamed: RoutingDynamics,
    dead_sources: Tensor,
    dead_targets: Tensor,
    *,
    windows: int = 1,
    normalise: str = "targets",
) -> Dynamics:
    """Return the dynamics among the living, as mitterreiter2023's Table 1 has them.

    Args:
        streamed: has seen the couplings [N, L·I, J], for ``"sources"`` the other way round, [N, L·J, I].
        dead_sources: boolean [L·I], lower capsules as the couplings have them: of a convolution, once for every window.
        dead_targets: boolean [L·J], upper capsules of all windows; a target is alive if it is so in any of them.
        windows: L.
        normalise: who chooses among whom: for ``"sources"`` upper capsules among lower ones.
    """
    if normalise == "sources":
        dead_sources, dead_targets = dead_targets, dead_sources
    dead = dead_targets.reshape(windows, -1).all(dim=0)
    return streamed.compute(alive=~dead, alive_sources=~dead_sources)


@dataclass(frozen=True)
class Entropy:
    """How decided couplings are.

    Attributes:
        entropy: [I], mean over images of the entropy of a capsule's couplings over log J: 1 for uniform ones, 0 where one
            target takes all. Couplings of another sum are taken as shares of it; NaN where one is negative or all are zero, or
            there is one target.
        mean: over the lower capsules.
    """

    entropy: Tensor
    mean: float


class CouplingEntropy:
    """Streams ``coupling_entropy``."""

    def __init__(self) -> None:
        self._moments, self._dtype = Moments(), torch.float64

    def update(self, couplings: Tensor) -> None:
        """Add the couplings [N, I, J] of N images."""
        _, _, J = dims(couplings, "N I J", name="couplings")
        wide = couplings.detach().to(torch.float64)
        total = wide.sum(dim=-1, keepdim=True)
        entropy = torch.special.entr(wide / total).sum(dim=-1) / (math.log(J) if J > 1 else math.nan)  # [N, I]
        shares = (wide >= 0).all(dim=-1) & (total[..., 0] > 0)
        self._moments.update(torch.where(shares, entropy, math.nan))
        self._dtype = couplings.dtype

    def compute(self) -> Entropy:
        """Return what ``coupling_entropy`` gives for all batches at once."""
        mean = self._moments.mean
        return Entropy(mean.to(self._dtype), float(mean.mean()))


def coupling_entropy(couplings: Tensor) -> Entropy:
    """Measure how far couplings are from a decision, as a share of the entropy of uniform ones.

    With p_ij = c_ij / Σ_k c_ik, and 0 log 0 = 0::

        entropy(i) = mean_images( −Σ_j p_ij log p_ij ) / log J

    1 where all J targets get the same, 0 where one takes all; no paper's figure, but what mitterreiter2023's trees show.

    Args:
        couplings: [N, I, J] over N images; of any sum, and none negative.

    Example:
        >>> coupling_entropy(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]])).entropy.tolist()
        [1.0, 0.0]
    """
    found = CouplingEntropy()
    found.update(couplings)
    return found.compute()


class CouplingChange:
    """Streams ``coupling_change``: ``update(trace)`` with each batch."""

    def __init__(self) -> None:
        self._moments, self._dtype = Moments(), torch.float64

    def update(self, trace: Sequence[Tensor]) -> None:
        """Add the couplings of every iteration, T tensors [N, I, J]."""
        if not trace:
            raise ValueError("trace is empty; expected the couplings [N, I, J] of at least one iteration")
        sizes = dict(zip("NIJ", trace[0].shape, strict=False))
        for couplings in trace:
            dims(couplings, "N I J", name="trace", **sizes)
        self._dtype = trace[0].dtype
        wide = [couplings.detach().to(torch.float64) for couplings in trace]
        moved = [(after - before).abs().sum(dim=-1).mean(dim=-1) / 2 for before, after in itertools.pairwise(wide)]
        self._moments.update(torch.stack(moved, dim=1) if moved else wide[0].new_zeros(len(wide[0]), 0))

    def compute(self) -> Tensor:
        """Return what ``coupling_change`` gives for all batches at once."""
        return self._moments.mean.to(self._dtype)


def coupling_change(trace: Sequence[Tensor]) -> Tensor:
    """Return how much of a capsule's couplings each iteration moves elsewhere, [T − 1].

    For iterations t − 1 and t, the distance of total variation::

        change(t) = mean_images mean_i ½ Σ_j |c^t_ij − c^(t−1)_ij|

    Between 0 (nothing changes) and 1 for couplings that are shares. The first iteration has no change: its couplings are
    those of the prior, uniform without one.

    Args:
        trace: couplings [N, I, J] of every iteration, as ``Routed.trace``.

    Example:
        >>> coupling_change([torch.tensor([[[0.5, 0.5]]]), torch.tensor([[[0.75, 0.25]]])]).tolist()
        [0.25]
    """
    found = CouplingChange()
    found.update(trace)
    return found.compute()


def _mask(mask: Tensor | None, size: int, name: str) -> Tensor:
    if mask is None:
        return torch.ones(size, dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (size,):
        shape = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"{name} is {shape} of {getattr(mask, 'dtype', 'no dtype')}; expected torch.bool [{size}]")
    return mask
