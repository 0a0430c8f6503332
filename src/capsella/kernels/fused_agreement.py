"""The fused agreement as operators of torch: launchers, ``torch.library`` registration, gradients.

One operator forward and one backward, each a handful of kernel launches (``triton_agreement``). Routing without iterations
is the case of one: its couplings are given.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from capsella.kernels.plain_tiles import refuse_twice
from capsella.kernels.triton_agreement import finish_kernel, gradients_kernel, sums_kernel, turn_kernel

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a device has; the interpreter counts as one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@dataclass(frozen=True)
class Tiles:
    """How one kernel is cut.

    Attributes:
        BB: samples of a tile.
        BI: lower capsules of a tile.
        num_warps: of a program.
        num_stages: loads in flight.
        maxnreg: registers of a thread.
        resident: programs that a multiprocessor holds at once; the work is split into about so many.
        few: whether registers hold something of all upper capsules at once.
    """

    BB: int
    BI: int
    num_warps: int = 4
    num_stages: int = 3
    maxnreg: int = 168
    resident: int = 3
    few: bool = False

    @property
    def launch(self) -> dict[str, int]:
        """The launch's own options."""
        return {key: getattr(self, key) for key in ("BB", "BI", "num_warps", "num_stages", "maxnreg")}

    def split(self, units: int, others: int, device: torch.device, *, least: int = 1) -> tuple[int, int]:
        """Split ``units`` of work, ``others`` times over, so that programs fill the device: (programs, units of each).

        No program has fewer than ``least``, but for the last, or where there are no more.
        """
        programs = max(1, min(units, self.resident * multiprocessors(device) // max(1, others)))
        each = max(least, -(-units // programs))
        return -(-units // each), each

    def slices(self, uppers: int, others: int, device: torch.device, *, most: int) -> tuple[int, int]:
        """Split upper capsules likewise, ``most`` times at most, where ``others`` alone leave multiprocessors idle."""
        if self.few or others >= multiprocessors(device):
            return 1, uppers
        _, each = self.split(uppers, others, device)
        each = max(each, -(-uppers // max(1, most)))
        return -(-uppers // each), each


@dataclass(frozen=True)
class Plan:
    """Tiles of the kernels and padded pose sizes.

    Attributes:
        uniform: of sums with one coupling for all.
        given: of sums with given couplings.
        agree: of sums with the couplings of an iteration.
        pull: of sums on the way back.
        gradients: of the gradients.
        BP: values of a lower pose.
        BD: values of an upper pose.
    """

    uniform: Tiles
    given: Tiles
    agree: Tiles
    pull: Tiles
    gradients: Tiles
    BP: int
    BD: int


def power(size: int, least: int) -> int:
    """Return the next power of two, and at least ``least``."""
    return max(least, 1 << (size - 1).bit_length())


def plan(B: int, I: int, J: int, P: int, D: int, *, T: int, width: int, there: int) -> Plan:
    """Choose tiles.

    They were measured on an H200 for P = 8 with 32 to 256 samples, and for P = 16 with 32; D was 8 to 16. Other poses have
    those of their neighbours.

    Args:
        B: samples.
        I: lower capsules.
        J: upper capsules.
        P: values of a lower pose.
        D: values of an upper pose.
        T: iterations.
        width: bytes of a factor.
        there: multiprocessors of the device.
    """
    BP, BD = power(P, 2), power(D, 16)
    BB, BI = min(64, power(B, 16)), max(4, 64 // BP)
    half = max(4, BI // 2)

    def stages(lower: int) -> int:
        # what is loaded ahead has to fit into shared memory, and large tiles hide their loads without it.
        tile = lower * BP * BD * width
        return 3 if tile <= 1 << 13 else 2 if tile <= 1 << 14 else 1

    def tiles(lower: int) -> int:
        return -(-B // BB) * -(-I // lower)

    sums = Tiles(BB, BI, num_stages=stages(BI))
    gradients = Tiles(min(32, BB), BI, num_stages=stages(BI))
    large = Tiles(BB, BI, num_stages=3 if width == 2 else 2, maxnreg=255, resident=2)
    # a warp for every 16 samples and all registers: three products for one of float32 and poses of 16 values take many.
    thin = Tiles(min(32, BB), half, num_warps=2, maxnreg=255, resident=4)
    if BP <= 16 and BD == 16:
        if BP == 16 and width == 4:
            sums = thin
        if width == 4:
            gradients = thin if T > 1 else large
        elif BP == 16:
            gradients = thin
        else:
            gradients = large if large.resident * there <= -(-I // BI) else Tiles(min(32, BB), half, num_warps=2, resident=6)
    scarce = 4 * tiles(BI) < there
    if scarce and sums is not thin:
        # shorter steps where upper capsules, too, are divided among programs.
        sums = Tiles(min(32, BB), half, num_stages=stages(half))
    uniform = agree = pull = sums
    wide = max(4, 256 // BP)
    if width == 2 and 2 * tiles(wide) >= there:
        # large tiles are faster where there are enough of them for the whole device.
        uniform = Tiles(BB, wide, num_stages=stages(wide))
    if width == 2 and BP == 8 and BD == 16 and J <= 10 and not scarce:
        agree = pull = Tiles(BB, BI, num_stages=2, few=True)
        if tiles(BI) > pull.resident * there:
            pull = replace(pull, maxnreg=255, resident=2)
    return Plan(uniform=uniform, given=sums, agree=agree, pull=pull, gradients=gradients, BP=BP, BD=BD)


def precision() -> str:
    """How float32 factors are multiplied: as exactly as float32 is, unless torch may use TF32."""
    # the older switches set this one, too, and reading them raises an error where somebody has set this one.
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Launch kernels on the tensor's GPU; Triton takes the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def add_splits(d_weight: Tensor, dtype: torch.dtype, *, shared: bool) -> Tensor:
    """Add up the gradients of a weight, [splits, places, J, R, P/R, D/R] to [I or 1, J, P/R, D/R]."""
    if shared:
        return d_weight.sum((0, 1, 3))[None].to(dtype)
    if d_weight.shape[3] > 1:
        return d_weight.sum((0, 3)).to(dtype)
    # a sum over two is slower than an addition, which may overwrite what is cast anyway.
    total = d_weight[0, :, :, 0]
    for part in d_weight[1:, :, :, 0]:
        total = total + part if dtype == torch.float32 else total.add_(part)
    return total.to(dtype)


class _Job:
    """What all launches of one call share."""

    def __init__(self, poses: Tensor, weight: Tensor, rows: int, T: int) -> None:
        self.poses, self.weight = poses.contiguous(), weight.contiguous()
        self.B, self.I, self.P = poses.shape
        self.J, self.D, self.rows = weight.shape[1], weight.shape[3] * rows, rows
        self.shared = weight.shape[0] == 1
        self.step = 0 if self.shared else self.J * weight.shape[2] * weight.shape[3]
        self.device = poses.device
        width, there = poses.element_size(), multiprocessors(self.device)
        self.plan = plan(self.B, self.I, self.J, self.P, self.D, T=T, width=width, there=there)
        self._parts: Tensor | None = None
        self.const = {
            "J": self.J,
            "P": self.P,
            "D": self.D,
            "R": rows,
            "BP": self.plan.BP,
            "BD": self.plan.BD,
            "TYPE": TYPES[poses.dtype],
            "PRECISION": precision(),
        }

    def wide(self, *size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=self.device)

    def forget(self) -> None:
        """Give back the memory of the sums."""
        self._parts = None

    def _room(self, chunks: int) -> Tensor:
        # one buffer for all iterations: the next sums overwrite what the last have been read from.
        if self._parts is None or len(self._parts) != chunks:
            self._parts = None
            self._parts = self.wide(chunks, self.B, self.J, self.D)
        return self._parts

    def sums(
        self,
        kind: str,
        given: Tensor | None,
        *,
        upper: Tensor | None = None,
        pull: Tensor | None = None,
        level: Tensor | None = None,
        mean: Tensor | None = None,
    ) -> Tensor:
        """Return what each program sums, [chunks, B, J, D]."""
        fixed = self.plan.uniform if given is None else self.plan.given
        of = {"fixed": fixed, "agree": self.plan.agree, "pull": self.plan.pull}[kind]
        blocks = -(-self.B // of.BB)
        chunks, tiles = of.split(-(-self.I // of.BI), blocks, self.device)
        # a softmax over upper capsules that several programs have takes a pass of its own, of which each leaves one number for
        # every sample and lower capsule: fewer than there are upper ones, or these would be as many as all couplings.
        slices, each = of.slices(self.J, blocks * chunks, self.device, most=self.J if kind == "fixed" else self.J - 1)
        parts = self._room(chunks)
        divided = slices > 1 and kind != "fixed"
        shares = self.wide(slices, self.B, self.I) if divided else parts
        for which in ("all", "sums") if divided else ("both",):
            launch = of.launch
            if which == "all" and of.BB < 64:
                # several would share its product's columns, and round a sum over a pose otherwise than the other kernels do:
                # where one upper capsule takes all, what must cancel would not.
                launch["num_warps"] = 1
            sums_kernel[(blocks, chunks, slices)](
                self.poses,
                self.weight,
                parts if given is None else given,
                parts if upper is None else upper,
                parts if pull is None else pull,
                parts if level is None else level,
                parts if mean is None else mean,
                shares,
                parts,
                self.B,
                self.I,
                self.step,
                tiles,
                KIND=kind,
                PASS=which,
                EACH=each,
                GIVEN=given is not None,
                FEW=of.few,
                **self.const,
                **launch,
            )
        return parts

    def over_rows(self, chunks: int) -> tuple[tuple[int], dict[str, int]]:
        """Grid and tile sizes of the kernels that go over [B·J, D]."""
        # a warp for each row: many programs hide each other's loads. The interpreter has none to hide.
        BR = 1 if self.device.type == "cuda" else 8
        BC = min(1024 // self.plan.BD, power(chunks, 1))
        return (-(-self.B * self.J // BR),), {"D": self.D, "BR": BR, "BC": BC, "BD": self.plan.BD, "num_warps": 1}


@torch.library.custom_op("capsella::agreement", mutates_args=())
def agreement_op(
    poses: Tensor,
    weight: Tensor,
    first: Tensor | None,
    prior: Tensor | None,
    bias: Tensor | None,
    num_iters: int,
    rows: int,
    uniform: float,
    squash: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Route [B, I, P] to poses [B, J, D] and lengths [B, J]; what the way back needs follows.

    Args:
        poses: lower poses.
        weight: [I, J, P/R, D/R] or [1, J, P/R, D/R].
        first: couplings [I, J] of the first iteration; ``uniform`` for all if None.
        prior: logits [I, J] of the later iterations.
        bias: [J, D].
        num_iters: T.
        rows: R of a matrix pose.
        uniform: see ``first``.
        squash: kind of squash.

    Returns:
        poses, lengths, s [T, B, J, D] before the squash, running sums S [T−1, B, J, D] as factors of products, log sums
        [T−1, B, I], the weight as a factor (empty if it is one).
    """
    with on_device_of(poses):
        factor = weight.to(poses.dtype, memory_format=torch.contiguous_format)
        job = _Job(poses, factor, rows, num_iters)
        B, I, J, D, T = job.B, job.I, job.J, job.D, num_iters
        above, lengths = poses.new_empty(B, J, D), poses.new_empty(B, J)
        raw, levels, running = job.wide(T, B, J, D), job.wide(T - 1, B, I), job.wide(B, J, D)
        sums = poses.new_empty(T - 1, B, J, D)
        first, prior, bias = (None if x is None else x.float().contiguous() for x in (first, prior, bias))
        for t in range(T):
            parts = job.sums("agree", prior, upper=sums[t - 1], level=levels[t - 1]) if t else job.sums("fixed", first)
            grid, const = job.over_rows(len(parts))
            last = t + 1 == T
            finish_kernel[grid](
                parts,
                parts if bias is None else bias,
                running,
                raw[t],
                running,
                raw if last else sums[t],
                above,
                lengths,
                B * J,
                len(parts),
                uniform if t == 0 and first is None else 1.0,
                BIAS=bias is not None,
                BEFORE=t > 0,
                LAST=last,
                SQUASH=squash,
                J=J,
                **const,
            )
        return above, lengths, raw, sums, levels, factor if weight.dtype != poses.dtype else poses.new_empty(0)


@agreement_op.register_fake
def _(
    poses: Tensor,
    weight: Tensor,
    first: Tensor | None,
    prior: Tensor | None,
    bias: Tensor | None,
    num_iters: int,
    rows: int,
    uniform: float,
    squash: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, I, _ = poses.shape
    J, D, T = weight.shape[1], weight.shape[3] * rows, num_iters
    wide = poses.new_empty(0, dtype=torch.float32)
    return (
        poses.new_empty(B, J, D),
        poses.new_empty(B, J),
        wide.new_empty(T, B, J, D),
        poses.new_empty(T - 1, B, J, D),
        wide.new_empty(T - 1, B, I),
        weight.new_empty(weight.shape if weight.dtype != poses.dtype else (0,), dtype=poses.dtype),
    )


@torch.library.custom_op("capsella::agreement_backward", mutates_args=())
def agreement_backward_op(
    d_above: Tensor | None,
    d_lengths: Tensor | None,
    poses: Tensor,
    weight: Tensor,
    first: Tensor | None,
    prior: Tensor | None,
    raw: Tensor,
    sums: Tensor,
    levels: Tensor,
    rows: int,
    uniform: float,
    squash: str,
    dtype: torch.dtype,
    with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of poses, weight (in ``dtype``), first couplings, prior and bias; empty where there is none."""
    with on_device_of(poses):
        job = _Job(poses, weight, rows, raw.shape[0])
        B, I, J, P, D, T = job.B, job.I, job.J, job.P, job.D, raw.shape[0]
        first, prior = (None if x is None else x.float().contiguous() for x in (first, prior))
        asked, means = job.wide(B, J, D), job.wide(T - 1, B, I)
        pulls, factors = job.wide(T, B, J, D), poses.new_empty(T, B, J, D)
        d_above, d_lengths = (None if x is None else x.contiguous() for x in (d_above, d_lengths))
        parts = asked[None]
        for t in reversed(range(T)):
            if t + 1 < T:
                parts = job.sums("pull", prior, upper=sums[t], pull=factors[t + 1], level=levels[t], mean=means[t])
            grid, const = job.over_rows(len(parts))
            turn_kernel[grid](
                parts,
                raw if d_above is None else d_above,
                raw if d_lengths is None else d_lengths,
                raw[t],
                asked,
                pulls[t],
                factors[t],
                B * J,
                len(parts),
                LAST=t + 1 == T,
                SECOND=t + 2 == T,
                D_POSES=d_above is not None,
                D_LENGTHS=d_lengths is not None,
                SQUASH=squash,
                **const,
            )
        job.forget()
        del parts, asked
        of = job.plan.gradients
        all_tiles, all_blocks = -(-I // of.BI), -(-B // of.BB)
        if job.shared:
            # the sum over lower capsules is spread over programs and, within each, over the places of a tile.
            (chunks, tiles), (splits, blocks) = of.split(all_tiles, 1, job.device), (1, all_blocks)
        else:
            (splits, blocks), (chunks, tiles) = of.split(all_blocks, all_tiles, job.device), (all_tiles, 1)
        # each leaves a gradient of all poses; together they stay fewer than the votes.
        slices, each = of.slices(J, chunks * splits, job.device, most=(J * D - 1) // P)
        places = chunks * of.BI if job.shared else I
        d_poses = torch.empty_like(job.poses) if slices == 1 else job.wide(slices, B, I, P)
        d_weight = job.wide(splits, places, J, rows, P // rows, D // rows)
        d_first = job.wide(splits, I, J) if first is not None else job.wide(0)
        d_prior = job.wide(splits, I, J) if prior is not None else job.wide(0)
        gradients_kernel[(chunks, splits, slices)](
            job.poses,
            job.weight,
            raw if first is None else first,
            raw if prior is None else prior,
            sums,
            factors,
            levels,
            means,
            d_poses,
            d_weight,
            d_first,
            d_prior,
            B,
            I,
            job.step,
            tiles,
            blocks,
            uniform,
            T=T,
            EACH=each,
            FIRST=first is not None,
            PRIOR=prior is not None,
            SHARED=job.shared,
            **job.const,
            **job.plan.gradients.launch,
        )
        d_w = add_splits(d_weight, dtype, shared=job.shared)
        d_first, d_prior = (x.sum(0) if x.numel() else x for x in (d_first, d_prior))
        d_poses = d_poses if slices == 1 else d_poses.sum(0).to(poses.dtype)
        return d_poses, d_w, d_first, d_prior, pulls.sum((0, 1)) if with_bias else job.wide(0)


@agreement_backward_op.register_fake
def _(
    d_above: Tensor | None,
    d_lengths: Tensor | None,
    poses: Tensor,
    weight: Tensor,
    first: Tensor | None,
    prior: Tensor | None,
    raw: Tensor,
    *others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *_, dtype, with_bias = others
    _, I, _ = poses.shape
    _, _, J, D = raw.shape
    return (
        torch.empty_like(poses, memory_format=torch.contiguous_format),
        raw.new_empty(weight.shape, dtype=dtype),
        raw.new_empty((I, J) if first is not None else (0,)),
        raw.new_empty((I, J) if prior is not None else (0,)),
        raw.new_empty((J, D) if with_bias else (0,)),
    )


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    poses, weight, first, prior, bias, _, ctx.rows, ctx.uniform, ctx.squash = inputs
    _, _, raw, sums, levels, factor = output
    ctx.given = (first is not None, prior is not None, bias is not None)
    ctx.dtype = weight.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(poses, factor if factor.numel() else weight, first, prior, raw, sums, levels)


def _backward(ctx, d_above, d_lengths, *unused):  # type: ignore[no-untyped-def]
    with_first, with_prior, with_bias = ctx.given
    if d_above is None and d_lengths is None:
        return (None,) * 9
    d_poses, d_weight, d_first, d_prior, d_bias = agreement_backward_op(
        d_above,
        d_lengths,
        *ctx.saved_tensors,
        ctx.rows,
        ctx.uniform,
        ctx.squash,
        ctx.dtype,
        with_bias,
    )
    return (
        d_poses,
        d_weight,
        d_first if with_first else None,
        d_prior if with_prior else None,
        d_bias if with_bias else None,
        None,
        None,
        None,
        None,
    )


agreement_op.register_autograd(_backward, setup_context=_setup)
agreement_backward_op.register_autograd(refuse_twice)
