"""All parts of a reinforcement learning run, built and checked before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from assay.config import Config
from assay.core.presets import Preset
from assay.models.critic import Critic
from assay.models.learner import Learner
from assay.models.local_learner import LocalLearner
from assay.models.objective import Objective
from assay.models.policy import Policy
from assay.models.reference import Reference
from assay.models.reward_model import RewardModel, load_reward_model
from assay.rollout.engine import Engine
from assay.train.canary import Canary
from assay.train.checkpoint import read_checkpoint
from assay.train.job import (
    Prompts,
    algorithm_of,
    build_composite,
    build_engine,
    build_policy,
    critic_bytes,
    encode_prompts,
    load_checked_rows,
    load_eval_rows,
    optimizer_settings,
    tokens_per_micro_batch,
)
from assay.train.kl_weight import KlWeight
from assay.train.shaping import with_reward_model
from assay.types import Row, Sample
from assay.verifiers.composition import Composite

CRITIC = "critic/"
"""Begins the names of the critic's tensors in a checkpoint."""


@dataclass(frozen=True, slots=True)
class Job:
    """The parts, and the last whole step."""

    config: Config
    preset: Preset
    policy: Policy
    learner: Learner
    critic: Critic | None
    reference: Reference | None
    kl_weight: KlWeight
    engine: Engine
    verify: Composite
    reward_model: RewardModel | None
    prompts: Prompts
    eval_prompts: Prompts | None
    canary: Canary
    micro_batch_tokens: int
    step: int

    @property
    def beta(self) -> tuple[float, float]:
        """The weight of the KL in the loss, and in the reward: one of them is 0."""
        beta = self.kl_weight.beta
        return (beta, 0.0) if self.preset.kl_in == "loss" else (0.0, beta)

    @property
    def has_own_critic(self) -> bool:
        return self.critic is not None and self.config.critic.backbone == "own"

    def grade(self, samples: Sequence[Sample]) -> list[Sample]:
        """The verifiers' verdicts with the reward model's score, if there is one."""
        section = self.config.reward_model
        return with_reward_model(samples, self.reward_model, section.weight if section is not None else 0.0)

    def state(self) -> dict[str, Tensor]:
        """Everything of a checkpoint but the policy's weights."""
        critic = {} if self.critic is None else self.critic.state()
        return {
            **self.learner.state(),
            **self.kl_weight.state(),
            **{f"{CRITIC}{name}": tensor for name, tensor in critic.items()},
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what ``state`` gave."""
        self.learner.load_state({name: t for name, t in state.items() if not name.startswith(CRITIC)})
        self.kl_weight.load_state(state)
        if self.critic is not None:
            self.critic.load_state(
                {name.removeprefix(CRITIC): t for name, t in state.items() if name.startswith(CRITIC)}
            )


def build(config: Config, checkpoint: Path | None = None) -> Job:
    """Load and check everything that the recipe names, and the state of ``checkpoint`` if one is given."""
    preset = algorithm_of(config)
    verify = build_composite(config, beside_a_reward_model=config.reward_model is not None)
    rows, eval_rows = load_checked_rows(config.data.train, verify), load_eval_rows(config, verify)
    policy = build_policy(config)
    prompts = encode_prompts(rows, policy, config.rollout.max_new_tokens)
    eval_prompts = None if eval_rows is None else encode_prompts(eval_rows, policy, config.rollout.max_new_tokens)
    reward_model = _reward_model(config, policy, [*rows, *(eval_rows or [])])
    others = critic_bytes(config, policy) + (0 if reward_model is None else reward_model.bytes)
    micro_batch_tokens = tokens_per_micro_batch(config, policy, other_models=others)
    # The reference is the model that the run started from, so it is taken before a checkpoint's weights are.
    reference = Reference(policy) if config.algorithm.beta > 0 else None
    critic = _critic(config, preset, policy, micro_batch_tokens)
    progress, state = (None, {}) if checkpoint is None else read_checkpoint(checkpoint)
    if checkpoint is not None:
        policy.load_weights(checkpoint / "model")
    job = Job(
        config=config,
        preset=preset,
        policy=policy,
        learner=_learner(config, preset, policy, micro_batch_tokens),
        critic=critic,
        reference=reference,
        kl_weight=KlWeight(config.algorithm),
        engine=build_engine(config, policy, prompts, eval_prompts),
        verify=verify,
        reward_model=reward_model,
        prompts=prompts,
        eval_prompts=eval_prompts,
        canary=Canary(prompts.ids[0], prompts.ids[-1], config.rollout.temperature, config.model.dtype),
        micro_batch_tokens=micro_batch_tokens,
        step=0 if progress is None else progress.step,
    )
    if progress is not None:
        job.load_state(state)
    job.engine.update_weights(job.learner.weight_version)
    return job


def _learner(config: Config, preset: Preset, policy: Policy, micro_batch_tokens: int) -> Learner:
    a = config.algorithm
    objective = Objective(
        preset,
        beta=a.beta if preset.kl_in == "loss" else 0.0,
        temperature=config.rollout.temperature,
        entropy_bonus=a.entropy_bonus,
        correction=a.importance_correction,
        correction_cap=a.importance_cap,
    )
    settings = optimizer_settings(config, a.minibatches * a.epochs)
    return LocalLearner(policy, objective, settings, micro_batch_tokens=micro_batch_tokens)


def _critic(config: Config, preset: Preset, policy: Policy, micro_batch_tokens: int) -> Critic | None:
    if preset.estimate != "critic":
        return None
    settings = optimizer_settings(config, config.algorithm.minibatches * config.algorithm.epochs)
    return Critic(
        policy,
        replace(settings, learning_rate=config.critic.learning_rate),
        own_backbone=config.critic.backbone == "own",
        value_clip=preset.value_clip or None,
        micro_batch_tokens=micro_batch_tokens,
    )


def _reward_model(config: Config, policy: Policy, rows: Sequence[Row]) -> RewardModel | None:
    section = config.reward_model
    if section is None:
        return None
    model = load_reward_model(section.name, policy.device, section.batch_size)
    model.check(rows)
    return model
