"""Templates and files: escaped values, nothing missing, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from capsella import __version__
from capsella.report import render, write_page
from capsella.report.page import _environment


def test_a_page_names_its_maker_and_allows_no_request() -> None:
    page = render("base.html")
    assert f'content="capsella {__version__}"' in page
    assert "default-src 'none'; img-src data:" in page
    assert page.startswith("<!doctype html>\n")


def test_values_are_escaped() -> None:
    found = _environment().from_string("{{ name }}").render(name="<script>\"'&")
    assert found == "&lt;script&gt;&#34;&#39;&amp;"


def test_an_unknown_template_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^template='quikstart.html' is unknown; did you mean 'quickstart.html'"):
        render("quikstart.html")


def test_a_missing_value_is_an_error_and_no_gap() -> None:
    with pytest.raises(UndefinedError, match="'data' is undefined"):
        render("quickstart.html")


def test_a_page_is_written_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "quickstart" / "report.html"
    write_page(path, "<p>größer: 99 %</p>\n")
    assert path.read_bytes() == "<p>größer: 99 %</p>\n".encode()
    assert list(path.parent.iterdir()) == [path]


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    write_page(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_page(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
