"""Options that several commands share, and reading a recipe from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.config import Config, load_config
from assay.errors import ConfigError

RecipeArgument = Annotated[Path | None, typer.Argument(help="A recipe (TOML); `assay recipes` lists those that ship.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one field; repeatable.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Run folder; default $ASSAY_RUNS/NAME, numbered.")]
StepsOption = Annotated[int | None, typer.Option("--steps", min=1, help="Steps in all.")]
ResumeOption = Annotated[Path | None, typer.Option("--resume", metavar="DIR", help="Go on with this run.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]


def with_steps(overrides: list[str] | None, steps: int | None) -> list[str]:
    """The overrides, --steps among them."""
    return [*(overrides or []), *([f"train.steps={steps}"] if steps is not None else [])]


def recipe_or_resume(recipe: Path | None, overrides: list[str], out: Path | None, resume: Path | None) -> Config | None:
    """The recipe to start, or None to resume. Raises ConfigError unless exactly one of the two is asked for."""
    if resume is not None:
        given = {"a recipe": recipe, "--out": out}
        wrong = [name for name, value in given.items() if value]
        if wrong:
            raise ConfigError(
                f"--resume goes on with the run's own recipe and folder, so it cannot be combined with "
                f"{', '.join(wrong)}"
            )
        return None
    if recipe is None:
        raise ConfigError("name a recipe to start (`assay recipes` lists those that ship), or a run with --resume DIR")
    return load_config(recipe, overrides)


def parse_args(text: str) -> dict[str, Any]:
    """The value of --args. Raises ConfigError unless it is a JSON object."""
    try:
        args = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--args is not JSON: {error}") from None
    if not isinstance(args, dict):
        raise ConfigError(f"--args must be a JSON object, got {text}")
    return args
