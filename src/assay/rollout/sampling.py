"""Sampling with counter-based randomness: the same text whatever the batch, the worker or the resume."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from assay.types import Request


def uniform(seed: int, sample_id: int, token_index: int) -> float:
    """A number in [0, 1) that depends on the three counters alone (Philox 4x64)."""
    # As uint64: a plain list with a seed from 2**63 on would pass through float64, and lose its last digits.
    key = np.array([seed, sample_id], dtype=np.uint64)
    bits = np.random.Philox(key=key, counter=[token_index, 0, 0, 0])
    return float(np.random.Generator(bits).random())


def sample(
    logits_LV: Tensor, lanes: Sequence[int], requests: Sequence[Request], token_indices: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """One token a request by inverse CDF, and its log-prob in the distribution really sampled from; both [R].

    ``lanes`` names the row of logits that each request draws from; requests with the same history share one.
    Temperature 0 takes the largest logit, and reports its log-prob at temperature 1. Inverse CDF needs one
    uniform number a token; its result can change with the last bits of the logits only where that number
    falls within those bits of a boundary.
    """
    device = logits_LV.device
    asked = [(lane, r.temperature or 1.0) for lane, r in zip(lanes, requests, strict=True)]
    distinct = {pair: i for i, pair in enumerate(dict.fromkeys(asked))}
    source_R = torch.tensor([distinct[pair] for pair in asked], device=device)
    lane_D = torch.tensor([lane for lane, _ in distinct], device=device)
    temperature_D1 = torch.tensor([[temperature] for _, temperature in distinct], device=device)
    logprobs_DV = torch.log_softmax(logits_LV[lane_D].float() / temperature_D1, dim=-1)
    uniforms = [uniform(r.seed, r.sample_id, t) for r, t in zip(requests, token_indices, strict=True)]
    drawn_R = _inverse_cdf(logprobs_DV, source_R, torch.tensor(uniforms, dtype=torch.float64, device=device))
    greedy_R = torch.tensor([r.temperature == 0 for r in requests], device=device)
    tokens_R = torch.where(greedy_R, logprobs_DV.argmax(dim=-1)[source_R], drawn_R)
    return tokens_R, logprobs_DV[source_R, tokens_R]


def _inverse_cdf(logprobs_DV: Tensor, source_R: Tensor, uniform_R: Tensor) -> Tensor:
    """For each request the first token whose CDF exceeds its number, so one of probability 0 is never taken."""
    cdf_DV = logprobs_DV.exp().cumsum(dim=-1, dtype=torch.float64)
    points_DR = uniform_R * cdf_DV[:, -1:]
    found_DR = torch.searchsorted(cdf_DV, points_DR, right=True).clamp(max=cdf_DV.shape[-1] - 1)
    return found_DR[source_R, torch.arange(len(source_R), device=source_R.device)]
