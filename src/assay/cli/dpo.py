"""assay dpo: direct preference optimisation."""

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


def dpo(
    recipe: RecipeArgument = None,
    overrides: SetOption = None,
    out: OutOption = None,
    steps: StepsOption = None,
    resume: ResumeOption = None,
) -> None:
    """Train on preference pairs (prompt, chosen, rejected), or go on with a run (--resume DIR)."""
    changes = with_steps(overrides, steps)
    config = recipe_or_resume(recipe, changes, out, resume)
    from assay.train import dpo as preference

    if config is not None:
        preference.train(config, out)
    elif resume is not None:
        preference.resume(resume, changes)
