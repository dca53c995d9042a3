"""Per-token policy losses and their aggregation against one global denominator.

Clipped surrogate: PPO (Schulman et al. 2017, arXiv 1707.06347, eq. 7), with DAPO's asymmetric range
(arXiv 2503.14476, eq. 8) and dual clip (Ye et al. 2020, arXiv 1912.09729, eq. 5). CISPO: MiniMax-M1 2025,
arXiv 2506.13585, eq. 4. One ratio per sequence: GSPO 2025, arXiv 2507.18071, eq. 7.

Aggregation is a weight for every sequence, fixed from the lengths of the whole optimiser minibatch before
its first micro-batch: the loss is the plain sum of weight * token loss, so it cannot depend on micro-batches,
their order, padding, packing or ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from assay.core.masked import masked_sum

Aggregation = Literal["sequence_mean", "token_mean", "fixed_length", "prompt_mean"]
Correction = Literal["tis", "mis"]

MAX_LOG_RATIO = 20.0
"""The ratio stops at e^20 (as verl's): an infinite ratio would make 0 * inf = NaN of a gradient that is 0."""


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """-min(ratio A, clip(ratio, 1 - eps_low, 1 + eps_high) A) per token; shapes broadcast to [..., T].

    With ``dual_clip`` = c > 1 the objective of a negative advantage is bounded below by c A.
    """
    ratio = torch.exp((logprobs - old_logprobs).clamp(max=MAX_LOG_RATIO))
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - eps_low, 1 + eps_high) * advantages)
    if dual_clip is not None:
        bounded = torch.maximum(objective, dual_clip * advantages)
        objective = torch.where(advantages < 0, bounded, objective)
    return -objective


def is_clipped(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, eps_low: float = 0.2, eps_high: float = 0.2
) -> Tensor:
    """Where the clip takes the gradient away: ratio past the bound on the side the advantage pushes to."""
    ratio = torch.exp(logprobs - old_logprobs)
    return ((advantages > 0) & (ratio > 1 + eps_high)) | ((advantages < 0) & (ratio < 1 - eps_low))


def cispo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    eps_low: float = 1.0,
    eps_high: float = 4.0,
    dual_clip: float | None = None,
) -> Tensor:
    """-sg(clip(ratio, 1 - eps_low, 1 + eps_high)) A logp per token: the weight is clipped, no token is left out.

    ``eps_low`` = 1 is no lower bound, as in the paper. Raises ValueError for a ``dual_clip``: there is none.
    """
    if dual_clip is not None:
        raise ValueError(f"cispo has no dual clip; got dual_clip {dual_clip}")
    ratio = torch.exp((logprobs - old_logprobs).clamp(max=MAX_LOG_RATIO))
    return -ratio.clamp(1 - eps_low, 1 + eps_high).detach() * advantages * logprobs


def is_outside(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, eps_low: float = 1.0, eps_high: float = 4.0
) -> Tensor:
    """Where cispo bounds the weight of a token that has an advantage."""
    ratio = torch.exp(logprobs - old_logprobs)
    return ((ratio > 1 + eps_high) | (ratio < 1 - eps_low)) & (advantages != 0)


def sequence_level(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Log-probs whose ratio to the old ones is the sequence's, exp(mean_t log ratio), on each of its tokens (GSPO).

    The gradient of each goes to its own token, so that the sum over a sequence has the gradient of the paper's
    sequence loss, and per-token advantages are possible (GSPO-token, eq. 16).
    """
    log_ratio_BT = logprobs_BT - old_logprobs_BT
    count_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    mean_B1 = masked_sum(log_ratio_BT, mask_BT, dim=1)[:, None] / count_B1
    return old_logprobs_BT + mean_B1.detach() + logprobs_BT - logprobs_BT.detach()


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None = None) -> Tensor:
    """(V - R)^2 / 2 per token or, with ``clip``, the larger of that and the same with V kept within old V +- clip.

    Schulman et al. 2017 describe the plain form; the clipped one is of their published code.
    """
    plain = (values - returns).square()
    if clip is None:
        return plain / 2
    near = torch.minimum(torch.maximum(values, old_values - clip), old_values + clip)
    return torch.maximum(plain, (near - returns).square()) / 2


def correction_weights(
    old_logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, mask_BT: Tensor, *, kind: Correction, cap: float = 2.0
) -> Tensor:
    """What each token's loss is multiplied by when the sampler's numbers are not the learner's; no gradient.

    tis: min(w, cap) with w = exp(logp_old - logp_sampler) (truncated importance sampling, Yao et al. 2025);
    mis: w of the whole sequence decides: 1 where it is at most ``cap``, else 0.
    """
    log_weights_BT = torch.where(mask_BT.bool(), old_logprobs_BT - sampler_logprobs_BT, 0.0).detach()
    if kind == "tis":
        return torch.exp(log_weights_BT.clamp(max=MAX_LOG_RATIO)).clamp(max=cap)
    whole_B1 = log_weights_BT.sum(dim=1, keepdim=True).clamp(max=MAX_LOG_RATIO).exp()
    return (whole_B1 <= cap).to(log_weights_BT).expand_as(log_weights_BT)


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts over one whole optimiser minibatch: every micro-batch of every rank."""

    sequences: int
    tokens: int
    prompts: int
    max_length: int
    """The completion limit L_max in tokens (fixed_length alone reads it)."""


def sequence_weights(
    aggregation: Aggregation, lengths_B: Tensor, prompt_tokens_B: Tensor, denominators: Denominators
) -> Tensor:
    """What one token's loss of each sequence counts; float64 of shape [B].

    ``lengths_B``: loss tokens of each sequence; ``prompt_tokens_B``: loss tokens of its whole group.
    sequence_mean 1/(N |o_i|) (GRPO paper, eq. 3) · token_mean 1/sum|o| (DAPO, eq. 8) · fixed_length
    1/(N L_max) (Dr.GRPO) · prompt_mean 1/(P * tokens of its prompt). A sequence without tokens weighs 0.
    """
    d = denominators
    lengths = lengths_B.double()
    if aggregation == "sequence_mean":
        weights = 1 / (d.sequences * lengths)
    elif aggregation == "token_mean":
        weights = torch.full_like(lengths, 1 / max(d.tokens, 1))
    elif aggregation == "fixed_length":
        weights = torch.full_like(lengths, 1 / (max(d.sequences, 1) * d.max_length))
    elif aggregation == "prompt_mean":
        weights = 1 / (d.prompts * prompt_tokens_B.double())
    else:
        raise ValueError(f"aggregation must be one of {', '.join(get_args(Aggregation))}; got {aggregation!r}")
    return torch.where(lengths > 0, weights, 0.0)


def aggregate(loss_BT: Tensor, mask_BT: Tensor, weights_B: Tensor) -> Tensor:
    """sum_i weight_i sum_t mask loss: this micro-batch's share of the global loss, a scalar."""
    return (masked_sum(loss_BT, mask_BT, dim=1) * weights_B.to(loss_BT)).sum()


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A per-token policy loss, and which tokens its clipping touches; both as (logprobs, old, advantages, *, eps_…)."""

    tokens: Callable[..., Tensor]
    clipped: Callable[..., Tensor]


LOSSES: dict[str, PolicyLoss] = {
    "clipped_surrogate": PolicyLoss(clipped_surrogate, is_clipped),
    "cispo": PolicyLoss(cispo, is_outside),
}
