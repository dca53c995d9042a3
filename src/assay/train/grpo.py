"""GRPO and its relatives, top to bottom: draw → collect and score → advantage → update → canary → observe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from assay.config import Config
from assay.core.presets import Preset
from assay.curriculum import draw_uniform
from assay.errors import EngineError, VerifierError
from assay.models.learner import Learner
from assay.models.local_learner import LocalLearner
from assay.models.objective import Objective
from assay.models.policy import Policy
from assay.models.reference import Reference
from assay.rollout.engine import Engine
from assay.telemetry.metrics import rollout_metrics
from assay.train.buffer import Buffer
from assay.train.canary import TOLERANCE, Canary, agrees
from assay.train.checkpoint import read_checkpoint
from assay.train.collect import collect
from assay.train.groups import make_groups, to_train
from assay.train.job import (
    Prompts,
    algorithm_of,
    build_composite,
    build_engine,
    build_policy,
    encode_prompts,
    load_checked_rows,
    load_eval_rows,
    optimizer_settings,
    overlong_buffer,
    tokens_per_micro_batch,
)
from assay.train.run import Run, new_run_folder, resumed_run_folder
from assay.train.session import Session, resume_point
from assay.train.shaping import with_overlong_penalty
from assay.train.update import UpdateResult, update
from assay.types import Group, Request, Sample
from assay.verifiers.composition import Composite

KIND = "grpo"

RESAMPLING_STREAM = 2**62
"""Added to the run's seed to draw the prompts that replace dead groups."""


def train(config: Config, out: Path | None = None) -> Run:
    """Post-train as the recipe says, in a new run folder."""
    job = build(config)
    return run(job, new_run_folder(config, out, job.policy))


def resume(path: Path, overrides: Sequence[str] = ()) -> Run:
    """Go on from the last whole checkpoint, exactly; ``overrides`` may change what RESUMABLE names."""
    config, checkpoint = resume_point(path, KIND, overrides)
    job = build(config, checkpoint)
    return run(job, resumed_run_folder(path, config, job.policy))


@dataclass(frozen=True, slots=True)
class Job:
    """All parts of a run, built and checked before its first step."""

    config: Config
    preset: Preset
    policy: Policy
    learner: Learner
    reference: Reference | None
    engine: Engine
    verify: Composite
    prompts: Prompts
    eval_prompts: Prompts | None
    canary: Canary
    micro_batch_tokens: int
    step: int


def run(job: Job, path: Path) -> Run:
    """Every step that is left, with evaluation before and after."""
    c = job.config
    buffer = Buffer()
    session = Session(
        KIND,
        c,
        path,
        policy=job.policy,
        engine=job.engine,
        verify=job.verify,
        eval_prompts=job.eval_prompts,
        state=job.learner.state,
        step=job.step,
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
            result = update(
                job.learner,
                job.reference,
                to_update,
                job.preset,
                c.algorithm.beta,
                minibatches=c.algorithm.minibatches,
                epochs=c.algorithm.epochs,
                max_length=c.rollout.max_new_tokens,
                temperature=c.rollout.temperature,
                reference_tokens=job.micro_batch_tokens,
                before_first_step=partial(session.phase, "update"),
            )
            buffer.settle(sum(len(g.samples) for g in to_update), dropped)
            refuse_mismatch(result, c.model.dtype)

            job.engine.update_weights(job.learner.weight_version)
            gap = job.canary.check(job.engine, job.learner)

            seconds = (collected - began, time.perf_counter() - collected)
            record = {"step": step, **rollout_metrics(groups), **update_metrics(result), "canary_gap": gap}
            record |= pace(groups, seconds)
            record |= {
                "samples_total": before["samples_total"] + buffer.answered,
                "trained_samples": before["trained_samples"] + buffer.trained,
            }
            session.record(record, groups, groups[step % len(groups)].samples[0])
        return session.finish()


def gather(job: Job, step: int, buffer: Buffer, on_progress: Callable[[int, int], None]) -> list[Group]:
    """The step's groups. Where dead ones are resampled, groups of further prompts come on top of them."""
    c = job.config
    drawn = draw_uniform(len(job.prompts.rows), c.rollout.prompts_per_step, step, c.seed)
    groups = sample_groups(job, step, 0, drawn, buffer, on_progress)
    if job.preset.dead_groups != "resample":
        return groups
    for attempt in range(1, c.algorithm.resample_rounds + 1):
        missing = c.rollout.prompts_per_step - sum(not g.dead for g in groups)
        if missing == 0:
            break
        turn = (step - 1) * c.algorithm.resample_rounds + attempt
        drawn = draw_uniform(len(job.prompts.rows), c.rollout.prompts_per_step, turn, c.seed + RESAMPLING_STREAM)
        groups += sample_groups(job, step, len(groups), drawn[:missing], buffer, on_progress)
    return groups


def sample_groups(
    job: Job, step: int, first: int, drawn: Sequence[int], buffer: Buffer, on_progress: Callable[[int, int], None]
) -> list[Group]:
    """One graded group of each prompt in ``drawn``; ``first`` groups of the step came before them."""
    c = job.config
    requests = ask(job, step, first, drawn)
    buffer.ask(len(requests))
    rows = [job.prompts.rows[i] for i in drawn for _ in range(c.algorithm.group_size)]
    samples = collect(job.engine, requests, rows, job.policy.decode, job.verify, on_progress)
    refuse_ungraded(samples)
    limit = c.rollout.max_new_tokens
    return make_groups(
        with_overlong_penalty(samples, max_length=limit, buffer=overlong_buffer(c, job.preset)), job.preset
    )


def build(config: Config, checkpoint: Path | None = None) -> Job:
    """Load and check everything that the recipe names, and the state of ``checkpoint`` if one is given."""
    a = config.algorithm
    preset = algorithm_of(config)
    verify = build_composite(config)
    rows, eval_rows = load_checked_rows(config.data.train, verify), load_eval_rows(config, verify)
    policy = build_policy(config)
    prompts = encode_prompts(rows, policy, config.rollout.max_new_tokens)
    eval_prompts = None if eval_rows is None else encode_prompts(eval_rows, policy, config.rollout.max_new_tokens)
    micro_batch_tokens = tokens_per_micro_batch(config, policy)
    # The reference is the model that the run started from, so it is taken before a checkpoint's weights are.
    reference = Reference(policy) if a.beta > 0 else None
    if checkpoint is not None:
        policy.load_weights(checkpoint / "model")
    learner = LocalLearner(
        policy,
        Objective(
            preset,
            beta=a.beta if preset.kl_in == "loss" else 0.0,
            temperature=config.rollout.temperature,
            entropy_bonus=a.entropy_bonus,
            correction=a.importance_correction,
            correction_cap=a.importance_cap,
        ),
        optimizer_settings(config, a.minibatches * a.epochs),
        micro_batch_tokens=micro_batch_tokens,
    )
    step = 0
    if checkpoint is not None:
        progress, state = read_checkpoint(checkpoint)
        step = progress.step
        learner.load_state(state)
    engine = build_engine(config, policy, prompts, eval_prompts)
    engine.update_weights(learner.weight_version)
    canary = Canary(prompts.ids[0], prompts.ids[-1], config.rollout.temperature, config.model.dtype)
    return Job(
        config=config,
        preset=preset,
        policy=policy,
        learner=learner,
        reference=reference,
        engine=engine,
        verify=verify,
        prompts=prompts,
        eval_prompts=eval_prompts,
        canary=canary,
        micro_batch_tokens=micro_batch_tokens,
        step=step,
    )


def ask(job: Job, step: int, first: int, drawn: Sequence[int]) -> list[Request]:
    """Requests for the groups from the step's ``first`` on; sample ids never repeat over the whole run."""
    c, G = job.config, job.config.algorithm.group_size
    groups_of_step = c.rollout.prompts_per_step * (
        1 + (c.algorithm.resample_rounds if job.preset.dead_groups == "resample" else 0)
    )
    start = (step - 1) * groups_of_step + first
    return [
        Request(
            sample_id=(start + p) * G + g,
            group_id=start + p,
            prompt_ids=job.prompts.ids[row],
            max_new_tokens=c.rollout.max_new_tokens,
            temperature=c.rollout.temperature,
            seed=c.seed,
        )
        for p, row in enumerate(drawn)
        for g in range(G)
    ]


def refuse_ungraded(samples: Sequence[Sample]) -> None:
    """Raise VerifierError if not one completion of the step could be graded: a run without rewards learns nothing."""
    if all(math.isnan(s.verdict.reward) for s in samples):
        raise VerifierError(
            f"none of the step's {len(samples)} completions could be graded; the first: {samples[0].verdict.reason}"
        )


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
