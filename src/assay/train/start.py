"""`assay train`: the recipe's preset decides whose loop body runs, PPO's or that of GRPO and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assay.config import Config
from assay.train import grpo, ppo
from assay.train.job import algorithm_of
from assay.train.run import Run, load_run


def start(config: Config, out: Path | None = None) -> Run:
    """Post-train as the recipe says, in a new run folder."""
    return ppo.train(config, out) if _has_critic(config) else grpo.train(config, out)


def resume(path: Path, overrides: Sequence[str] = ()) -> Run:
    """Go on from the last whole checkpoint, exactly."""
    return ppo.resume(path, overrides) if _has_critic(load_run(path).config) else grpo.resume(path, overrides)


def _has_critic(config: Config) -> bool:
    return algorithm_of(config).estimate == "critic"
