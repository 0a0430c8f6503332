"""A trained model as one file for other programs: ONNX or torch's pt2, checked against the model before it is written.

The file maps images [B, C, H, W] of any B to the parts of ``Prediction`` that the model has, in evaluation mode, on the CPU,
in float32. The check takes the model in float64 for the truth. The file may err from it by ten times as much as the model
itself does in float32, plus 64 roundings of the largest value, or of 1, the scale of lengths and pixels. The parity rule,
with its factor of two, is for the same functions in another order; another runtime has other functions: ONNX has no expm1,
which the exp squash needs near zero, and onnxruntime's log-softmax errs by 2e-6 on inputs near 28, which EM routing turns
into 3e-6 of its scores. A trained net that lost an iteration, or drew another class, is off by orders of magnitude more.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsella import __numerics__, __version__
from capsella.data.places import is_writable, whole_or_nothing
from capsella.errors import RunError, check_choice, check_count
from capsella.models.base import Model, Prediction
from capsella.routing.dispatch import prefer

FORMATS = ("onnx", "pt2")
PARTS = ("scores", "capsules", "reconstruction")
# one, which tracers like to bake in, and others than the traced size.
BATCH_SIZES = (1, 2, 7)
_TRACED = 3
# what a file may err by: times the model's own error, and relative to the largest value.
_FACTOR, _FLOOR = 10.0, 64 * torch.finfo(torch.float32).eps
# the exporter writes no lower one, and falls back to this when asked for one that it does not know.
_LEAST_OPSET = 18
# protobuf ends here.
_ONNX_LIMIT = 2**31 - 2**20

Program = Callable[[Tensor], dict[str, Tensor]]


class ExportError(RunError):
    """The model cannot be exported, or the file does not do what the model does; nothing was written."""


class MissingExtra(ImportError, ValueError):
    """An optional package is not installed; one line that names the extra and what to install."""


@dataclass(frozen=True)
class Exported:
    """A file that was checked.

    Attributes:
        path: where it lies.
        format: ``"onnx"`` or ``"pt2"``.
        outputs: names of what it returns, in order.
        largest_difference: for each output, between file and model in float32.
        batch_sizes: of the images that were compared.
        opset: of an ONNX file, or None.
    """

    path: Path
    format: str
    outputs: tuple[str, ...]
    largest_difference: dict[str, float]
    batch_sizes: tuple[int, ...]
    opset: int | None = None


def export_model(model: Model, path: str | os.PathLike[str], *, format: str = "onnx", opset: int | None = None) -> Exported:
    """Write a model to one file, whole or not at all; the model stays as it is.

    Args:
        model: a model of capsella's, on any device, in any mode and dtype.
        path: the file; an older one is replaced only by a sound one.
        format: ``"onnx"`` (extra ``export``) or ``"pt2"``, which ``torch.export.load`` reads, without capsella.
        opset: of ONNX, 18 or more; the exporter's choice if None.

    Example:
        >>> import tempfile
        >>> from capsella.models import create_model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_model(create_model("sign_capsnet"), f"{folder}/sign.pt2", format="pt2").outputs
        ('scores', 'capsules')
    """
    check_choice("format", format, FORMATS)
    if not isinstance(model, Model):
        raise TypeError(f"model has type {type(model).__name__}; expected a capsella model, as create_model returns")
    target = Path(path).expanduser()
    if target.is_dir() or not is_writable(target.parent):
        raise ValueError(f"path={str(target)!r} cannot be written to; expected a file in a folder of yours")
    if opset is not None:
        if format != "onnx":
            raise ValueError(f"opset={opset!r} goes with format='onnx'; format={format!r} has none")
        check_count("opset", opset, least=_LEAST_OPSET)
    if format == "onnx":
        need_extra("export", "onnx", "onnxscript", "onnxruntime", what="format='onnx'")
        size = 4 * sum(tensor.numel() for tensor in model.state_dict().values())
        if size > _ONNX_LIMIT:
            raise ValueError(f"format='onnx' holds at most 2 GiB, the weights have {size:,} bytes; expected format='pt2'")
    # a copy in the plainest form, so that the caller's model keeps its device, dtype and mode.
    plain = copy.deepcopy(model).to("cpu", torch.float32).eval().requires_grad_(False)
    name = str(model.config.get("name", type(model).__name__))
    about = {"capsella": __version__, "numerics": __numerics__, "model": model.config}
    with torch.no_grad(), prefer("reference"), _quiet():
        try:
            content = (_to_onnx if format == "onnx" else _to_pt2)(_trace(plain), json.dumps(about, default=str), opset)
            program = (_from_onnx if format == "onnx" else _from_pt2)(content)
        except ExportError:
            raise
        except Exception as error:  # torch's and ONNX's own have no base class in common.
            raise ExportError(f"{name} cannot be exported to {format}: {_one_line(error)}") from error
        differences = _compare(plain, program, f"{name} as {format}")
    try:
        with whole_or_nothing(target) as file:
            file.write(content)
    except OSError as error:
        raise ExportError(f"{target} could not be written ({error.strerror or error}); nothing was changed there") from error
    return Exported(target, format, tuple(differences), differences, BATCH_SIZES, _opset(content) if format == "onnx" else None)


def need_extra(extra: str, *packages: str, what: str) -> None:
    """Raise ``MissingExtra`` unless all packages of an extra can be imported."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            install = " ".join(packages)
            raise MissingExtra(
                f"{what} needs the extra {extra!r}, and {package} is not there ({_one_line(error)}); try: pip install {install}"
            ) from error


class _Parts(nn.Module):
    """Return a prediction as a dict, which needs no class of ours to be read."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return _parts(self.model(images))


def _parts(prediction: Prediction) -> dict[str, Tensor]:
    parts = {name: getattr(prediction, name) for name in PARTS}
    return {name: part for name, part in parts.items() if part is not None}


def _trace(model: Model) -> torch.export.ExportedProgram:
    images = _images(model, _TRACED)
    program = torch.export.export(_Parts(model), (images,), dynamic_shapes={"images": {0: torch.export.Dim("batch")}})
    # of no use to a reader of the file, and one of them would be pickled.
    program.example_inputs = None
    for node in program.graph.nodes:
        # the folders of this machine are nobody's business.
        node.meta.pop("stack_trace", None)
    return program


def _images(model: Model, size: int) -> Tensor:
    return torch.rand(size, *model.image_shape, generator=torch.Generator().manual_seed(size))


def _to_onnx(program: torch.export.ExportedProgram, about: str, opset: int | None) -> bytes:
    outputs = [name for name in PARTS if name in program.call_spec.out_spec.context]
    written: Any = torch.onnx.export(
        program, (), dynamo=True, verbose=False, opset_version=opset, input_names=["images"], output_names=outputs
    )
    written.rename_axes({written.model.graph.inputs[0].shape[0]: "batch"})
    written.model.metadata_props["capsella"] = about
    content: bytes = written.model_proto.SerializeToString()
    if opset is not None and _opset(content) != opset:
        raise ExportError(
            f"opset={opset} cannot be written, only {_opset(content)}; leave it out or install a newer onnxscript"
        )
    return content


def _from_onnx(content: bytes) -> Program:
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(images: Tensor) -> dict[str, Tensor]:
        return dict(zip(names, map(torch.from_numpy, session.run(names, {"images": images.numpy()})), strict=True))

    return run


def _opset(content: bytes) -> int:
    imports = importlib.import_module("onnx").load_from_string(content).opset_import
    return next(int(entry.version) for entry in imports if entry.domain in ("", "ai.onnx"))


def _to_pt2(program: torch.export.ExportedProgram, about: str, opset: int | None) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={"capsella.json": about})
    return buffer.getvalue()


def _from_pt2(content: bytes) -> Program:
    program: Program = torch.export.load(io.BytesIO(content)).module()
    return program


def _compare(model: Model, program: Program, name: str) -> dict[str, float]:
    """Return the largest difference of each output, or raise ``ExportError``."""
    exact = copy.deepcopy(model).double()
    rows: list[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]] = []
    for size in BATCH_SIZES:
        images = _images(model, size)
        try:
            found = program(images)
        except Exception as error:
            raise ExportError(f"{name} fails on a batch of {size}: {_one_line(error)}") from error
        shapes = {part: list(tensor.shape) for part, tensor in found.items()}
        expected = {part: list(tensor.shape) for part, tensor in _parts(model(images)).items()}
        if shapes != expected:
            raise ExportError(f"{name} returns shapes {shapes} for a batch of {size}; expected {expected}")
        # rounding may break a tie between two classes, so that all three draw the class that the file chose.
        chosen = found["scores"].argmax(dim=1)
        rows.append((found, _parts(model(images, chosen)), _parts(exact(images.double(), chosen))))
    return {part: _difference(part, rows, name) for part in rows[0][1]}


def _difference(part: str, rows: list[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]], name: str) -> float:
    found, ours, truth = (torch.cat([row[k][part].double() for row in rows]) for k in range(3))
    if not ours.isfinite().all():
        raise ExportError(f"{name}: {part} of the model itself are not finite, so that there is nothing to compare")
    error, own = float((found - truth).abs().max()), float((ours - truth).abs().max())
    allowed = _FACTOR * own + _FLOOR * max(1.0, float(truth.abs().max()))
    # so written that NaN is no success.
    if not error <= allowed:
        raise ExportError(f"{name}: {part} err by {error:.3g}, the model itself by {own:.3g}; at most {allowed:.3g} is allowed")
    return float((found - ours).abs().max())


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' talk about themselves away from the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
