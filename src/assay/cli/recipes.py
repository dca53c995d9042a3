"""assay recipes: what ships."""

from __future__ import annotations

import tomllib
from pathlib import Path

from assay.config import load_config
from assay.errors import ConfigError


def recipes() -> None:
    """List the recipes that ship, each with what it does, its hardware and its time."""
    for path in sorted(recipe_folder().glob("*.toml")):
        print(f"{path}\n    {_description(path)}")


def recipe_folder() -> Path:
    """The recipes of this checkout, or ./recipes. Raises ConfigError if there are none."""
    checkout = Path(__file__).parents[3] / "recipes"
    for folder in (Path("recipes"), checkout):
        if any(folder.glob("*.toml")):
            return folder
    raise ConfigError(f"no recipes here: looked in {Path('recipes').absolute()} and {checkout}")


def _description(path: Path) -> str:
    """Of a recipe, or of a pipeline, which names stages."""
    from assay.train.stages import read_pipeline_file

    if "stages" in tomllib.loads(path.read_text(encoding="utf-8")):
        return read_pipeline_file(path).description
    return load_config(path).description
