"""Devices, precision and processes: Lightning Fabric, set up from the config and from torchrun's environment."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from capsella.train.config import TrainConfig


@dataclass(frozen=True)
class Layout:
    """How many processes there are.

    Attributes:
        devices: on this machine.
        nodes: machines.
        by_torchrun: whether they have been started already.
    """

    devices: int
    nodes: int
    by_torchrun: bool


def layout(config: TrainConfig) -> Layout:
    """Return the processes to use; torchrun's environment decides where it is present."""
    if not torch.distributed.is_torchelastic_launched():
        if config.nodes > 1:
            raise ValueError(
                f"nodes={config.nodes} needs torchrun on every machine: torchrun --nnodes {config.nodes} … -m capsella train …"
            )
        return Layout(config.devices, 1, by_torchrun=False)
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    if config.devices not in (1, local):
        raise ValueError(f"devices={config.devices} contradicts torchrun, which started {local} here; leave it out")
    return Layout(local, world // local, by_torchrun=True)


def accelerator(device: str) -> str:
    """Return ``"cpu"`` or ``"cuda"``."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' was asked for, and torch sees no GPU; expected 'cpu' or 'auto'")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def make_fabric(config: TrainConfig, *, unused_parameters: bool = False) -> Any:
    """Return a Fabric that has started its processes.

    Args:
        config: devices and precision.
        unused_parameters: whether some weights take no part in the loss, which DDP must know.
    """
    places = layout(config)
    several = places.devices * places.nodes > 1
    where = accelerator(config.device)
    if where == "cuda" and places.devices > torch.cuda.device_count():
        raise ValueError(f"devices={places.devices} is more than the {torch.cuda.device_count()} GPUs here")
    package = fabric_package()
    # who joins whom is nothing that a user has to know.
    logging.getLogger(package.__name__).setLevel(logging.WARNING)
    strategy: Any = package.strategies.DDPStrategy(find_unused_parameters=unused_parameters) if several else "auto"
    with warnings.catch_warnings():
        # that a GPU is left unused is what device='cpu' asks for.
        warnings.simplefilter("ignore")
        fabric = package.Fabric(
            accelerator=where,
            devices=places.devices,
            num_nodes=places.nodes,
            strategy=strategy,
            precision="bf16-mixed" if config.precision == "bf16" else "32-true",
        )
    if several:
        atexit.register(_leave)
    fabric.launch()
    return fabric


def fabric_package() -> Any:
    """Return Fabric's package: the light one and the full one hold the same code under two names."""
    try:
        return importlib.import_module("lightning_fabric")
    except ImportError:
        return importlib.import_module("lightning.fabric")


def _leave() -> None:
    """Take leave of the other processes: threads that still wait for them would abort a program that ends."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def without_subnormals() -> Iterator[None]:
    """Take numbers below the smallest normal one for zero on a CPU, which takes many times as long for them as for others.

    Responsibilities of EM, gradients that vanish with depth and the squares that Adam keeps of them are full of such numbers.
    The switch is a thread's, and threads of a pool have what the one that started them had: enter this before anything else.
    """
    before = bool(torch.tensor([1e-310], dtype=torch.float64).add(0.0).item() == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextlib.contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Let float32 products run in TF32 on a GPU, or not at all, and put the switches back.

    PyTorch's own default is yes for convolutions and no for matrix products. It has older and newer switches for one thing;
    the older ones set both, but cannot be read once someone has set a newer one.
    """
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    older, newer = (matmul, cudnn), (matmul, cudnn.conv, cudnn.rnn)
    kept = [switch.fp32_precision for switch in newer]
    try:
        kept_older = [switch.allow_tf32 for switch in older]
    except RuntimeError:
        kept_older = []
    try:
        for switch in older:
            switch.allow_tf32 = precision != "float32"
        yield
    finally:
        for switch, value in zip(older, kept_older, strict=False):
            switch.allow_tf32 = value
        for switch, value in zip(newer, kept, strict=True):
            switch.fp32_precision = value


@contextlib.contextmanager
def trying_algorithms(wanted: bool) -> Iterator[None]:
    """Let cuDNN try its algorithms on the first batch of every shape, and put the switch back."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or wanted
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
