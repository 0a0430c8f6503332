"""Where a step's time goes: kernels by name, and what is left."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from capsella.bench.parts import OTHER, WAITING, by_part, kernel_seconds, part_of
from capsella.bench.step import STEP, StepReading, facts
from capsella.bench.timing import record
from capsella.report.speed import speed_page

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("gradients_kernel", "routing"),
        ("turn_over_kernel", "routing"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)", OTHER),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn", "convolutions"),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16>(...)", "convolutions"),
        ("nvjet_tst_128x160_64x5_1x2_h_bz_coopB_TNT", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_tn_align8>(...)", "matrix products"),
        ("void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>(...)", "optimiser"),
        ("triton_poi_fused_convolution_backward_relu_0", "compiled operations"),
        ("triton_per_fused__to_copy_linalg_vector_norm_mul_3", "compiled operations"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
    ],
)
def test_kernels_belong_to_parts_by_their_names(kernel: str, part: str) -> None:
    assert part_of(kernel) == part


def test_what_no_kernel_takes_is_waiting_and_never_negative() -> None:
    assert by_part({"sums_kernel": 1.0, "what is this": 0.25}, 2.0) == {"routing": 1.0, OTHER: 0.25, WAITING: 0.75}
    assert by_part({"sums_kernel": 3.0}, 2.0)[WAITING] == 0


def test_the_profiler_sees_what_runs_once_for_each_act() -> None:
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    images, weight = torch.randn(4, 8, 32, 32), torch.randn(8, 8, 3, 3)
    runs = []

    def act() -> None:
        runs.append(1)
        torch.mm(left, right)
        torch.conv2d(images, weight)

    found = by_part(kernel_seconds(act, CPU, repeats=3), 1.0)
    assert len(runs) == 4  # one to warm up
    assert found["matrix products"] > 0
    assert found["convolutions"] > 0
    assert sum(found.values()) == pytest.approx(1.0)


def test_the_page_has_a_column_for_each_part() -> None:
    step = StepReading(STEP, "capsnet", 28, 128, "bf16", True, median=2e-3)
    readings = [dataclasses.replace(step, parts={"routing": 5e-4, WAITING: 1.5e-3}), dataclasses.replace(step, model="lenet")]
    page = speed_page({"chip": {"step": record("step", CPU, readings, **facts(CPU, readings))}})["speed.md"]
    assert "| model | pixels | precision | routing | waiting |" in page
    assert "| capsnet | 28 | bf16 | 0.5 | 1.5 |" in page
    assert page.count("| lenet |") == 1  # in the table of steps alone
