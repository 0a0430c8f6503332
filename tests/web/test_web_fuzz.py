"""The API asked two minutes long whatever its description lets one ask, and what it does not: nothing of it may fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from explored import net, rectangles

import capsella
from capsella.web.explorer import Explorer
from capsella.web.guard import Caps
from capsella.web.server import serving

SECONDS = 120

# what a description cannot say, such as that bytes are an image, is refused as well; a failure never is an answer.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404, 413, 415, 422]
[checks.negative_data_rejection]
expected-statuses = [400, 404, 405, 408, 413, 415, 422]
"""


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_two_minutes_of_any_questions_make_nothing_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("schemathesis")
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    # names of the description's examples, so that questions get as far as the networks.
    nets = net("capsnet_small", data=rectangles(40)), net("plain", capsella.create_model("convnet_small"))
    with Explorer(nets, caps=Caps(uploads=1_000_000)) as explorer, serving(explorer) as url:
        program = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or "schemathesis"
        options = ["--max-time", str(SECONDS), "--continue-on-failure", "--generation-database", "none", "--no-color"]
        done = subprocess.run(
            [program, "--config-file", str(config), "run", f"{url}api/openapi.json", *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS + 100,
            check=False,
        )
    shown = "\n".join(line[:300] for line in done.stdout.splitlines())
    counted = re.search(r"(\d+) generated", shown)
    assert done.returncode == 0, shown
    assert counted, shown
    assert "Tested: 15" in shown
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    with capsys.disabled():
        sys.stdout.write(f"\n{counted[1]} questions in {SECONDS} s, none of which failed\n")
