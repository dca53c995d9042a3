"""Sampling with counter-based randomness: the same text whatever the batch, the worker or the resume."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from assay.types import Request


def uniform(seed: int, sample_id: int, token_index: int) -> float:
    """A number in [0, 1) that depends on the three counters alone (Philox 4x64)."""
    bits = np.random.Philox(key=[seed, sample_id], counter=[token_index, 0, 0, 0])
    return float(np.random.Generator(bits).random())


def sample(logits_RV: Tensor, requests: Sequence[Request], token_indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """One token a row by inverse CDF, and its log-prob in the distribution really sampled from; both [R].

    Temperature 0 takes the largest logit, and reports its log-prob at temperature 1. Inverse CDF needs one
    uniform number a token; its result can change with the last bits of the logits only where that number
    falls within those bits of a boundary.
    """
    temperature_R = torch.tensor([r.temperature or 1.0 for r in requests], device=logits_RV.device)
    logprobs_RV = torch.log_softmax(logits_RV.float() / temperature_R[:, None], dim=-1)
    uniforms = [uniform(r.seed, r.sample_id, t) for r, t in zip(requests, token_indices, strict=True)]
    cdf_RV = logprobs_RV.exp().double().cumsum(dim=-1)
    points_R1 = torch.tensor(uniforms, dtype=torch.float64, device=logits_RV.device)[:, None] * cdf_RV[:, -1:]
    # right=True: the first token whose CDF exceeds the point, so one of probability 0 is never taken.
    drawn_R = torch.searchsorted(cdf_RV, points_R1, right=True)[:, 0].clamp(max=logits_RV.shape[-1] - 1)
    greedy_R = torch.tensor([r.temperature == 0 for r in requests], device=logits_RV.device)
    tokens_R = torch.where(greedy_R, logits_RV.argmax(dim=-1), drawn_R)
    return tokens_R, logprobs_RV.gather(-1, tokens_R[:, None])[:, 0]
