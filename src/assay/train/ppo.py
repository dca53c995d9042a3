"""PPO with a critic: the actor, the critic, the frozen reference, and verifiers or a frozen reward model.

Schulman et al. 2017 (arXiv 1707.06347) with token rewards as in InstructGPT (arXiv 2203.02155): the completion's
reward on its last token, -beta KL on every one. The step around this is ``train/loop.py``.

Deviations: a completion that was cut off at the length limit counts as ended; no value stands in for its rest. The
critic begins by saying the first step's mean reward everywhere: from 0, advantages with lambda < 1 would be larger
the later a token stands, and whitened that would push early tokens down whatever they earned. Minibatches are of
whole groups, the same in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from assay.core.advantage import discounted_returns, gae, whiten
from assay.core.masked import masked_var
from assay.core.presets import Preset
from assay.core.value_fit import explained_variance, first_half
from assay.models.critic import Critic
from assay.models.learner import TrainGroup
from assay.train.assembly import Job
from assay.train.token_advantages import dense, rewards_of_tokens, with_rows
from assay.train.update import UpdateResult, Watch, minibatches_of, take_steps, with_logprobs, with_tensors

UNKNOWN: dict[str, float | None] = dict.fromkeys(
    (
        "explained_variance",
        "explained_variance_early",
        "value_spread",
        "return_spread",
        "value_loss",
        "critic_grad_norm",
    )
)
"""PPO's own metrics in a step that trained on nothing."""


def improve(job: Job, groups: Sequence[TrainGroup], watch: Watch) -> UpdateResult:
    """Values, advantages, then epochs of minibatches for actor and critic alike."""
    a, critic = job.config.algorithm, _critic_of(job)
    in_loss, in_reward = job.beta
    job.learner.set_beta(in_loss)
    critic.discard_gradients()
    if critic.updates == 0:
        critic.start_at([s.advantage for g in groups for s in g.samples])
    groups = with_logprobs(
        job.learner,
        job.reference,
        groups,
        old=a.minibatches * a.epochs > 1 or in_reward > 0,
        temperature=job.config.rollout.temperature,
        reference_tokens=job.micro_batch_tokens,
    )
    groups = with_tensors(groups, critic.values(groups), "old_values")
    groups, knowledge = estimate(groups, job.preset, in_reward)
    batches = minibatches_of(groups, a.minibatches, a.epochs)
    limit = job.config.rollout.max_new_tokens
    result = take_steps(batches, job.learner, critic=critic, max_length=limit, watch=watch)
    return replace(result, metrics={**UNKNOWN, **knowledge, **result.metrics})


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
