"""assay sft: supervised warm start."""

from __future__ import annotations

from assay.cli.options import (
    OutOption,
    RecipeArgument,
    ResumeOption,
    SetOption,
    StepsOption,
    recipe_or_resume,
    with_steps,
)


def sft(
    recipe: RecipeArgument = None,
    overrides: SetOption = None,
    out: OutOption = None,
    steps: StepsOption = None,
    resume: ResumeOption = None,
) -> None:
    """Supervised warm start on prompt–response rows, or go on with one (--resume DIR)."""
    changes = with_steps(overrides, steps)
    config = recipe_or_resume(recipe, changes, out, resume)
    from assay.train import sft as supervised

    if config is not None:
        supervised.train(config, out)
    elif resume is not None:
        supervised.resume(resume, changes)
