"""From a recipe to everything a run needs, with every check made before the first step."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from assay.config import Config, CriticSection
from assay.core.advantage import ADVANTAGES
from assay.core.loss import LOSSES
from assay.core.presets import PRESETS, Preset
from assay.data.sources import load_rows
from assay.errors import ConfigError, DataError, EngineError, did_you_mean
from assay.models.local_learner import OptimizerSettings
from assay.models.policy import Policy, load_policy, pick_device
from assay.planner.memory import Shape, micro_batch_tokens, state_bytes
from assay.rollout.engine import Engine
from assay.rollout.paged import PagedEngine
from assay.rollout.reference import ReferenceEngine
from assay.train.checkpoint import checkpoints
from assay.types import Request, Row
from assay.verifiers.composition import Composite, Part
from assay.verifiers.registry import build_verifier

FREE_FOR_RECORDS = 50e6
"""Bytes kept free beside checkpoints, for metrics, rollouts and the report."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Rows with their prompts' token ids."""

    rows: list[Row]
    ids: list[tuple[int, ...]]


def load_checked_rows(source: str, verifier: Composite, limit: int | None = None) -> list[Row]:
    """Read a source. Raises DataError for a row whose gold no completion could be graded against."""
    rows = load_rows(source)[:limit]
    for row in rows:
        if problems := verifier.self_check(row):
            raise DataError(f"{source}, row {row.row_id} can never be graded: {'; '.join(problems)}")
    return rows


def load_eval_rows(config: Config, verifier: Composite) -> list[Row] | None:
    """The held-out rows, or None where the recipe names none."""
    d = config.data
    return None if d.eval is None else load_checked_rows(d.eval, verifier, d.eval_rows)


def encode_prompts(rows: list[Row], policy: Policy, max_new_tokens: int) -> Prompts:
    """The rows with their prompts' tokens. Raises DataError for one that leaves no room to answer."""
    ids = []
    room = policy.context_length - max_new_tokens
    for row in rows:
        prompt = policy.encode_prompt(row.prompt)
        if len(prompt) > room:
            raise DataError(
                f"row {row.row_id}: the prompt has {len(prompt)} tokens and max_new_tokens is "
                f"{max_new_tokens}, but the model's context has {policy.context_length}; shorten the prompt or lower "
                f"max_new_tokens"
            )
        ids.append(prompt)
    return Prompts(rows, ids)


def algorithm_of(config: Config) -> Preset:
    """The named algorithm, with what the recipe changes of it. Raises ConfigError for what cannot be."""
    a = config.algorithm
    for field, given, known in (
        ("preset", a.preset, PRESETS),
        ("advantage", a.advantage, ADVANTAGES),
        ("loss", a.loss, LOSSES),
    ):
        if given is not None and given not in known:
            hint = did_you_mean(given, list(known))
            raise ConfigError(f"algorithm.{field}: there is no {given!r}{hint}; allowed: {', '.join(known)}")
    overrides = ("advantage", "loss", "eps_low", "eps_high", "dual_clip", "dead_groups")
    changes = {name: getattr(a, name) for name in overrides}
    changes |= {name: getattr(config.critic, name) for name in ("gamma", "lam", "value_clip")}
    preset = replace(PRESETS[a.preset], **{name: value for name, value in changes.items() if value is not None})
    for name in ("advantage", "dead_groups"):
        if preset.estimate != "group" and getattr(a, name) is not None:
            raise ConfigError(f"algorithm.{name}: {a.preset!r} does not compare within groups; leave it out")
    if preset.estimate != "critic" and config.critic != CriticSection():
        raise ConfigError(f"[critic]: {a.preset!r} has no critic; leave the table out, or use algorithm.preset = 'ppo'")
    if preset.estimate == "group" and a.group_size < 2:
        raise ConfigError(
            f"algorithm.group_size = {a.group_size}: the baseline of {a.preset!r} is the group, so it needs at least 2"
        )
    if preset.dual_clip is not None and preset.loss != "clipped_surrogate":
        raise ConfigError(f"algorithm.dual_clip: {preset.loss}, the loss of {a.preset!r}, has none; leave it out")
    return preset


def overlong_buffer(config: Config, preset: Preset) -> int:
    """Tokens before the length limit over which the soft overlong penalty grows; 0: no penalty."""
    given = config.algorithm.overlong_buffer
    return round(preset.overlong_share * config.rollout.max_new_tokens) if given is None else given


def build_composite(config: Config, *, beside_a_reward_model: bool = False) -> Composite:
    """The recipe's verifiers as one. Raises ConfigError for none, where they are all that judges."""
    if not config.verifiers and not beside_a_reward_model:
        raise ConfigError(
            "this command does not use [reward_model], so nothing says what is correct: add [[verifiers]] with a name"
        )
    return Composite(
        [
            Part(v.name, build_verifier(v.name, v.args), v.weight, v.answer, gate=v.gate, counts=v.counts)
            for v in config.verifiers
        ]
    )


def build_policy(config: Config) -> Policy:
    """The policy of the recipe, on the first GPU or the CPU."""
    # Fresh LoRA adapters are the one thing drawn from torch's generator.
    torch.manual_seed(config.seed)
    return load_policy(
        config.model.name,
        precision=config.model.dtype,
        device=pick_device(),
        lora_rank=config.model.lora_rank,
    )


def build_engine(config: Config, policy: Policy, *asked: Prompts | None) -> Engine:
    """The recipe's rollout engine over the policy's own weights.

    Raises ConfigError if it could not answer the longest of the prompts that it will be asked.
    """
    r = config.rollout
    engine = (
        ReferenceEngine(policy)
        if r.engine == "reference"
        else PagedEngine(policy, max_running=r.max_running, kv_cache_bytes=r.kv_cache_gb * 1e9)
    )
    longest = max((ids for prompts in asked if prompts is not None for ids in prompts.ids), key=len, default=None)
    if longest is not None:
        try:
            engine.check(Request(0, 0, longest, r.max_new_tokens, r.temperature, config.seed))
        except EngineError as error:
            raise ConfigError(f"the longest prompt cannot be answered: {error}") from error
    return engine


def optimizer_settings(config: Config, updates_per_step: int = 1) -> OptimizerSettings:
    o = config.optimizer
    return OptimizerSettings(
        learning_rate=o.learning_rate,
        total_steps=config.train.steps * updates_per_step,
        warmup_steps=o.warmup_steps,
        schedule=o.schedule,
        betas=(o.beta1, o.beta2),
        weight_decay=o.weight_decay,
        max_grad_norm=o.max_grad_norm,
    )


def tokens_per_micro_batch(
    config: Config, policy: Policy, *, reference: bool | None = None, other_models: float = 0
) -> int:
    """The recipe's micro-batch, or the largest that fits its memory budget. Raises ConfigError if none does.

    ``reference``: whether a reference model stands beside the policy; None: as algorithm.beta says.
    ``other_models``: the bytes of what else does.
    """
    if config.train.micro_batch_tokens is not None:
        return config.train.micro_batch_tokens
    has_reference = config.algorithm.beta > 0 if reference is None else reference
    copies = 1 if has_reference and not policy.is_lora else 0
    budget = config.train.memory_gb * 1e9 - config.rollout.kv_cache_gb * 1e9 - other_models
    shape = shape_of(policy)
    tokens = micro_batch_tokens(shape, budget, frozen_copies=copies)
    if tokens < config.rollout.max_new_tokens:
        need = (state_bytes(shape, frozen_copies=copies) + other_models) / 1e9 + config.rollout.kv_cache_gb
        raise ConfigError(
            f"train.memory_gb = {config.train.memory_gb} is too little: weights, gradients, optimisers and key-value "
            f"cache alone take {need:.1f} GB, and the activations of a micro-batch come on top; raise it, use LoRA "
            f"(model.lora_rank), or set train.micro_batch_tokens yourself"
        )
    return tokens


def shape_of(policy: Policy) -> Shape:
    parameters = list(policy.module.parameters())
    hidden = policy.config.hidden_size
    return Shape(
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        layers=policy.config.num_hidden_layers,
        hidden=hidden,
        # Architectures that do not say (GPT-2) have four times the hidden size.
        intermediate=getattr(policy.config, "intermediate_size", None) or 4 * hidden,
        vocabulary=policy.config.vocab_size,
    )


def critic_bytes(config: Config, policy: Policy) -> int:
    """What a critic with its own backbone takes: weights, gradients and optimiser; 0 without one."""
    if algorithm_of(config).estimate != "critic" or config.critic.backbone == "actor":
        return 0
    return state_bytes(shape_of(policy))


def check_disk(folder: Path, policy: Policy, keep_last: int, *, own_critic: bool = False) -> None:
    """Raise ConfigError unless the checkpoints that will stand at once, and the final model, fit the disk.

    Of a critic with its own backbone, what trains is saved with its moments. ``folder`` need not exist yet;
    checkpoints that stand in it already need no more room.
    """
    shape = shape_of(policy)
    saved = shape.trainable if policy.is_lora else shape.parameters
    one = 4 * saved + 8 * shape.trainable + (12 * shape.trainable if own_critic else 0)
    # A new checkpoint is whole before an old one goes.
    more = max(1, keep_last + 1 - len(checkpoints(folder / "checkpoints")))
    need = more * one + 4 * shape.parameters + FREE_FOR_RECORDS
    where = folder.absolute()
    free = shutil.disk_usage(next(p for p in (where, *where.parents) if p.exists())).free
    if free < need:
        raise ConfigError(
            f"too little disk for the run's checkpoints: {folder} has {free / 1e9:.2f} GB free and the run needs "
            f"{need / 1e9:.2f} ({more} checkpoints of {one / 1e9:.2f} GB, and the final model); free some, "
            f"choose another --out, or lower train.keep_last (now {keep_last})"
        )
