"""Convolutions between feature maps as operators of torch: when they pay, launchers, registration, gradients.

With a stride, in half precision, ``triton_convolution`` has the forward pass and the way back to the maps. The gradient of the
weight is left to cuDNN. As with routing without votes, it can be differentiated once, and not by ``torch.func``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from capsella.functional import conv_size
from capsella.kernels.fused_agreement import multiprocessors, on_device_of, power
from capsella.kernels.triton_convolution import conv_backward_kernel, conv_forward_kernel, conv_parts_kernel

_HALF = (torch.bfloat16, torch.float16)
# images of a tile, and columns of a step: rows of 128 bytes, as the copy engine and the matrix units like them best.
BM, BK = 128, 64
# of the last tile's images so many may be missing for each that is there.
_WASTE = 1 / 3
# what decides between numbers of parts, fitted to timings on an H200: microseconds of a step of 128 images and 256 channels,
# and of a thousand values that a part leaves to be added; how many times as long a step takes where no window is divided.
_STEP, _KEPT, _UNDIVIDED = 0.62, 0.0032, 1.25
_MOST_PARTS, _LEAST_STEPS = 8, 16
# values that parts may leave: 128 MiB.
_ROOM = 1 << 25


def refuse(
    device_type: str,
    dtype: torch.dtype,
    images: int,
    in_channels: int,
    out_channels: int,
    kernel: Sequence[int],
    size: Sequence[int],
    stride: Sequence[int],
) -> list[str]:
    """Say why a convolution of feature maps is left to the library; an empty list if it is faster here.

    Args:
        device_type: where it runs.
        dtype: that it is computed in.
        images: B.
        in_channels: C.
        out_channels: O.
        kernel: rows and columns of the kernel.
        size: height and width of the maps.
        stride: rows and columns between windows.
    """
    if device_type != "cuda":
        return [f"device is {device_type}; it needs cuda"]
    reasons = [] if _able() else ["the GPU is not NVIDIA's of compute capability 9.x"]
    if dtype not in _HALF:
        reasons.append(f"dtype is {str(dtype).removeprefix('torch.')}; it needs bfloat16 or float16")
    if stride[0] * stride[1] == 1:
        reasons.append("stride is 1, which is left to cuDNN")
    for letter, channels in (("C", in_channels), ("O", out_channels)):
        if channels % BK:
            reasons.append(f"{letter}={channels} is no multiple of {BK}")
    if images < 1:
        reasons.append("there is no image")
    missing = -images % BM
    if missing > _WASTE * images:
        reasons.append(f"B={images} leaves {missing} of {images + missing} rows empty")
    if min(conv_size(*side, 0) for side in zip(size, kernel, stride, strict=True)) < 1:
        reasons.append("the maps are smaller than the kernel")
    # places within an image's maps, and within a weight, are 32-bit numbers.
    if max(in_channels, out_channels) * max(size[0] * size[1], kernel[0] * kernel[1]) >= 1 << 31:
        reasons.append("an image's maps have 2^31 values or more")
    return reasons


def _able() -> bool:
    # some of AMD's have the same number.
    return torch.version.hip is None and torch.cuda.get_device_capability()[0] == 9


@dataclass(frozen=True)
class Tiles:
    """How a kernel is cut.

    Attributes:
        BM: images.
        BN: channels.
        BK: columns of a step.
        num_warps: of a program.
        STAGES: steps whose tiles are under way or in use.
    """

    BM: int
    BN: int
    BK: int
    num_warps: int
    STAGES: int = 4

    @classmethod
    def of(cls, channels: int) -> Tiles:
        """Return the tiles for so many channels of the result."""
        BN = min(256, power(channels, BK))
        return cls(BM, BN, BK, num_warps=8 if BN == 256 else 4)

    @property
    def const(self) -> dict[str, int]:
        """The launch's own options."""
        return vars(self).copy()


def choose_parts(tiles: int, steps: int, outputs: int, there: int, tile: Tiles) -> int:
    """Choose into how many parts windows are divided, so that multiprocessors are full and parts are few.

    Args:
        tiles: programs without division.
        steps: of a window.
        outputs: values of the result.
        there: multiprocessors.
        tile: of a program.

    Example:
        >>> capsnet = Tiles(128, 256, 64, 8)  # 6×6 positions of 128 images, 9×9 positions of 256 channels under each
        >>> choose_parts(36, 324, 36 * 128 * 256, 132, capsnet)
        3
    """

    def microseconds(parts: int) -> float:
        rounds = -(-tiles * parts // there)
        step = _STEP * tile.BM * tile.BN * tile.BK / (128 * 256 * 64)
        rest = parts * outputs / 1000 * _KEPT if parts > 1 else 0.0
        return rounds * -(-steps // parts) * step * (_UNDIVIDED if parts == 1 else 1.0) + rest

    most = min(_MOST_PARTS, steps // _LEAST_STEPS, _ROOM // max(1, outputs))
    return min(range(1, max(1, most) + 1), key=microseconds)


def _matrix(tensor: Tensor) -> Tensor:
    """Return [B, C, H, W] as the matrix [B, H·W·C] that it is with channels last; the copy engine wants it on 16 bytes."""
    laid_out = tensor.contiguous(memory_format=torch.channels_last)
    return (laid_out.clone() if laid_out.data_ptr() % 16 else laid_out).permute(0, 2, 3, 1).flatten(1)


def _tiles_of(matrix: Tensor, rows: int, columns: int) -> Any:
    return TensorDescriptor(matrix, list(matrix.shape), [matrix.shape[1], 1], [rows, columns])


def _empty(like: Tensor, size: Sequence[int]) -> Tensor:
    return torch.empty(tuple(size), dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _forward(maps: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int]) -> Tensor:
    B, C, H, W = maps.shape
    O, _, K, L = weight.shape
    S, T = stride
    OH, OW = conv_size(H, K, S, 0), conv_size(W, L, T, 0)
    out = _empty(maps, (B, O, OH, OW))
    tile, steps = Tiles.of(O), K * L * C // BK
    tiles = -(-O // tile.BN) * OH * OW * -(-B // tile.BM)
    each = -(-steps // choose_parts(tiles, steps, out.numel(), multiprocessors(maps.device), tile))
    parts = -(-steps // each)
    into = out if parts == 1 else torch.empty(parts, out.numel(), dtype=torch.float32, device=maps.device)
    told = {"PARTS": parts, "BIASED": bias is not None}
    addend = out if bias is None else bias.contiguous()
    conv_forward_kernel[(tiles * parts,)](
        _tiles_of(_matrix(maps), tile.BM, tile.BK),
        _tiles_of(_matrix(weight), tile.BN, tile.BK),
        addend,
        into,
        B,
        OH * OW,
        OW,
        O,
        T * C,
        S * W * C,
        L * C,
        W * C - L * C,
        steps,
        each,
        **told,
        **tile.const,
    )
    if parts > 1:
        block = 4096
        conv_parts_kernel[(-(-out.numel() // block),)](into, addend, out, out.numel(), O, BLOCK=block, num_warps=8, **told)
    return out


@torch.library.custom_op("capsella::convolution", mutates_args=())
def convolution_op(maps: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int]) -> Tensor:
    """Convolve maps [B, C, H, W] by a weight [O, C, K, L] without padding; the result has channels last.

    Args:
        maps: of half precision, as the weight.
        weight: of the same dtype.
        bias: [O] or None; of any dtype, and added before the result is rounded.
        stride: rows and columns between windows.
    """
    with on_device_of(maps):
        return _forward(maps, weight, bias, stride)


@convolution_op.register_fake
def _(maps: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int]) -> Tensor:
    sides = (conv_size(maps.shape[2 + axis], weight.shape[2 + axis], stride[axis], 0) for axis in (0, 1))
    return _empty(maps, (maps.shape[0], weight.shape[0], *sides))


@torch.library.custom_op("capsella::convolution_of_gradient", mutates_args=())
def gradient_op(grad: Tensor, weight: Tensor, size: list[int], stride: list[int]) -> Tensor:
    """Return the gradient of the maps [B, C, *size], given that of the result, [B, O, H', W'].

    Args:
        grad: of the result.
        weight: [O, C, K, L], of the same dtype.
        size: height and width of the maps.
        stride: rows and columns between windows.
    """
    B, O, OH, OW = grad.shape
    _, C, K, L = weight.shape
    (H, W), (S, T) = size, stride
    out = _empty(grad, (B, C, H, W))
    tile = Tiles.of(C)
    positions = -(-H // S) * S * -(-W // T) * T
    with on_device_of(grad):
        conv_backward_kernel[(-(-C // tile.BN) * positions * -(-B // tile.BM),)](
            _tiles_of(_matrix(grad), tile.BM, tile.BK),
            _tiles_of(_matrix(weight), tile.BK, tile.BN),
            out,
            B,
            H,
            W,
            C,
            OH,
            OW,
            O,
            K,
            L,
            S=S,
            T=T,
            **tile.const,
        )
    return out


@gradient_op.register_fake
def _(grad: Tensor, weight: Tensor, size: list[int], stride: list[int]) -> Tensor:
    return _empty(grad, (grad.shape[0], weight.shape[1], *size))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    maps, weight, bias, stride = inputs
    ctx.save_for_backward(maps, weight)
    ctx.stride, ctx.bias = stride, None if bias is None else bias.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    maps, weight = ctx.saved_tensors
    of_maps, of_weight, of_bias, _ = ctx.needs_input_grad
    d_maps = gradient_op(grad, weight, list(maps.shape[2:]), ctx.stride) if of_maps else None
    d_weight = None
    if of_weight:
        options = (None, ctx.stride, [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
        d_weight = torch.ops.aten.convolution_backward(grad, maps, weight, *options)[1]
    d_bias = grad.sum((0, 2, 3), dtype=torch.float32).to(ctx.bias) if of_bias else None
    return d_maps, d_weight, d_bias, None


def _refuse_twice(ctx: Any, *gradients: Tensor) -> NoReturn:
    raise RuntimeError("this convolution cannot be differentiated twice; expected tiled=False for that")


convolution_op.register_autograd(_backward, setup_context=_setup)
gradient_op.register_autograd(_refuse_twice)
