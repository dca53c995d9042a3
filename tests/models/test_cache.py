"""Built-in models are made once, whole, and a cache that cannot be written is a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import ModelError
from assay.models.cache import cached_model


def make(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def test_it_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "new"))
    first = cached_model("x-v1", make)
    assert first == cached_model("x-v1", lambda _: pytest.fail("made again")) == tmp_path / "new" / "x-v1"
    assert [p.name for p in first.parent.iterdir()] == ["x-v1"]


def test_another_process_may_be_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))

    def both(folder: Path) -> None:
        make(folder)
        (tmp_path / "x").mkdir()
        make(tmp_path / "x")

    assert cached_model("x", both) == tmp_path / "x"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_cache_that_cannot_be_written_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"cannot be kept in .*file/cache/x: .*; name another .* \$ASSAY_CACHE"):
        cached_model("x", make)
