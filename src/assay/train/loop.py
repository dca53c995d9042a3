"""The loop that all algorithms share: draw → collect and score → improve → canary → observe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from assay.errors import EngineError
from assay.models.learner import TrainGroup
from assay.telemetry.metrics import rollout_metrics
from assay.train.assembly import Job
from assay.train.buffer import Buffer
from assay.train.canary import TOLERANCE, agrees
from assay.train.groups import to_train
from assay.train.rollouts import gather
from assay.train.run import Run
from assay.train.session import Session
from assay.train.update import UpdateResult, Watch
from assay.types import Group

Improve = Callable[[Job, Sequence[TrainGroup], Watch], UpdateResult]
"""What an algorithm does with a step's groups."""


def run(job: Job, kind: str, path: Path, improve: Improve) -> Run:
    """Every step that is left, with evaluation before and after."""
    c = job.config
    buffer = Buffer()
    session = Session(
        kind,
        c,
        path,
        policy=job.policy,
        engine=job.engine,
        verify=job.verify,
        eval_prompts=job.eval_prompts,
        state=job.state,
        step=job.step,
        grade=job.grade,
    )
    with session:
        before = session.totals("samples_total", "trained_samples")
        session.progress.note(introduction(job, path))
        job.canary.check(job.engine, job.learner)
        for step in session.steps():
            began = time.perf_counter()
            buffer.add(gather(job, step, buffer, partial(session.phase, "rollout")))
            collected = time.perf_counter()

            groups = buffer.drain()
            to_update, dropped = to_train(groups, job.preset.dead_groups, mask_truncated=c.algorithm.mask_truncated)
            job.learner.discard_gradients()
            beta = job.kl_weight.beta
            result = improve(job, to_update, partial(session.phase, "update"))
            trained = sum(len(g.samples) for g in to_update)
            buffer.settle(trained, dropped)
            refuse_mismatch(result, c.model.dtype)
            job.kl_weight.observe(result.stats, trained)

            job.engine.update_weights(job.learner.weight_version)
            gap = job.canary.check(job.engine, job.learner)

            seconds = (collected - began, time.perf_counter() - collected)
            record = {"step": step, **rollout_metrics(groups), **update_metrics(result), "canary_gap": gap}
            record |= {"beta": beta} if job.reference is not None else {}
            record |= pace(groups, seconds)
            record |= {
                "samples_total": before["samples_total"] + buffer.answered,
                "trained_samples": before["trained_samples"] + buffer.trained,
            }
            session.record(record, groups, groups[step % len(groups)].samples[0])
        return session.finish()


def refuse_mismatch(result: UpdateResult, dtype: str) -> None:
    """Raise EngineError unless the learner's log-probs of the sampled tokens are the sampler's."""
    stats = result.stats
    if stats.tokens and not agrees(stats.sampler_gap_sum / stats.tokens, stats.sampler_gap_max, dtype):
        raise EngineError(
            f"sampler and learner disagree on the sampled tokens by {stats.sampler_gap_sum / stats.tokens:.3g} nats on "
            f"average and {stats.sampler_gap_max:.3g} at most (tolerance in {dtype}: {TOLERANCE[dtype]}): the "
            f"completions do not come from the policy that was trained on them"
        )


def update_metrics(result: UpdateResult) -> dict[str, Any]:
    """The update's numbers; null for what this run does not have or this step did not show."""
    stats = result.stats
    n = stats.tokens
    return {
        "loss": stats.loss if n else None,
        "kl_k3_mean": stats.kl_sum / n if stats.kl_sum is not None else None,
        "kl_k3_min": stats.kl_min,
        "kl_linear_tokens": stats.kl_linear if stats.kl_sum is not None else None,
        "entropy": stats.entropy_sum / n if n else None,
        "clip_rate": stats.clipped / n if n else None,
        "ratio_max_deviation": stats.ratio_max_deviation if n else None,
        "sampler_logprob_gap_mean": stats.sampler_gap_sum / n if n else None,
        "sampler_logprob_gap_max": stats.sampler_gap_max if n else None,
        "grad_norm": result.grad_norm,
        "learning_rate": result.learning_rate,
        "skipped_updates": result.skipped,
        **result.metrics,
    }


def pace(groups: list[Group], seconds: tuple[float, float]) -> dict[str, float]:
    """How fast the step was; tokens_per_second is of the rollout, verification included."""
    generated = sum(len(s.trajectory.completion_ids) for g in groups for s in g.samples)
    rollout, rest = seconds
    return {
        "tokens_per_second": generated / rollout,
        "seconds": rollout + rest,
        "seconds_rollout": rollout,
        "seconds_update": rest,
    }


def introduction(job: Job, path: Path) -> str:
    c = job.config
    return (
        f"{c.name}: {c.algorithm.preset} on {c.model.name} ({job.policy.device.type}, {c.model.dtype}), "
        f"{len(job.prompts.rows)} prompts, {c.rollout.prompts_per_step} × {c.algorithm.group_size} completions a step, "
        f"{c.train.steps} steps{f', from step {job.step}' if job.step else ''} → {path}"
    )
