"""Per-token estimators of KL(pi_theta || pi_ref) (Schulman, "Approximating KL Divergence", 2020).

With x = logp_ref - logp: k1 = -x, k2 = x^2 / 2, k3 = exp(x) - x - 1. Deviations: k3 is computed as
expm1(x) - x, which is never negative in float32; inputs of lower precision are upcast first; beyond x = 10
k3 goes on linearly with slope e^10 - 1, so value and gradient stay finite and keep pulling back; the backward
is -expm1(x), written out, since autograd of the difference loses small x.

E[k3] is the KL in value. Its plain gradient on on-policy samples is that of KL(pi_ref || pi_theta); multiply
by the importance ratio, kept in the graph, for the conditional KL(pi_theta || pi_ref) of each token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LINEAR_BEYOND = 10.0


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """logp - logp_ref: unbiased, can be negative. Same shape as the inputs, at least float32."""
    return _upcast(logprobs) - _upcast(ref_logprobs)


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """(logp_ref - logp)^2 / 2: biased, low variance, non-negative. Same shape as the inputs."""
    return (_upcast(ref_logprobs) - _upcast(logprobs)).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """expm1(x) - x with x = logp_ref - logp, linear beyond x = 10; never negative."""
    value: Tensor = _K3.apply(_upcast(ref_logprobs) - _upcast(logprobs))  # type: ignore[no-untyped-call]
    return value


def k3_is_linear(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Where k3 is in its linear part (x > 10): worth counting, since it should not happen."""
    return _upcast(ref_logprobs) - _upcast(logprobs) > LINEAR_BEYOND


class _K3(torch.autograd.Function):
    """k3 as a function of x, with the derivative expm1(min(x, 10)) written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        inside = x.clamp(max=LINEAR_BEYOND)
        beyond = (x - LINEAR_BEYOND).clamp(min=0.0)
        return torch.expm1(inside) - inside + math.expm1(LINEAR_BEYOND) * beyond

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * torch.expm1(x.clamp(max=LINEAR_BEYOND))


def _upcast(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


KLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
