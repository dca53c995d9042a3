"""Token log-probs and entropy through the vocabulary head, in chunks of positions.

No tensor of all positions times the vocabulary ever exists: the backward pass computes each chunk's logits
again, and from them the gradient, p - onehot(target), directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


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
    ``chunk`` is in positions and bounds memory alone. Both carry a gradient.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive to score tokens, got {temperature}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least one position, got {chunk}")
    result: tuple[Tensor, Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_NH, head_VH, bias_V, targets_N, temperature, softcap, chunk
    )
    return result


def scaled_logits(
    hidden: Tensor, head_VH: Tensor, temperature: float, softcap: float | None, bias_V: Tensor | None
) -> Tensor:
    """logits / temperature of shape [..., V], at least float32: the distribution that is sampled from."""
    logits = torch.nn.functional.linear(hidden, head_VH, bias_V)
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits / temperature if temperature != 1.0 else logits


class _TokenLogprobs(torch.autograd.Function):
    """Keeps hidden states and one normaliser a position for the backward pass, and no logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        head_VH: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature: float,
        softcap: float | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs, normalisers, entropies = [], [], []
        for piece in _pieces(len(targets_N), chunk):
            logits_NV = scaled_logits(hidden_NH[piece], head_VH, temperature, softcap, bias_V)
            normaliser_N = torch.logsumexp(logits_NV, dim=-1)
            logprobs.append(logits_NV.gather(-1, targets_N[piece, None])[:, 0] - normaliser_N)
            entropies.append(torch.special.entr(logits_NV.sub_(normaliser_N[:, None]).exp_()).sum(dim=-1))
            normalisers.append(normaliser_N)
        entropies_N = torch.cat(entropies)
        ctx.save_for_backward(hidden_NH, head_VH, bias_V, targets_N, torch.cat(normalisers), entropies_N)
        ctx.set_materialize_grads(False)
        ctx.settings = (temperature, softcap, chunk)
        ctx.autocast = _autocast_of(hidden_NH)
        return torch.cat(logprobs), entropies_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, head_VH, bias_V, targets_N, normaliser_N, entropy_N = ctx.saved_tensors
        to_logprobs_N, to_entropies_N = grads
        temperature, softcap, chunk = ctx.settings
        autocast, dtype = ctx.autocast
        grad_hidden = torch.zeros_like(hidden_NH) if ctx.needs_input_grad[0] else None
        grad_head = torch.zeros_like(head_VH) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias_V) if ctx.needs_input_grad[2] and bias_V is not None else None
        weight_VH = head_VH.to(dtype)
        for piece in _pieces(len(targets_N), chunk):
            with torch.autocast(hidden_NH.device.type, dtype=dtype, enabled=autocast):
                logits_NV = scaled_logits(hidden_NH[piece], head_VH, temperature, softcap, bias_V)
            slope = _slope(logits_NV, temperature, softcap)
            logprobs_NV = logits_NV.sub_(normaliser_N[piece, None])
            grad_NV = _entropy_gradient(logprobs_NV, entropy_N[piece, None], to_entropies_N, piece)
            if to_logprobs_N is not None:
                grad_N1 = to_logprobs_N[piece, None]
                towards_NV = logprobs_NV.exp_().mul_(-grad_N1)
                towards_NV.scatter_add_(-1, targets_N[piece, None], grad_N1)
                grad_NV = towards_NV if grad_NV is None else grad_NV + towards_NV
            if grad_NV is None:
                continue
            grad_NV = (grad_NV * slope).to(dtype) if slope is not None else grad_NV.to(dtype)
            if grad_hidden is not None:
                grad_hidden[piece] = grad_NV @ weight_VH
            if grad_head is not None:
                _add_product(grad_head, grad_NV.t(), hidden_NH[piece].to(dtype))
            if grad_bias is not None:
                grad_bias += grad_NV.sum(dim=0)
        return grad_hidden, grad_head, grad_bias, None, None, None, None


def _entropy_gradient(logprobs_NV: Tensor, entropy_N1: Tensor, grad_N: Tensor | None, piece: slice) -> Tensor | None:
    """dH / d logits = -p (log p + H), where the entropy is part of a loss."""
    if grad_N is None:
        return None
    # p log p is 0 for p = 0, also where log p is -inf.
    probs_NV = logprobs_NV.exp()
    slope_NV: Tensor = torch.special.entr(probs_NV) - probs_NV * entropy_N1
    return slope_NV * grad_N[piece, None]


def _pieces(n: int, chunk: int) -> Iterator[slice]:
    for start in range(0, max(n, 1), chunk):  # no positions: one empty chunk keeps dtype and graph
        yield slice(start, start + chunk)


def _slope(logits: Tensor, temperature: float, softcap: float | None) -> Tensor | float | None:
    """d logits / d (hidden head^T), where it is not 1."""
    if softcap is None:
        return 1 / temperature if temperature != 1.0 else None
    return (1 - (logits * (temperature / softcap)).square()) / temperature


def _autocast_of(hidden: Tensor) -> tuple[bool, torch.dtype]:
    """Whether products are made in a lower precision, and in which: the backward pass runs outside of it."""
    kind = hidden.device.type
    enabled = torch.is_autocast_enabled(kind)
    return enabled, torch.get_autocast_dtype(kind) if enabled else hidden.dtype


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, without a temporary where the precisions are the same."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
