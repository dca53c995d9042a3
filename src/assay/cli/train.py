"""assay train: the main job."""

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


def train(
    recipe: RecipeArgument = None,
    overrides: SetOption = None,
    out: OutOption = None,
    steps: StepsOption = None,
    resume: ResumeOption = None,
) -> None:
    """Post-train as the recipe says, or go on with a run, exactly (--resume DIR)."""
    changes = with_steps(overrides, steps)
    config = recipe_or_resume(recipe, changes, out, resume)
    from assay.train import rl  # torch takes seconds to import; a wrong recipe is refused before

    if config is not None:
        rl.train(config, out)
    elif resume is not None:
        rl.resume(resume, changes)
