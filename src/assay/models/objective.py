"""The loss of one micro-batch: core's formulas put together for samples of uneven length, and what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from assay.core.kl import k3, k3_is_linear, kl_term
from assay.core.loss import (
    LOSSES,
    MAX_LOG_RATIO,
    Correction,
    Denominators,
    aggregate,
    correction_weights,
    sequence_level,
    sequence_weights,
)
from assay.core.masked import masked_sum
from assay.core.presets import Preset
from assay.models.learner import TrainSample, UpdateStats


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised: an algorithm's constants, and what a recipe adds to them."""

    preset: Preset
    beta: float = 0.0
    """Of the KL term of the loss; 0 where the KL is in the reward."""
    temperature: float = 1.0
    entropy_bonus: float = 0.0
    """Weight of the entropy, in nats, that is taken off the loss of each token."""
    correction: Correction | None = None
    correction_cap: float = 2.0


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples as dense tensors [B, T], padded at the end; only masked-in positions are ever read."""

    logprobs_BT: Tensor
    entropies_BT: Tensor
    old_logprobs_BT: Tensor
    sampler_logprobs_BT: Tensor
    ref_logprobs_BT: Tensor | None
    mask_BT: Tensor
    advantages_BT: Tensor
    lengths_B: Tensor
    group_tokens_B: Tensor


def micro_batch(
    samples: Sequence[TrainSample],
    group_tokens: Sequence[int],
    logprobs: Sequence[Tensor],
    entropies: Sequence[Tensor],
) -> MicroBatch:
    """Dense tensors of the samples and their current log-probs (each [T_i])."""
    device = logprobs[0].device

    def dense(rows: Sequence[Tensor]) -> Tensor:
        return pad_sequence([row.to(device) for row in rows], batch_first=True)

    logprobs_BT = dense(logprobs)
    old = [s.old_logprobs for s in samples if s.old_logprobs is not None]
    ref = [s.ref_logprobs for s in samples if s.ref_logprobs is not None]
    for kind, given in (("old", old), ("reference", ref)):
        if len(given) not in (0, len(samples)):
            raise ValueError(f"{len(given)} of {len(samples)} samples carry {kind} log-probs; all or none must")
    return MicroBatch(
        logprobs_BT=logprobs_BT,
        entropies_BT=dense(entropies),
        old_logprobs_BT=dense(old) if old else logprobs_BT.detach(),
        sampler_logprobs_BT=dense([torch.tensor(s.sampler_logprobs) for s in samples]),
        ref_logprobs_BT=dense(ref) if ref else None,
        mask_BT=dense([torch.tensor(s.mask) for s in samples]),
        advantages_BT=dense([_advantages(s) for s in samples]).to(logprobs_BT.dtype),
        lengths_B=torch.tensor([sum(s.mask) for s in samples], device=device),
        group_tokens_B=torch.tensor(group_tokens, device=device),
    )


def objective_loss(batch: MicroBatch, objective: Objective, denominators: Denominators) -> Tensor:
    """This micro-batch's share of the global loss: policy term - entropy + beta KL, as the preset says. A scalar."""
    p = objective.preset
    logprobs_BT = _ratio_logprobs(batch, p)
    loss_BT = LOSSES[p.loss].tokens(
        logprobs_BT,
        batch.old_logprobs_BT,
        batch.advantages_BT,
        eps_low=p.eps_low,
        eps_high=p.eps_high,
        dual_clip=p.dual_clip,
    )
    if objective.correction is not None:
        loss_BT = loss_BT * _correction(batch, objective.correction, objective.correction_cap)
    if objective.entropy_bonus:
        loss_BT = loss_BT - objective.entropy_bonus * batch.entropies_BT
    if objective.beta:
        if batch.ref_logprobs_BT is None:
            raise ValueError(f"beta is {objective.beta}, but the samples carry no reference log-probs")
        ratio_BT = torch.exp((batch.logprobs_BT - batch.old_logprobs_BT).clamp(max=MAX_LOG_RATIO))
        kl_BT = kl_term(p.kl, p.kl_gradient, batch.logprobs_BT, batch.ref_logprobs_BT, ratio_BT)
        loss_BT = loss_BT + objective.beta * kl_BT
    weights_B = sequence_weights(p.aggregation, batch.lengths_B, batch.group_tokens_B, denominators)
    return aggregate(loss_BT, batch.mask_BT, weights_B)


@torch.no_grad()
def observe(batch: MicroBatch, loss: Tensor, objective: Objective) -> UpdateStats:
    """What the micro-batch shows: sums and extremes over its loss tokens."""
    p, mask = objective.preset, batch.mask_BT
    if not mask.any():
        return UpdateStats(loss=loss.item())
    ratio_BT = torch.exp(batch.logprobs_BT - batch.old_logprobs_BT)
    clipped_BT = LOSSES[p.loss].clipped(
        _ratio_logprobs(batch, p),
        batch.old_logprobs_BT,
        batch.advantages_BT,
        eps_low=p.eps_low,
        eps_high=p.eps_high,
    )
    gap_BT = (batch.old_logprobs_BT - batch.sampler_logprobs_BT).abs()
    ref = batch.ref_logprobs_BT
    kl_BT = None if ref is None else k3(batch.logprobs_BT, ref)
    return UpdateStats(
        loss=loss.item(),
        tokens=int(mask.sum()),
        entropy_sum=masked_sum(batch.entropies_BT, mask).item(),
        clipped=int((clipped_BT & mask).sum()),
        ratio_max_deviation=(ratio_BT - 1).abs()[mask].max().item(),
        sampler_gap_sum=masked_sum(gap_BT, mask).item(),
        sampler_gap_max=gap_BT[mask].max().item(),
        kl_sum=None if kl_BT is None else masked_sum(kl_BT, mask).item(),
        kl_min=None if kl_BT is None else kl_BT[mask].min().item(),
        kl_linear=0 if ref is None else int((k3_is_linear(batch.logprobs_BT, ref) & mask).sum()),
    )


def add_stats(a: UpdateStats, b: UpdateStats) -> UpdateStats:
    """Both micro-batches (or minibatches) as one."""
    kl_sums = [s for s in (a.kl_sum, b.kl_sum) if s is not None]
    kl_mins = [s for s in (a.kl_min, b.kl_min) if s is not None]
    return UpdateStats(
        loss=a.loss + b.loss,
        tokens=a.tokens + b.tokens,
        entropy_sum=a.entropy_sum + b.entropy_sum,
        clipped=a.clipped + b.clipped,
        ratio_max_deviation=_largest([a.ratio_max_deviation, b.ratio_max_deviation]),
        sampler_gap_sum=a.sampler_gap_sum + b.sampler_gap_sum,
        sampler_gap_max=_largest([a.sampler_gap_max, b.sampler_gap_max]),
        kl_sum=sum(kl_sums) if kl_sums else None,
        kl_min=-_largest([-s for s in kl_mins]) if kl_mins else None,
        kl_linear=a.kl_linear + b.kl_linear,
    )


def _advantages(sample: TrainSample) -> Tensor:
    if sample.advantages is not None:
        return sample.advantages
    return torch.full((len(sample.completion_ids),), sample.advantage, dtype=torch.float64)


def _ratio_logprobs(batch: MicroBatch, preset: Preset) -> Tensor:
    """The log-probs whose ratio to the old ones the policy loss is made of."""
    if preset.importance_level == "sequence":
        return sequence_level(batch.logprobs_BT, batch.old_logprobs_BT, batch.mask_BT)
    return batch.logprobs_BT


def _correction(batch: MicroBatch, kind: Correction, cap: float) -> Tensor:
    return correction_weights(
        batch.old_logprobs_BT, batch.sampler_logprobs_BT.to(batch.old_logprobs_BT), batch.mask_BT, kind=kind, cap=cap
    )


def _largest(values: Sequence[float]) -> float:
    """The maximum, or NaN if any is: Python's ``max`` keeps or loses a NaN by its place."""
    return math.nan if any(math.isnan(v) for v in values) else max(values)
