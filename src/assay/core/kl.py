"""Per-token estimators of KL(pi_theta || pi_ref) (Schulman, "Approximating KL Divergence", 2020).

With x = logp_ref - logp: k1 = -x, k2 = x^2 / 2, k3 = exp(x) - x - 1. Deviations: k3 is computed as
expm1(x) - x, which is never negative in float32; inputs of lower precision are upcast first; beyond x = 10
k3 goes on linearly with slope e^10 - 1, so value and gradient stay finite and keep pulling back; the backward
is -expm1(x), written out, since autograd of the difference loses small x.

E[k1] and E[k3] are the KL in value (k3 short of it by what its linear part leaves out), E[k2] is not. Their plain
gradients on on-policy samples are other things: of k1 nothing (0 in expectation), of k2 that of
KL(pi_theta || pi_ref), of k3 that of KL(pi_ref || pi_theta). ``kl_term`` offers two repairs: the importance ratio
kept in the graph (then k1 and k3, but not k2, have the gradient of each token's KL(pi_theta || pi_ref), on samples
of older weights too), and straight-through (the value of one, the gradient of k2; on-policy alone). docs/kl.md has
the table, tests/core/test_kl_expectation.py sums each of its lines exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

LINEAR_BEYOND = 10.0

KlGradient = Literal["plain", "importance", "straight_through"]
"""plain: as the estimator is; importance: times the ratio in the graph; straight_through: the gradient of k2."""


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


def k3_clamped(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """k3 as verl and OpenRLHF bound it: x to [-20, 20], k3 to [-10, 10]. Beyond, nothing pulls back."""
    x = (_upcast(ref_logprobs) - _upcast(logprobs)).clamp(-20, 20)
    return (torch.expm1(x) - x).clamp(-10, 10)


def k3_unbounded(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """k3 as TRL has it: no bound, so one token that is 30 nats off has a gradient of 1e13."""
    x = _upcast(ref_logprobs) - _upcast(logprobs)
    return torch.expm1(x) - x


def kl_term(
    kind: str,
    gradient: KlGradient,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    ratio: Tensor,
) -> Tensor:
    """The KL term of a loss, per token: an estimator of KLS with the gradient asked for.

    ``ratio`` = pi_theta / pi_old with its graph; only ``importance`` reads it.
    """
    value = KLS[kind](logprobs, ref_logprobs)
    if gradient == "importance":
        return ratio * value
    if gradient == "straight_through":
        carrier = k2(logprobs, ref_logprobs)
        return carrier - carrier.detach() + value.detach()
    return value


def adapted_beta(beta: float, kl: float, *, target: float, horizon: float, samples: int) -> float:
    """The next KL coefficient (Ziegler et al. 2019, arXiv 1909.08593, eq. 4): at most 20 % a step.

    Proportional: beta (1 + clip(kl / target - 1, -0.2, 0.2) samples / horizon); ``kl`` in the unit of ``target``.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    # Bounded once more: many samples over a short horizon would turn beta's sign.
    return beta * min(max(1 + error * samples / horizon, 0.8), 1.2)


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


KLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "k3_clamped": k3_clamped,
    "k3_unbounded": k3_unbounded,
}
"""Per-token estimators: (logprobs, ref_logprobs) to a tensor of the same shape."""
