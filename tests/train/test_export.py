"""Exported files do what the model does, for any batch; a file that does not is never left behind."""

from __future__ import annotations

import copy
import errno
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import capsella
from capsella.models import Model, create_model, list_models
from capsella.train import export
from capsella.train.export import ExportError, MissingExtra, export_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from running import in_process

# as in the contract of models: the least side that every trunk takes, and fewer equal layers.
SIDE = 25
SHORTER = {"deep_capsnet": {"depth": 3}, "parse_capsnet": {"capsules": (16, 16, 10)}}


def make(name: str = "capsnet_small", *, scale: float = 3.0, **options: Any) -> Model:
    """Return a model whose weights are large enough for routing to matter."""
    torch.manual_seed(0)
    size = {} if name == "sign_capsnet" else {"image_size": SIDE}
    model = create_model(name, **size, **SHORTER.get(name, {}), **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def images_for(model: Model, size: int) -> Tensor:
    return torch.rand(size, *model.image_shape, generator=torch.Generator().manual_seed(100 + size))


def by_the_file(path: Path, images: Tensor) -> dict[str, np.ndarray]:
    """Run an exported file without any code of capsella's."""
    if path.suffix == ".pt2":
        return {name: tensor.numpy() for name, tensor in torch.export.load(path).module()(images).items()}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"images": images.numpy()}), strict=True))


def assert_file_is_model(path: Path, model: Model, *, outputs: tuple[str, ...], tolerance: float) -> None:
    plain = copy.deepcopy(model).eval()
    # sizes that neither the tracer nor the library's own check has seen.
    for size in (4, 11):
        images = images_for(model, size)
        found, expected = by_the_file(path, images), plain(images)
        assert tuple(found) == outputs
        for name, values in found.items():
            np.testing.assert_allclose(values, getattr(expected, name).detach().numpy(), rtol=0, atol=tolerance, err_msg=name)


def test_an_onnx_file_is_the_model_for_any_batch(tmp_path: Path) -> None:
    model = make()
    done = export_model(model, tmp_path / "new" / "net.onnx")
    assert done.path == tmp_path / "new" / "net.onnx"
    assert done.outputs == ("scores", "capsules", "reconstruction")
    assert set(done.largest_difference) == set(done.outputs)
    assert all(0 <= value < 1e-5 for value in done.largest_difference.values())
    assert {1} < set(done.batch_sizes)
    assert_file_is_model(done.path, model, outputs=done.outputs, tolerance=1e-5)
    # one file, with its weights in it.
    assert [path.name for path in done.path.parent.iterdir()] == ["net.onnx"]
    graph = onnx.load(done.path)
    onnx.checker.check_model(graph)
    assert not any(tensor.external_data for tensor in graph.graph.initializer)
    batch, *rest = graph.graph.input[0].type.tensor_type.shape.dim
    assert (graph.graph.input[0].name, batch.dim_param, [side.dim_value for side in rest]) == (
        "images",
        "batch",
        [1, SIDE, SIDE],
    )
    assert done.opset == next(entry.version for entry in graph.opset_import if entry.domain == "")
    about = json.loads(next(entry.value for entry in graph.metadata_props if entry.key == "capsella"))
    assert about["capsella"] == capsella.__version__
    assert about["model"]["name"] == "capsnet_small"
    # no folder of the machine that made it.
    assert str(Path(capsella.__file__).parent).encode() not in done.path.read_bytes()


def test_a_model_without_decoder_exports_what_it_has_at_the_opset_that_is_asked_for(tmp_path: Path) -> None:
    model = make("sign_capsnet")
    done = export_model(model, tmp_path / "sign.onnx", opset=18)
    assert (done.outputs, done.opset) == (("scores", "capsules"), 18)
    assert_file_is_model(done.path, model, outputs=done.outputs, tolerance=1e-5)


SMALL = {
    "agreement": ("capsnet_small", {"routing": "agreement"}),
    "agreement over the sources": ("capsnet_small", {"normalise": "sources", "reconstruction": "none"}),
    "em": ("capsnet_small", {"routing": "em", "num_iters": 2, "reconstruction": "none"}),
    "uniform": ("capsnet_small", {"routing": "uniform", "reconstruction": "none"}),
    "trainable": ("capsnet_small", {"routing": "trainable", "reconstruction": "none"}),
    "quadratic": ("capsnet_small", {"routing": "quadratic", "reconstruction": "none"}),
    "none": ("convnet_small", {}),
}


@pytest.mark.parametrize("routing", SMALL)
def test_a_pt2_file_is_the_model_for_every_routing(routing: str, tmp_path: Path) -> None:
    name, options = SMALL[routing]
    model = make(name, **options)
    # a file holds the references, and with them the model gives the same bits.
    with capsella.routing.prefer("reference"):
        done = export_model(model, tmp_path / "net.pt2", format="pt2")
        assert done.opset is None
        assert set(done.largest_difference.values()) == {0.0}
        assert_file_is_model(done.path, model, outputs=done.outputs, tolerance=0.0)


def test_every_routing_algorithm_is_exported_above() -> None:
    assert set(SMALL) - {"none", "agreement over the sources"} == set(capsella.routing.names())


def test_a_pt2_file_needs_no_capsella_and_holds_no_pickle(tmp_path: Path) -> None:
    model = make("sign_capsnet").eval()
    export_model(model, tmp_path / "sign.pt2", format="pt2")
    program = """
import sys, torch
found = torch.export.load(sys.argv[1]).module()(torch.full((3, 1, 1, 1), 0.5))
assert "capsella" not in sys.modules
print(found["scores"].tolist())
"""
    shown = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "sign.pt2")], capture_output=True, text=True, check=True, timeout=120
    )
    expected = model(torch.full((3, *model.image_shape), 0.5)).scores
    assert torch.equal(torch.tensor(json.loads(shown.stdout)), expected)
    with zipfile.ZipFile(tmp_path / "sign.pt2") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    # what torch.save writes begins with the header of a zip file, a bare pickle with 0x80.
    assert not [name for name, content in contents.items() if content.startswith((b"PK", b"\x80"))]
    assert not [name for name, content in contents.items() if str(Path(capsella.__file__).parent).encode() in content]
    about = json.loads(next(content for name, content in contents.items() if name.endswith("capsella.json")))
    assert about["model"]["name"] == "sign_capsnet"


@pytest.mark.slow
@pytest.mark.parametrize("format", export.FORMATS)
@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("name", list_models())
def test_every_model_can_be_exported(name: str, scale: float, format: str, tmp_path: Path) -> None:
    model = make(name, scale=scale)
    done = export_model(model, tmp_path / f"net.{format}", format=format)
    prediction = model.eval()(images_for(model, 2))
    assert done.outputs == tuple(part for part in export.PARTS if getattr(prediction, part) is not None)
    assert max(done.largest_difference.values()) <= (0.0 if format == "pt2" else 1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [*({"routing": name} for name in ("em", "quadratic", "trainable")), {"normalise": "sources"}]
)
def test_other_routings_can_be_exported_to_onnx(options: dict[str, Any], tmp_path: Path) -> None:
    model = make(**options)
    done = export_model(model, tmp_path / "net.onnx")
    assert_file_is_model(done.path, model, outputs=done.outputs, tolerance=1e-5)


# the caller's model, and the caller's files


def test_the_model_stays_as_it_was(tmp_path: Path) -> None:
    model = make("sign_capsnet").double().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [parameter.requires_grad for parameter in model.parameters()]
    state = torch.get_rng_state()
    done = export_model(model, tmp_path / "sign.pt2", format="pt2")
    assert model.training
    assert all(tensor.dtype == torch.float64 and torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())
    assert [parameter.requires_grad for parameter in model.parameters()] == gradients
    assert torch.equal(torch.get_rng_state(), state)
    found = by_the_file(done.path, images_for(model, 4))["scores"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, model(images_for(model, 4).double()).scores.detach().numpy(), rtol=0, atol=1e-5)


def wrong_program(model: Model, wrong: str) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return what a tracer might make of a model: something slightly else."""
    model = copy.deepcopy(model).eval()
    fewer = make(num_iters=2).eval()

    def run(images: Tensor) -> dict[str, Tensor]:
        prediction = (fewer if wrong == "an iteration less" else model)(images)
        parts = {name: getattr(prediction, name) for name in export.PARTS}
        if wrong == "another class drawn":
            parts["reconstruction"] = model(images, prediction.scores.argmin(dim=1)).reconstruction
        elif wrong == "one value off":
            parts["capsules"] = parts["capsules"].index_fill(2, torch.tensor([3]), 0.1)
        elif wrong == "not a number":
            parts["scores"] = parts["scores"] * torch.nan
        elif wrong == "a part missing":
            del parts["capsules"]
        elif wrong == "a batch baked in":
            parts = {name: part.expand(3, *part.shape[1:]) for name, part in parts.items()}
        elif wrong == "a failure":
            raise RuntimeError("a reason\nand more about it")
        return parts

    return run


WRONG = {
    "another class drawn": "capsnet_small as pt2: reconstruction err by ",
    "one value off": "capsnet_small as pt2: capsules err by ",
    "not a number": "capsnet_small as pt2: scores err by nan",
    "a part missing": "capsnet_small as pt2 returns shapes ",
    "an iteration less": "capsnet_small as pt2: scores err by ",
    "a batch baked in": "capsnet_small as pt2 returns shapes {'scores': [3, 10], ",
    "a failure": "capsnet_small as pt2 fails on a batch of 1: RuntimeError: a reason",
}


def stand_in(monkeypatch: pytest.MonkeyPatch, model: Model, wrong: str) -> None:
    """Let the file that is read back be another program than the model."""
    monkeypatch.setattr(export, "_trace", lambda model: None)
    monkeypatch.setattr(export, "_to_pt2", lambda *arguments: b"a program")
    monkeypatch.setattr(export, "_from_pt2", lambda content: wrong_program(model, wrong))


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_does_something_else_is_not_left_behind(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    stand_in(monkeypatch, model, wrong)
    (tmp_path / "older.pt2").write_bytes(b"an older one")
    for path in (tmp_path / "older.pt2", tmp_path / "new" / "net.pt2"):
        with pytest.raises(ExportError) as caught:
            export_model(model, path, format="pt2")
        assert str(caught.value).startswith(WRONG[wrong])
        assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["older.pt2"]
    assert (tmp_path / "older.pt2").read_bytes() == b"an older one"


def test_a_stand_in_that_changes_nothing_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, make(), "nothing")
    (tmp_path / "net.pt2").write_bytes(b"an older one")
    export_model(make(), tmp_path / "net.pt2", format="pt2")
    assert (tmp_path / "net.pt2").read_bytes() == b"a program"


def test_rounding_may_break_a_tie_between_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    monkeypatch.setattr(export, "_trace", lambda model: None)
    monkeypatch.setattr(export, "_to_pt2", lambda *arguments: b"a program")
    plain = copy.deepcopy(model).eval()

    def other_winner(images: Tensor) -> dict[str, Tensor]:
        """Raise the second score by a rounding above the first, which it equals."""
        scores, capsules = plain.classify(images)
        return {"scores": scores + 1e-7 * torch.eye(10)[1], "capsules": capsules, "reconstruction": drawn(capsules)}

    def drawn(capsules: Tensor) -> Tensor:
        return plain.reconstruct(capsules, torch.ones(len(capsules), dtype=torch.long))

    def tied(self: Model, images: Tensor) -> tuple[Tensor, Tensor]:
        scores, capsules = classify(self, images)
        return scores.index_fill(1, torch.tensor([0, 1]), 0.9), capsules

    classify = type(model).classify
    monkeypatch.setattr(type(model), "classify", tied)
    monkeypatch.setattr(export, "_from_pt2", lambda content: other_winner)
    assert not torch.equal(plain(images_for(model, 2)).reconstruction, other_winner(images_for(model, 2))["reconstruction"])
    assert export_model(model, tmp_path / "net.pt2", format="pt2").largest_difference["reconstruction"] == 0.0


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stand_in(monkeypatch, make(), "nothing")
    monkeypatch.setattr("capsella.data.places.os.fsync", full)
    (tmp_path / "older.pt2").write_bytes(b"an older one")
    with pytest.raises(
        ExportError, match=r"older.pt2 could not be written \(No space left on device\); nothing was changed there$"
    ):
        export_model(make(), tmp_path / "older.pt2", format="pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["older.pt2"]
    assert (tmp_path / "older.pt2").read_bytes() == b"an older one"


def test_a_model_that_is_not_finite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    stand_in(monkeypatch, model, "nothing")
    with pytest.raises(ExportError, match=r"^capsnet_small as pt2: scores of the model itself are not finite"):
        export_model(model, tmp_path / "net.pt2", format="pt2")
    assert list(tmp_path.iterdir()) == []


class Looks(Model):
    """A model that no tracer can follow: it looks at its values."""

    def __init__(self) -> None:
        super().__init__((1, 1, 1), 2)
        self.layer = nn.Linear(1, 2)

    def classify(self, images: Tensor) -> tuple[Tensor, None]:
        scores = self.layer(images.flatten(1))
        return (scores if bool(scores.sum() > 0) else -scores), None


def test_a_model_that_cannot_be_traced_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        export_model(Looks(), tmp_path / "net.pt2", format="pt2")
    assert str(caught.value).startswith("Looks cannot be exported to pt2: ")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"format": "onx"}, ValueError, "format='onx' is unknown; did you mean 'onnx'?"),
        ({"opset": 17}, ValueError, "opset=17 is too small; expected an int of at least 18"),
        ({"opset": "20"}, TypeError, "opset='20' has type str"),
        ({"opset": 20, "format": "pt2"}, ValueError, "opset=20 goes with format='onnx'"),
        ({"opset": 99}, ExportError, "opset=99 cannot be written"),
        ({"path": "."}, ValueError, "path='.' cannot be written to"),
        ({"path": "/dev/null/net.onnx"}, ValueError, "path='/dev/null/net.onnx' cannot be written to"),
        ({"model": nn.Linear(1, 1)}, TypeError, "model has type Linear; expected a capsella model"),
    ],
)
def test_mistakes_are_one_line(options: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path) -> None:
    given = {"model": make("sign_capsnet"), "path": tmp_path / "net.onnx"} | options
    with pytest.raises(kind) as caught:
        export_model(**given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_weights_beyond_what_onnx_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_ONNX_LIMIT", 300)
    with pytest.raises(
        ValueError, match=r"^format='onnx' holds at most 2 GiB, the weights have 328 bytes; expected format='pt2'$"
    ):
        export_model(make("sign_capsnet"), tmp_path / "sign.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_extra_one_line_says_what_to_install(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as caught:
        export_model(make("sign_capsnet"), tmp_path / "sign.onnx")
    # a mistake that the command line turns into exit code 2, and what else one expects of a missing package.
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ImportError)
    said = str(caught.value)
    assert said.startswith(f"format='onnx' needs the extra 'export', and {package} is not there (")
    assert said.endswith("try: pip install onnx onnxscript onnxruntime")
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []


# the command line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short run."""
    folder = tmp_path_factory.mktemp("runs") / "sign"
    data = capsella.load_data("sign")
    capsella.train.fit(create_model("sign_capsnet"), data, folder=folder, epochs=1, batch_size=512, progress=False)
    return folder


def test_the_program_exports_a_run(trained: Path, tmp_path: Path) -> None:
    for arguments, path in (
        ([], trained / "model.onnx"),
        (["--format", "pt2", "--out", str(tmp_path / "x.pt2")], tmp_path / "x.pt2"),
    ):
        code, out, err = in_process("export", str(trained), *arguments)
        assert (code, err) == (0, "")
        assert out.startswith(f"{path} ({path.suffix[1:]}, ")
        assert f"{path.stat().st_size:,} bytes)" in out
        assert "│ scores" in out
        assert "│ capsules" in out
        model = capsella.train.Run.load(trained).model
        assert_file_is_model(path, model, outputs=("scores", "capsules"), tolerance=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "onx"), "--format='onx' is unknown; did you mean 'onnx'?"),
        (("--format", "pt2", "--out", "/dev/null/x.pt2"), "path='/dev/null/x.pt2' cannot be written to"),
        (("--format", "pt2", "--opset", "20"), "opset=20 goes with format='onnx'"),
    ],
)
def test_mistakes_of_users_are_exit_code_2(trained: Path, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = in_process("export", str(trained), *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"capsella: {message}")
    assert err.count("\n") == 1


def test_a_folder_without_a_run_is_exit_code_2(tmp_path: Path) -> None:
    code, out, err = in_process("export", str(tmp_path))
    assert (code, out) == (2, "")
    assert f"run='{tmp_path}' holds no run" in err
    assert err.count("\n") == 1


def test_a_missing_extra_is_exit_code_2(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, out, err = in_process("export", str(trained))
    assert (code, out) == (2, "")
    assert err.startswith("capsella: format='onnx' needs the extra 'export'")
    assert err.count("\n") == 1


def test_a_failed_check_is_exit_code_1(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> dict[str, float]:
        raise ExportError("sign_capsnet as pt2: scores err by 1, the model itself by 1e-08; at most 1e-07 is allowed")

    stand_in(monkeypatch, make(), "nothing")
    monkeypatch.setattr(export, "_compare", fails)
    code, out, err = in_process("export", str(trained), "--format", "pt2", "--out", str(tmp_path / "x.pt2"))
    assert (code, out) == (1, "")
    assert err == "capsella: sign_capsnet as pt2: scores err by 1, the model itself by 1e-08; at most 1e-07 is allowed\n"
    assert list(tmp_path.iterdir()) == []
