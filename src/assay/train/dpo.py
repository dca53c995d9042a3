"""DPO on preference pairs, top to bottom: draw pairs → loss against the reference → update → observe.

Rafailov et al. 2023, arXiv 2305.18290, eq. 7. A pair is a group of two, chosen and rejected, packed behind its one
prompt. The reference is the model that the run started from, as in the paper.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from assay.config import Config
from assay.core.preference import dpo, implicit_reward
from assay.curriculum import draw_uniform
from assay.data.preferences import Preference, load_preferences
from assay.errors import DataError
from assay.models.learner import TrainGroup, TrainSample
from assay.models.local_learner import Stepper
from assay.models.policy import Policy
from assay.models.reference import Reference
from assay.models.scoring import micro_batches, packed_logprobs
from assay.telemetry.metrics import preference_metrics
from assay.train.checkpoint import read_checkpoint
from assay.train.job import (
    build_composite,
    build_engine,
    build_policy,
    encode_prompts,
    load_eval_rows,
    optimizer_settings,
    tokens_per_micro_batch,
)
from assay.train.run import Run, new_run_folder, resumed_run_folder
from assay.train.session import Session, resume_point

KIND = "dpo"

TEMPERATURE = 1.0
"""The paper's log-probs are the model's own, whatever temperature is sampled at."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a step's pairs showed before the update; rewards are the implicit ones, a pair at each place."""

    loss: float
    """Mean over the pairs."""
    chosen_rewards: tuple[float, ...]
    rejected_rewards: tuple[float, ...]


def train(config: Config, out: Path | None = None) -> Run:
    """Train as the recipe says, in a new run folder."""
    return run(config, None, partial(new_run_folder, config, out))


def resume(path: Path, overrides: Sequence[str] = ()) -> Run:
    """Go on from the last whole checkpoint, exactly; ``overrides`` may change what RESUMABLE names."""
    config, checkpoint = resume_point(path, KIND, overrides)
    return run(config, checkpoint, partial(resumed_run_folder, path, config))


def run(config: Config, checkpoint: Path | None, folder: Callable[[Policy], Path]) -> Run:
    """Every step that is left, with evaluation before and after."""
    verify = build_composite(config)
    preferences, eval_rows = load_preferences(config.data.train), load_eval_rows(config, verify)
    policy = build_policy(config)
    pairs = encode_pairs(preferences, policy)
    eval_prompts = None if eval_rows is None else encode_prompts(eval_rows, policy, config.rollout.max_new_tokens)
    micro_batch_tokens = tokens_per_micro_batch(config, policy, reference=True)
    # The reference is the model that the run started from, so it is taken before a checkpoint's weights are.
    reference = Reference(policy)
    if checkpoint is not None:
        policy.load_weights(checkpoint / "model")
    stepper = Stepper(policy.trainable(), optimizer_settings(config))
    step = 0
    if checkpoint is not None:
        progress, state = read_checkpoint(checkpoint)
        step = progress.step
        stepper.load_state(state)
    session = Session(
        KIND,
        config,
        folder(policy),
        policy=policy,
        engine=build_engine(config, policy, eval_prompts),
        verify=verify,
        eval_prompts=eval_prompts,
        state=stepper.state,
        step=step,
    )
    update = partial(forward_backward, policy, reference, beta=config.dpo.beta, max_tokens=micro_batch_tokens)
    with session:
        session.progress.note(f"{config.name}: DPO on {config.model.name}, {len(pairs)} pairs")
        for step in session.steps():
            began = time.perf_counter()
            batch = [pairs[i] for i in draw_uniform(len(pairs), config.dpo.pairs_per_step, step, config.seed)]
            seen = update(batch, on_micro_batch=partial(session.phase, "update"))
            norm, rate = stepper.step()
            seconds = time.perf_counter() - began
            tokens = sum(len(pair.prompt_ids) + pair.group_loss_tokens for pair in batch)
            session.record(
                {
                    "step": step,
                    "loss": seen.loss,
                    **preference_metrics(seen.chosen_rewards, seen.rejected_rewards),
                    "grad_norm": norm,
                    "learning_rate": rate,
                    "tokens_per_second": tokens / seconds,
                    "seconds": seconds,
                    "samples_total": step * len(batch),
                }
            )
        return session.finish()


def forward_backward(
    policy: Policy,
    reference: Reference,
    batch: Sequence[TrainGroup],
    *,
    beta: float,
    max_tokens: int,
    on_micro_batch: Callable[[int, int], None],
) -> Observed:
    """Add the gradient of the mean loss over the batch's pairs, in micro-batches of whole pairs."""
    parts = micro_batches(batch, max_tokens, whole=True)
    total = 0.0
    rewards: list[Tensor] = []
    for i, part in enumerate(parts):
        on_micro_batch(i, len(parts))
        ref_P2 = sequence_logprobs([t for pair in reference.logprobs(part, TEMPERATURE, max_tokens) for t in pair])
        logprobs_P2 = sequence_logprobs(packed_logprobs(policy, part, TEMPERATURE)[0])
        losses_P = dpo(logprobs_P2[:, 0], logprobs_P2[:, 1], ref_P2[:, 0], ref_P2[:, 1], beta=beta)
        loss = losses_P.sum() / len(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
        rewards.append(implicit_reward(logprobs_P2.detach(), ref_P2, beta=beta))
    chosen, rejected = torch.cat(rewards).t().tolist()
    return Observed(total, tuple(chosen), tuple(rejected))


def sequence_logprobs(logprobs: Sequence[Tensor]) -> Tensor:
    """Sums over the tokens of chosen, rejected, chosen, rejected, … as [P, 2].

    In float64: in float32 the sum of hundreds of tokens would round off what differs from the reference.
    """
    return torch.stack([logprobs_T.double().sum() for logprobs_T in logprobs]).view(-1, 2)


def encode_pairs(preferences: Sequence[Preference], policy: Policy) -> list[TrainGroup]:
    """Each pair as a group of two. Raises DataError for one that does not fit the context or prefers nothing."""
    pairs = []
    for preference in preferences:
        row_id, prompt = preference.row.row_id, policy.encode_prompt(preference.row.prompt)
        chosen, rejected = policy.encode_response(preference.chosen), policy.encode_response(preference.rejected)
        if chosen == rejected:
            raise DataError(
                f"row {row_id}: chosen and rejected are the same {len(chosen)} tokens, so there is nothing to learn "
                f"from it; leave the row out"
            )
        if len(prompt) + max(len(chosen), len(rejected)) > policy.context_length:
            raise DataError(
                f"row {row_id}: the prompt has {len(prompt)} tokens, chosen {len(chosen)} and rejected "
                f"{len(rejected)}, and the model's context has {policy.context_length}; shorten them, or leave the "
                f"row out"
            )
        pairs.append(TrainGroup(prompt, (_sample(chosen), _sample(rejected)), len(chosen) + len(rejected)))
    return pairs


def _sample(ids: tuple[int, ...]) -> TrainSample:
    """All its tokens count; nothing was sampled here, and there is no advantage."""
    return TrainSample(ids, (True,) * len(ids), advantage=0.0, sampler_logprobs=(0.0,) * len(ids))
