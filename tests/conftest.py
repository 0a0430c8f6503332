"""Every test starts from the same seed, on exact matrix products, and leaves the other worker its core."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("capsella", derandomize=True, deadline=None, database=None, max_examples=20)
settings.load_profile("capsella")


def pytest_configure(config: pytest.Config) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def registry() -> Iterator[None]:
    """Put routing's two registries back as they were."""
    from capsella.routing.base import ALGORITHMS, IMPLEMENTATIONS

    algorithms, implementations = dict(ALGORITHMS), list(IMPLEMENTATIONS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(algorithms)
    IMPLEMENTATIONS[:] = implementations
