"""assay sample: rejection sampling."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.options import SetOption
from assay.config import load_config


class Keep(StrEnum):
    correct = "correct"
    all = "all"


def sample(
    recipe: Annotated[Path, typer.Argument(help="A recipe: its model, data.train, rollout and verifiers are used.")],
    out: Annotated[Path, typer.Option(help="The .jsonl file to write.")],
    samples: Annotated[
        int | None, typer.Option(min=1, help="Completions of each prompt; default algorithm.group_size.")
    ] = None,
    per_prompt: Annotated[int, typer.Option(min=1, help="Different completions of a prompt kept at most.")] = 1,
    prompts: Annotated[int | None, typer.Option(min=1, help="Use only the first N rows.")] = None,
    keep: Annotated[Keep, typer.Option(help="Which completions become rows.")] = Keep.correct,
    overrides: SetOption = None,
) -> None:
    """Sample completions of the training prompts and keep the correct ones as rows for `assay sft`."""
    config = load_config(recipe, overrides or [])
    from assay.train import rejection

    result = rejection.sample(
        config,
        out,
        samples=samples or config.algorithm.group_size,
        per_prompt=per_prompt,
        keep=keep.value,
        prompts=prompts,
    )
    print(f"{result} → {out}")
