"""assay recipes: every recipe that ships, with its description."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.cli.recipes import recipe_folder
from assay.config import load_config
from assay.errors import ConfigError
from assay.train.stages import read_pipeline_file

Assay = Callable[..., Any]
SHIPPED = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def test_every_recipe_is_listed_with_what_it_needs(folder: Path, assay: Assay) -> None:
    ended = assay("recipes")
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout == "".join(f"{path}\n    {description(path)}\n" for path in SHIPPED)


def description(path: Path) -> str:
    pipeline = path.stem.endswith("-pipeline")
    return read_pipeline_file(path).description if pipeline else load_config(path).description


def test_the_recipes_of_the_current_folder_come_first(folder: Path, assay: Assay) -> None:
    (folder / "recipes").mkdir()
    (folder / "recipes" / "mine.toml").write_text(SHIPPED[0].read_text())
    assert assay("recipes").stdout.splitlines()[0] == "recipes/mine.toml"


def test_no_recipes_anywhere_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.cli.recipes.__file__", str(folder / "a" / "b" / "c" / "d.py"))
    with pytest.raises(ConfigError, match="no recipes here: looked in"):
        recipe_folder()
