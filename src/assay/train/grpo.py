"""GRPO and its relatives, which have no critic: a completion is judged against its group or its batch.

The step around this is ``train/loop.py``; the formulas are ``core``'s, chosen by the preset.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assay.config import Config
from assay.models.learner import TrainGroup
from assay.train.assembly import Job, build
from assay.train.loop import run
from assay.train.run import Run, new_run_folder, resumed_run_folder
from assay.train.session import resume_point
from assay.train.update import UpdateResult, Watch, update

KIND = "grpo"


def train(config: Config, out: Path | None = None) -> Run:
    """Post-train as the recipe says, in a new run folder."""
    job = build(config)
    return run(job, KIND, new_run_folder(config, out, job.policy), improve)


def resume(path: Path, overrides: Sequence[str] = ()) -> Run:
    """Go on from the last whole checkpoint, exactly; ``overrides`` may change what RESUMABLE names."""
    config, checkpoint = resume_point(path, KIND, overrides)
    job = build(config, checkpoint)
    return run(job, KIND, resumed_run_folder(path, config, job.policy), improve)


def improve(job: Job, groups: Sequence[TrainGroup], watch: Watch) -> UpdateResult:
    """The updates of one rollout."""
    a = job.config.algorithm
    beta = job.kl_weight.beta
    job.learner.set_beta(beta if job.preset.kl_in == "loss" else 0.0)
    return update(
        job.learner,
        job.reference,
        groups,
        job.preset,
        beta,
        minibatches=a.minibatches,
        epochs=a.epochs,
        max_length=job.config.rollout.max_new_tokens,
        temperature=job.config.rollout.temperature,
        reference_tokens=job.micro_batch_tokens,
        before_first_step=watch,
    )
