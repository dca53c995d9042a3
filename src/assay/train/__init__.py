"""Training. ``assay.train(recipe)`` is the main job: this package can be called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.config import Config
    from assay.train.run import Run


class _CallablePackage(ModuleType):
    """``assay.train`` is the name of this package and of the function that users expect: it is both."""

    def __call__(
        self, recipe: str | Path | Config, *, overrides: Sequence[str] = (), out: str | Path | None = None
    ) -> Run:
        """Post-train as a recipe file or a Config says; ``overrides`` are "a.b=c". Returns the finished Run."""
        from assay.config import Config, load_config  # noqa: PLC0415 - `import assay` stays quick
        from assay.train import rl  # noqa: PLC0415

        config = recipe if isinstance(recipe, Config) else load_config(Path(recipe), overrides)
        return rl.train(config, None if out is None else Path(out))


sys.modules[__name__].__class__ = _CallablePackage
