"""``help()`` of every metric shows its formula, and how it is read where the paper leaves that open."""

from __future__ import annotations

import inspect
import re

import pytest

from capsella import analysis as A

FORMULAS = {
    A.routing_dynamics: ["dyr(i) = (1/n) Σ_j std_images(c_ij) / std(pr_n)", "√((1 − 1/n)/n)", "n counts the live ones"],
    A.activity: [
        "cns = (1/k) Σ_images Σ_j ‖u_j‖",
        "#{j: ‖u_j‖ ≥ ε}",
        "mean‖u_j‖ ≤ ε₁ and std‖u_j‖ ≤ ε₂",
        "0.1 fits its Table 2",
    ],
    A.activity_sweep: ["0.01, 0.05, 0.1 and 0.2"],
    A.compactness: ["KL(p ‖ uniform) = Σ_d p_d log(p_d · D)", "KL(uniform ‖ p)", "leaves the base, the direction and"],
    A.factor_compactness: ["p = Var / Σ Var", "mean_images KL(p ‖ uniform)"],
    A.viewpoint_correlation: ["v¹·v² / (‖v¹‖ ‖v²‖)", "Nothing is centred"],
    A.chance_correlation: ["mean(v¹) mean(v²) / √(mean(v¹²) mean(v²²))"],
    A.coupling_entropy: ["−Σ_j p_ij log p_ij", "/ log J"],
    A.coupling_change: ["½ Σ_j |c^t_ij − c^(t−1)_ij|"],
    A.gradient_norms: ["‖∂L_b/∂u_i‖", "‖(1/B) Σ_b ∂L_b/∂W_ij‖", "Theorem 2", "outer product"],
    A.negation_gap: ["max_bj |score_j(x_b) − score_j(−x_b)|", "primary capsules"],
    A.routing_matters: ["(1/IJ) Σ_ij c_ij", "half a batch away", "Σ_i c_ij û_ij"],
    A.routing_cost: ["n²·d²", "n²·d + n·d²"],
    A.over_training: ["deaths = dead now − dead before + revivals between them"],
}


@pytest.mark.parametrize("metric", FORMULAS, ids=lambda metric: metric.__name__)
def test_a_metric_shows_its_formula(metric: object) -> None:
    shown = inspect.getdoc(metric) or ""
    together = re.sub(r"\s+", " ", shown)
    for formula in FORMULAS[metric]:
        assert formula in together
    # what stands at the top of a file is not shown with the function.
    assert "formula is above" not in together
    assert "formulas are above" not in together
