"""Trained networks on the Hugging Face hub, or in a folder of the same form: weights, what they are, and a model card.

    model.safetensors    weights and buffers
    config.json          model, data with digests, settings, results, the versions that made it, the weights' checksum
    README.md            the model card, made of config and record alone

Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from capsella import __numerics__, __version__
from capsella.data.places import whole_or_nothing
from capsella.errors import DataError, unknown_name
from capsella.models import list_models
from capsella.train.checkpoint import CheckpointError, pack, restore_weights
from capsella.train.export import need_extra
from capsella.train.run import build_model

if TYPE_CHECKING:
    from capsella.train.run import Run

FORMAT = 1
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


def push_to_hub(
    run: Run,
    repo_id: str,
    *,
    private: bool = False,
    token: str | None = None,
    message: str = "Upload a network trained with capsella",
) -> str:
    """Upload a run's network (extra ``hub``); return its address.

    Args:
        run: a run of one of capsella's models.
        repo_id: ``owner/name``; made if it is not there.
        private: for nobody else to see; refused where ``repo_id`` is there and public.
        token: of the account; the one that ``hf auth login`` stored if None.
        message: of the commit.
    """
    need_extra("hub", "huggingface_hub", what="push_to_hub")
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        _save(run, Path(folder), source=repo_id)
        with _told(f"repo_id={repo_id!r}"):
            api = HfApi(token=token, library_name="capsella", library_version=__version__)
            address = api.create_repo(repo_id, private=private, exist_ok=True)
            public = private and not api.repo_info(address.repo_id).private
        if public:
            raise ValueError(
                f"private=True, but {address.repo_id} is there and public; choose another repo_id or make it private"
            )
        with _told(f"repo_id={repo_id!r}"):
            api.upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message=message)
    return str(address)


def from_pretrained(source: str | os.PathLike[str], *, revision: str | None = None, token: str | None = None) -> nn.Module:
    """Build a network with its trained weights, on the CPU, in evaluation mode.

    Args:
        source: a folder that ``save_pretrained`` wrote, else ``owner/name`` on the hub (extra ``hub``).
        revision: a branch, tag or commit of the hub's; the newest if None.
        token: for what is private; the one that ``hf auth login`` stored if None.
    """
    return fetch_pretrained(source, revision=revision, token=token)[0]


def fetch_pretrained(
    source: str | os.PathLike[str], *, revision: str | None = None, token: str | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network and the config that lies beside it; arguments as ``from_pretrained``."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise ValueError(f"revision={revision!r} does not go with a folder, {str(source)!r}")
        return _load(folder)
    name = os.fspath(source)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ValueError(f"source={name!r} is neither a folder nor owner/name on the hub")
    need_extra("hub", "huggingface_hub", what=f"source={name!r}, which is no folder here,")
    from huggingface_hub import snapshot_download

    with _told(f"source={name!r}"):
        found = snapshot_download(name, revision=revision, token=token, allow_patterns=[WEIGHTS, CONFIG])
    return _load(Path(found), called=name)


def save_pretrained(run: Run, folder: str | os.PathLike[str]) -> None:
    """Write what ``push_to_hub`` uploads into a folder, which is made if it is not there."""
    path = Path(folder).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError(f"folder={str(path)!r} is a file; expected a folder")
    _save(run, path, source=path.name)


def _save(run: Run, folder: Path, *, source: str) -> None:
    if "name" not in run.config["model"]:
        raise ValueError(f"the run's network is {run.config['model'].get('class')}; expected one that create_model can build")
    weights = pack(run.model.state_dict())
    config = _config(run, hashlib.sha256(weights).hexdigest())
    # the config last: it vouches for the weights beside it.
    for name, content in ((WEIGHTS, weights), (CARD, _card(config, source).encode()), (CONFIG, _dump(config).encode())):
        with whole_or_nothing(folder / name) as file:
            file.write(content)


def _config(run: Run, checksum: str) -> dict[str, Any]:
    record, made_by = run.record or {}, run.config.get("environment", {})
    last = (record.get("history") or [{}])[-1]
    test = record.get("test") or {}
    return {
        "library": "capsella",
        "format": FORMAT,
        "capsella": made_by.get("capsella", __version__),
        "numerics": made_by.get("numerics", __numerics__),
        "model": run.config["model"],
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "data": run.config.get("data"),
        "train": run.config.get("train"),
        "results": {
            "status": record.get("status", "unfinished"),
            "epochs": record.get("epochs"),
            "train_accuracy": last.get("accuracy"),
            "validation_accuracy": last.get("validation"),
            "test_accuracy": test.get("accuracy"),
            "test_images": test.get("images"),
        },
        "sha256": {WEIGHTS: checksum},
    }


def _card(config: dict[str, Any], source: str) -> str:
    """Write the model card."""
    results, data, name = config["results"], config["data"] or {}, config["model"]["name"]
    learned_from = (data.get("train") or {}).get("name")
    rows = [
        f"| {split} | {results[f'{split}_accuracy']:.2%} |"
        for split in ("train", "validation", "test")
        if results[f"{split}_accuracy"] is not None
    ]
    lines = [
        *(
            "---",
            "library_name: capsella",
            "pipeline_tag: image-classification",
            "tags:",
            "- capsule-network",
            f"- {name}",
            "---",
        ),
        *("", f"# {name}" + (f" on {learned_from}" if learned_from else ""), ""),
        f"A network of {config['parameters']:,} parameters, trained with capsella {config['capsella']}; "
        f"training: {results['status']}" + (f", epochs: {results['epochs']}." if results["epochs"] is not None else "."),
        *(["", "| measured on | accuracy |", "|---|---|", *rows] if rows else []),
        *("", "```python", "import torch", "from capsella.train.hub import from_pretrained", ""),
        f"model = from_pretrained({source!r})",
        *(
            "with torch.no_grad():",
            "    scores = model(images).scores  # images [B, C, H, W], as the data set gives them",
            "```",
        ),
    ]
    for title, part in (("Model", config["model"]), ("Data", data), ("Training", config["train"] or {})):
        lines += ["", f"## {title}", "", "```json", _dump(part).rstrip("\n"), "```"]
    return "\n".join(lines) + "\n"


def _dump(content: Any) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _load(folder: Path, *, called: str | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """Build the model that lies in a folder; every fault is one ``DataError`` line."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    where = called or str(folder)
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        given, written_by, checksum = dict(config["model"]), str(config["capsella"]), config["sha256"][WEIGHTS]
        content = (folder / WEIGHTS).read_bytes()
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise DataError(f"{where} has no {missing}; expected what save_pretrained or push_to_hub wrote") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__} in {CONFIG}"
        raise DataError(f"{where} is no network of capsella's, or is damaged ({reason})") from error
    if hashlib.sha256(content).hexdigest() != checksum:
        raise DataError(f"{where} is damaged: {WEIGHTS} is not what was written; fetch or save it again")
    versions = f"written by capsella {written_by}, this is {__version__}"
    if given.get("name") not in list_models():
        raise DataError(f"{where} ({versions}): {unknown_name('model', given.get('name'), list_models())}")
    try:
        # the caller's random numbers are not for weights that are replaced at once.
        with torch.random.fork_rng(devices=[]):
            model = build_model(given)
        restore_weights(model, load(content), where=where)
    except (ValueError, TypeError, CheckpointError, SafetensorError) as error:
        raise DataError(f"{where} does not fit ({versions}): {error}") from error
    return model.eval(), config


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Say in one line what the hub refused."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise ValueError(f"{what} is no name on the hub; expected owner/name") from error
    except errors.GatedRepoError as error:
        raise DataError(f"{what} is open only to those whom its owner admits; ask there, then give token=…") from error
    except errors.RepositoryNotFoundError as error:
        raise DataError(f"{what} is not on the hub, or is private; log in with `hf auth login`, or give token=…") from error
    except errors.RevisionNotFoundError as error:
        raise DataError(f"{what} is on the hub without this revision; leave it out for the newest") from error
    except errors.HfHubHTTPError as error:
        raise DataError(f"{what}: the hub refused ({_line(error)}); check the name and the token") from error
    # connection errors have no base class in common across huggingface_hub's releases.
    except Exception as error:
        cause = error.__cause__ or error
        raise DataError(f"{what}: nothing could be exchanged with the hub ({type(cause).__name__}: {_line(cause)})") from error


def _line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
