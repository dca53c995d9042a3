"""`assay train`: reinforcement learning. The recipe's preset decides whose update runs, PPO's or that of GRPO's kin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assay.config import Config
from assay.train import grpo, ppo
from assay.train.assembly import build
from assay.train.job import algorithm_of
from assay.train.loop import Improve, run
from assay.train.run import Run, load_run, new_run_folder, resumed_run_folder
from assay.train.session import resume_point

IMPROVE: dict[str, Improve] = {"grpo": grpo.improve, "ppo": ppo.improve}
"""By kind of run, as its checkpoints name it."""


def train(config: Config, out: Path | None = None) -> Run:
    """Post-train as the recipe says, in a new run folder."""
    kind, job = _kind(config), build(config)
    path = new_run_folder(config, out, job.policy, own_critic=job.has_own_critic)
    return run(job, kind, path, IMPROVE[kind])


def resume(path: Path, overrides: Sequence[str] = ()) -> Run:
    """Go on from the last whole checkpoint, exactly; ``overrides`` may change what RESUMABLE names."""
    kind = _kind(load_run(path).config)
    config, checkpoint = resume_point(path, kind, overrides)
    job = build(config, checkpoint)
    return run(job, kind, resumed_run_folder(path, config, job.policy, own_critic=job.has_own_critic), IMPROVE[kind])


def _kind(config: Config) -> str:
    return "ppo" if algorithm_of(config).estimate == "critic" else "grpo"
