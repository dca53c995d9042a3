"""Supervised learning on prompt–response rows: a warm start, before there is anything for RL to reinforce.

The loss is the mean negative log-likelihood of the response's tokens, end token included; prompts carry
none. Rows are packed behind what they have in common.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from assay.config import Config
from assay.core.logprob import token_logprobs
from assay.curriculum import draw_uniform
from assay.errors import DataError
from assay.models.local_learner import Stepper
from assay.models.packing import pack, packed_length
from assay.models.policy import Policy
from assay.train.checkpoint import read_checkpoint
from assay.train.job import (
    build_composite,
    build_engine,
    build_policy,
    encode_prompts,
    load_checked_rows,
    load_eval_rows,
    optimizer_settings,
    tokens_per_micro_batch,
)
from assay.train.run import Run, new_run_folder, resumed_run_folder
from assay.train.session import Session, resume_point
from assay.types import Row

KIND = "sft"

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt and of its response."""


def train(config: Config, out: Path | None = None) -> Run:
    """Train as the recipe says, in a new run folder."""
    return run(config, None, partial(new_run_folder, config, out))


def resume(path: Path, overrides: Sequence[str] = ()) -> Run:
    """Go on from the last whole checkpoint, exactly; ``overrides`` may change what RESUMABLE names."""
    config, checkpoint = resume_point(path, KIND, overrides)
    return run(config, checkpoint, partial(resumed_run_folder, path, config))


def run(config: Config, checkpoint: Path | None, folder: Callable[[Policy], Path]) -> Run:
    """Every step that is left, or until the evaluation says that enough is learnt (sft.stop_at_correct)."""
    verify = build_composite(config)
    rows, eval_rows = load_checked_rows(config.data.train, verify), load_eval_rows(config, verify)
    policy = build_policy(config)
    pairs = encode_pairs(rows, policy)
    eval_prompts = None if eval_rows is None else encode_prompts(eval_rows, policy, config.rollout.max_new_tokens)
    micro_batch_tokens = tokens_per_micro_batch(config, policy)
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
    with session:
        session.progress.note(f"{config.name}: supervised learning on {config.model.name}, {len(pairs)} rows")
        for step in session.steps(config.sft.stop_at_correct):
            began = time.perf_counter()
            drawn = draw_uniform(len(pairs), config.sft.rows_per_step, step, config.seed)
            batch = [pairs[i] for i in drawn]
            stepper.discard_gradients()
            loss = forward_backward(policy, batch, micro_batch_tokens, partial(session.phase, "update"))
            norm, rate = stepper.step()
            seconds = time.perf_counter() - began
            tokens = sum(len(prompt) + len(response) for prompt, response in batch)
            session.record(
                {
                    "step": step,
                    "loss": loss,
                    "grad_norm": norm,
                    "learning_rate": rate,
                    "tokens_per_second": tokens / seconds,
                    "seconds": seconds,
                    "samples_total": step * len(batch),
                }
            )
        return session.finish()


def forward_backward(
    policy: Policy, batch: Sequence[Pair], max_tokens: int, on_micro_batch: Callable[[int, int], None]
) -> float:
    """Add the gradient of the mean over all response tokens of -log p; returns that mean, in nats."""
    tokens = sum(len(response) for _, response in batch)
    parts = micro_batches(batch, max_tokens)
    total = 0.0
    for i, part in enumerate(parts):
        on_micro_batch(i, len(parts))
        loss = negative_log_likelihood(policy, part) / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def micro_batches(batch: Sequence[Pair], max_tokens: int) -> list[list[Pair]]:
    """Pairs in order, in parts of at most ``max_tokens`` packed positions (but at least one pair)."""
    parts: list[list[Pair]] = []
    for pair in batch:
        if parts and packed_length([_inputs(p) for p in [*parts[-1], pair]]) <= max_tokens:
            parts[-1].append(pair)
        else:
            parts.append([pair])
    return parts


def negative_log_likelihood(policy: Policy, batch: Sequence[Pair]) -> Tensor:
    """Sum over all response tokens of -log p, in nats; a scalar."""
    row = pack([_inputs(pair) for pair in batch], policy.device)
    places = [p for index, (prompt, _) in zip(row.index, batch, strict=True) for p in index[len(prompt) - 1 :]]
    targets = torch.tensor([t for _, response in batch for t in response], device=policy.device)
    hidden_NH = policy.hidden(row.input_ids, row.position_ids, row.layout)[0]
    predictors = torch.tensor(places, device=policy.device)
    head = policy.head
    with policy.autocast():
        logprobs_N, _ = token_logprobs(
            hidden_NH.index_select(0, predictors), head.weight_VH, targets, softcap=head.softcap, bias_V=head.bias_V
        )
    return -logprobs_N.sum()


def _inputs(pair: Pair) -> tuple[int, ...]:
    """The last token of a response predicts nothing, so it is a target and no input."""
    prompt, response = pair
    return prompt + response[:-1]


def encode_pairs(rows: Sequence[Row], policy: Policy) -> list[Pair]:
    """Each prompt with its response. Raises DataError for a pair that does not fit the context."""
    pairs = []
    for row in rows:
        prompt = policy.encode_prompt(row.prompt)
        response = policy.encode_response(response_text(row))
        if len(prompt) + len(response) > policy.context_length:
            raise DataError(
                f"row {row.row_id}: prompt and response have {len(prompt)} + {len(response)} tokens, and the model's "
                f"context has {policy.context_length}; shorten one of them"
            )
        pairs.append((prompt, response))
    return pairs


def response_text(row: Row) -> str:
    """The row's ``response`` column or, without one, its answer as text (JSON for what is not a string)."""
    response = row.columns.get("response", row.answer)
    return response if isinstance(response, str) else json.dumps(response)
