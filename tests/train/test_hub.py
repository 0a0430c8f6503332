"""Networks in folders and on a hub: a round trip through both, and what is said when something is wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import capsella
from capsella.errors import DataError
from capsella.models import Model, create_model
from capsella.train.hub import CARD, CONFIG, WEIGHTS, from_pretrained, push_to_hub, save_pretrained
from capsella.train.run import Run

DIGEST = "5e" * 32


def as_read(content: Any) -> Any:
    """Return content as a JSON file gives it back: tuples are lists."""
    return json.loads(json.dumps(content))


@pytest.fixture
def run() -> Run:
    """Return a run of a small network whose weights are not those of any initialisation."""
    torch.manual_seed(5)
    model = create_model("capsnet_small", image_size=(25, 26), num_classes=3, decoder_hidden=(6, 7))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    data = {"name": "mnist", "split": "fit", "options": {}, "images": 55_000, "digest": DIGEST, "class_names": ["a", "b", "ç"]}
    config = {
        "model": model.config,
        "data": {"train": data, "validation": None, "test": None},
        "train": {"lr": 0.002, "epochs": 4},
        "environment": {"capsella": "0.0.9", "numerics": 7, "commit": "abc"},
    }
    history = [{"accuracy": 0.5, "validation": 0.4}, {"accuracy": 0.9871, "validation": 0.9732}]
    record = {"status": "finished", "epochs": 4, "history": history, "test": {"accuracy": 0.96543, "images": 10_000}}
    return Run(as_read(config), model=model.eval(), record=as_read(record))


def images_for(model: Model) -> torch.Tensor:
    return torch.rand(4, *model.image_shape, generator=torch.Generator().manual_seed(3))


def assert_same_network(found: Model, run: Run) -> None:
    assert not found.training
    expected = run.model.state_dict()
    assert list(found.state_dict()) == list(expected)
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    ours = run.model(images_for(found))
    for part in ("scores", "capsules", "reconstruction"):
        assert torch.equal(getattr(found(images_for(found)), part), getattr(ours, part)), part


def one_line(call: Callable[[], object], kind: type[Exception] = DataError) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# a folder


def test_a_folder_brings_back_the_same_network(run: Run, tmp_path: Path) -> None:
    save_pretrained(run, tmp_path / "new" / "net")
    assert sorted(path.name for path in (tmp_path / "new/net").iterdir()) == sorted([WEIGHTS, CONFIG, CARD])
    torch.manual_seed(11)
    before = torch.get_rng_state()
    found = from_pretrained(tmp_path / "new" / "net")
    assert torch.equal(torch.get_rng_state(), before)
    assert_same_network(found, run)
    assert found.config == run.model.config
    assert found.config["decoder_hidden"] == (6, 7)


def test_a_run_comes_back_with_what_it_was_trained_on(run: Run, tmp_path: Path) -> None:
    save_pretrained(run, tmp_path)
    found = Run.from_pretrained(tmp_path)
    assert_same_network(found.model, run)
    assert found.config["data"] == run.config["data"]
    assert (found.folder, found.events, found.status) == (None, [], run.status)


def test_saving_again_replaces_what_was_there(run: Run, tmp_path: Path) -> None:
    save_pretrained(run, tmp_path)
    with torch.no_grad():
        next(run.model.parameters()).add_(1.0)
    save_pretrained(run, tmp_path)
    assert_same_network(from_pretrained(str(tmp_path)), run)
    assert len(list(tmp_path.iterdir())) == 3


def test_the_config_says_what_the_network_is_and_what_it_was_trained_on(run: Run, tmp_path: Path) -> None:
    save_pretrained(run, tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    assert (config["capsella"], config["numerics"]) == ("0.0.9", 7)
    assert config["model"] == as_read(run.model.config)
    assert config["data"]["train"]["digest"] == DIGEST
    assert config["train"] == {"lr": 0.002, "epochs": 4}
    assert config["results"] == {
        "status": "finished",
        "epochs": 4,
        "train_accuracy": 0.9871,
        "validation_accuracy": 0.9732,
        "test_accuracy": 0.96543,
        "test_images": 10_000,
    }
    assert config["parameters"] == sum(tensor.numel() for tensor in load_file(tmp_path / WEIGHTS).values())


def test_the_card_is_made_of_config_and_record(run: Run, tmp_path: Path) -> None:
    save_pretrained(run, tmp_path / "net")
    card = (tmp_path / "net" / CARD).read_text()
    assert card.startswith("---\nlibrary_name: capsella\n")
    assert "# capsnet_small on mnist\n" in card
    assert "| train | 98.71% |\n| validation | 97.32% |\n| test | 96.54% |\n" in card
    assert "trained with capsella 0.0.9; training: finished, epochs: 4." in card
    assert "model = from_pretrained('net')" in card
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)\n```", card, re.DOTALL)]
    assert blocks == [as_read(run.config[part]) for part in ("model", "data", "train")]


def test_a_run_without_a_record_has_a_card_without_results(run: Run, tmp_path: Path) -> None:
    save_pretrained(Run(run.config, model=run.model), tmp_path)
    card = (tmp_path / CARD).read_text()
    assert "training: unfinished." in card
    assert "accuracy" not in card
    assert "None" not in card
    assert_same_network(from_pretrained(tmp_path), run)


def test_a_network_that_capsella_cannot_build_is_refused(tmp_path: Path) -> None:
    stranger = Run({"model": {"class": "somewhere.Net"}}, model=torch.nn.Linear(2, 2))
    said = one_line(lambda: save_pretrained(stranger, tmp_path / "net"), ValueError)
    assert said == "the run's network is somewhere.Net; expected one that create_model can build"
    assert not (tmp_path / "net").exists()


# what can be wrong with a folder


@pytest.fixture
def saved(run: Run, tmp_path: Path) -> Path:
    save_pretrained(run, tmp_path / "net")
    return tmp_path / "net"


def rewrite(folder: Path, **changes: Any) -> None:
    """Change entries of the config, a dict within it by its entries."""
    config = json.loads((folder / CONFIG).read_text())
    for key, value in changes.items():
        config[key] = config[key] | value if isinstance(value, dict) else value
    (folder / CONFIG).write_text(json.dumps(config))


def test_a_model_that_is_unknown_here_names_both_versions(saved: Path) -> None:
    rewrite(saved, model={"name": "capsnet_smal"}, capsella="9.1.0")
    said = one_line(lambda: from_pretrained(saved))
    assert said.startswith(
        f"{saved} (written by capsella 9.1.0, this is {capsella.__version__}): model='capsnet_smal' is unknown"
    )
    assert "did you mean 'capsnet_small'" in said


def test_an_option_that_is_unknown_here_is_named(saved: Path) -> None:
    rewrite(saved, model={"squish": 3}, capsella="9.1.0")
    said = one_line(lambda: from_pretrained(saved))
    assert "does not fit (written by capsella 9.1.0" in said
    assert "option='squish' is unknown" in said


def test_weights_of_another_shape_are_named(saved: Path) -> None:
    rewrite(saved, model={"num_classes": 4})
    said = one_line(lambda: from_pretrained(saved))
    assert "does not fit" in said
    assert "'layers.0.weight' has shape" in said


@pytest.mark.parametrize("cut", ["end", "middle"])
def test_damaged_weights_are_noticed(saved: Path, cut: str) -> None:
    content = bytearray((saved / WEIGHTS).read_bytes())
    if cut == "end":
        del content[-100:]
    else:
        content[len(content) // 2] ^= 1
    (saved / WEIGHTS).write_bytes(content)
    said = one_line(lambda: from_pretrained(saved))
    assert said == f"{saved} is damaged: {WEIGHTS} is not what was written; fetch or save it again"


def test_weights_that_are_no_safetensors_are_refused(saved: Path) -> None:
    (saved / WEIGHTS).write_bytes(b"\x80\x04no weights")
    rewrite(saved, sha256={WEIGHTS: hashlib.sha256(b"\x80\x04no weights").hexdigest()})
    assert one_line(lambda: from_pretrained(saved)).startswith(f"{saved} does not fit")


def test_weights_of_another_network_are_refused(saved: Path) -> None:
    save_file({"weight": torch.ones(3)}, saved / WEIGHTS)
    rewrite(saved, sha256={WEIGHTS: hashlib.sha256((saved / WEIGHTS).read_bytes()).hexdigest()})
    assert "is of another model than this capsnet_small" in one_line(lambda: from_pretrained(saved))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "{}", '{"model": 3}', '{"model": {}, "capsella": "1", "sha256": 1}']
)
def test_a_damaged_config_is_noticed(saved: Path, content: str) -> None:
    (saved / CONFIG).write_text(content)
    said = one_line(lambda: from_pretrained(saved))
    assert said.startswith(f"{saved} is no network of capsella's, or is damaged (")


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    said = one_line(lambda: from_pretrained(saved))
    assert said == f"{saved} has no {name}; expected what save_pretrained or push_to_hub wrote"


@pytest.mark.parametrize("source", ["nowhere", "./no/where", "/no/where", "a/b/c", "~/x"])
def test_a_source_that_is_nothing_is_refused(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    said = one_line(lambda: from_pretrained(source), ValueError)
    assert said == f"source={source!r} is neither a folder nor owner/name on the hub"


def test_a_revision_does_not_go_with_a_folder(saved: Path) -> None:
    said = one_line(lambda: from_pretrained(saved, revision="main"), ValueError)
    assert said == f"revision='main' does not go with a folder, {str(saved)!r}"


def test_a_file_is_no_folder_to_save_in(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert one_line(lambda: save_pretrained(run, tmp_path / "file"), ValueError).endswith("is a file; expected a folder")
    assert (tmp_path / "file").read_text() == "mine"


def test_without_the_extra_one_line_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: push_to_hub(run, "me/net"), lambda: from_pretrained("me/net")):
        said = one_line(call, ImportError)
        assert "needs the extra 'hub', and huggingface_hub is not there" in said
        assert said.endswith("try: pip install huggingface_hub")


# a hub on this machine


class Hub:
    """As much of the hub's protocol as one commit with an LFS file and its download need."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Any]] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.tokens: dict[str, str | None] = {}

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and content."""
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return reply({"errors": [], "warnings": []})
        if path.startswith("/large/"):
            oid = path.removeprefix("/large/")
            if hashlib.sha256(body).hexdigest() != oid:
                return reply({"error": "another checksum"}, 400)
            self.large[oid] = body
            return reply({})
        found = re.match(r"/(?:api/models/)?([^/]+/[^/]+?)(?:\.git)?(?:/(.*))?$", path)
        repository = self.repositories.get(found[1]) if found else None
        if found is None or repository is None:
            return reply({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        verb, _, rest = (found[2] or "").partition("/")
        if verb == "preupload":
            modes = [{"path": each["path"], "shouldIgnore": False} for each in json.loads(body)["files"]]
            return reply({"files": [{**m, "uploadMode": "lfs" if m["path"] == WEIGHTS else "regular"} for m in modes]})
        if verb == "info":
            objects = [{**each, "actions": {"upload": self.place(each["oid"])}} for each in json.loads(body)["objects"]]
            return reply({"transfer": "basic", "objects": objects})
        if verb == "commit":
            return self.commit(found[1], repository, body)
        if verb in ("tree", "resolve", "revision") and rest.split("/")[0] not in ("main", repository["sha"]):
            return reply({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
        if verb == "tree":
            return reply([self.described(path, content) for path, content in repository["files"].items()])
        if verb == "resolve":
            content = repository["files"][rest.split("/", 1)[1]]
            etag = hashlib.sha256(content).hexdigest()
            return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": repository["sha"]}, content
        files = [{"rfilename": name} for name in repository["files"]]
        return reply({"id": found[1], "sha": repository["sha"], "private": repository["private"], "siblings": files})

    def create(self, wanted: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        name = f"{wanted['organization']}/{wanted['name']}"
        there = name in self.repositories
        # releases differ in how they ask for it.
        private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
        self.repositories.setdefault(name, {"private": private, "files": {}, "sha": "0" * 40})
        return reply({"url": f"{self.address}/{name}", "error": "exists" if there else ""}, 409 if there else 200)

    def place(self, oid: str) -> dict[str, str]:
        return {"href": f"{self.address}/large/{oid}"}

    def commit(self, name: str, repository: dict[str, Any], body: bytes) -> tuple[int, dict[str, str], bytes]:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                repository["message"] = value["summary"]
            elif line["key"] == "lfsFile":
                repository["files"][value["path"]] = self.large[value["oid"]]
            else:
                repository["files"][value["path"]] = base64.b64decode(value["content"])
        repository["sha"] = hashlib.sha1(body).hexdigest()
        return reply({"commitUrl": f"{self.address}/{name}/commit/{repository['sha']}", "commitOid": repository["sha"]})

    def described(self, path: str, content: bytes) -> dict[str, Any]:
        entry = {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        if path != WEIGHTS:
            return entry
        return entry | {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}

    address = ""


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/json", **(headers or {})}, json.dumps(content).encode()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a hub on this machine and let huggingface_hub use it."""
    served = Hub()

    class Handler(BaseHTTPRequestHandler):
        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            served.requests.append((self.command, path))
            served.tokens[path] = self.headers.get("Authorization")
            status, headers, content = served.answer(self.command, path, body)
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    for method in ("GET", "HEAD", "POST", "PUT"):
        setattr(Handler, f"do_{method}", Handler.serve)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # it looks for its end every so many seconds, and the test waits for that.
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    served.address = f"http://127.0.0.1:{server.server_port}"
    use_hub(monkeypatch, served.address, tmp_path)
    yield served
    server.shutdown()
    server.server_close()


def use_hub(monkeypatch: pytest.MonkeyPatch, address: str, folder: Path) -> None:
    """Point huggingface_hub, which reads its settings at import, to a hub and to a cache of the test's own."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    # weights then travel by plain HTTP, as LFS files.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_a_network_comes_back_from_the_hub_as_it_was(run: Run, hub: Hub) -> None:
    address = push_to_hub(run, "me/net", token="hf_secret", message="A net")
    assert address == f"{hub.address}/me/net"
    repository = hub.repositories["me/net"]
    assert sorted(repository["files"]) == sorted([WEIGHTS, CONFIG, CARD])
    assert repository["private"] is False
    assert repository["message"] == "A net"
    for path in ("/api/repos/create", "/api/models/me/net/commit/main", "/me/net.git/info/lfs/objects/batch"):
        assert hub.tokens[path] == "Bearer hf_secret", path
    # the weights went as a large file, and nowhere else.
    assert list(hub.large.values()) == [repository["files"][WEIGHTS]]
    assert "from_pretrained('me/net')" in repository["files"][CARD].decode()
    assert_same_network(from_pretrained("me/net", token="hf_secret"), run)
    assert_same_network(from_pretrained("me/net", revision=repository["sha"]), run)


def test_only_weights_and_config_are_fetched(run: Run, hub: Hub) -> None:
    push_to_hub(run, "me/net", token="hf_secret")
    hub.repositories["me/net"]["files"]["pytorch_model.bin"] = b"\x80\x04 something pickled"
    from_pretrained("me/net")
    fetched = {path.rpartition("/")[2] for method, path in hub.requests if method == "GET" and "/resolve/" in path}
    assert fetched == {WEIGHTS, CONFIG}


def test_pushing_again_replaces_the_network(run: Run, hub: Hub) -> None:
    push_to_hub(run, "me/net", token="t")
    with torch.no_grad():
        next(run.model.parameters()).add_(1.0)
    push_to_hub(run, "me/net", token="t")
    assert_same_network(from_pretrained("me/net"), run)


def test_a_private_network_is_private_or_is_not_sent(run: Run, hub: Hub) -> None:
    push_to_hub(run, "me/secret", private=True, token="t")
    assert hub.repositories["me/secret"]["private"] is True
    push_to_hub(run, "me/open", token="t")
    before = dict(hub.repositories["me/open"]["files"]), hub.repositories["me/open"]["sha"]
    said = one_line(lambda: push_to_hub(run, "me/open", private=True, token="t"), ValueError)
    assert said.startswith("private=True, but me/open is there and public")
    assert before == (hub.repositories["me/open"]["files"], hub.repositories["me/open"]["sha"])


def test_what_is_not_on_the_hub_is_said(run: Run, hub: Hub) -> None:
    push_to_hub(run, "me/net", token="t")
    assert one_line(lambda: from_pretrained("me/other")).startswith(
        "source='me/other' is not on the hub, or is private; log in"
    )
    said = one_line(lambda: from_pretrained("me/net", revision="v9"))
    assert said == "source='me/net' is on the hub without this revision; leave it out for the newest"
    assert (
        one_line(lambda: from_pretrained("me/n et"), ValueError)
        == "source='me/n et' is no name on the hub; expected owner/name"
    )
    del hub.repositories["me/net"]["files"][WEIGHTS]
    hub.repositories["me/net"]["sha"] = "1" * 40
    assert one_line(lambda: from_pretrained("me/net")).startswith(f"me/net has no {WEIGHTS}")


def test_a_refusal_of_the_hub_is_one_line(run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "create", lambda wanted: reply({"error": "You may not create this"}, 403))
    said = one_line(lambda: push_to_hub(run, "them/net", token="t"))
    assert said.startswith("repo_id='them/net': the hub refused (")
    assert "403" in said
    assert hub.repositories == {}


def test_without_a_network_one_line_says_so(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        use_hub(monkeypatch, f"http://127.0.0.1:{taken.getsockname()[1]}", tmp_path)
        for call in (lambda: from_pretrained("me/net"), lambda: push_to_hub(run, "me/net", token="t")):
            said = one_line(call)
            assert "nothing could be exchanged with the hub (ConnectError" in said
