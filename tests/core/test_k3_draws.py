"""k3 over ten million random log-ratios, near the reference and far from it, and its pull at 30 nats."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from assay.core.kl import k3

DRAWS = 10**7
CHUNK = 999_983
"""A prime, so that vectorised kernels have a remainder to handle as well."""


def draws(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """(logprobs, ref_logprobs): a normal number times 10^u, u between -6 and 2, apart; half of them from logp 0 on.

    From logp 0 the difference is as fine as the draw; from elsewhere it is rounded as a trainer's is.
    """
    generator = torch.Generator().manual_seed(0)
    for start in range(0, DRAWS, CHUNK):
        n = min(CHUNK, DRAWS - start)
        x = torch.randn(n, generator=generator) * 10 ** (8 * torch.rand(n, generator=generator) - 6)
        logprobs = -10 * torch.rand(n, generator=generator)
        logprobs[::2] = 0.0
        yield logprobs.to(dtype), (logprobs + x).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ten_million_draws_are_finite_never_negative_and_pull_towards_the_reference(dtype: torch.dtype) -> None:
    drawn = below_zero = near = far = 0
    for logprobs, ref in draws(dtype):
        value = k3(logprobs.requires_grad_(), ref)
        (grad,) = torch.autograd.grad(value.sum(), logprobs)
        x = ref.float() - logprobs.detach().float()
        assert value.dtype == torch.float32
        assert torch.isfinite(value).all()
        assert value.min().item() >= 0
        assert torch.isfinite(grad).all()
        assert torch.equal(grad.float().sign(), -x.sign())  # towards the reference, however near
        below_zero += int((torch.exp(x) - x - 1 < 0).sum())
        near += int((x.abs() < 1e-4).sum())
        far += int((x.abs() > 10).sum())
        drawn += len(value)
    print(f"\n{dtype}: {drawn} draws, k3 never below 0; exp(x) - x - 1 is at {below_zero / drawn:.2%}")
    assert drawn == DRAWS
    assert near > DRAWS / 10
    assert far > DRAWS / 20
    assert below_zero > 10_000  # the textbook form fails on the same draws


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("x", [30.0, -30.0])
def test_thirty_nats_off_the_gradient_is_finite_and_pulls_back(x: float, dtype: torch.dtype) -> None:
    logprobs = torch.full((1,), -x if x > 0 else 0.0, dtype=dtype, requires_grad=True)
    ref = torch.full((1,), 0.0 if x > 0 else x, dtype=dtype)
    (grad,) = torch.autograd.grad(k3(logprobs, ref).sum(), logprobs)
    assert grad.dtype == dtype
    expected = -math.expm1(10) if x > 0 else -math.expm1(-30)
    assert grad.item() == pytest.approx(expected, rel=4e-3 if dtype == torch.bfloat16 else 1e-6)
