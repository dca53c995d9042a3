"""assay: post-train language models by reinforcement learning with verifiable rewards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay import train
from assay.types import Verdict
from assay.verifiers.user import verifier

if TYPE_CHECKING:
    from assay.train.run import Run

__all__ = ["Verdict", "load_run", "train", "verifier"]


def load_run(path: str | Path) -> Run:
    """Open a run folder: ``.config``, ``.metrics``, ``.evaluation``, ``.model``."""
    from assay.train.run import load_run as load  # noqa: PLC0415 - `import assay` stays quick

    return load(path)
