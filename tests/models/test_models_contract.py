"""What every registered model promises; registering one enrols it here."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from capsella.models import CapsuleNet, Model, Prediction, create_model, list_models
from capsella.routing import Routed, prefer
from capsella.testing import GRADIENT_FACTOR, assert_parity

# the least side that every trunk takes; sizes of the papers are built in test_models_counts.
SIDE = 25
# fewer equal layers than the default, for the compiler's time.
SHORTER = {"deep_capsnet": {"depth": 3}, "parse_capsnet": {"capsules": (16, 16, 10)}}
# without any class capsules, and with one vector that belongs to no class.
PLAIN = {"convnet_avg", "convnet_fc", "convnet_fc512", "convnet_fc_lk", "convnet_small", "lenet"}
CLASSLESS = {"convnet_r"}


@dataclass
class Subject:
    """A model in evaluation mode, two images and a class for each."""

    name: str
    model: Model
    images: Tensor
    targets: Tensor

    def more_images(self, count: int) -> Tensor:
        return torch.rand(count, *self.model.image_shape, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module", params=list_models())
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    torch.manual_seed(0)
    name = request.param
    size = {} if name == "sign_capsnet" else {"image_size": SIDE}
    model = create_model(name, **size, **SHORTER.get(name, {})).eval()
    images = torch.rand(2, *model.image_shape, generator=torch.Generator().manual_seed(1))
    yield Subject(name, model, images, torch.tensor([1, 0]))
    torch._dynamo.reset()


def assert_same_prediction(result: Prediction, expected: Prediction) -> None:
    """Compare bit by bit; parts that are missing must be missing in both."""
    for part in ("scores", "capsules", "reconstruction"):
        got, wanted = getattr(result, part), getattr(expected, part)
        assert (got is None) == (wanted is None), part
        if wanted is not None:
            torch.testing.assert_close(got, wanted, rtol=0, atol=0, msg=part)


def test_a_prediction_has_the_stated_shapes(subject: Subject) -> None:
    model = subject.model
    J = model.num_classes
    prediction = model(subject.images, subject.targets)
    assert prediction.scores.shape == (2, J)
    assert prediction.scores.isfinite().all()
    if subject.name in PLAIN:
        assert prediction.capsules is None
    elif subject.name in CLASSLESS:
        assert prediction.capsules.shape == (2, 1, 16 * J)
    else:
        assert prediction.capsules.shape[:2] == (2, J)
        assert prediction.capsules.isfinite().all()
    if model.decoder is None:
        assert prediction.reconstruction is None
    else:
        assert prediction.reconstruction.shape == subject.images.shape
        assert 0 <= prediction.reconstruction.min() <= prediction.reconstruction.max() <= 1


def test_scores_of_vector_capsules_are_their_lengths(subject: Subject) -> None:
    prediction = subject.model(subject.images)
    if not isinstance(subject.model, CapsuleNet) or subject.name == "em_capsnet":
        if subject.name == "em_capsnet":
            assert bool(((prediction.scores > 0) & (prediction.scores < 1)).all())
        return
    torch.testing.assert_close(prediction.scores, prediction.capsules.square().sum(dim=-1).sqrt(), rtol=1e-5, atol=1e-8)
    assert prediction.scores.max() < 1


def test_capsules_and_routed_agree_with_the_prediction(subject: Subject) -> None:
    model, images = subject.model, subject.images
    prediction, layers, routed = model(images), model.capsules(images), model.routed(images, trace=True)
    if subject.name in PLAIN | CLASSLESS | {"convnet_cr"}:
        assert layers == []
        assert routed == []
        return
    assert torch.equal(layers[-1], prediction.capsules)
    assert all(layer.ndim == 3 and layer.shape[0] == 2 for layer in layers)
    if not isinstance(model, CapsuleNet):
        assert routed == []
        return
    assert len(layers) == len(routed) + 1 == len(model.layers) + 1
    assert torch.equal(routed[-1].poses, prediction.capsules)
    assert torch.equal(routed[-1].activations, prediction.scores)
    for layer, below, above, result in zip(model.layers, layers, layers[1:], routed, strict=False):
        folded = result.poses.shape[0]
        assert folded % 2 == 0
        assert result.poses.shape == (folded, layer.out_capsules, layer.out_dim)
        assert result.activations.shape == (folded, layer.out_capsules)
        assert result.couplings.shape == (folded, layer.in_capsules, layer.out_capsules)
        assert below.shape[2] == layer.in_dim
        assert torch.equal(above.reshape(result.poses.shape), result.poses)
        assert len(result.trace) == (3 if layer.algorithm.is_iterative else 1)
        assert torch.equal(result.trace[-1], result.couplings)
        if layer.algorithm.normalised:
            sums = result.couplings.sum(dim=1 if layer.options.get("normalise") == "sources" else 2)
            torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)


def test_targets_choose_what_is_reconstructed(subject: Subject) -> None:
    model, images = subject.model, subject.images
    if model.decoder is None:
        with pytest.raises(ValueError, match=f"^{subject.name} has no decoder; expected a model with reconstruction="):
            model.reconstruct(torch.zeros(2, model.num_classes, 16), subject.targets)
        return
    prediction = model(images)
    longest = prediction.scores.argmax(dim=1)
    torch.testing.assert_close(prediction.reconstruction, model(images, longest).reconstruction, rtol=0, atol=0)
    pairs = torch.tensor([[3, 1], [0, 2]])
    rows = torch.zeros(2, model.num_classes).scatter(1, pairs, 1.0)
    by_pairs, by_rows = model(images, pairs).reconstruction, model(images, rows).reconstruction
    if model.decoder.mask == "normal":
        assert torch.equal(by_pairs, prediction.reconstruction)
        assert torch.equal(by_rows, prediction.reconstruction)
    else:
        assert by_pairs.shape == by_rows.shape == (2, 2, *model.image_shape)
        assert torch.equal(by_rows, torch.stack([by_pairs[0].flip(0), by_pairs[1]]))  # rows name classes in order
        assert not torch.equal(by_pairs[:, 0], by_pairs[:, 1])
        alone = model(images, pairs[:, 0]).reconstruction
        torch.testing.assert_close(by_pairs[:, 0], alone, rtol=1e-5, atol=1e-6)
    assert torch.equal(model.reconstruct(prediction.capsules, pairs), by_pairs)
    assert torch.equal(model.reconstruct(prediction.capsules, rows), by_rows)


def test_every_parameter_but_quadratic_couplings_gets_a_gradient(subject: Subject) -> None:
    # by what a loss sees, scores and reconstruction; float64, so that EM's small temperature makes no gradient underflow.
    model = copy.deepcopy(subject.model).double().train()
    torch.manual_seed(3)
    prediction = model(subject.images.double(), subject.targets)
    total = sum(
        (part * torch.rand_like(part)).sum() for part in (prediction.scores, prediction.reconstruction) if part is not None
    )
    total.backward()
    apart = {id(p) for p in model.coupling_parameters()}
    assert len(apart) == (1 if subject.name == "quadratic_capsnet" else 0)
    main = {id(p) for p in model.main_parameters()}
    # a parameter that changes nothing still gets rounding, some 1e-16 of what the others get.
    rounding = 1e-12 * max(float(p.grad.abs().max()) for p in model.main_parameters() if p.grad is not None)
    for name, parameter in model.named_parameters():
        assert (id(parameter) in apart) != (id(parameter) in main), name
        if id(parameter) in apart:
            assert parameter.grad is None, name
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > rounding, name


def test_a_state_dict_brings_back_the_same_model(subject: Subject) -> None:
    torch.manual_seed(99)
    other = create_model(**subject.model.config).eval()
    assert not torch.equal(other(subject.images).scores, subject.model(subject.images).scores)
    other.load_state_dict(subject.model.state_dict())
    assert_same_prediction(other(subject.images, subject.targets), subject.model(subject.images, subject.targets))


def test_a_sample_does_not_depend_on_its_batch(subject: Subject) -> None:
    images = subject.more_images(3).double()
    model = copy.deepcopy(subject.model).double()
    together = model(images).scores
    alone = torch.cat([model(image[None]).scores for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_work(subject: Subject, dtype: torch.dtype) -> None:
    model, images = copy.deepcopy(subject.model).to(dtype), subject.images.to(dtype)
    prediction = model(images, subject.targets)
    for part in (prediction.scores, prediction.capsules, prediction.reconstruction):
        if part is not None:
            assert part.dtype == dtype
            assert part.isfinite().all()
    if dtype == torch.float64:
        # single precision must agree to the rounding of its longest sum, 20,736 products in each of at most six layers.
        tolerance = 6 * 20736**0.5 * torch.finfo(torch.float32).eps
        scores = subject.model(subject.images).scores
        torch.testing.assert_close(prediction.scores.float(), scores, rtol=tolerance, atol=tolerance)


def test_the_compiled_graph_is_whole_and_equals_eager(subject: Subject) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(subject.model, fullgraph=True, backend="eager")
    assert_same_prediction(compiled(subject.images, subject.targets), subject.model(subject.images, subject.targets))


def test_the_exported_program_takes_any_batch(subject: Subject) -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(subject.model, (subject.images,), dynamic_shapes={"images": {0: batch}})
    for count in (5, 1):
        images = subject.more_images(count)
        # a program routes by the reference whatever the batch; a model chooses, and another's bits differ.
        with prefer("reference"):
            expected = subject.model(images)
        assert_same_prediction(program.module()(images), expected)


def test_the_inductor_backend_agrees_forward_and_backward() -> None:
    from torch._inductor import config

    torch.manual_seed(0)
    model = create_model("capsnet_small", reconstruction="none")  # a decoder would double the time in the C++ compiler
    images = torch.rand(3, *model.image_shape)

    def run(forward: object, dtype: torch.dtype) -> dict[str, Tensor]:
        model.to(dtype).zero_grad()
        prediction = forward(images.to(dtype))  # type: ignore[operator]
        (prediction.scores.square().sum() + prediction.capsules.sum()).backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        return {"scores": prediction.scores, "capsules": prediction.capsules} | gradients

    yardstick = run(model, torch.float32)
    # a compiler that reads torch's headers knows the processor's instructions: trying each set takes longer than the model.
    with config.patch({"cpp.vec_isa_ok": True}):
        tested = run(torch.compile(model, fullgraph=True, backend="inductor"), torch.float32)
    truth = run(model, torch.float64)
    for name in truth:
        factor = {} if name in ("scores", "capsules") else {"factor": GRADIENT_FACTOR}
        assert_parity(tested[name].detach(), truth[name], yardstick[name], name=name, **factor)
    torch._dynamo.reset()


def test_results_are_pytrees_for_export_and_transforms() -> None:
    leaves, spec = torch.utils._pytree.tree_flatten(Prediction(torch.zeros(2), None, torch.ones(3)))
    assert len([leaf for leaf in leaves if leaf is not None]) == 2
    assert torch.utils._pytree.tree_unflatten(leaves, spec).reconstruction.sum() == 3
    assert len(torch.utils._pytree.tree_flatten(Routed(torch.zeros(1), torch.zeros(1)))[0]) >= 2
