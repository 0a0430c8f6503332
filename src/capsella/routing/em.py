"""EM routing (Hinton, Sabour & Frosst 2018), in log space, with peer2022's vote bias.

    R_ij = 1/J;  T times:
      r_ij = R_ij a_i      w_ij = r_ij / Σ_i r_ij      μ_j = Σ_i w_ij v_ij      σ²_j = Σ_i w_ij (v_ij − μ_j)² + eps
      cost_jh = (β_u,j + ½ log σ²_jh) Σ_i r_ij         a_j = logistic(λ (β_a,j − Σ_h cost_jh))
      R_i = softmax_j(log a_j + log N(v_ij; μ_j, σ²_j))     after every iteration but the last

Departures: none by default. What the code behind peer2022's tables does otherwise is a named option each: ``cost_log``,
``inverse_temperature`` per iteration, ``eps`` as a variance floor, ``normaliser`` and ``output``; ``peer2022_options`` sets
them together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from capsella.errors import check_choice, check_count, check_number
from capsella.functional import direction, widen
from capsella.routing.base import Routed, check_bias, routed
from capsella.routing.dispatch import register
from capsella.shapes import Activations, Votes, dims


def init(in_capsules: int, out_capsules: int, out_dim: int) -> dict[str, Tensor]:
    """Start both costs at zero."""
    return {"beta_a": torch.zeros(out_capsules), "beta_u": torch.zeros(out_capsules)}


def peer2022_options(num_iters: int = 3) -> dict[str, Any]:
    """Return the options with which EM runs as in the code behind peer2022's tables.

    Example:
        >>> [round(value, 6) for value in peer2022_options()["inverse_temperature"]]
        [0.0005, 0.000975, 0.001426]
    """
    return {
        "num_iters": num_iters,
        "inverse_temperature": tuple(0.01 * (1 - 0.95**t) for t in range(1, num_iters + 1)),
        "eps": 1e-4,
        "cost_log": "variance",
        "normaliser": "constant",
        "output": "scaled",
    }


@register("em", paper="Hinton, Sabour & Frosst 2018", init=init, normalised=True)
def em(
    votes: Votes,
    activations: Activations,
    *,
    beta_a: Tensor,
    beta_u: Tensor,
    num_iters: int = 3,
    inverse_temperature: float | Sequence[float] = 1e-3,
    eps: float = 1e-8,
    bias: Tensor | None = None,
    cost_log: str = "std",
    normaliser: str = "gaussian",
    output: str = "mean",
    trace: bool = False,
    need_couplings: bool = True,
) -> Routed:
    """Fit one Gaussian per upper capsule to the votes.

    Args:
        votes: [B, I, J, D].
        activations: of the lower capsules, [B, I]; clamped from below to the smallest normal number.
        beta_a: [J], the activation threshold.
        beta_u: [J], the cost of describing a vote.
        num_iters: T.
        inverse_temperature: λ, one number or one per iteration.
        eps: added to every variance.
        bias: [J, D], added to the votes.
        cost_log: the cost takes the logarithm of σ (``"std"``) or of σ² (``"variance"``).
        normaliser: of the density in the E-step: ``"gaussian"`` or ``"constant"`` (dropped).
        output: poses are μ (``"mean"``) or a·μ/‖μ‖ (``"scaled"``).
        trace: keep the couplings of every iteration.
        need_couplings: return the last couplings.

    Returns:
        ``couplings`` are the R that the last M-step used, before the product with the activations.

    Example:
        >>> beta = torch.zeros(3)
        >>> em(torch.randn(2, 6, 3, 4), torch.ones(2, 6), beta_a=beta, beta_u=beta).activations.shape
        torch.Size([2, 3])
    """
    B, I, J, D = dims(votes, "B I J D", name="votes")
    temperatures, bias = check_arguments(
        (B, I, J, D),
        activations,
        beta_a,
        beta_u,
        num_iters=num_iters,
        inverse_temperature=inverse_temperature,
        eps=eps,
        bias=bias,
        cost_log=cost_log,
        normaliser=normaliser,
        output=output,
    )
    wide = widen(votes)
    if bias is not None:
        wide = wide + bias
    beta_a, beta_u, below = (tensor.to(wide.dtype) for tensor in (beta_a, beta_u, activations))
    log_below = below.clamp(min=torch.finfo(below.dtype).tiny).log()  # [B, I]
    log_couplings = wide.new_full((B, I, J), -math.log(J))
    history = []
    for t, temperature in enumerate(temperatures):
        history.append(log_couplings.exp())
        log_r = log_couplings + log_below[..., None]  # [B, I, J]
        mean, squared, variance, cost = _fit(wide, log_r, beta_u, eps, cost_log)
        log_odds = temperature * (beta_a - cost)  # [B, J]
        if t + 1 < num_iters:
            log_density = -0.5 * torch.einsum("bijd,bjd->bij", squared, variance.reciprocal())
            if normaliser == "gaussian":
                log_density = log_density - 0.5 * (2 * math.pi * variance).log().sum(dim=-1)[:, None]
            log_couplings = (logsigmoid(log_odds)[:, None] + log_density).log_softmax(dim=-1)
    above = log_odds.sigmoid()
    poses = mean if output == "mean" else above[..., None] * direction(mean)
    return routed(poses, above, history, dtype=votes.dtype, trace=trace, need_couplings=need_couplings)


def em_given(
    votes: Votes,
    activations: Activations,
    *,
    couplings: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    num_iters: int = 3,
    inverse_temperature: float | Sequence[float] = 1e-3,
    eps: float = 1e-8,
    bias: Tensor | None = None,
    cost_log: str = "std",
    output: str = "mean",
    **unused: Any,
) -> Routed:
    """Take the last M-step alone, with couplings [B, I, J] from elsewhere; everything else as for ``em``.

    Example:
        >>> beta, votes, below = torch.zeros(3), torch.randn(2, 6, 3, 4), torch.ones(2, 6)
        >>> found = em(votes, below, beta_a=beta, beta_u=beta)
        >>> again = em_given(votes, below, couplings=found.couplings, beta_a=beta, beta_u=beta)
        >>> torch.allclose(found.poses, again.poses)
        True
    """
    B, I, J, D = dims(votes, "B I J D", name="votes")
    dims(couplings, "B I J", name="couplings", B=B, I=I, J=J)
    checked = {"eps": eps, "bias": bias, "cost_log": cost_log, "normaliser": "gaussian", "output": output}
    steps: dict[str, Any] = {"num_iters": num_iters, "inverse_temperature": inverse_temperature}
    temperatures, bias = check_arguments((B, I, J, D), activations, beta_a, beta_u, **steps, **checked)  # type: ignore[arg-type]
    wide = widen(votes)
    if bias is not None:
        wide = wide + bias
    beta_a, beta_u, below, couplings = (tensor.to(wide.dtype) for tensor in (beta_a, beta_u, activations, couplings))
    least = torch.finfo(wide.dtype).tiny
    log_r = couplings.clamp(min=least).log() + below.clamp(min=least).log()[..., None]  # [B, I, J]
    mean, _, _, cost = _fit(wide, log_r, beta_u, eps, cost_log)
    above = (temperatures[-1] * (beta_a - cost)).sigmoid()
    poses = mean if output == "mean" else above[..., None] * direction(mean)
    return routed(poses, above, [couplings], dtype=votes.dtype, trace=False, need_couplings=True)


def _fit(wide: Tensor, log_r: Tensor, beta_u: Tensor, eps: float, cost_log: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean [B, J, D], the votes' squared distances from it, the variance, and the cost [B, J] of an M-step."""
    weights = log_r.softmax(dim=1)  # [B, I, J], sums to 1 over I
    mean = torch.einsum("bij,bijd->bjd", weights, wide)  # [B, J, D]
    squared = (wide - mean[:, None]).square()  # [B, I, J, D]
    variance = torch.einsum("bij,bijd->bjd", weights, squared) + eps
    log_scale = variance.log() * (0.5 if cost_log == "std" else 1.0)
    cost = (beta_u[:, None] + log_scale) * log_r.exp().sum(dim=1)[..., None]  # [B, J, D]
    return mean, squared, variance, cost.sum(dim=-1)


def check_arguments(
    sizes: tuple[int, int, int, int],
    activations: Activations,
    beta_a: Tensor,
    beta_u: Tensor,
    *,
    num_iters: int,
    inverse_temperature: float | Sequence[float],
    eps: float,
    bias: Tensor | None,
    cost_log: str,
    normaliser: str,
    output: str,
) -> tuple[list[float], Tensor | None]:
    """Check what every implementation of EM takes, for sizes (B, I, J, D); return λ of every iteration and the wide bias."""
    B, I, J, D = sizes
    dims(activations, "B I", name="activations", B=B, I=I)
    dims(beta_a, "J", name="beta_a", J=J)
    dims(beta_u, "J", name="beta_u", J=J)
    check_choice("cost_log", cost_log, ("std", "variance"))
    check_choice("normaliser", normaliser, ("gaussian", "constant"))
    check_choice("output", output, ("mean", "scaled"))
    check_number("eps", eps, least=0)
    return _per_iteration(inverse_temperature, num_iters), check_bias(bias, J, D)


def _per_iteration(inverse_temperature: float | Sequence[float], num_iters: int) -> list[float]:
    check_count("num_iters", num_iters)
    if not isinstance(inverse_temperature, Sequence):
        check_number("inverse_temperature", inverse_temperature)
        return [float(inverse_temperature)] * num_iters
    for value in inverse_temperature:
        check_number("inverse_temperature", value)
    values = [float(value) for value in inverse_temperature]
    if len(values) != num_iters:
        raise ValueError(f"inverse_temperature has {len(values)} values; expected 1 or num_iters={num_iters}")
    return values
