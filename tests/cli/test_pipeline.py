"""assay pipeline: the table at the end, and refusals in one message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

Assay = Callable[..., Any]


@pytest.fixture
def file(recipe: Path, folder: Path) -> Path:
    stages = [
        {"name": "cold", "command": "sft", "recipe": "recipe.toml", "set": {"train.steps": 1}},
        {"name": "rl", "command": "train", "recipe": "recipe.toml", "set": {"train.steps": 1}},
    ]
    path = folder / "pipeline.toml"
    evaluation = {"recipe": "recipe.toml", "prompts": 2, "samples": 2}
    path.write_text(tomli_w.dumps({"name": "row", "evaluation": evaluation, "stages": stages}))
    return path


def test_it_ends_with_a_table_and_goes_on_from_what_is_there(file: Path, assay: Assay) -> None:
    first = assay("pipeline", file)
    assert (first.code, first.stderr) == (0, "")
    lines = first.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("stage  "))
    assert [line.split()[0] for line in lines[start:]] == ["stage", "start", "cold", "rl", "runs/row"]
    again = assay("pipeline", file).stdout.splitlines()
    assert again[-5:] == lines[-5:]
    assert len([line for line in again if line.endswith("finished before")]) == 2


def test_out_names_the_folder(file: Path, folder: Path, assay: Assay) -> None:
    assert assay("pipeline", file, "--out", "here").code == 0
    assert (folder / "here" / "pipeline.json").is_file()


def test_a_recipe_is_no_pipeline(recipe: Path, assay: Assay) -> None:
    ended = assay("pipeline", recipe)
    assert ended.code == 2
    assert "recipe.toml is not a valid pipeline:\n  evaluation: field required" in ended.stderr
