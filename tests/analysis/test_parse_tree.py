"""Parse trees: what the layers of a net were seen to do, image by image and over many."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from analysis_nets import SIZES, Stack, draw, randomised
from torch import Tensor, nn

from capsella import create_model
from capsella.analysis import ForeignLayers, Seen, TreeStatistics, TreeStatisticsOf, observe, parse_trees, seen_layer
from capsella.analysis.parse_tree import chained
from capsella.models import CapsuleNet
from capsella.nn import CapsuleConv2d, CapsuleLinear


def stack(**options: Any) -> Stack:
    return randomised(Stack(CapsuleLinear(6, 4, 5, 4, **options), CapsuleLinear(5, 4, 3, 4, **options)))


def statistics(model: nn.Module, images: Tensor, sizes: tuple[int, ...]) -> TreeStatistics:
    streamed = TreeStatisticsOf()
    for batch in images.split(sizes):
        streamed.update(observe(model, batch)[1])
    return streamed.compute()


@torch.no_grad()
def test_trees_of_a_net_hold_what_it_routed() -> None:
    model = create_model("parse_capsnet", image_size=40, reconstruction="none")
    assert isinstance(model, CapsuleNet)
    model.train()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    images = torch.rand(3, 1, 40, 40)
    trees = parse_trees(model, images)
    assert model.training
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())

    model.eval()
    results, primary, scores = model.routed(images), model.capsules(images)[0], model(images).scores
    assert len(trees) == 3
    for k, tree in enumerate(trees):
        assert tree.names == ("layers.0", "layers.1", "layers.2", "layers.3")
        assert tree.answer == int(scores[k].argmax())
        assert [tuple(edges.shape) for edges in tree.couplings] == [(16, 16)] * 3 + [(16, 10)]
        layers = [primary[k].norm(dim=-1), *(result.activations[k] for result in results)]
        for found, expected in zip(tree.activations, layers, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        for found, result in zip(tree.couplings, results, strict=True):
            assert result.couplings is not None
            torch.testing.assert_close(found, result.couplings[k], rtol=1e-5, atol=1e-6)


def test_a_tree_goes_through_json_unchanged() -> None:
    tree, other = parse_trees(stack(), draw(2, 6, 4))
    plain = tree.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert set(plain) == {"answer", "names", "layers", "edges"}
    assert plain["answer"] == tree.answer
    assert plain["names"] == ["layers.0", "layers.1"]
    for found, layer in zip(plain["layers"], tree.activations, strict=True):
        assert found == pytest.approx(layer.tolist(), abs=5.1e-5)
    for found, edges in zip(plain["edges"], tree.couplings, strict=True):
        np.testing.assert_allclose(found, edges.numpy(), atol=5.1e-5)
    assert other.as_dict() != plain


def test_a_tree_by_hand() -> None:
    # one source of length 1 to two targets, ¾ and ¼ of it.
    couplings = torch.tensor([[[0.75, 0.25]]])
    seen = seen_layer(torch.tensor([[[0.6, 0.8]]]), torch.tensor([[[0.75], [0.25]]]), couplings=couplings)

    class Fixed(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.tensor([[0.75, 0.25]])

    model = nn.Sequential(Fixed())
    (tree,) = parse_trees(model, torch.zeros(1, 1), adapter=ForeignLayers({"0": lambda *_: seen}))
    assert tree.as_dict() == {"answer": 0, "names": ["0"], "layers": [[1.0], [0.75, 0.25]], "edges": [[[0.75, 0.25]]]}


def test_statistics_are_numpy_s_whatever_the_batches() -> None:
    model, images = stack(), draw(sum(SIZES), 6, 4)
    found = statistics(model, images, SIZES)
    trees = parse_trees(model, images)
    assert found.images == len(trees) == 11
    assert found.names == trees[0].names
    for k in range(3):
        values = np.stack([tree.activations[k].numpy() for tree in trees])
        np.testing.assert_allclose(found.activations[k].numpy(), values.mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(found.activation_stds[k].numpy(), values.std(axis=0), rtol=1e-9)
    for k in range(2):
        values = np.stack([tree.couplings[k].numpy() for tree in trees])
        np.testing.assert_allclose(found.couplings[k].numpy(), values.mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(found.coupling_stds[k].numpy(), values.std(axis=0), rtol=1e-9)
    at_once = statistics(model, images, (11,))
    for part in ("activations", "activation_stds", "couplings", "coupling_stds"):
        for streamed, whole in zip(getattr(found, part), getattr(at_once, part), strict=True):
            torch.testing.assert_close(streamed, whole, rtol=1e-9, atol=1e-12)


def test_statistics_go_through_json_unchanged() -> None:
    found = statistics(stack(), draw(11, 6, 4), SIZES)
    plain = found.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert set(plain) == {"images", "names", "layers", "layer_stds", "edges", "edge_stds", "dead"}
    assert plain["images"] == 11
    assert plain["dead"] == [[False] * 6, [False] * 5, [False] * 3]
    np.testing.assert_allclose(plain["edge_stds"][1], found.coupling_stds[1].numpy(), atol=5.1e-5)


def test_one_image_has_no_spread() -> None:
    found = statistics(stack(), draw(1, 6, 4), (1,))
    assert found.images == 1
    assert all(not layer.any() for layer in (*found.activation_stds, *found.coupling_stds))


def test_dead_capsules_are_marked() -> None:
    model, images = stack(bias=False), draw(11, 6, 4)
    with torch.no_grad():
        # nobody votes for the fourth capsule; the third primary one is always zero.
        model.layers[0].weight[:, 3] = 0
    images[:, 2] = 0
    found = statistics(model, images, SIZES)
    assert [layer.tolist() for layer in found.dead] == [
        [False, False, True, False, False, False],
        [False, False, False, True, False],
        [False, False, False],
    ]


def test_a_capsule_that_wakes_for_one_image_is_alive() -> None:
    images = draw(11, 6, 4)
    images[1:, 2] = 0
    assert not statistics(stack(), images, SIZES).dead[0].any()


def test_statistics_of_nothing_are_an_error() -> None:
    with pytest.raises(ValueError, match="nothing has been seen yet"):
        TreeStatisticsOf().compute()


def layer(lower: int, upper: int, *, windows: int = 1, couplings: bool = True) -> Seen:
    return Seen(
        f"{lower}-{upper}",
        torch.rand(2, lower, 4),
        torch.rand(2, lower),
        torch.rand(2, upper, 4),
        torch.rand(2, upper),
        torch.rand(2, lower, upper // windows) if couplings else None,
        windows=windows,
    )


def test_layers_on_top_of_each_other_are_chained_lowest_first() -> None:
    seen = [layer(8, 6), layer(6, 5), layer(5, 3)]
    assert chained(seen) == seen


@pytest.mark.parametrize(
    "lowest", [layer(8, 6, windows=2), layer(8, 6, couplings=False), layer(8, 7)], ids=["conv", "unknown", "apart"]
)
def test_a_chain_ends_at_the_first_layer_that_is_none(lowest: Seen) -> None:
    seen = [layer(9, 8), lowest, layer(6, 5), layer(5, 3)]
    assert [each.name for each in chained(seen)] == ["6-5", "5-3"]


@pytest.mark.parametrize("seen", [[], [layer(6, 4, windows=2)], [layer(6, 4), layer(4, 3, couplings=False)]])
def test_without_a_chain_there_is_no_tree(seen: list[Seen]) -> None:
    with pytest.raises(ValueError, match="a parse tree needs one that has"):
        chained(seen)
    with pytest.raises(ValueError, match="a parse tree needs one that has"):
        TreeStatisticsOf().update(seen)


def test_convolutions_below_are_left_out_of_a_tree() -> None:
    # 3×3 positions of 2 types under 2×2 windows: four windows with three capsules each, then three classes.
    model = randomised(Stack(CapsuleConv2d(2, 4, 3, 4, kernel_size=2), CapsuleLinear(12, 4, 3, 4)))
    images = draw(2, 3, 3, 2, 4)
    tree, _ = parse_trees(model, images)
    assert tree.names == ("layers.1",)
    assert [len(activations) for activations in tree.activations] == [12, 3]
    found = statistics(model, images, (1, 1))
    assert [tuple(edges.shape) for edges in found.couplings] == [(12, 3)]


def test_a_net_of_convolutions_alone_has_no_tree() -> None:
    model = randomised(Stack(CapsuleConv2d(2, 4, 3, 4, kernel_size=2)))
    with pytest.raises(ValueError, match="a parse tree needs one that has"):
        parse_trees(model, draw(2, 3, 3, 2, 4))


def test_a_kernel_over_the_whole_map_couples_all_capsules() -> None:
    (tree,) = parse_trees(create_model("em_capsnet"), torch.rand(1, 1, 28, 28))
    assert tree.names == ("layers.2",)
    assert [len(activations) for activations in tree.activations] == [144, 10]


def test_bfloat16_trees_go_through_json() -> None:
    model = Stack(CapsuleLinear(6, 4, 3, 4)).bfloat16()
    (tree,) = parse_trees(model, torch.rand(1, 6, 4).bfloat16())
    plain = tree.as_dict()
    assert json.loads(json.dumps(plain)) == plain


def test_an_empty_batch_has_no_trees() -> None:
    assert parse_trees(stack(), draw(0, 6, 4)) == []
