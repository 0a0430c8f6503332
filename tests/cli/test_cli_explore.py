"""``capsella explore``: it says where it is, ends with Ctrl-C, and tells users' mistakes in one line."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from running import SOURCE, in_process

from capsella import create_model, load_data
from capsella.data import from_tensors
from capsella.train import fit

pytest.importorskip("fastapi")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run on images that are at hand, whose set has no name, and one on numbers."""
    folder = tmp_path_factory.mktemp("runs")
    data = from_tensors(torch.randint(0, 256, (8, 1, 28, 28), dtype=torch.uint8), torch.arange(8), name="own")
    settings = {"steps": 1, "batch_size": 8, "progress": False, "device": "cpu"}
    fit(create_model("convnet_small"), data, folder=folder / "images", **settings)
    fit(create_model("sign_capsnet"), load_data("sign"), folder=folder / "numbers", **settings)
    fit(create_model("convnet_small"), replace(data, name="folder"), folder=folder / "pictures", **settings)
    return {name: folder / name for name in ("images", "numbers", "pictures")}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of ten classes of one image each."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("photographs")
    for number in range(10):
        (folder / str(number)).mkdir()
        for each in range(10):
            Image.new("L", (28, 28), 20 * number + each).save(folder / str(number) / f"{each}.png")
    return folder


@contextlib.contextmanager
def started(*arguments: str | Path, program: str = "") -> Iterator[tuple[subprocess.Popen[str], http.client.HTTPConnection]]:
    """Start an explorer in a process of its own, after a bit of a program; yield it and a connection to it."""
    command = ["explore", *map(str, arguments), "--port", "0", "--no-open"]
    process = subprocess.Popen(
        [sys.executable, "-c", f"{program}\nfrom capsella.cli.main import main\nmain({command!r})"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"},
        # whoever started this suite may have told it to let Ctrl-C pass.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        found = re.fullmatch(r"images(?:, \w+)*: (http://127\.0\.0\.1:\d+/)\n", first)
        assert found, first or process.stderr.read()
        with contextlib.closing(http.client.HTTPConnection(urlsplit(found[1]).netloc, timeout=30)) as connection:
            yield process, connection
    finally:
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Press Ctrl-C; return exit code, stdout and stderr."""
    process.send_signal(signal.SIGINT)
    out, err = process.stdout, process.stderr
    assert out is not None
    assert err is not None
    return process.wait(timeout=30), out.read(), err.read()


def ask(connection: http.client.HTTPConnection, method: str, path: str) -> dict[str, Any]:
    connection.request(method, path)
    response = connection.getresponse()
    assert response.status == 200
    return dict(json.loads(response.read()))


def test_it_says_where_it_is_and_ends_with_ctrl_c(runs: dict[str, Path], photographs: Path) -> None:
    with started(runs["images"], *own(photographs)) as (process, connection):
        assert [run["key"] for run in ask(connection, "GET", "/api/about")["runs"]] == ["images"]
        assert ended(process) == (0, "Ctrl-C ends it\n\nended\n", "")


# a doctor who takes a minute, in torch all the time.
SLOW = """
import time, torch
from capsella.web import examining
def diagnose(*_, **__):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        torch.rand(300, 300) @ torch.rand(300, 300)
examining.diagnose = diagnose
"""


def test_it_ends_with_ctrl_c_while_the_doctor_examines(runs: dict[str, Path], photographs: Path) -> None:
    with started(runs["images"], *own(photographs), program=SLOW) as (process, connection):
        assert ask(connection, "POST", "/api/runs/images/doctor")["state"] == "working"
        assert ask(connection, "GET", "/api/runs/images/doctor")["state"] == "working"
        assert ended(process) == (0, "Ctrl-C ends it\n\nended\n", "")


def own(photographs: Path) -> tuple[str, ...]:
    """Return the options for these images."""
    return "--data", "folder", "--root", str(photographs), "-o", "image_size=28"


def explore(*arguments: str | Path) -> tuple[int, str]:
    """Return exit code and what stderr says; nothing is served."""
    code, out, err = in_process("explore", *map(str, arguments), "--no-open")
    assert out == ""
    return code, err


def one_line(err: str) -> str:
    assert err.startswith("capsella: ")
    assert err.count("\n") == 1
    return err


def test_a_run_that_is_none(tmp_path: Path) -> None:
    code, err = explore(tmp_path / "nowhere")
    assert code == 2
    assert "nowhere" in one_line(err)


def test_no_run_at_all() -> None:
    code, err = explore()
    assert code == 2
    assert "RUN" in one_line(err).upper()


def test_a_run_on_numbers(runs: dict[str, Path]) -> None:
    code, err = explore(runs["numbers"])
    assert code == 2
    assert "run 'numbers' was trained on 'sign', whose values are no grey levels" in one_line(err)


def test_a_run_on_data_that_has_no_name(runs: dict[str, Path]) -> None:
    code, err = explore(runs["images"], "-o", "image_size=28")
    assert code == 2
    assert f"{runs['images']}: --data is missing; the run was trained on 'own'" in one_line(err)


def test_a_mistake_about_images_names_the_run_and_the_option(runs: dict[str, Path], photographs: Path) -> None:
    wrong = photographs / "nowhere"
    for run, options, code, says in (
        ("pictures", ["-o", "image_size=28"], 2, "--root is missing; expected the folder that holds the images of 'folder'"),
        ("pictures", ["--root", wrong], 1, f"root={str(wrong)!r} is no folder"),
        ("images", ["--data", "folder"], 2, "--root is missing; expected the folder that holds the images of 'folder'"),
        ("images", [*own(photographs), "-o", "grey=maybe"], 2, "grey='maybe' has type str"),
    ):
        found, err = explore(runs[run], *options)
        assert found == code
        assert one_line(err).startswith(f"capsella: {runs[run]}: ")
        assert says in err
    # one of several is told from the others.
    found, err = explore(runs["images"], runs["pictures"], "-o", "image_size=28", "--root", str(wrong), "--data", "folder")
    assert found == 1
    assert one_line(err).startswith(f"capsella: {runs['images']}: root=")


def test_runs_whose_images_are_away_are_opened_without_them(runs: dict[str, Path]) -> None:
    with started(runs["images"], runs["pictures"]) as (process, connection):
        first, second = ask(connection, "GET", "/api/about")["runs"]
        assert (first["images"], first["data"], first["class_names"]) == (0, "own", [str(k) for k in range(10)])
        assert "--data is missing; the run was trained on 'own'" in first["away"]
        assert "--root is missing" in second["away"]
        assert ask(connection, "GET", "/api/runs/images/images")["total"] == 0
        drawn = {"kind": "drawn", "height": 1, "width": 1, "data": "AA=="}
        body = json.dumps({"scene": {"picture": drawn}})
        connection.request("POST", "/api/runs/images/see", body, {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        assert len(json.loads(response.read())["scores"]) == 10
        code, _, err = ended(process)
        assert code == 0
        assert err.splitlines() == [
            f"{key}: no images to pick from: {run['away']}" for key, run in (("images", first), ("pictures", second))
        ]


def test_a_split_that_is_none_is_a_mistake_where_images_are_away_as_well(runs: dict[str, Path]) -> None:
    code, err = explore(runs["images"], "--split", "tset")
    assert code == 2
    assert "split='tset' is unknown; did you mean 'test'?" in one_line(err)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--images", "0"), "--images=0 is too small"),
        (("--port", "70000"), "port=70000 is none; expected 0 to 65,535"),
        (("--host", "192.0.2.1"), "host='192.0.2.1' is no address of this machine"),
        (("--device", "tpu"), "device='tpu' cannot be used"),
        (("--split", "tset"), "split='tset' is unknown; did you mean 'test'?"),
        (("-o", "size"), "option 'size' has no value; expected KEY=VALUE"),
    ],
)
def test_options_that_make_no_sense(runs: dict[str, Path], photographs: Path, options: tuple[str, ...], says: str) -> None:
    code, err = explore(runs["images"], *own(photographs), *options)
    assert code == 2
    assert says in one_line(err)


def test_who_listens_everywhere_is_told_a_number_besides_a_name(
    runs: dict[str, Path], photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capsella.web import server

    def serve(explorer: Any, where: Any, *, open_browser: bool) -> None:
        explorer.close()
        where.socket.close()

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr(server, "own_address", lambda host: "192.168.1.5")
    monkeypatch.setattr(server.socket, "gethostname", lambda: "my-laptop")
    everywhere = ("--host", "0.0.0.0", "--port", "0", "--no-open")
    monkeypatch.setattr(server.Place, "port", 8474)
    code, out, err = in_process("explore", str(runs["images"]), *own(photographs), *everywhere)
    assert (code, err) == (0, "")
    found = re.match(r"images: http://my-laptop:8474/\?token=(\S+) or http://192\.168\.1\.5:8474/\?token=(\S+)\n", out)
    assert found, out
    assert found[1] == found[2]
    assert "whoever has this address may ask" in out


def test_a_port_that_is_taken(runs: dict[str, Path], photographs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = explore(runs["images"], *own(photographs), "--port", str(port))
    assert code == 2
    assert f"port={port} cannot be had at 127.0.0.1" in one_line(err)


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_without_the_extra_it_says_how_to_install_it(
    runs: dict[str, Path], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    code, err = explore(runs["images"])
    assert code == 2
    assert f"capsella explore needs the extra 'explore', and {package} is not there" in one_line(err)
    assert err.rstrip().endswith("try: pip install fastapi uvicorn pydantic")


def test_strokes_are_timed_in_every_view(tmp_path: Path) -> None:
    out = tmp_path / "explore.json"
    code, shown, _ = in_process("bench", "explore", "--quick", "--device", "cpu", "--out", str(out))
    assert code == 0
    found = json.loads(out.read_text())
    assert (found["kind"], found["model"], found["complete"]) == ("explore", "capsnet_small", True)
    assert len(found["readings"]) == 7
    for reading in found["readings"]:
        assert 0 < reading["median"] <= reading["p95"] <= reading["high"]
        assert (reading["repeats"], reading["must"], reading["problem"]) == (5, 0.1, "")
        assert reading["name"] in shown


def test_many_who_draw_at_once_are_recorded(tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    code, shown, said = in_process(
        "bench",
        "explore",
        "--clients",
        "2",
        "--seconds",
        "0.3",
        "--device",
        "cpu",
        "--model",
        "convnet_small",
        "--out",
        str(out),
    )
    assert code == 0
    found = json.loads(out.read_text())
    assert (found["kind"], found["model"], found["complete"]) == ("load", "convnet_small", True)
    (reading,) = found["readings"]
    assert (reading["clients"], reading["seconds"], reading["refused"], reading["problem"]) == (2, 0.3, 0, "")
    assert reading["strokes"] > 2
    assert f"{reading['strokes']:,}" in shown
    assert "2 at once: 0.3 s" in said


def test_views_that_a_network_has_not_are_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from capsella.web import strokes

    monkeypatch.setattr(strokes, "VIEWS", strokes.VIEWS[-2:])
    code, shown, _ = in_process("bench", "explore", "--quick", "--device", "cpu", "--model", "convnet_small")
    assert code == 0
    assert shown.count("the network has none") == 2


def test_nothing_is_timed_where_answers_arewrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from capsella.web import strokes

    monkeypatch.setattr(strokes, "VIEWS", strokes.VIEWS[:1])
    monkeypatch.setattr(strokes, "wrong", lambda net, ask: "wrong: scores are 0.5 away from the network's own")
    code, shown, err = in_process("bench", "explore", "--quick", "--device", "cpu")
    assert code == 1
    assert "wrong: scores are 0.5 away" in err
    assert "met" not in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "capsnet_smal"), "model='capsnet_smal' is unknown; did you mean 'capsnet_small'"),
        (("--model", "sign_capsnet"), "model='sign_capsnet' sees numbers and no images"),
        (("--strokes", "0"), "--strokes=0 is too small"),
        (("--clients", "0"), "--clients=0 is too small"),
        (("--clients", "5", "--seconds", "0"), "--seconds=0"),
        (("--seconds", "5"), "--seconds=5 is for --clients, which is missing; expected both, or --strokes"),
        (("--clients", "5", "--strokes", "9"), "--strokes=9 is for one who draws; expected --seconds beside --clients=5"),
        (("--out", "/dev/null/x.json"), "--out=/dev/null/x.json cannot be written to"),
    ],
)
def test_mistakes_of_the_bench(arguments: tuple[str, ...], says: str) -> None:
    code, out, err = in_process("bench", "explore", "--device", "cpu", *arguments)
    assert (code, out) == (2, "")
    assert says in one_line(err)


def test_help_needs_neither_torch_nor_the_extra() -> None:
    program = (
        "import sys\nfor name in ('torch', 'fastapi', 'uvicorn'): sys.modules[name] = None\n"
        "from capsella.cli.main import main\nmain(['explore', '--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--host" in done.stdout
