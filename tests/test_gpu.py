"""The same numbers on a GPU: every algorithm and every model, judged by the parity rule against float64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from capsella import create_model, list_models, routing
from capsella.testing import SMALL, Case, assert_parity, make_options, make_votes_input

pytestmark = pytest.mark.gpu


def route(algorithm: str, case: Case, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Route one case and return every result and the gradient of the votes."""
    votes = make_votes_input(case).to(device, dtype).requires_grad_()
    options = {key: value.to(device, dtype) for key, value in make_options(algorithm, case, optional=True).items()}
    result = getattr(routing, algorithm)(votes, **options)
    (result.poses.double().square().sum() + result.activations.double().sum()).backward()
    assert votes.grad is not None
    found = {"poses": result.poses, "activations": result.activations, "couplings": result.couplings, "gradient": votes.grad}
    return {key: value.detach().cpu() for key, value in found.items()}


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize("algorithm", routing.names())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_routing_gives_the_same_numbers_on_a_gpu(algorithm: str, case: Case, dtype: torch.dtype) -> None:
    truth = route(algorithm, case, torch.float64, "cpu")
    yardstick = route(algorithm, case, dtype, "cpu")
    on_gpu = route(algorithm, case, dtype, "cuda")
    for key, value in on_gpu.items():
        factor = 3.0 if key == "gradient" else 2.0
        assert_parity(value, truth[key], yardstick[key], factor=factor, name=key)


@pytest.mark.parametrize("name", list_models())
def test_models_give_the_same_scores_on_a_gpu(name: str) -> None:
    # in float64: a float32 convolution rounds differently on each device, which is not ours to judge.
    torch.manual_seed(0)
    model = create_model(name).eval().double()
    images = torch.rand(4, *model.image_shape, dtype=torch.float64)
    with torch.no_grad():
        truth = model(images).scores
        on_gpu = model.cuda()(images.cuda()).scores.cpu()
    assert_parity(on_gpu, truth, truth, name="scores")


@pytest.mark.parametrize("name", ["capsnet_small", "em_capsnet", "gcapsnet_multi"])
def test_a_compiled_training_step_runs_on_a_gpu(name: str) -> None:
    torch.manual_seed(0)
    model = create_model(name).cuda()
    images, targets = torch.rand(8, *model.image_shape, device="cuda"), torch.arange(8, device="cuda")
    step = torch.compile(lambda: model(images, targets).scores, fullgraph=True)
    step().square().sum().backward()
    for key, parameter in model.named_parameters():
        if key.startswith(("trunk", "primary", "layers")):
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
