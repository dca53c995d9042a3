"""PPO with a critic: the actor, the critic, the frozen reference, and verifiers or a frozen reward model.

Schulman et al. 2017 (arXiv 1707.06347) with token rewards as in InstructGPT (arXiv 2203.02155): the completion's
reward on its last token, -beta KL on every one. The step around this is ``train/loop.py``.

Deviation: a completion that was cut off at the length limit counts as ended; no value stands in for its rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from assay.config import Config
from assay.core.advantage import discounted_returns, gae, whiten
from assay.core.masked import masked_var
from assay.core.presets import Preset
from assay.core.value_fit import explained_variance, first_half
from assay.models.critic import Critic
from assay.models.learner import TrainGroup, UpdateStats
from assay.models.objective import add_stats
from assay.train.assembly import Job, build
from assay.train.groups import denominators_of
from assay.train.job import critic_bytes
from assay.train.loop import run
from assay.train.run import Run, new_run_folder, resumed_run_folder
from assay.train.session import resume_point
from assay.train.token_advantages import dense, rewards_of_tokens, with_rows
from assay.train.update import UpdateResult, Watch, minibatches_of, with_logprobs, with_tensors

KIND = "ppo"


def train(config: Config, out: Path | None = None) -> Run:
    """Post-train as the recipe says, in a new run folder."""
    job = build(config)
    return run(job, KIND, new_run_folder(config, out, job.policy, critic_bytes(config, job.policy)), improve)


def resume(path: Path, overrides: Sequence[str] = ()) -> Run:
    """Go on from the last whole checkpoint, exactly; ``overrides`` may change what RESUMABLE names."""
    config, checkpoint = resume_point(path, KIND, overrides)
    job = build(config, checkpoint)
    return run(job, KIND, resumed_run_folder(path, config, job.policy, critic_bytes(config, job.policy)), improve)


def improve(job: Job, groups: Sequence[TrainGroup], watch: Watch) -> UpdateResult:
    """Values, advantages, then epochs of minibatches for actor and critic alike."""
    a, beta, critic = job.config.algorithm, job.kl_weight.beta, _critic_of(job)
    groups = with_logprobs(
        job.learner,
        job.reference,
        groups,
        old=a.minibatches * a.epochs > 1 or beta > 0,
        temperature=job.config.rollout.temperature,
        reference_tokens=job.micro_batch_tokens,
    )
    groups = with_tensors(groups, critic.values(groups), "old_values")
    groups, metrics = estimate(groups, job.preset, beta)

    critic.discard_gradients()
    stats, value_loss, skipped, norms = UpdateStats(), 0.0, 0, (math.nan, math.nan)
    batches = minibatches_of(groups, a.minibatches, a.epochs)
    rate = None
    for i, batch in enumerate(batches):
        denominators = denominators_of(batch, job.config.rollout.max_new_tokens)
        # Both gradients before either step: until weights move, the step can still be given up whole.
        may_stop = watch if i == 0 else None
        stats = add_stats(stats, job.learner.forward_backward(batch, denominators, may_stop))
        value_loss += critic.forward_backward(batch, denominators, may_stop)
        norm, rate = job.learner.step()
        norms = (norm, critic.step()[0])
        skipped += sum(not math.isfinite(n) for n in norms)
    if not batches:
        return UpdateResult(stats, None, None, 0, metrics)
    metrics |= {"value_loss": value_loss / len(batches), "critic_grad_norm": norms[1]}
    return UpdateResult(replace(stats, loss=stats.loss / len(batches)), norms[0], rate, skipped, metrics)


def estimate(
    groups: Sequence[TrainGroup], preset: Preset, beta: float
) -> tuple[list[TrainGroup], dict[str, float | None]]:
    """The groups with advantages and returns for each token, and what the critic knew before this step.

    The samples carry their reward as ``advantage``, and ``old_values``; with beta, old and reference log-probs.
    """
    samples = [s for g in groups for s in g.samples]
    if not samples:
        return list(groups), {}
    mask_BT = dense([torch.tensor(s.mask) for s in samples])
    values_BT = dense([s.old_values for s in samples]).double()
    rewards_BT = rewards_of_tokens(samples, mask_BT, preset, beta)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, gamma=preset.gamma, lam=preset.lam)
    if preset.whiten:
        advantages_BT = whiten(advantages_BT, mask_BT, ddof=preset.ddof)
    earned_BT = discounted_returns(rewards_BT, mask_BT, gamma=preset.gamma)
    return with_rows(groups, advantages=advantages_BT, returns=returns_BT), _knowledge(values_BT, earned_BT, mask_BT)


def _knowledge(values_BT: Tensor, earned_BT: Tensor, mask_BT: Tensor) -> dict[str, float | None]:
    """Against what was earned in full: returns of GAE are partly the critic's own guesses."""
    return {
        "explained_variance": explained_variance(values_BT, earned_BT, mask_BT),
        "explained_variance_early": explained_variance(values_BT, earned_BT, first_half(mask_BT)),
        "value_spread": float(masked_var(values_BT, mask_BT).sqrt()),
        "return_spread": float(masked_var(earned_BT, mask_BT).sqrt()),
    }


def _critic_of(job: Job) -> Critic:
    if job.critic is None:
        raise ValueError(f"preset {job.config.algorithm.preset!r} has no critic; its runs are those of train/grpo.py")
    return job.critic
