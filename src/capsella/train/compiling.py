"""Parts of a fast training that are compiled."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from capsella.errors import RunError

_NUMBERS = itertools.count()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is compiled when it is first called; where it cannot be, that is a ``RunError`` of one line.

    Shapes are static: what comes in another one, such as the last, smaller batch of an epoch, is not for it.
    """

    def step(*given: Any) -> Any:
        return function(*given)

    # the compiler counts what it made of one piece of code and gives up at eight: every run has a piece of its own.
    step.__code__ = step.__code__.replace(co_name=f"step_{next(_NUMBERS)}")
    made = torch.compile(step, dynamic=False)

    def run(*given: Any) -> Any:
        try:
            with _no_advice():
                return made(*given)
        except RuntimeError as error:
            # by name: to import the compiler takes a second, which a run without it need not spend.
            if type(error).__name__ not in ("BackendCompilerFailed", "InductorError"):
                raise
            why = str(getattr(error, "inner_exception", error)).strip().partition("\n")[0]
            raise RunError(f"fast=True: this network could not be compiled here ({why}); leave it out") from error

    return run


@contextlib.contextmanager
def _no_advice() -> Iterator[None]:
    """Let the compiler keep to itself that another precision is faster: the one that it has was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        yield
