"""Token log-probs and entropy through the vocabulary head, in chunks of positions.

No tensor of all positions times the vocabulary ever exists: each chunk's logits are recomputed in the
backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def token_logprobs(
    hidden_NH: Tensor,
    head_VH: Tensor,
    targets_N: Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    bias_V: Tensor | None = None,
    chunk: int = 256,
) -> tuple[Tensor, Tensor]:
    """(log-probs, entropies) of shape [N] in nats, at least float32, of softmax(logits / temperature).

    logits = hidden head^T (+ bias), through softcap * tanh(logits / softcap) where the model has one.
    ``chunk`` is in positions and bounds memory alone. The entropy carries no gradient.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive to score tokens, got {temperature}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least one position, got {chunk}")
    logprobs, entropies = [], []
    for start in range(0, max(hidden_NH.shape[0], 1), chunk):  # no positions: one empty chunk keeps dtype and graph
        piece = slice(start, start + chunk)
        arguments = (hidden_NH[piece], head_VH, targets_N[piece], temperature, softcap, bias_V)
        if torch.is_grad_enabled():
            logprob, entropy = checkpoint(_chunk_logprobs, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            logprob, entropy = _chunk_logprobs(*arguments)
        logprobs.append(logprob)
        entropies.append(entropy)
    return torch.cat(logprobs), torch.cat(entropies)


def scaled_logits(
    hidden: Tensor, head_VH: Tensor, temperature: float, softcap: float | None, bias_V: Tensor | None
) -> Tensor:
    """logits / temperature of shape [..., V], at least float32: the distribution that is sampled from."""
    logits = torch.nn.functional.linear(hidden, head_VH, bias_V)
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits / temperature if temperature != 1.0 else logits


def _chunk_logprobs(
    hidden_NH: Tensor,
    head_VH: Tensor,
    targets_N: Tensor,
    temperature: float,
    softcap: float | None,
    bias_V: Tensor | None,
) -> tuple[Tensor, Tensor]:
    logits_NV = scaled_logits(hidden_NH, head_VH, temperature, softcap, bias_V)
    normaliser_N = torch.logsumexp(logits_NV, dim=-1)
    logprob_N = logits_NV.gather(-1, targets_N.unsqueeze(-1)).squeeze(-1) - normaliser_N
    with torch.no_grad():
        expected_N = (torch.softmax(logits_NV, dim=-1) * logits_NV).nan_to_num(nan=0.0).sum(dim=-1)
        entropy_N = normaliser_N - expected_N
    return logprob_N, entropy_N
